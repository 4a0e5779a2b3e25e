//! The table of communicators: a handle is a place in it and a generation, so that any value that a
//! caller passes is checked without being dereferenced.
#![forbid(unsafe_code)]

use super::Comm;
use super::options::Caller;
use crate::error::{Error, Result};
use crate::ops::{CLOSED, Target, lock};
use crate::sys::fork;
use crate::sys::per_process::PerProcess;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What a C communicator handle holds. 0 is NULL; live ones are odd, as no address of an object is.
pub(crate) type Handle = usize;

/// Places in the table; the first is NULL's.
const PLACES: usize = 1 << 14;
/// The place's number stands in a handle where it is the place's offset in the table.
const PLACE_SHIFT: u32 = size_of::<Place>().trailing_zeros();
const GENERATION_SHIFT: u32 = PLACE_SHIFT + PLACES.trailing_zeros();
const _: () = assert!(size_of::<Place>().is_power_of_two() && size_of::<Place>() >= 2);

/// One place. The memory is reserved and never freed; pages that were never used cost nothing.
#[repr(align(128))]
pub(crate) struct Place {
    /// The live handle, 0 if there is none.
    handle: AtomicUsize,
    /// The fork generation of the process that the handle belongs to. A child must not touch a lock
    /// of a place of its parent: a thread that does not exist here may have held it at the fork.
    fork_generation: AtomicU32,
    pub target: Target,
    comm: Mutex<Option<Arc<Comm>>>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        handle: AtomicUsize::new(0),
        fork_generation: AtomicU32::new(0),
        target: Target::new(),
        comm: Mutex::new(None),
    }
}; PLACES];

/// Places below this were used at least once, by this process or before a fork; a child starts with
/// fresh ones. The first place is never used: it is NULL's.
static USED: AtomicUsize = AtomicUsize::new(1);

/// The most communicators that one process can have at once.
pub(crate) const CAPACITY: usize = PLACES - 1;

#[derive(Default)]
struct Free {
    free: Vec<usize>,
    generation: usize,
}

fn free_places() -> &'static Mutex<Free> {
    static FREE: PerProcess<Mutex<Free>> = PerProcess::new();
    FREE.get_or_init(Mutex::default)
}

/// The place that a handle points into; it may not be the handle's any more.
#[inline(always)]
pub(crate) fn place(handle: Handle) -> &'static Place {
    &TABLE[(handle >> PLACE_SHIFT) % PLACES]
}

impl Place {
    /// Whether the handle is the live one of this place, or NULL, whose place has no table.
    #[inline(always)]
    pub(crate) fn is_live_or_null(&self, handle: Handle) -> bool {
        self.handle.load(Ordering::Acquire) == handle
    }

    /// Whether the handle is the live one of this place.
    #[inline(always)]
    pub(crate) fn is_live(&self, handle: Handle) -> bool {
        // An unused place holds 0, which is even.
        self.is_live_or_null(handle) && handle & 1 == 1
    }

    /// Whether the handle is the live one of this place, and of this process.
    pub(crate) fn is_own(&self, handle: Handle) -> bool {
        self.is_live(handle) && self.fork_generation.load(Ordering::Relaxed) == fork::generation()
    }
}

/// Takes a place and makes its handle live, with the closed table in force.
pub(crate) fn insert(comm: Arc<Comm>) -> Result<Handle> {
    let index;
    let generation;
    {
        let mut free = lock(free_places());
        if free.generation == 0 {
            // Another copy of this library in the process must not take our handles for its own.
            let seed: [u8; 8] = crate::sys::process::random()
                .map_err(|e| Error::system("the kernel gave no random bytes", e))?;
            free.generation = usize::from_le_bytes(seed) >> GENERATION_SHIFT;
        }
        index = match free.free.pop() {
            Some(index) => index,
            None if USED.load(Ordering::Relaxed) < PLACES => USED.fetch_add(1, Ordering::Relaxed),
            None => {
                return Err(Error::new(
                    crate::Code::SystemError,
                    format!(
                        "{CAPACITY} communicators exist already, and no more can in one process"
                    ),
                ));
            }
        };
        free.generation = free.generation.wrapping_add(1);
        generation = free.generation;
    }
    let handle = generation << GENERATION_SHIFT | index << PLACE_SHIFT | 1;
    let place = &TABLE[index];
    place.target.reset(comm.label(), comm.rank(), comm.nranks());
    place.target.set_ops(&CLOSED);
    *lock(&place.comm) = Some(comm);
    place
        .fork_generation
        .store(fork::generation(), Ordering::Relaxed);
    place.handle.store(handle, Ordering::Release);
    Ok(handle)
}

/// Makes a handle stale and gives its communicator to the caller, who alone may take it down.
/// `None`: it was stale already. The place is reused only after [`release`].
pub(crate) fn remove(handle: Handle) -> Option<Arc<Comm>> {
    let place = place(handle);
    let taken = place
        .handle
        .compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Acquire);
    if handle == 0 || taken.is_err() {
        return None;
    }
    place.target.set_ops(&CLOSED);
    let comm = lock(&place.comm).take();
    if comm.as_ref().is_some_and(|c| is_plugins(c)) {
        let operations = place.target.counts().all();
        ended().fetch_add(operations, Ordering::Relaxed);
    }
    comm
}

fn is_plugins(comm: &Comm) -> bool {
    comm.options.caller == Caller::FlagcxPlugin
}

/// Operations of communicators that FlagCX had made and that have ended since.
fn ended() -> &'static AtomicU64 {
    static ENDED: PerProcess<AtomicU64> = PerProcess::new();
    ENDED.get_or_init(AtomicU64::default)
}

/// Operations so far of this process' communicators that FlagCX has made through its plugin.
pub fn plugin_operations() -> u64 {
    let used = USED.load(Ordering::Relaxed).min(PLACES);
    let live = TABLE[1..used].iter().filter(|place| {
        // Not the lock of a parent's place.
        place.is_own(place.handle.load(Ordering::Acquire))
            && lock(&place.comm).as_deref().is_some_and(is_plugins)
    });
    let live: u64 = live.map(|place| place.target.counts().all()).sum();
    ended().load(Ordering::Relaxed) + live
}

/// Gives a removed handle's place back.
pub(crate) fn release(handle: Handle) {
    lock(free_places())
        .free
        .push((handle >> PLACE_SHIFT) % PLACES);
}

/// Whether the handle is of a live communicator that this process made.
pub(crate) fn check(handle: Handle) -> Result<()> {
    let found = place(handle);
    match found.is_live(handle) && found.is_own(handle) {
        true => Ok(()),
        false => get(handle).map(drop),
    }
}

/// The communicator of a live handle.
pub(crate) fn get(handle: Handle) -> Result<Arc<Comm>> {
    let found = place(handle);
    if !found.is_live(handle) {
        return Err(stale(handle));
    }
    if !found.is_own(handle) {
        return Err(Error::invalid_usage(format!(
            "the communicator (rank {} of {}) was made before this process was forked: it belongs \
             to the parent. Make communicators after the fork",
            found.target.rank(),
            found.target.nranks()
        )));
    }
    let comm = lock(&found.comm).clone();
    comm.ok_or_else(|| stale(handle))
}

/// The error for a handle that is not live.
#[cold]
pub(crate) fn stale(handle: Handle) -> Error {
    Error::invalid_argument(match handle {
        0 => String::from("the communicator is NULL"),
        _ => format!(
            "{handle:#x} is no live communicator of this library: it was destroyed or aborted, \
             belongs to another copy of the library, or never was one"
        ),
    })
}
