//! The engine for ranks of several machines of which some have several: shared memory inside each machine, and
//! messages between machines.
//!
//! It stands on the two other engines, each of which does what it can do best: `shm` for the ranks of this rank's
//! machine, `net` for all ranks, in groups of those that work together.
//!
//! * `topology`: which ranks are where, and who does what for whom,
//! * `meeting`: how every collective begins: the calls of all ranks are compared,
//! * `collectives`: what moves when they are equal,
//! * `transfers`: sends and receives,
//! * `wait`: what waits ask in either layer, and whom they name.
//!
//! On every machine the ranks have places, in their order; the first is the machine's leader. Ranks of the same
//! place on all machines are a rail. A failure in one layer ends the other too.

mod collectives;
mod meeting;
#[cfg(test)]
mod tests;
mod topology;
mod transfers;
mod wait;

use super::check::MAX_ENGINE_RANKS;
use super::engine::Engine;
use super::net::run::Run;
use super::net::{Group, NetEngine};
use super::op::{HostOp, Mover, WaitPolicy};
use super::shm::ShmEngine;
use crate::error::{Code, Error, Result};
use std::cell::RefCell;
use std::sync::Arc;
pub(crate) use topology::Topology;
use wait::{FarWait, NearWait};

/// What the ranks hand through at a time in a large operation. While one block is between the machines, the next is
/// reduced on each.
const BLOCK: usize = 4 << 20;

/// Numbers of groups beside that of all ranks.
const LEADERS: u64 = 1;
const RAIL: u64 = 2;

/// One rank's end of both layers.
pub(crate) struct LayeredEngine {
    near: ShmEngine,
    far: NetEngine,
    topology: Topology,
    rank: usize,
    /// This rank's machine, and its place there.
    machine: usize,
    place: usize,
    leaders: Option<Arc<Group>>,
    /// The ranks of this rank's place, if every machine has as many.
    rail: Option<Arc<Group>>,
    block: usize,
    /// The most headers of ranks that a leader sends another at once.
    most_together: usize,
}

impl LayeredEngine {
    /// `near` connects the ranks of this rank's machine, in their order, and `far` all ranks.
    pub(crate) fn new(mut near: ShmEngine, far: NetEngine, topology: Topology) -> Result<Self> {
        let rank = far.rank();
        let (machine, place) = topology.of(rank);
        let here = topology.machine(machine);
        let odd = (near.rank(), near.ranks(), far.ranks());
        if odd != (place, here.len(), topology.ranks()) || far.ranks() > MAX_ENGINE_RANKS {
            return Err(Error::internal(format!(
                "the layers of rank {rank} do not belong together: {odd:?}"
            )));
        }
        // Containers of one machine are several for memory, but have its cores in common.
        if !far.shared().has_cores() {
            near.shares_cores();
        }
        let column = |place: usize| {
            let machines = 0..topology.machines();
            machines
                .map(|machine| topology.machine(machine)[place])
                .collect()
        };
        let group = |id, place| Group::new(id, column(place), rank).map(Arc::new);
        Ok(LayeredEngine {
            leaders: (place == 0).then(|| group(LEADERS, 0)).transpose()?,
            rail: (place < topology.rails())
                .then(|| group(RAIL, place))
                .transpose()?,
            near,
            far,
            rank,
            machine,
            place,
            most_together: meeting::most_together(&topology),
            topology,
            block: BLOCK,
        })
    }

    /// The ranks of this rank's machine.
    fn here(&self) -> &[usize] {
        self.topology.machine(self.machine)
    }

    /// Runs something with both layers.
    fn with_layers(
        &self,
        wait: &dyn WaitPolicy,
        work: impl FnOnce(&Layers<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let far = FarWait::new(self, wait);
        let result = self.far.shared().with_run(&far, |run| {
            let run = RefCell::new(run);
            let result = work(&Layers {
                engine: self,
                run: &run,
                far: &far,
                near: NearWait::new(self, wait),
            });
            // What has gone wrong among the ranks of this machine is the end for all.
            run.borrow_mut().for_all(result)
        });
        self.spread(&result);
        result
    }

    /// A failure of one layer ends the other.
    fn spread(&self, result: &Result<()>) {
        if let Err(error) = result
            && self.check_failure().is_err()
        {
            self.poison(error);
        }
    }
}

/// One operation under way in both layers.
struct Layers<'w, 'a> {
    engine: &'w LayeredEngine,
    run: &'w RefCell<&'w mut Run<'a>>,
    far: &'w FarWait<'w>,
    near: NearWait<'w>,
}

/// The waits for the ranks of this machine: meanwhile messages move on, which others may wait for.
impl WaitPolicy for Layers<'_, '_> {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        self.far.is_over();
        self.near.check(waiting_for)
    }

    fn may_be_long(&self) -> bool {
        true
    }

    fn idle(&self) -> bool {
        self.run.try_borrow_mut().is_ok_and(|mut run| {
            run.progress();
            run.has_requests()
        })
    }
}

impl Engine for LayeredEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.topology.ranks()
    }

    fn messaging_ranks(&self) -> usize {
        usize::MAX
    }

    fn is_far(&self) -> bool {
        true
    }

    fn stages(&self, op: &HostOp) -> bool {
        self.far.stages(op)
    }

    fn set_mover(&self, mover: Arc<dyn Mover>) {
        self.far.set_mover(mover);
    }

    #[cfg(test)]
    fn has_mover(&self) -> bool {
        self.far.has_mover()
    }

    fn about(&self) -> String {
        format!(
            "{} between {} machines, shared memory inside them",
            self.far.about(),
            self.topology.machines()
        )
    }

    fn key(&self) -> String {
        format!("{}+{}", self.near.key(), self.far.key())
    }

    fn has_left_behind(&self) -> bool {
        self.far.has_left_behind()
    }

    unsafe fn collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        self.with_layers(wait, |layers| unsafe { layers.collective(op) })
    }

    unsafe fn lone_transfer(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_alone(op, wait) }
    }

    unsafe fn grouped_transfers(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_together(ops, wait) }
    }

    #[cfg(test)]
    fn rounds_on_the_way(&self) -> bool {
        true
    }

    fn await_visitors(&self) {
        self.near.await_visitors();
    }

    fn check_failure(&self) -> Result<()> {
        self.far.check_failure()?;
        self.near.check_failure()
    }

    fn poison(&self, error: &Error) {
        self.far.poison(error);
        match error.code() {
            Code::Aborted => self.near.abort(),
            _ => self.near.poison(error),
        }
    }

    fn end_by(&self, deed: &str) {
        // An operation under way that sees the far end aborts the near layer, without these words.
        self.near.end_by(deed);
        self.far.end_by(deed);
    }

    fn abort(&self) {
        self.far.abort();
        self.near.abort();
    }
}
