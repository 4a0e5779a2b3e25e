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
    watch: Option<Watch>,
}

/// Something else that ends a wait, as an abort does: `true` when it has happened.
#[derive(Clone)]
pub(crate) struct Watch(Arc<dyn Fn() -> bool + Send + Sync>);

impl Watch {
    pub(crate) fn new(ended: impl Fn() -> bool + Send + Sync + 'static) -> Watch {
        Watch(Arc::new(ended))
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch(..)")
    }
}

impl Patience {
    /// Waits at most `limit` from now (`None`: for ever).
    pub(crate) fn starting_now(limit: Option<Duration>, abort: &AbortFlag) -> Patience {
        Patience {
            // Later than the clock can say is never.
            deadline: limit.and_then(|l| Instant::now().checked_add(l)),
            abort: abort.clone(),
            watch: None,
        }
    }

    /// The same limits, and one more thing that ends the wait.
    pub(crate) fn also_ended_by(mut self, watch: Watch) -> Patience {
        self.watch = Some(watch);
        self
    }

    /// The same limits, but at least `grace` more than is left now.
    pub(crate) fn with_grace(&self, grace: Duration) -> Patience {
        Patience {
            deadline: self.deadline.and_then(|d| d.checked_add(grace)),
            ..self.clone()
        }
    }

    /// The same limits, but at most `limit` from now.
    pub(crate) fn within(&self, limit: Duration) -> Patience {
        let end = Instant::now().checked_add(limit);
        Patience {
            deadline: self.deadline.into_iter().chain(end).min(),
            ..self.clone()
        }
    }

    /// How long the next step of the wait may last.
    pub(crate) fn slice(&self) -> Result<Duration, Impatience> {
        if self.abort.is_set() || self.watch.as_ref().is_some_and(|watch| watch.0()) {
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
