//! What every engine does alike: contributions and their fold, and what a rank does with its own
//! data only.

use super::check::reduces;
use super::kernels::{Fold, Scale, Target, copy, fold_for};
use super::op::{HostOp, VectorCounts};
use crate::error::{Code, Error, Result};
use crate::types::{DataType, OpKind, Reduction};
use std::mem::MaybeUninit;

/// Contributions for which there is room without an allocation.
const FEW: usize = 128;

/// The contributions to a fold, in rank order, for usual numbers of ranks without an allocation.
pub(super) struct Sources {
    few: [MaybeUninit<*const u8>; FEW],
    many: Vec<*const u8>,
    len: usize,
}

impl Sources {
    #[inline]
    pub(super) fn new(ranks: usize, pointer: impl Fn(usize) -> *const u8) -> Sources {
        let mut sources = Sources {
            few: [const { MaybeUninit::uninit() }; FEW],
            many: Vec::new(),
            len: ranks,
        };
        if ranks > FEW {
            sources.many = (0..ranks).map(pointer).collect();
        } else {
            for (rank, place) in sources.few[..ranks].iter_mut().enumerate() {
                place.write(pointer(rank));
            }
        }
        sources
    }

    #[inline]
    fn as_slice(&self) -> &[*const u8] {
        if self.len > FEW {
            return &self.many;
        }
        // SAFETY: `new` has written the first `len` pointers, and its slicing has shown that there
        // are as many.
        unsafe { std::slice::from_raw_parts(self.few.as_ptr().cast(), self.len) }
    }
}

/// A fold together with the scalars of this call.
pub(super) struct Reducer {
    fold: Fold,
    size: usize,
    scales: Vec<Scale>,
}

impl Reducer {
    /// The fold of an operation that passed validation; `scales` are those of all ranks for
    /// PreMulSum.
    pub(super) fn new(op: &HostOp, scales: Vec<Scale>) -> Result<Reducer> {
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        Ok(Reducer {
            fold,
            size: op.dtype.size(),
            scales,
        })
    }

    /// # Safety
    /// As [`Fold`], with `bytes` instead of a count.
    #[inline]
    pub(super) unsafe fn fold(&self, to: Target, sources: &Sources, bytes: usize) {
        // SAFETY: the caller promises what the fold needs; there is at least one rank.
        unsafe { (self.fold)(to, sources.as_slice(), &self.scales, bytes / self.size) }
    }
}

/// `pointer + bytes`, for pointers that may be null if nothing is read or written through them.
#[inline]
pub(super) fn offset(pointer: *mut u8, bytes: usize) -> *mut u8 {
    pointer.wrapping_add(bytes)
}

/// Copies between buffers of the caller, which may overlap.
///
/// # Safety
/// Both are valid for `bytes` bytes.
pub(super) unsafe fn move_own(to: *mut u8, from: *const u8, bytes: usize) {
    if bytes > 0 && !std::ptr::eq(to, from) {
        // SAFETY: the caller promised both ranges; `copy` allows them to overlap.
        unsafe { std::ptr::copy(from, to, bytes) }
    }
}

/// A communicator of one rank.
///
/// # Safety
/// As `Engine::run`.
pub(super) unsafe fn alone(op: &HostOp) -> Result<()> {
    let size = op.dtype.size();
    let (send, recv, count) = match (op.kind, op.vector.as_deref()) {
        (OpKind::Barrier, _) => return Ok(()),
        (OpKind::AllToAllv, Some(v)) => {
            if v.send_counts[0] != v.recv_counts[0] {
                return Err(Error::invalid_usage(format!(
                    "AlltoAllv({}): rank 0 sends count {} to itself but expects count {}",
                    op.dtype.name(),
                    v.send_counts[0],
                    v.recv_counts[0]
                )));
            }
            let send = op.send.wrapping_add(v.send_displs[0].wrapping_mul(size));
            (
                send,
                op.recv.wrapping_add(v.recv_displs[0].wrapping_mul(size)),
                v.send_counts[0],
            )
        }
        _ => (op.send, op.recv, op.count),
    };
    if let (true, Reduction::PreMulSum(scale)) = (reduces(op.kind), op.reduction) {
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        let to = Target {
            first: recv,
            second: std::ptr::null_mut(),
            stream: false,
        };
        // SAFETY: the caller promised `count` elements at both, which are the same or apart.
        unsafe { fold(to, &[send], &[scale], count) };
    } else {
        // SAFETY: as above; every other operation on one rank is a copy.
        unsafe { move_own(recv, send, count * size) };
    }
    Ok(())
}

/// Elements from the start of a buffer to the end of its last block.
pub(super) fn extent(counts: &[usize], displs: &[usize]) -> usize {
    let ends = counts.iter().zip(displs).filter(|(count, _)| **count > 0);
    ends.map(|(count, displ)| displ + count).max().unwrap_or(0)
}

/// A copy of the blocks of a send buffer, at the same offsets.
///
/// # Safety
/// The blocks are readable and end within `bytes`.
pub(super) unsafe fn private_copy(
    send: *const u8,
    vector: &VectorCounts,
    size: usize,
    bytes: usize,
) -> Result<Vec<MaybeUninit<u8>>> {
    let mut copied = Vec::new();
    copied.try_reserve_exact(bytes).map_err(|_| {
        Error::new(
            Code::SystemError,
            format!("AlltoAllv in place: no memory for {bytes} bytes"),
        )
    })?;
    copied.resize(bytes, MaybeUninit::uninit());
    for (&count, &displ) in vector.send_counts.iter().zip(&vector.send_displs) {
        let at = displ * size;
        if count > 0 {
            // SAFETY: the caller promised the block and that it ends within `bytes`, the length of
            // the copy.
            unsafe {
                copy(
                    copied.as_mut_ptr().add(at).cast(),
                    send.add(at),
                    count * size,
                    false,
                )
            };
        }
    }
    Ok(copied)
}

/// Refuses a lone message of a rank to itself.
pub(super) fn not_alone_to_itself(rank: usize, op: &HostOp) -> Result<()> {
    if op.root as usize != rank {
        return Ok(());
    }
    let other = if op.kind == OpKind::Send {
        "Recv"
    } else {
        "Send"
    };
    Err(Error::invalid_usage(format!(
        "{kind}: rank {rank} called {kind} with itself as peer outside a group, where the matching \
         {other} can't be called any more; put both into one group",
        kind = op.kind.name(),
    )))
}

/// Refuses a group in which sends to this rank itself and receives from it do not pair up.
pub(super) fn pair_own(rank: usize, ops: &[HostOp]) -> Result<()> {
    let count = |kind| {
        let own = |op: &&HostOp| op.kind == kind && op.root as usize == rank;
        ops.iter().filter(own).count()
    };
    let (sends, receives) = (count(OpKind::Send), count(OpKind::Recv));
    if sends == receives {
        return Ok(());
    }
    Err(Error::invalid_usage(format!(
        "rank {} called Send to itself {sends} times but Recv from itself {receives} times in one \
         group",
        rank
    )))
}

/// Sends of this rank to itself, matched with its receives in order.
///
/// # Safety
/// As `Engine::run`.
pub(super) unsafe fn own_transfers(rank: usize, ops: &[&HostOp]) -> Result<()> {
    let of = |kind| ops.iter().filter(move |op| op.kind == kind);
    let mut result = Ok(());
    for (send, recv) in of(OpKind::Send).zip(of(OpKind::Recv)) {
        if (send.count, send.dtype) != (recv.count, recv.dtype) {
            let error = message_mismatch(
                (rank, send.count as u64, send.dtype.name()),
                (rank, recv.count as u64, recv.dtype.name()),
            );
            result = result.and(Err(error));
        } else if send.count > 0 {
            // SAFETY: the caller promised `count` elements at both; `copy` allows overlap.
            unsafe { std::ptr::copy(send.send, recv.recv, send.count * send.dtype.size()) };
        }
    }
    result
}

/// The error of both sides of a message whose sender and receiver disagree.
#[cold]
pub(super) fn message_mismatch(
    (sender, sent, sent_dtype): (usize, u64, &str),
    (receiver, expected, expected_dtype): (usize, u64, &str),
) -> Error {
    Error::invalid_usage(format!(
        "ranks disagree: rank {sender} called Send(count {sent}, {sent_dtype}) to rank {receiver} but \
         rank {receiver} called Recv(count {expected}, {expected_dtype}) from rank {sender}; the \
         message was dropped"
    ))
}

pub(super) fn dtype_name(raw: u64) -> &'static str {
    i32::try_from(raw)
        .ok()
        .and_then(DataType::from_raw)
        .map_or("an unknown type", DataType::name)
}
