//! How long a wait may last, and what ends it early.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Every wait looks at its abort flag at least this often.
const SLICE: Duration = Duration::from_millis(20);

/// Set once, by abort, from any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbortFlag(Arc<AtomicBool>);

impl AbortFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a wait is over although what it waited for did not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Impatience {
    Expired,
    Aborted,
}

/// The limits of one wait: one deadline for everything inside it, and the abort flag.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    deadline: Option<Instant>,
    abort: AbortFlag,
    /// Another communicator whose abort ends the wait too: the parent of the one that is made.
    parent: Option<AbortFlag>,
}

impl Patience {
    /// Waits at most `limit` from now (`None`: for ever).
    pub(crate) fn starting_now(limit: Option<Duration>, abort: &AbortFlag) -> Patience {
        Patience {
            deadline: limit.map(|l| Instant::now() + l),
            abort: abort.clone(),
            parent: None,
        }
    }

    /// The same limits, but the abort of a parent ends the wait as well.
    pub(crate) fn also_ended_by(mut self, parent: &AbortFlag) -> Patience {
        self.parent = Some(parent.clone());
        self
    }

    /// The same limits, but at least `grace` more than is left now.
    pub(crate) fn with_grace(&self, grace: Duration) -> Patience {
        Patience {
            deadline: self.deadline.map(|d| d + grace),
            ..self.clone()
        }
    }

    /// How long the next step of the wait may last.
    pub(crate) fn slice(&self) -> Result<Duration, Impatience> {
        if self.abort.is_set() || self.parent.as_ref().is_some_and(AbortFlag::is_set) {
            return Err(Impatience::Aborted);
        }
        match self.deadline {
            None => Ok(SLICE),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    Err(Impatience::Expired)
                } else {
                    Ok(left.min(SLICE))
                }
            }
        }
    }

    /// What is left until the deadline; `None` without one.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline
            .map(|d| d.saturating_duration_since(Instant::now()))
    }
}
