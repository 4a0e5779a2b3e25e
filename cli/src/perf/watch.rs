//! Ends the process when one step of the run takes too long.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Exit code of a run that took too long.
pub const TIMED_OUT: i32 = 124;

/// What a participant is doing, and since when.
#[derive(Clone)]
pub struct Watch(Arc<Mutex<State>>);

struct State {
    step: String,
    since: Instant,
    done: bool,
}

impl Watch {
    /// Watches a participant: the library's own limit is `limit`, so this one is a little more.
    pub fn start(who: String, limit: Duration) -> Watch {
        let watch = Watch(Arc::new(Mutex::new(State {
            step: "start".to_owned(),
            since: Instant::now(),
            done: false,
        })));
        let watched = watch.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(200));
                let state = watched.lock();
                if state.done {
                    return;
                }
                let spent = state.since.elapsed();
                if spent > limit + Duration::from_secs(5) {
                    eprintln!(
                        "flagos-comm: {who}: no progress for {:.0} s in: {}",
                        spent.as_secs_f64(),
                        state.step
                    );
                    crate::sys::exit_now(TIMED_OUT);
                }
            }
        });
        watch
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The next step begins.
    pub fn step(&self, step: &str) {
        let mut state = self.lock();
        state.since = Instant::now();
        state.step.clear();
        state.step.push_str(step);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The watching thread holds the other reference.
        if Arc::strong_count(&self.0) <= 2 {
            self.lock().done = true;
        }
    }
}
