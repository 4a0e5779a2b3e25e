//! The table of communicators: a handle is a place in it and a generation, so that any value that a
//! caller passes is checked without being dereferenced.

use super::Comm;
use crate::error::{Error, Result};
use crate::ops::{CLOSED, Target, lock};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What a C communicator handle holds. 0 is NULL; live ones are odd, as no address of an object is.
pub(crate) type Handle = usize;

/// The most communicators that one process can have at once.
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
    pub target: Target,
    comm: Mutex<Option<Arc<Comm>>>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        handle: AtomicUsize::new(0),
        target: Target::new(),
        comm: Mutex::new(None),
    }
}; PLACES];

struct Free {
    /// Places below this were used at least once.
    used: usize,
    free: Vec<usize>,
    generation: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    // The first place is never used: it is NULL's.
    used: 1,
    free: Vec::new(),
    generation: 0,
});

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
}

/// Takes a place and makes its handle live, with the closed table in force.
pub(crate) fn insert(comm: Arc<Comm>) -> Result<Handle> {
    let index;
    let generation;
    {
        let mut free = lock(&FREE);
        if free.generation == 0 {
            // Another copy of this library in the process must not take our handles for its own.
            let seed: [u8; 8] = crate::sys::process::random()
                .map_err(|e| Error::system("the kernel gave no random bytes", e))?;
            free.generation = usize::from_le_bytes(seed) >> GENERATION_SHIFT;
        }
        index = match free.free.pop() {
            Some(index) => index,
            None if free.used < PLACES => {
                free.used += 1;
                free.used - 1
            }
            None => {
                return Err(Error::new(
                    crate::Code::SystemError,
                    format!("{PLACES} communicators exist already, and no more can"),
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
    lock(&place.comm).take()
}

/// Gives a removed handle's place back.
pub(crate) fn release(handle: Handle) {
    lock(&FREE).free.push((handle >> PLACE_SHIFT) % PLACES);
}

/// The communicator of a live handle.
pub(crate) fn get(handle: Handle) -> Result<Arc<Comm>> {
    let found = place(handle);
    let comm = if found.is_live(handle) {
        lock(&found.comm).clone()
    } else {
        None
    };
    let comm = comm.filter(|_| handle != 0).ok_or_else(|| stale(handle))?;
    comm.check_fork()?;
    Ok(comm)
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
