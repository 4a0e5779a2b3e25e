//! What every engine of the host tier can do, and what is alike in all of them.

use super::check::{point_to_point, validate};
use super::local::{not_alone_to_itself, pair_own};
use super::op::{HostOp, Mover, WaitPolicy};
use super::shm::ShmEngine;
use crate::error::{Error, Result};
use crate::types::OpKind;
use std::sync::Arc;

/// One rank's end of what moves and reduces the data of a communicator.
///
/// Every collective is compared with those of the other ranks before data moves. After
/// [`Code::InvalidUsage`](crate::Code::InvalidUsage) because ranks disagreed, the engine goes on: no data
/// has moved, and all ranks count the call as done. After any error of a wait (abort, deadline, dead peer)
/// it does not: the other ranks are told, and every later call fails.
///
/// Contributions are always combined in the order of the ranks, and a 16-bit float is rounded once: results
/// are the same bit by bit on all ranks, whatever the engine.
pub(crate) trait Engine: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// The largest number of ranks among which there are messages.
    fn messaging_ranks(&self) -> usize;

    /// Whether data takes its way through a network, or what stands for one.
    fn is_far(&self) -> bool;

    /// What it is, for people.
    fn about(&self) -> String;

    /// What it is, for programs: `shm`, what stands for a library in `FLAGOSCOMM_HOST_ENGINE`, or both with a `+`.
    fn key(&self) -> String;

    /// Runs one validated collective.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()>;

    /// Runs one validated send or receive with another rank.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn lone_transfer(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()>;

    /// Runs validated sends and receives together; those of this rank with itself pair up.
    ///
    /// # Safety
    /// As [`Engine::run_group`].
    unsafe fn grouped_transfers(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()>;

    /// Before this rank gives its buffers back after a failure: returns when no other rank is at work in
    /// them.
    fn await_visitors(&self) {}

    /// Whether a failure has left something behind that may still read and write the operations' buffers: their memory
    /// must stay, as far as it is ours.
    fn has_left_behind(&self) -> bool {
        false
    }

    /// Itself, if it moves data through shared memory, and so can let streams wait for operations whose copies it
    /// plans.
    fn shared_memory(&self) -> Option<&ShmEngine> {
        None
    }

    /// Whether it takes buffers in devices' memory of such an operation, once it has a mover. Of others, what the buffers
    /// hold has to be brought to the host before, and results back after it.
    fn stages(&self, op: &HostOp) -> bool;

    /// Gives it the way to the device's memory, which operations with buffers there need.
    fn set_mover(&self, mover: Arc<dyn Mover>);

    /// Whether it has one.
    #[cfg(test)]
    fn has_mover(&self) -> bool;

    /// Whether results of large reductions are rounded on the way, and so may differ from those of another engine.
    #[cfg(test)]
    fn rounds_on_the_way(&self) -> bool {
        false
    }

    /// The failure that ended this engine, if there was one.
    fn check_failure(&self) -> Result<()>;

    /// Ends this engine with an error, and tells the other ranks as far as the engine itself can. The
    /// first failure is kept. May be called from any thread.
    fn poison(&self, error: &Error);

    /// Ends every wait, now and from now on, here with [`Code::Aborted`](crate::Code::Aborted). May be
    /// called from any thread, at any time, any number of times.
    fn abort(&self);

    /// As [`Engine::abort`], for a communicator that stays: what is said is that this rank did this `deed`.
    fn end_by(&self, deed: &str);

    /// The result of operations, once nobody else is at work in their buffers.
    fn departed(&self, result: Result<()>) -> Result<()> {
        if result.is_err() && self.check_failure().is_err() {
            self.await_visitors();
        }
        result
    }

    /// Refuses what this rank alone can see to be wrong, before an operation is run.
    fn accepts(&self, op: &HostOp) -> Result<()> {
        self.check_failure()?;
        validate(op, self.rank(), self.ranks(), self.messaging_ranks())
    }

    /// Runs one operation to its end. One call at a time; [`Engine::abort`] and [`Engine::poison`] may
    /// come from any thread meanwhile.
    ///
    /// # Safety
    /// The buffers are readable and writable as far as the operation's kind, count and data type
    /// say, by the mover of the engine where they are on a device, are not touched by others meanwhile, and
    /// overlap only where the kind allows in place.
    /// No other `run` or `run_group` of this engine is going on.
    unsafe fn run(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        self.accepts(op)?;
        // SAFETY: handed down from the caller.
        let result = unsafe {
            match op.kind {
                OpKind::Send | OpKind::Recv => {
                    not_alone_to_itself(self.rank(), op)?;
                    self.lone_transfer(op, wait)
                }
                _ => self.collective(op, wait),
            }
        };
        self.departed(result)
    }

    /// Runs the operations of one group: the collectives in their order, then all sends and
    /// receives together. A disagreement in one operation does not stop the others; the first error
    /// is returned. Wrong arguments of any are found before the first begins.
    ///
    /// # Safety
    /// As [`Engine::run`], for every operation; no buffer that one operation writes is used by
    /// another.
    unsafe fn run_group(&self, ops: &[HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        self.check_failure()?;
        for op in ops {
            validate(op, self.rank(), self.ranks(), self.messaging_ranks())?;
        }
        pair_own(self.rank(), ops)?;
        // SAFETY: handed down from the caller.
        let result = unsafe { self.run_all(ops, wait) };
        self.departed(result)
    }

    /// Runs the operations of a group, which are found to be right.
    ///
    /// # Safety
    /// As [`Engine::run_group`].
    unsafe fn run_all(&self, ops: &[HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        let mut result = Ok(());
        let mut transfers = Vec::with_capacity(ops.len());
        for op in ops {
            if point_to_point(op.kind) {
                transfers.push(op);
                continue;
            }
            // SAFETY: handed down from the caller.
            result = result.and(unsafe { self.collective(op, wait) });
            // Disagreements do not end the engine, everything else does.
            self.check_failure()?;
        }
        if !transfers.is_empty() {
            // SAFETY: handed down from the caller.
            result = result.and(unsafe { self.grouped_transfers(&transfers, wait) });
        }
        result
    }
}
