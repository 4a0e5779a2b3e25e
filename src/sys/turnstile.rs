//! A lock that is entered in the order in which numbers were drawn.
//!
//! Operations of one communicator must run in the order of their issue, also when they are issued
//! to different streams: the number is drawn at the call, the turn is waited for where it runs.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// The lock and what it guards.
pub(crate) struct Turnstile<T> {
    next: AtomicU32,
    serving: AtomicU32,
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

/// A drawn number. It must be used: whoever drew a later one waits for it.
#[derive(Debug)]
#[must_use = "later numbers wait for this one"]
pub(crate) struct Turn(u32);

// SAFETY: `value` is only reached through a guard, and one guard exists at a time.
unsafe impl<T: Send> Sync for Turnstile<T> {}

impl<T> Turnstile<T> {
    pub(crate) const fn new(value: T) -> Turnstile<T> {
        Turnstile {
            next: AtomicU32::new(0),
            serving: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Draws the next number.
    pub(crate) fn draw(&self) -> Turn {
        Turn(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits for the turn.
    pub(crate) fn enter(&self, turn: Turn) -> Entered<'_, T> {
        let mut tries = 0u32;
        loop {
            let now = self.serving.load(Ordering::Acquire);
            if now == turn.0 {
                return Entered {
                    turnstile: self,
                    turn: turn.0,
                };
            }
            tries += 1;
            if tries < 64 {
                std::hint::spin_loop();
            } else if tries < 128 {
                std::thread::yield_now();
            } else {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                // SAFETY: the futex word lives as long as `self`; the timeout bounds a lost wake.
                unsafe {
                    let limit = libc::timespec {
                        tv_sec: 0,
                        tv_nsec: 2_000_000,
                    };
                    libc::syscall(
                        libc::SYS_futex,
                        self.serving.as_ptr(),
                        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                        now,
                        &raw const limit,
                    );
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether the number's turn has come.
    pub(crate) fn is_served(&self, turn: &Turn) -> bool {
        self.serving.load(Ordering::Acquire) == turn.0
    }

    /// Draws a number and waits for its turn.
    pub(crate) fn lock(&self) -> Entered<'_, T> {
        let turn = self.draw();
        self.enter(turn)
    }
}

/// The right to use the value, until it is dropped.
pub(crate) struct Entered<'a, T> {
    turnstile: &'a Turnstile<T>,
    turn: u32,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard, so nobody else reaches the value.
        unsafe { &*self.turnstile.value.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, borrowed exclusively.
        unsafe { &mut *self.turnstile.value.get() }
    }
}

impl<T> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        self.turnstile
            .serving
            .store(self.turn.wrapping_add(1), Ordering::Release);
        if self.turnstile.sleepers.load(Ordering::SeqCst) != 0 {
            // SAFETY: the futex word lives as long as the turnstile.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.turnstile.serving.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    i32::MAX,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_served_in_the_order_of_drawing() {
        let turnstile = Turnstile::new(Vec::new());
        let turns: Vec<Turn> = (0..8).map(|_| turnstile.draw()).collect();
        std::thread::scope(|scope| {
            for (n, turn) in turns.into_iter().enumerate().rev() {
                let turnstile = &turnstile;
                scope.spawn(move || turnstile.enter(turn).push(n));
            }
        });
        assert_eq!(*turnstile.lock(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn many_threads_lose_nothing() {
        let turnstile = Turnstile::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *turnstile.lock() += 1));
            }
        });
        assert_eq!(*turnstile.lock(), 80_000);
    }
}
