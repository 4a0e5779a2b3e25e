//! Turns, for vendors whose communicators can't be initialised at once, or only in the same order
//! everywhere. All ranks of a communicator go in together, and in each process one communicator is in
//! at a time. Which one is first follows from the secrets of those that wait, so that processes with
//! the same ones come to the same order.
#![forbid(unsafe_code)]

use crate::bootstrap::unique_id::Secret;
use crate::control::channel::Channel;
use crate::control::patience::Patience;
use crate::error::Result;
use crate::ops::lock;
use crate::sys::per_process::PerProcess;
use std::sync::Mutex;
use std::time::Duration;

/// Between two attempts of all ranks.
const PAUSE: Duration = Duration::from_millis(1);

/// The communicators of this process that wait or are in; one entry for each rank.
#[derive(Default)]
struct Queue {
    here: Vec<Secret>,
    inside: Option<Secret>,
    ranks_inside: usize,
}

fn queue() -> &'static Mutex<Queue> {
    static QUEUE: PerProcess<Mutex<Queue>> = PerProcess::new();
    QUEUE.get_or_init(Mutex::default)
}

impl Queue {
    /// Goes in if nobody else is in and no communicator here comes before.
    fn enter(&mut self, secret: &Secret) -> bool {
        let free = self.inside.is_none_or(|inside| inside == *secret);
        if !free || self.here.iter().any(|other| other < secret) {
            return false;
        }
        self.inside = Some(*secret);
        self.ranks_inside += 1;
        true
    }

    fn leave(&mut self) {
        self.ranks_inside -= 1;
        if self.ranks_inside == 0 {
            self.inside = None;
        }
    }
}

/// A rank that waits for its turn or has it; dropping it passes the turn on.
pub(super) struct Turn {
    secret: Secret,
    inside: bool,
}

impl Turn {
    /// Waits until all ranks of the communicator are in.
    pub(super) fn wait(
        secret: &Secret,
        channel: &mut Channel,
        patience: &Patience,
    ) -> Result<Turn> {
        let mut turn = Turn::line_up(secret);
        loop {
            turn.inside = lock(queue()).enter(secret);
            let phase = "waiting for another initialisation of the same vendor";
            let votes = channel.allgather(phase, &[u8::from(turn.inside)], patience)?;
            if votes.all().all(|vote| vote == [1]) {
                return Ok(turn);
            }
            turn.step_out();
            std::thread::sleep(PAUSE);
        }
    }

    fn line_up(secret: &Secret) -> Turn {
        lock(queue()).here.push(*secret);
        Turn {
            secret: *secret,
            inside: false,
        }
    }

    fn step_out(&mut self) {
        if std::mem::take(&mut self.inside) {
            lock(queue()).leave();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.step_out();
        let mut queue = lock(queue());
        if let Some(at) = queue.here.iter().position(|s| *s == self.secret) {
            queue.here.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(first: u8) -> Secret {
        let mut secret = Secret::default();
        secret[0] = first;
        secret
    }

    #[test]
    fn the_first_in_order_goes_in_and_ranks_of_one_communicator_together() {
        let mut queue = Queue::default();
        let (a, b) = (secret(1), secret(2));
        queue.here = vec![b];
        assert!(queue.enter(&b));
        queue.here.push(a);
        assert!(!queue.enter(&a), "another is in");
        queue.leave();
        assert!(!queue.enter(&b), "a comes before it now");
        assert!(queue.enter(&a));
        queue.here.push(a);
        assert!(queue.enter(&a), "a second rank of the same communicator");
        queue.leave();
        assert!(queue.inside.is_some());
        queue.leave();
        assert!(queue.inside.is_none());
    }
}
