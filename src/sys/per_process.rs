//! A once-cell that a forked child finds empty.
//!
//! A child must not believe what its parent found out about drivers, and must not wait for a lock
//! that a thread of the parent held at the fork. So there is no lock that spans generations: each
//! process has a cell of its own, reached through one pointer that is swapped atomically.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// One value per process, computed on first use, kept until the process ends.
pub struct PerProcess<T: 'static> {
    slot: AtomicPtr<Slot<T>>,
}

struct Slot<T> {
    generation: u32,
    value: OnceLock<T>,
}

impl<T: Send + Sync + 'static> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// An empty cell.
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            slot: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The value of this process, computed now if this is the first call since it started.
    pub fn get_or_init(&'static self, init: impl FnOnce() -> T) -> &'static T {
        self.own_slot().value.get_or_init(init)
    }

    /// The value of this process if it has been computed.
    pub(crate) fn get(&'static self) -> Option<&'static T> {
        self.current().and_then(|slot| slot.value.get())
    }

    fn current(&'static self) -> Option<&'static Slot<T>> {
        let slot = self.slot.load(Ordering::Acquire);
        // SAFETY: the pointer is null or was made by `own_slot` from a box that is never freed once
        // it is published; the Acquire load pairs with the Release of the exchange that published it.
        let slot = unsafe { slot.as_ref() }?;
        (slot.generation == super::fork::generation()).then_some(slot)
    }

    fn own_slot(&'static self) -> &'static Slot<T> {
        loop {
            if let Some(slot) = self.current() {
                return slot;
            }
            let old = self.slot.load(Ordering::Acquire);
            let fresh = Box::into_raw(Box::new(Slot {
                generation: super::fork::generation(),
                value: OnceLock::new(),
            }));
            let published =
                self.slot
                    .compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire);
            if published.is_err() {
                // SAFETY: of the box just made; another thread was faster, so nobody has seen this one.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_value_stays() {
        static CELL: PerProcess<u32> = PerProcess::new();
        assert_eq!(CELL.get(), None);
        assert_eq!(*CELL.get_or_init(|| 7), 7);
        assert_eq!(*CELL.get_or_init(|| 8), 7);
        assert_eq!(CELL.get(), Some(&7));
    }

    #[test]
    fn a_forked_child_starts_empty() {
        static CELL: PerProcess<u32> = PerProcess::new();
        assert_eq!(*CELL.get_or_init(|| 7), 7);
        // SAFETY: the child only reads an atomic and calls _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let code = if CELL.get().is_none() { 0 } else { 1 };
            // SAFETY: _exit ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is a live local.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
