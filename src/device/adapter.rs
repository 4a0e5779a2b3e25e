//! Runtimes that don't have CUDA's shape.
//!
//! Such a runtime has a file that declares its functions as they are and fills the tables with
//! functions of ours that have CUDA's signatures and call the runtime's. Those find the runtime
//! through a static of the file: a process drives one vendor.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::functions::Tables;
use crate::load::symbols::{Declaration, Resolver};

/// A runtime that does not have CUDA's shape.
pub(crate) struct Odd {
    /// Finds its functions and adapts them.
    pub(super) resolve: fn(&mut Resolver<'_>) -> Tables,
    /// Its own functions.
    pub(super) declarations: fn() -> Vec<Declaration>,
}

impl std::fmt::Debug for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Odd")
    }
}

/// An adapter's result: its runtime answered that something is not done yet. No runtime has this
/// number, nor the ones below.
pub(super) const NOT_READY: c_int = c_int::MIN;
/// An adapter's result: the runtime's function isn't there. The tables keep this from happening.
pub(super) const ABSENT: c_int = c_int::MIN + 1;
/// An adapter's result: the runtime answered with a status that isn't known.
pub(super) const UNKNOWN_STATUS: c_int = c_int::MIN + 2;
/// An adapter's result: an argument doesn't fit the runtime's function.
pub(super) const OUT_OF_RANGE: c_int = c_int::MIN + 3;

/// Words for an adapter's own result.
pub(super) fn words(code: c_int) -> Option<&'static str> {
    match code {
        NOT_READY => Some("it is not done yet"),
        ABSENT => Some("the library has no function for it"),
        UNKNOWN_STATUS => Some("the library's answer isn't known to flagos-comm"),
        OUT_OF_RANGE => Some("an argument is out of range"),
        _ => None,
    }
}

/// The functions of the runtime in use. They can be set again: a library may be opened and not be
/// used, and a forked child chooses anew.
pub(super) struct Resolved<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Resolved<T> {
    pub(super) const fn new() -> Resolved<T> {
        Resolved(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Sets them. What was set before is leaked, as another thread may be using it: a few hundred
    /// bytes for each library that is opened.
    pub(super) fn set(&self, functions: T) {
        let functions: *mut T = Box::leak(Box::new(functions));
        self.0.store(functions, Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<&'static T> {
        // SAFETY: null or a leaked box, which is never freed; the Acquire load pairs with the
        // Release store that published it.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The function that `which` picks.
    pub(super) fn function<F>(&self, which: impl FnOnce(&T) -> Option<F>) -> Option<F> {
        self.get().and_then(which)
    }
}

/// An index or a count as a runtime with unsigned numbers gave it.
pub(super) fn signed(code: c_int, from: u32, to: &mut c_int) -> c_int {
    match (code, c_int::try_from(from)) {
        (0, Ok(value)) => {
            *to = value;
            0
        }
        (0, Err(_)) => OUT_OF_RANGE,
        (code, _) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_can_be_set_again() {
        static FUNCTIONS: Resolved<u32> = Resolved::new();
        assert_eq!(FUNCTIONS.get(), None);
        FUNCTIONS.set(1);
        let first = FUNCTIONS.get();
        FUNCTIONS.set(2);
        assert_eq!((first, FUNCTIONS.get()), (Some(&1), Some(&2)));
    }

    #[test]
    fn unsigned_numbers() {
        let mut to = -1;
        assert_eq!((signed(0, 3, &mut to), to), (0, 3));
        assert_eq!((signed(7, 5, &mut to), to), (7, 3));
        assert_eq!((signed(0, u32::MAX, &mut to), to), (OUT_OF_RANGE, 3));
    }
}
