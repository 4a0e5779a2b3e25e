//! A queue between two threads.
//!
//! The standard library's channels keep a thread local with a destructor in every thread that has
//! waited on one. The caller's threads must not carry any of ours.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Queue<T> {
    items: VecDeque<T>,
    sender_gone: bool,
    receiver_gone: bool,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that gives; may be shared.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end that takes.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nothing {
    /// Not yet.
    Late,
    /// Never: the sender is gone.
    Gone,
}

/// A queue.
pub(crate) fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue {
            items: VecDeque::new(),
            sender_gone: false,
            receiver_gone: false,
        }),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Gives; the value comes back if nobody will take it.
    pub(crate) fn send(&self, value: T) -> Result<(), T> {
        let mut queue = self.0.lock();
        if queue.receiver_gone {
            return Err(value);
        }
        queue.items.push_back(value);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().sender_gone = true;
        self.0.changed.notify_one();
    }
}

impl<T> Receiver<T> {
    /// Takes what is there.
    pub(crate) fn try_take(&self) -> Result<T, Nothing> {
        self.take_within(Some(Duration::ZERO))
    }

    /// Takes the next; waits for it at most so long (`None`: for ever).
    pub(crate) fn take_within(&self, limit: Option<Duration>) -> Result<T, Nothing> {
        let started = Instant::now();
        let mut queue = self.0.lock();
        loop {
            if let Some(item) = queue.items.pop_front() {
                return Ok(item);
            }
            if queue.sender_gone {
                return Err(Nothing::Gone);
            }
            queue = match limit.map(|limit| limit.saturating_sub(started.elapsed())) {
                Some(Duration::ZERO) => return Err(Nothing::Late),
                Some(left) => {
                    let waited = self.0.changed.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.0.changed.wait(queue);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.lock().receiver_gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_before_the_end() {
        let (sender, receiver) = queue();
        assert_eq!(receiver.try_take(), Err(Nothing::Late));
        let giving = std::thread::spawn(move || {
            for n in 0..100 {
                sender.send(n).unwrap();
            }
        });
        for n in 0..100 {
            assert_eq!(receiver.take_within(None), Ok(n));
        }
        assert_eq!(receiver.take_within(None), Err(Nothing::Gone));
        giving.join().unwrap();
    }

    #[test]
    fn a_wait_ends_and_a_gone_receiver_gives_back() {
        let (sender, receiver) = queue();
        let short = Some(Duration::from_millis(5));
        assert_eq!(receiver.take_within(short), Err(Nothing::Late));
        drop(receiver);
        assert_eq!(sender.send(7), Err(7));
    }
}
