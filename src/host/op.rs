//! One operation of the host tier, as the communicator hands it to an engine.

use crate::error::Result;
use crate::types::{DataType, OpKind, Reduction};

/// Counts and displacements of an AlltoAllv, in elements, one entry per rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_displs: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_displs: Vec<usize>,
}

impl VectorCounts {
    /// What an AlltoAll of so many elements for each rank is as an AlltoAllv.
    pub(crate) fn equal(count: usize, ranks: usize) -> VectorCounts {
        let counts = vec![count; ranks];
        let displs: Vec<usize> = (0..ranks).map(|peer| peer * count).collect();
        VectorCounts {
            send_counts: counts.clone(),
            send_displs: displs.clone(),
            recv_counts: counts,
            recv_displs: displs,
        }
    }
}

/// One operation on host memory. Pointers are the caller's: unaligned, overlapping in place as the
/// C header allows, NULL where the role of this rank does not use them or the count is zero.
#[derive(Clone, Debug)]
pub(crate) struct HostOp {
    pub kind: OpKind,
    pub send: *const u8,
    pub recv: *mut u8,
    /// In elements, with the meaning that the C function of this kind gives its count.
    pub count: usize,
    pub dtype: DataType,
    pub reduction: Reduction,
    /// Root of a rooted collective, peer of Send and Recv, else 0.
    pub root: u32,
    /// Only for AlltoAllv.
    pub vector: Option<Box<VectorCounts>>,
    /// Which of the buffers only the engine's [`Mover`] can reach.
    pub on_device: OnDevice,
}

/// Which of an operation's buffers are in a device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnDevice {
    pub send: bool,
    pub recv: bool,
}

impl OnDevice {
    /// Whether any is.
    pub(crate) fn any(self) -> bool {
        self.send || self.recv
    }
}

impl HostOp {
    /// Whether it reads its send buffer and writes its receive buffer on this rank.
    pub(super) fn uses(&self, rank: u32) -> (bool, bool) {
        let at_root = self.root == rank;
        let (reads, writes) = match self.kind {
            OpKind::Broadcast | OpKind::Scatter => (at_root, true),
            OpKind::Reduce | OpKind::Gather => (true, at_root),
            OpKind::Send => (true, false),
            OpKind::Recv => (false, true),
            OpKind::Barrier => (false, false),
            OpKind::AllToAllv => {
                let any = |counts: &[usize]| counts.iter().any(|count| *count > 0);
                return self.vector.as_ref().map_or((false, false), |v| {
                    (any(&v.send_counts), any(&v.recv_counts))
                });
            }
            _ => (true, true),
        };
        (reads && self.count > 0, writes && self.count > 0)
    }

    /// Blocks of `count` elements that it reads and writes on this rank. Those of an AlltoAllv have sizes of their own.
    pub(super) fn blocks(&self, rank: u32, ranks: u32) -> (usize, usize) {
        let (reads, writes) = self.uses(rank);
        let (sends, receives) = match self.kind {
            OpKind::AllGather | OpKind::Gather => (1, ranks),
            OpKind::ReduceScatter | OpKind::Scatter => (ranks, 1),
            OpKind::AllToAll => (ranks, ranks),
            _ => (1, 1),
        };
        let blocks = |used, blocks| if used { blocks as usize } else { 0 };
        (blocks(reads, sends), blocks(writes, receives))
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Way {
    /// From the device to the host.
    In,
    /// From the host to the device.
    Out,
}

/// One copy of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySpan {
    pub to: *mut u8,
    pub from: *const u8,
    pub bytes: usize,
}

/// Copies of each way that may be under way at once, each under the number of its slot.
pub(crate) const SLOTS: usize = 8;

/// Moves bytes between the host and a device. One thread at a time uses it.
pub(crate) trait Mover: Send + Sync {
    /// The host memory from and to which most copies will go. It stays until [`Mover::close`].
    fn will_use(&self, base: *mut u8, bytes: usize);

    /// Copies and waits.
    ///
    /// # Safety
    /// Both ranges are valid, one on the host and one on the device as `way` says, and nobody else uses
    /// them meanwhile.
    unsafe fn copy(&self, way: Way, span: CopySpan) -> Result<()>;

    /// Copies within the device, or between it and the host whichever way, and waits.
    ///
    /// # Safety
    /// Both ranges are valid and apart, and nobody else uses them meanwhile.
    unsafe fn copy_own(&self, span: CopySpan) -> Result<()>;

    /// Begins copies.
    ///
    /// # Safety
    /// As [`Mover::copy`], until [`Mover::is_done`] said so or [`Mover::settle`] has returned. Those
    /// that were begun before under this slot and way are done.
    unsafe fn begin(&self, way: Way, slot: usize, spans: &[CopySpan]) -> Result<()>;

    /// Whether the copies are done that were begun last under this slot and way.
    fn is_done(&self, way: Way, slot: usize) -> Result<bool>;

    /// Waits until no copy goes on, whatever happened to it.
    fn settle(&self);
}

// SAFETY: the pointers belong to the caller, who promised to leave the buffers alone until the
// operation is complete; which thread touches them in between does not matter.
unsafe impl Send for HostOp {}
// SAFETY: as above; a HostOp is never changed through a shared reference.
unsafe impl Sync for HostOp {}

/// What a rank asks while it waits for others. Called now and then (at most a few thousand times a
/// second) from every wait of an engine, with the ranks it is waiting for.
pub(crate) trait WaitPolicy {
    /// No ranks are named while data still moves: then none of them is missing, but an abort and the
    /// deadline count.
    /// `Err` ends the wait: the communicator was aborted, a peer died, or the deadline passed.
    /// The engine returns that error and publishes it, so that no peer waits for this rank in vain.
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> crate::Result<()>;

    /// Something else that the waiting thread could do meanwhile, for a short time. Called between two looks of
    /// the waits for ranks that share memory; whether there is more of it, so that the wait doesn't sleep.
    fn idle(&self) -> bool {
        false
    }

    /// Whether what is waited for may itself wait for a network, so that looking on keeps others from their work.
    fn may_be_long(&self) -> bool {
        false
    }

    /// How a rank has gone, if it is known to have done so.
    fn gone(&self, _rank: u32) -> Option<String> {
        None
    }

    /// A wait has ended the engine, which can't tell the other ranks by itself.
    fn failed(&self, _error: &crate::Error) {}
}
