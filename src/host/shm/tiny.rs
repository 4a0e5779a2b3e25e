//! The shortest way: an all-reduce whose data travels in the lines of the headers.
//!
//! It is the same collective as in `collectives`, and meets ranks that take the long way to it: only what
//! this rank knows already is left out, such as what its arguments can't be.

use super::ShmEngine;
use super::layout::LINE_PAYLOAD;
use crate::error::Result;
use crate::host::check::{Fingerprint, Staging};
use crate::host::engine::Engine;
use crate::host::kernels::{Folding, Target, copy_few};
use crate::host::local::Sources;
use crate::host::op::WaitPolicy;
use crate::types::{DataType, RedOp};

/// The largest all-reduce that can be tiny, in bytes.
pub(crate) const MOST_TINY: usize = LINE_PAYLOAD;

/// An all-reduce of at most [`MOST_TINY`] bytes of the host's memory.
pub(crate) struct Tiny {
    pub send: *const u8,
    pub recv: *mut u8,
    pub count: usize,
    pub dtype: DataType,
    pub op: RedOp,
}

impl ShmEngine {
    /// Whether this engine has such a way, and for this operation; then also how it is reduced.
    #[inline(always)]
    pub(crate) fn takes_tiny(&self, tiny: &Tiny) -> Option<Folding> {
        let bytes = tiny.count * tiny.dtype.size();
        if self.ranks == 1 || bytes > MOST_TINY.min(self.tuning.one_exchange) {
            return None;
        }
        self.folds.get(tiny.dtype, tiny.op)
    }

    /// Runs an operation to its end.
    ///
    /// # Safety
    /// As [`Engine::run`]; [`ShmEngine::takes_tiny`] has given the `folding` for this operation.
    #[inline(always)]
    pub(crate) unsafe fn run_tiny(
        &self,
        tiny: &Tiny,
        folding: Folding,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        self.published_failure()?;
        let bytes = tiny.count * tiny.dtype.size();
        let (sequence, parity) = self.begin();
        let stage = |rank| self.map.stage(rank, parity, bytes);
        // SAFETY: the caller promised `bytes` bytes at `send`; the stage has room for them, and no peer
        // reads it, as all have entered the previous exchange.
        unsafe { copy_few(stage(self.rank), tiny.send, bytes) };
        let print = Fingerprint::of_all_reduce(tiny.dtype, tiny.op, tiny.count);
        let met = self.exchange(sequence, print, Staging::NONE, wait);
        if let Err(error) = met {
            return self.departed(Err(error));
        }
        // SAFETY: after the exchange every stage holds `bytes` bytes and stays as it is until the next
        // exchange; the caller promised as many at `recv`; the fold is that of the data type.
        unsafe {
            if self.ranks == 2 {
                (folding.pair)(tiny.recv, stage(0), stage(1), tiny.count);
            } else {
                let sources = Sources::new(self.ranks, |rank| stage(rank).cast_const());
                let to = Target::one(tiny.recv, false);
                (folding.fold)(to, sources.as_slice(), &[], self.ranks, tiny.count);
            }
        }
        Ok(())
    }
}
