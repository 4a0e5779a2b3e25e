//! One operation of the host tier, as the communicator hands it to an engine.

use crate::types::{DataType, OpKind, Reduction};

/// Counts and displacements of an AlltoAllv, in elements, one entry per rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorCounts {
    pub send_counts: Vec<usize>,
    pub send_displs: Vec<usize>,
    pub recv_counts: Vec<usize>,
    pub recv_displs: Vec<usize>,
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

    /// A wait has ended the engine, which can't tell the other ranks by itself.
    fn failed(&self, _error: &crate::Error) {}
}
