//! Sleeping on a 32-bit word that may lie in memory shared between processes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps until [`wake_all`] is called on the word, the word is seen to differ from `expected`, the
/// timeout passes or a signal arrives. The caller looks at its condition again in any case, so the
/// reason is not told.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as _,
    };
    // SAFETY: the word is alive for the length of the call and aligned, the timeout is a valid
    // timespec on this frame, and FUTEX_WAIT reads both and writes neither.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

/// Wakes everybody who sleeps in [`wait`] on this word, in any process.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the word's address only as a key and touches no memory of ours.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            libc::c_int::MAX,
        );
    }
}

/// Lets another runnable thread have the processor.
pub(crate) fn yield_now() {
    // SAFETY: sched_yield takes nothing and touches no memory.
    unsafe {
        libc::sched_yield();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn a_differing_word_and_the_timeout_both_end_the_wait() {
        let word = AtomicU32::new(1);
        let start = Instant::now();
        wait(&word, 2, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        wait(&word, 1, Duration::from_millis(5));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_wake_ends_the_wait() {
        let word = AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, Duration::from_secs(60));
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            word.store(1, Ordering::Release);
            wake_all(&word);
        });
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
