//! Copies of the table of device functions, which the skin gives out. All are looked up; none that isn't ours
//! is freed.

use crate::flagcx_abi::handles::lock;
use engine::internal::PerProcess;
use engine::{Error, Result};
use std::collections::HashSet;
use std::sync::Mutex;

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
