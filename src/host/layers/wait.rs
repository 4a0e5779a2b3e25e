//! What waits ask in either layer, and whom they name.
//!
//! A rank often waits for one that itself waits: for the leader of its machine, which waits for another machine's. So
//! waits between machines show the ranks of their own for whom they wait, and whoever waits for a rank that waits names
//! those too. Deadlines pass on all ranks at about the same time: whoever waits for the one that does not come says
//! so at once, the others a little later, so that they hear of it.

use super::LayeredEngine;
use crate::error::{Code, Result};
use crate::host::engine::Engine;
use crate::host::op::WaitPolicy;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long the end of a wait between machines is put off for those who know more; twice as long if the wait is for
/// a rank that waits for another machine.
const GRACE: Duration = Duration::from_millis(150);

/// A deadline that has passed is an error only some time later.
fn put_off(since: &Cell<Option<Instant>>, by: Duration, checked: Result<()>) -> Result<()> {
    let Err(error) = checked else { return Ok(()) };
    if error.code() == Code::Timeout {
        let passed = since.get().unwrap_or_else(Instant::now);
        since.set(Some(passed));
        if passed.elapsed() < by {
            return Ok(());
        }
    }
    Err(error)
}

/// Waits for ranks of this machine, which the engine below knows by their places.
pub(super) struct NearWait<'w> {
    engine: &'w LayeredEngine,
    wait: &'w dyn WaitPolicy,
    passed: Cell<Option<Instant>>,
}

impl<'w> NearWait<'w> {
    pub(super) fn new(engine: &'w LayeredEngine, wait: &'w dyn WaitPolicy) -> NearWait<'w> {
        NearWait {
            engine,
            wait,
            passed: Cell::new(None),
        }
    }
}

impl WaitPolicy for NearWait<'_> {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        let LayeredEngine { near, .. } = self.engine;
        let here = self.engine.here();
        let awaited = |places: &[u32]| -> Vec<u32> {
            let of = |place: &u32| near.awaited_by(*place as usize);
            places.iter().flat_map(of).collect()
        };
        let named = || {
            let places = waiting_for();
            let mut ranks: Vec<u32> = places
                .iter()
                .map(|place| here[*place as usize] as u32)
                .chain(awaited(&places))
                .collect();
            ranks.sort_unstable();
            ranks.dedup();
            ranks
        };
        let checked = self.wait.check(&named);
        if checked.is_ok() {
            return Ok(());
        }
        let by = match awaited(&waiting_for()).is_empty() {
            true => Duration::ZERO,
            false => 2 * GRACE,
        };
        put_off(&self.passed, by, checked)
    }

    fn failed(&self, error: &crate::Error) {
        self.wait.failed(error);
    }
}

/// Waits for ranks of other machines.
pub(super) struct FarWait<'w> {
    engine: &'w LayeredEngine,
    wait: &'w dyn WaitPolicy,
    passed: Cell<Option<Instant>>,
    /// A leader stands for all ranks of its machine.
    leaders_stand: Cell<bool>,
    /// Whether this rank shows that it waits.
    shows: Cell<bool>,
}

impl<'w> FarWait<'w> {
    pub(super) fn new(engine: &'w LayeredEngine, wait: &'w dyn WaitPolicy) -> FarWait<'w> {
        FarWait {
            engine,
            wait,
            passed: Cell::new(None),
            leaders_stand: Cell::new(false),
            shows: Cell::new(false),
        }
    }

    /// While the leaders exchange what their machines' ranks have said.
    pub(super) fn with_leaders<T>(&self, work: impl FnOnce() -> T) -> T {
        self.leaders_stand.set(true);
        let done = work();
        self.leaders_stand.set(false);
        done
    }

    /// This rank waits for none of another machine any more.
    pub(super) fn is_over(&self) {
        self.show(&[]);
    }

    fn show(&self, ranks: &[u32]) {
        if self.shows.replace(!ranks.is_empty()) || !ranks.is_empty() {
            self.engine.near.say_awaited(ranks);
        }
    }
}

impl WaitPolicy for FarWait<'_> {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        let topology = &self.engine.topology;
        let mut ranks = waiting_for();
        if self.leaders_stand.get() {
            let of = |rank: &u32| topology.machine(topology.of(*rank as usize).0);
            ranks = ranks.iter().flat_map(of).map(|rank| *rank as u32).collect();
            ranks.sort_unstable();
        }
        // Nobody is named for a moment whenever data moves.
        if !ranks.is_empty() {
            self.show(&ranks);
        }
        let checked = self.wait.check(&|| ranks.clone());
        // A failure of the ranks of this machine is this rank's, too.
        let checked = checked.and_then(|()| self.engine.near.check_failure());
        put_off(&self.passed, GRACE, checked)
    }

    fn gone(&self, rank: u32) -> Option<String> {
        self.wait.gone(rank)
    }

    fn failed(&self, error: &crate::Error) {
        self.wait.failed(error);
    }
}

impl Drop for FarWait<'_> {
    fn drop(&mut self) {
        self.is_over();
    }
}
