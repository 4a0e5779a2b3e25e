//! What every engine does alike: contributions and their fold, and what a rank does with its own
//! data only.

use super::check::reduces;
use super::kernels::{Fold, Scale, Target, fold_for};
use super::op::{HostOp, VectorCounts};
use crate::error::{Code, Error, Result};
use crate::types::{DataType, OpKind, Reduction};
use crate::words::counted;
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
    pub(super) fn as_slice(&self) -> &[*const u8] {
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
    /// By what the sum is divided in an average.
    ranks: usize,
}

impl Reducer {
    /// The fold of an operation of so many ranks that passed validation; `scales` are those of all sources
    /// for PreMulSum.
    pub(super) fn new(op: &HostOp, scales: Vec<Scale>, ranks: usize) -> Result<Reducer> {
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        Ok(Reducer {
            fold,
            size: op.dtype.size(),
            scales,
            ranks,
        })
    }

    /// # Safety
    /// As [`Fold`], with `bytes` instead of a count.
    #[inline]
    pub(super) unsafe fn fold(&self, to: Target, sources: &Sources, bytes: usize) {
        // SAFETY: the caller promises what the fold needs; there is at least one rank.
        unsafe {
            (self.fold)(
                to,
                sources.as_slice(),
                &self.scales,
                self.ranks,
                bytes / self.size,
            )
        }
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

/// What a communicator of one rank moves: from where, where to, and how many elements. `None`: nothing.
pub(super) fn own_block(op: &HostOp) -> Result<Option<(*const u8, *mut u8, usize)>> {
    let size = op.dtype.size();
    match (op.kind, op.vector.as_deref()) {
        (OpKind::Barrier, _) => Ok(None),
        (OpKind::AllToAllv, Some(v)) => {
            if v.send_counts[0] != v.recv_counts[0] {
                return Err(Error::invalid_usage(format!(
                    "AlltoAllv({}): rank 0 sends count {} to itself but expects count {}",
                    op.dtype.name(),
                    v.send_counts[0],
                    v.recv_counts[0]
                )));
            }
            Ok(Some((
                op.send.wrapping_add(v.send_displs[0].wrapping_mul(size)),
                op.recv.wrapping_add(v.recv_displs[0].wrapping_mul(size)),
                v.send_counts[0],
            )))
        }
        _ => Ok(Some((op.send, op.recv, op.count))),
    }
}

/// A communicator of one rank.
///
/// # Safety
/// As `Engine::run`, with buffers in the host's memory.
pub(super) unsafe fn alone(op: &HostOp) -> Result<()> {
    let Some((send, recv, count)) = own_block(op)? else {
        return Ok(());
    };
    if let (true, Reduction::PreMulSum(scale)) = (reduces(op.kind), op.reduction) {
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        // SAFETY: the caller promised `count` elements at both, which are the same or apart.
        unsafe { fold(Target::one(recv, false), &[send], &[scale], 1, count) };
    } else {
        // SAFETY: as above; every other operation on one rank is a copy.
        unsafe { move_own(recv, send, count * op.dtype.size()) };
    }
    Ok(())
}

/// Elements from the start of a buffer to the end of its last block.
pub(super) fn extent(counts: &[usize], displs: &[usize]) -> usize {
    let ends = counts.iter().zip(displs).filter(|(count, _)| **count > 0);
    ends.map(|(count, displ)| displ + count).max().unwrap_or(0)
}

/// A copy of the blocks of a send buffer, which end within `bytes`, at the same offsets; `bring(to, from, bytes)`
/// makes it, block by block.
pub(super) fn private_copy(
    send: *const u8,
    vector: &VectorCounts,
    size: usize,
    bytes: usize,
    bring: impl Fn(*mut u8, *const u8, usize) -> Result<()>,
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
        if count > 0 {
            let (at, len) = (displ * size, count * size);
            let room: &mut [MaybeUninit<u8>] = &mut copied[at..at + len];
            bring(room.as_mut_ptr().cast(), send.wrapping_add(at), len)?;
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
        "rank {rank} called Send to itself {} but Recv from itself {} in one group",
        counted(sends as u64, "time"),
        counted(receives as u64, "time")
    )))
}

/// Sends of this rank to itself, matched with its receives in order and made by `keep(on_device, to, from,
/// bytes)`.
pub(super) fn own_transfers(
    rank: usize,
    ops: &[&HostOp],
    keep: impl Fn(bool, *mut u8, *const u8, usize) -> Result<()>,
) -> Result<()> {
    let of = |kind| ops.iter().filter(move |op| op.kind == kind);
    let mut result = Ok(());
    for (send, recv) in of(OpKind::Send).zip(of(OpKind::Recv)) {
        let one = if (send.count, send.dtype) != (recv.count, recv.dtype) {
            Err(message_mismatch(
                (rank, send.count as u64, send.dtype.name()),
                (rank, recv.count as u64, recv.dtype.name()),
            ))
        } else {
            let on_device = send.on_device.send || recv.on_device.recv;
            let bytes = send.count * send.dtype.size();
            keep(on_device, recv.recv, send.send, bytes)
        };
        result = result.and(one);
    }
    result
}

/// The error of both sides of a message whose sender and receiver disagree.
#[cold]
pub(super) fn message_mismatch(
    (sender, sent, sent_dtype): (usize, u64, &str),
    (receiver, expected, expected_dtype): (usize, u64, &str),
) -> Error {
    let fields = match (sent == expected, sent_dtype == expected_dtype) {
        (false, false) => "count and data type",
        (false, true) => "count",
        _ => "data type",
    };
    Error::invalid_usage(format!(
        "ranks disagree in {fields}: rank {sender} called Send(count {sent}, {sent_dtype}) to rank {receiver} but \
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
