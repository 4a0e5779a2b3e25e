//! Handles that the skin itself gives out: copies of the table of device functions, registrations and windows. All
//! are looked up; none that isn't ours is freed.

use crate::flagcx_abi::handles::lock;
use engine::internal::{Handle, PerProcess, first_number};
use engine::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

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

/// A buffer that was registered. Registering the same again counts.
pub(crate) struct Registration {
    /// The communicator, 0 for none.
    pub comm: Handle,
    pub buffer: usize,
    pub size: usize,
    /// The engine's registration, if it was asked.
    pub engine: Option<*mut c_void>,
    pub uses: usize,
}

/// Registrations and windows by the handles that the caller has.
#[derive(Default)]
pub(crate) struct Registry {
    last: usize,
    pub registrations: HashMap<usize, Registration>,
    /// The communicator and the engine's window.
    pub windows: HashMap<usize, (Handle, *mut c_void)>,
}

// SAFETY: the pointers are the engine's handles, which any thread may pass.
unsafe impl Send for Registry {}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new();

pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    lock(REGISTRY.get_or_init(Mutex::default))
}

impl Registry {
    /// A number that no address of an object is and that another copy of this library does not have.
    pub(crate) fn next(&mut self) -> usize {
        if self.last == 0 {
            self.last = first_number();
        }
        self.last += 1;
        self.last << 4 | 9
    }

    /// Forgets what belonged to a communicator that is gone.
    pub(crate) fn forget(&mut self, comm: Handle) {
        self.registrations.retain(|_, r| r.comm != comm);
        self.windows.retain(|_, (of, _)| *of != comm);
    }
}
