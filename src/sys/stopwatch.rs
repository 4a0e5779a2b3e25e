//! What a piece of work takes: time, or where ranks share cores the time that this thread really ran.

/// A stopwatch that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    clock: libc::clockid_t,
    since: u64,
}

impl Stopwatch {
    /// `by_thread`: others' time on the core does not count.
    pub(crate) fn start(by_thread: bool) -> Stopwatch {
        let clock = match by_thread {
            true => libc::CLOCK_THREAD_CPUTIME_ID,
            false => libc::CLOCK_MONOTONIC,
        };
        Stopwatch {
            clock,
            since: now(clock),
        }
    }

    /// Since the start, on the thread that started it.
    pub(crate) fn nanoseconds(&self) -> u64 {
        now(self.clock).saturating_sub(self.since)
    }
}

fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to the struct, which outlives the call; both clocks are there on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_thread_that_sleeps_takes_time_but_does_not_run() {
        let (time, thread) = (Stopwatch::start(false), Stopwatch::start(true));
        std::thread::sleep(Duration::from_millis(50));
        assert!(time.nanoseconds() >= 50_000_000);
        assert!(thread.nanoseconds() < 40_000_000);
        while thread.nanoseconds() < 1_000_000 {}
    }
}
