//! Sends and receives: through shared memory between ranks of one machine, by messages between machines. Which way a
//! message goes follows from its two ranks alone; those of a group move on together, whichever way they go.

use super::wait::NearWait;
use super::{LayeredEngine, Layers};
use crate::error::Result;
use crate::host::engine::Engine;
use crate::host::local::{move_own, own_transfers};
use crate::host::op::{HostOp, WaitPolicy};
use crate::host::shm::p2p::Transfers;

/// What comes after a turn in which transfers of both kinds have been tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Go,
    /// It is asked whether the group may go on.
    Look,
    Pause,
}

/// Turns in which something has moved.
#[derive(Default)]
pub(super) struct Turns(u32);

impl Turns {
    /// So many, and it is asked whether the group may go on.
    const MOST: u32 = 16;

    /// After one in which transfers have moved or not, and something that these may wait for or not.
    pub(super) fn after(&mut self, moved: bool, progressed: bool) -> Then {
        self.0 = if moved { self.0 + 1 } else { 0 };
        match (moved, progressed) {
            (true, _) if self.0 == Turns::MOST => {
                self.0 = 0;
                Then::Look
            }
            (false, false) => Then::Pause,
            _ => Then::Go,
        }
    }
}

impl LayeredEngine {
    /// Whether messages with a rank go through shared memory.
    fn is_near(&self, peer: usize) -> bool {
        self.topology.of(peer).0 == self.machine && self.near.has_messages()
    }

    /// A transfer as the engine of this machine knows it.
    fn placed(&self, op: &HostOp) -> HostOp {
        HostOp {
            root: self.topology.of(op.root as usize).1 as u32,
            ..op.clone()
        }
    }

    /// Runs something with the ranks of this machine alone.
    fn with_near(
        &self,
        wait: &dyn WaitPolicy,
        work: impl FnOnce(&NearWait<'_>) -> Result<()>,
    ) -> Result<()> {
        let near = NearWait::new(self, wait);
        let result = work(&near);
        if let Err(error) = &result
            && self.check_failure().is_err()
        {
            near.failed(error);
        }
        self.spread(&result);
        result
    }

    /// A send or receive outside a group.
    ///
    /// # Safety
    /// As [`Engine::run`].
    pub(super) unsafe fn transfer_alone(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        if self.is_near(op.root as usize) {
            let op = self.placed(op);
            // SAFETY: handed down from the caller.
            return self.with_near(wait, |near| unsafe { self.near.lone_transfer(&op, near) });
        }
        // SAFETY: handed down from the caller.
        self.with_layers(wait, |layers| unsafe {
            layers.run.borrow_mut().transfer_alone(op)
        })
    }

    /// The sends and receives of a group, all together.
    ///
    /// # Safety
    /// As [`Engine::run_group`].
    pub(super) unsafe fn transfer_together(
        &self,
        ops: &[&HostOp],
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (own, others): (Vec<&HostOp>, Vec<&HostOp>) =
            ops.iter().partition(|op| op.root as usize == self.rank);
        let own = own_transfers(self.rank, &own, |_, to, from, bytes| {
            // SAFETY: handed down from the caller.
            unsafe { move_own(to, from, bytes) };
            Ok(())
        });
        let (near, far): (Vec<&HostOp>, Vec<&HostOp>) = others
            .into_iter()
            .partition(|op| self.is_near(op.root as usize));
        let placed: Vec<HostOp> = near.into_iter().map(|op| self.placed(op)).collect();
        let near: Vec<&HostOp> = placed.iter().collect();
        let moved = if far.is_empty() {
            // SAFETY: handed down from the caller.
            self.with_near(wait, |policy| unsafe {
                self.near.grouped_transfers(&near, policy)
            })
        } else {
            // SAFETY: handed down from the caller.
            self.with_layers(wait, |layers| unsafe { layers.transfers(&near, &far) })
        };
        own.and(moved)
    }
}

impl Layers<'_, '_> {
    /// Moves transfers of both kinds until each is complete or refused.
    ///
    /// # Safety
    /// As [`Engine::run_group`].
    unsafe fn transfers(&self, near: &[&HostOp], far: &[&HostOp]) -> Result<()> {
        let LayeredEngine { near: shm, .. } = self.engine;
        let here = self.engine.here();
        let run = &mut **self.run.borrow_mut();
        let mut near = Transfers::new(shm, near);
        // SAFETY: handed down from the caller.
        let mut far = unsafe { run.begin_transfers(far)? };
        let mut turns = Turns::default();
        loop {
            // SAFETY: handed down from the caller.
            let moved = unsafe { run.advance_transfers(&mut far)? | shm.advance(&mut near, false) };
            if far.are_over() && near.are_over() {
                break;
            }
            // Messages move on, too, while shared memory has something to do all the time.
            match turns.after(moved, run.progress()) {
                Then::Go => {}
                Then::Look => {
                    shm.check_failure()?;
                    run.look_up()?;
                }
                Then::Pause => {
                    shm.check_failure()?;
                    let peers = near.peers();
                    let ranks = peers.iter().map(|place| here[*place as usize] as u32);
                    run.also_waits_for(ranks.collect());
                    run.pause()?;
                }
            }
        }
        run.also_waits_for(Vec::new());
        run.end_transfers(far).and(near.take_result())
    }
}
