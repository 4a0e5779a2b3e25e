//! Handles that the skin itself gives out: wrappers of streams and events, copies of the table of device
//! functions. All are looked up; none that isn't ours is freed.

use crate::types::Wrapper;
use engine::internal::PerProcess;
use engine::{Error, Result};
use std::collections::{HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a freed wrapper holds: no vendor has such a stream.
pub(crate) const STALE: usize = usize::MAX;

/// A freed wrapper rests while so many others are freed, so that its next use is an error for long.
const REST: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wrappers of one kind. The memory is never given back: operations look into a wrapper without asking
/// here, so one that was freed must still be there to be looked into.
#[derive(Default)]
pub(crate) struct Wrappers {
    live: HashSet<usize>,
    resting: VecDeque<usize>,
}

impl Wrappers {
    /// A new wrapper.
    fn make(&mut self, base: *mut c_void) -> *mut Wrapper {
        let wrapper = match self.resting.len() > REST {
            true => self.resting.pop_front(),
            false => None,
        };
        let wrapper: *mut Wrapper = match wrapper {
            Some(address) => std::ptr::with_exposed_provenance_mut(address),
            None => Box::into_raw(Box::new(Wrapper { base })),
        };
        // SAFETY: memory of a box that is never freed; nobody else has a live handle of it.
        unsafe { (&raw mut (*wrapper).base).write(base) };
        self.live.insert(wrapper.expose_provenance());
        wrapper
    }

    /// Takes a wrapper back, if it is a live one of ours; what it held.
    fn unmake(&mut self, wrapper: *mut Wrapper) -> Option<*mut c_void> {
        if !self.live.remove(&wrapper.addr()) {
            return None;
        }
        self.resting.push_back(wrapper.addr());
        // SAFETY: it was in the table, so it is memory of a box that is never freed.
        unsafe {
            let base = (&raw const (*wrapper).base).read();
            (&raw mut (*wrapper).base).write(std::ptr::without_provenance_mut(STALE));
            Some(base)
        }
    }
}

/// The two tables of wrappers.
pub(crate) struct Kind {
    table: PerProcess<Mutex<Wrappers>>,
    what: &'static str,
}

pub(crate) static STREAMS: Kind = Kind {
    table: PerProcess::new(),
    what: "stream",
};

pub(crate) static EVENTS: Kind = Kind {
    table: PerProcess::new(),
    what: "event",
};

impl Kind {
    fn table(&'static self) -> MutexGuard<'static, Wrappers> {
        lock(self.table.get_or_init(Mutex::default))
    }

    /// A wrapper around the vendor's handle.
    pub(crate) fn wrap(&'static self, base: *mut c_void) -> *mut Wrapper {
        self.table().make(base)
    }

    /// Takes a wrapper of ours back; what it held. Anybody else's is left alone.
    pub(crate) fn take_back(&'static self, wrapper: *mut Wrapper) -> Result<*mut c_void> {
        let taken = self.table().unmake(wrapper);
        taken.ok_or_else(|| self.foreign(wrapper))
    }

    /// What a live wrapper of ours holds.
    pub(crate) fn look(&'static self, wrapper: *mut Wrapper) -> Result<*mut c_void> {
        let table = self.table();
        if !table.live.contains(&wrapper.addr()) {
            return Err(self.foreign(wrapper));
        }
        // SAFETY: it is in the table, so it is memory of a box that is never freed.
        Ok(unsafe { (&raw const (*wrapper).base).read() })
    }

    fn foreign(&self, wrapper: *mut Wrapper) -> Error {
        Error::invalid_argument(format!(
            "{wrapper:p} is no live {} of this library: it was freed, or somebody else made it; it is \
             left alone",
            self.what
        ))
    }
}

/// Addresses of what this library has allocated for a caller.
#[derive(Default)]
struct Allocated {
    live: HashSet<usize>,
}

static ALLOCATED: PerProcess<Mutex<Allocated>> = PerProcess::new();

/// Zeroed memory for a struct that a caller owns until it gives it back. It is `malloc`'s: older programs
/// free the group by themselves.
pub(crate) fn allocate<T>() -> Result<*mut T> {
    // SAFETY: calloc has no preconditions.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    if memory.is_null() {
        return Err(Error::new(
            engine::Code::SystemError,
            format!("{} bytes of memory can't be had", size_of::<T>()),
        ));
    }
    lock(ALLOCATED.get_or_init(Mutex::default))
        .live
        .insert(memory.addr());
    Ok(memory.cast())
}

/// Frees memory of [`allocate`]; an error for any other.
pub(crate) fn release<T>(memory: *mut T, what: &str) -> Result<()> {
    let ours = lock(ALLOCATED.get_or_init(Mutex::default))
        .live
        .remove(&memory.addr());
    if !ours {
        return Err(Error::invalid_argument(format!(
            "{memory:p} is no live {what} of this library; it is left alone"
        )));
    }
    // SAFETY: it was in the table, so it is calloc's and not freed yet.
    unsafe { libc::free(memory.cast()) };
    Ok(())
}

/// Whether memory is of [`allocate`] and not freed.
pub(crate) fn is_allocated<T>(memory: *mut T) -> bool {
    lock(ALLOCATED.get_or_init(Mutex::default))
        .live
        .contains(&memory.addr())
}
