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
        Self::of_this_process(self.slot.load(Ordering::Acquire))
    }

    fn of_this_process(slot: *mut Slot<T>) -> Option<&'static Slot<T>> {
        // SAFETY: the pointer is null or was made by `own_slot` from a box that is never freed once
        // it is published; the Acquire load of it pairs with the Release of the exchange that published it.
        let slot = unsafe { slot.as_ref() }?;
        (slot.generation == super::fork::generation()).then_some(slot)
    }

    fn own_slot(&'static self) -> &'static Slot<T> {
        loop {
            // The very pointer that is found to be no slot of this process is replaced: another thread may
            // have published one since.
            let old = self.slot.load(Ordering::Acquire);
            if let Some(slot) = Self::of_this_process(old) {
                return slot;
            }
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
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn first_value_stays() {
        static CELL: PerProcess<u32> = PerProcess::new();
        assert_eq!(CELL.get(), None);
        assert_eq!(*CELL.get_or_init(|| 7), 7);
        assert_eq!(*CELL.get_or_init(|| 8), 7);
        assert_eq!(CELL.get(), Some(&7));
    }

    /// Also if one finds it empty and the other has filled it when the first looks again.
    #[test]
    fn threads_that_come_together_have_one_value() {
        const ROUNDS: usize = 20_000;
        let cells: Vec<&'static PerProcess<u32>> =
            (0..ROUNDS).map(|_| &*Box::leak(Box::default())).collect();
        let come = AtomicUsize::new(0);
        let places = || -> Vec<usize> {
            let place = |(round, cell): (usize, &&'static PerProcess<u32>)| {
                come.fetch_add(1, Ordering::SeqCst);
                let mut looks = 0;
                while come.load(Ordering::SeqCst) < 2 * (round + 1) {
                    looks += 1;
                    match looks % 1000 {
                        0 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                }
                ptr::from_ref(cell.get_or_init(|| 7)).addr()
            };
            cells.iter().enumerate().map(place).collect()
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(places);
            (places(), other.join().unwrap())
        });
        assert!(one == other, "a value was replaced by another");
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
