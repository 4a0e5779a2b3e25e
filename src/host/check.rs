//! Validation of one rank's arguments, and the comparison of calls between ranks.
#![forbid(unsafe_code)]

use crate::differing::{Disagreement, Field, Shape, disagreement};
use crate::error::{Error, Result};
use crate::host::op::HostOp;
use crate::types::{DataType, OpKind, RedOp, Reduction};
use crate::words::counted;

/// Everything about a collective that must be the same on all ranks, in one word, so that it travels
/// in the header's cache line.
///
/// From the top: 4 bits kind, 4 bits data type, 3 bits reduction, 10 bits root, 2 bits of [`Staging`],
/// 41 bits count. Every field is kept in full: two calls have the same fingerprint only if they agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fingerprint(pub u64);

/// The largest number of ranks of one communicator of the host tier.
pub(super) const MAX_ENGINE_RANKS: usize = 1024;

const COUNT_BITS: u32 = 41;
const STAGING_BITS: u32 = 2;
const ROOT_BITS: u32 = 10;
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

/// What a rank says of its own memory beside a fingerprint. It is not compared: what one rank says
/// holds for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Staging(u64);

impl Staging {
    /// Memory of the host, and nothing to say.
    pub(super) const NONE: Staging = Staging(0);
    /// The rank's buffers are in a device's memory.
    pub(super) const ON_DEVICE: Staging = Staging(1 << COUNT_BITS);
    /// The rank has no part in the pool for staging.
    pub(super) const NO_POOL: Staging = Staging(1 << (COUNT_BITS + 1));
    const ALL: u64 = Staging::ON_DEVICE.0 | Staging::NO_POOL.0;

    /// What either says.
    #[inline]
    pub(super) fn or(self, other: Staging) -> Staging {
        Staging(self.0 | other.0)
    }

    /// Whether it says this, too.
    #[inline]
    pub(super) fn says(self, what: Staging) -> bool {
        self.0 & what.0 != 0
    }
}

/// The number of a reduction inside a fingerprint.
const PRE_MUL_SUM: u64 = 5;

const _: () = assert!(MAX_ENGINE_RANKS <= 1 << ROOT_BITS);
const _: () = assert!((DataType::ALL.len()) <= 16 && (OpKind::Barrier as u8) < 16);

impl Fingerprint {
    /// The fingerprint of an operation that passed validation.
    #[inline]
    pub(super) fn of(op: &HostOp) -> Fingerprint {
        let reduction = match op.reduction {
            _ if !reduces(op.kind) => 0,
            Reduction::Builtin(op) => op as u64,
            Reduction::PreMulSum(_) => PRE_MUL_SUM,
        };
        let root = if rooted(op.kind) {
            u64::from(op.root)
        } else {
            0
        };
        let (dtype, count) = match op.kind {
            OpKind::Barrier => (0, 0),
            // Counts of an AlltoAllv differ by design; they are compared pairwise.
            OpKind::AllToAllv => (op.dtype as u64, 0),
            _ => (op.dtype as u64, op.count as u64),
        };
        Fingerprint::pack(op.kind, dtype, reduction, root, count)
    }

    /// The fingerprint of a collective that has one count and is known to be right. What its kind has not is not looked
    /// at.
    #[inline(always)]
    pub(super) fn of_right(
        kind: OpKind,
        dtype: DataType,
        op: RedOp,
        root: usize,
        count: usize,
    ) -> Fingerprint {
        let reduction = if reduces(kind) { op as u64 } else { 0 };
        let root = if rooted(kind) { root as u64 } else { 0 };
        Fingerprint::pack(kind, dtype as u64, reduction, root, count as u64)
    }

    #[inline(always)]
    fn pack(kind: OpKind, dtype: u64, reduction: u64, root: u64, count: u64) -> Fingerprint {
        let top = (((kind as u64) << 4 | dtype) << 3 | reduction) << ROOT_BITS | root;
        Fingerprint(top << (STAGING_BITS + COUNT_BITS) | count)
    }

    /// What goes into the header.
    #[inline]
    pub(super) fn with(self, staging: Staging) -> u64 {
        self.0 | staging.0
    }

    /// What a header holds.
    #[inline]
    pub(super) fn split(word: u64) -> (Fingerprint, Staging) {
        (
            Fingerprint(word & !Staging::ALL),
            Staging(word & Staging::ALL),
        )
    }

    /// The call as it is compared in words.
    fn shape(self) -> Shape {
        let field = |shift: u32, bits: u32| (self.0 >> shift) & ((1 << bits) - 1);
        let count = field(0, COUNT_BITS);
        let root_at = COUNT_BITS + STAGING_BITS;
        let root = field(root_at, ROOT_BITS);
        let reduction = field(root_at + ROOT_BITS, 3);
        let dtype = field(root_at + ROOT_BITS + 3, 4);
        let kind = field(root_at + ROOT_BITS + 7, 4);
        let Some(kind) = OpKind::from_raw(kind as u8) else {
            return Shape::new(&format!("an unknown call ({:#x})", self.0));
        };
        let mut shape = Shape::new(kind.name());
        if !matches!(kind, OpKind::Barrier | OpKind::AllToAllv) {
            shape = shape.with(Field::Count, count);
        }
        if kind != OpKind::Barrier {
            let name = DataType::from_raw(dtype as i32).map_or("?", DataType::name);
            shape = shape.with(Field::DataType, name);
        }
        if reduces(kind) {
            let name = RedOp::from_raw(reduction as i32).map_or("premulsum", RedOp::name);
            shape = shape.with(Field::Operator, name);
        }
        match rooted(kind) {
            true => shape.with(Field::Root, root),
            false => shape,
        }
    }
}

/// Whether the kind reduces.
#[inline]
pub(super) fn reduces(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter
    )
}

/// Whether the kind has a root.
#[inline]
fn rooted(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter
    )
}

/// Whether the kind is point-to-point.
#[inline]
pub(super) fn point_to_point(kind: OpKind) -> bool {
    matches!(kind, OpKind::Send | OpKind::Recv)
}

/// Refuses what this rank alone can see to be wrong. Nothing was published yet: peers do not
/// learn of it, and the engine stays as it was. `messaging` is the largest number of ranks among
/// which the engine has messages.
#[inline]
pub(super) fn validate(op: &HostOp, rank: usize, ranks: usize, messaging: usize) -> Result<()> {
    let kind = op.kind;
    if kind == OpKind::Barrier || ranks <= messaging && is_plain_message(op, ranks) {
        return Ok(());
    }
    if (rooted(kind) || point_to_point(kind)) && op.root as usize >= ranks {
        return Err(bad_peer(op, ranks));
    }
    if point_to_point(kind) && ranks > messaging {
        return Err(Error::not_supported(format!(
            "{}: the host tier has messages from rank to rank for up to {messaging} \
             ranks of a communicator, and this one has {}; collectives work, and a split makes \
             smaller ones",
            kind.name(),
            ranks
        )));
    }
    if reduces(kind) && op.dtype.is_float8() {
        return Err(Error::not_supported(format!(
            "{}: the host tier moves {} but does not reduce it",
            kind.name(),
            op.dtype.name()
        )));
    }
    if kind == OpKind::AllToAllv {
        return validate_vector(op, ranks);
    }
    let bytes = (op.count as u64 <= MAX_COUNT)
        .then(|| op.count.checked_mul(op.dtype.size())?.checked_mul(ranks))
        .flatten();
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Error::invalid_argument(format!(
            "{}: count {} of {} on {} is more than memory can hold",
            kind.name(),
            op.count,
            op.dtype.name(),
            counted(ranks as u64, "rank")
        )));
    }
    if op.count == 0 {
        return Ok(());
    }
    let at_root = op.root as usize == rank;
    let (sends, receives) = match kind {
        OpKind::Broadcast | OpKind::Scatter => (at_root, true),
        OpKind::Reduce | OpKind::Gather => (true, at_root),
        OpKind::Send => (true, false),
        OpKind::Recv => (false, true),
        _ => (true, true),
    };
    if sends && op.send.is_null() {
        return Err(null(kind, "send", op.count));
    }
    if receives && op.recv.is_null() {
        return Err(null(kind, "receive", op.count));
    }
    Ok(())
}

/// Whether it is a message about which there is nothing to say. Groups have many of them.
#[inline(always)]
fn is_plain_message(op: &HostOp, ranks: usize) -> bool {
    /// So many elements fit into memory, whatever the number of ranks and the data type.
    const MOST: usize = 1 << 24;
    let buffer = match op.kind {
        OpKind::Send => op.send,
        OpKind::Recv => op.recv.cast_const(),
        _ => return false,
    };
    (op.root as usize) < ranks && op.count <= MOST && !buffer.is_null()
}

fn validate_vector(op: &HostOp, ranks: usize) -> Result<()> {
    let Some(vector) = &op.vector else {
        return Err(Error::invalid_argument(
            "AlltoAllv: no counts and displacements",
        ));
    };
    let lists = [
        (
            "send",
            &vector.send_counts,
            &vector.send_displs,
            op.send.is_null(),
        ),
        (
            "receive",
            &vector.recv_counts,
            &vector.recv_displs,
            op.recv.is_null(),
        ),
    ];
    for (name, counts, displs, is_null) in lists {
        if counts.len() != ranks || displs.len() != ranks {
            return Err(Error::invalid_argument(format!(
                "AlltoAllv: {} {name} counts and {} displacements for {}",
                counts.len(),
                displs.len(),
                counted(ranks as u64, "rank")
            )));
        }
        for (peer, (&count, &displ)) in counts.iter().zip(displs).enumerate() {
            if count == 0 {
                continue;
            }
            let end = displ
                .checked_add(count)
                .and_then(|end| end.checked_mul(op.dtype.size()));
            if end.is_none_or(|end| end > isize::MAX as usize) {
                return Err(Error::invalid_argument(format!(
                    "AlltoAllv: {name} count {count} at displacement {displ} for rank {peer} is \
                     more than memory can hold"
                )));
            }
            if is_null {
                return Err(null(op.kind, name, count));
            }
        }
    }
    Ok(())
}

#[cold]
fn bad_peer(op: &HostOp, ranks: usize) -> Error {
    let role = if point_to_point(op.kind) {
        "peer"
    } else {
        "root"
    };
    Error::invalid_argument(format!(
        "{}: {role} {} but the communicator has {} (ranks are communicator-local)",
        op.kind.name(),
        op.root,
        counted(ranks as u64, "rank")
    ))
}

#[cold]
fn null(kind: OpKind, which: &str, count: usize) -> Error {
    Error::invalid_argument(format!(
        "{}: the {which} buffer is NULL but the count is {count}",
        kind.name()
    ))
}

/// The error of all ranks when some of them called different things.
#[cold]
pub(super) fn mismatch(sequence: u64, calls: impl Iterator<Item = Fingerprint>) -> Error {
    let each: Vec<Vec<Shape>> = calls.map(|call| vec![call.shape()]).collect();
    match disagreement(&each) {
        Some(Disagreement { fields, who }) => Error::invalid_usage(format!(
            "ranks disagree in collective number {sequence} of this communicator, in {fields}: {who}; \
             no data was moved"
        )),
        None => Error::internal("equal calls were taken for different ones"),
    }
}

/// Compares what every rank sends to every other with what that one expects. `counts(from, to)` is both,
/// from a table that all ranks have, so that all come to the same verdict.
pub(super) fn compare_counts(
    sequence: u64,
    dtype: DataType,
    ranks: usize,
    counts: impl Fn(usize, usize) -> (u64, u64),
) -> Result<()> {
    let mut first = None;
    let mut pairs = 0;
    for from in 0..ranks {
        for to in 0..ranks {
            let (sent, expected) = counts(from, to);
            if sent != expected {
                first.get_or_insert((from, to, sent, expected));
                pairs += 1;
            }
        }
    }
    let Some((from, to, sent, expected)) = first else {
        return Ok(());
    };
    let more = match pairs - 1 {
        0 => String::new(),
        1 => String::from(" (another pair of ranks disagrees, too)"),
        more => format!(" ({more} more pairs of ranks disagree)"),
    };
    Err(Error::invalid_usage(format!(
        "ranks disagree in collective number {sequence} of this communicator, in count: \
         AlltoAllv({name}): rank {from} sends count {sent} to rank {to}, but rank {to} \
         expects count {expected} from rank {from}{more}; no data was moved",
        name = dtype.name()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::op::OnDevice;

    fn op(kind: OpKind) -> HostOp {
        HostOp {
            kind,
            send: std::ptr::null(),
            recv: std::ptr::null_mut(),
            count: 100,
            dtype: DataType::Float32,
            reduction: Reduction::Builtin(RedOp::Max),
            root: 3,
            vector: None,
            on_device: OnDevice::default(),
        }
    }

    #[test]
    fn fingerprints_tell_every_field() {
        let text = |op: &HostOp| Fingerprint::of(op).shape().text();
        assert_eq!(
            text(&op(OpKind::AllReduce)),
            "AllReduce(count 100, float32, max)"
        );
        assert_eq!(
            text(&op(OpKind::Reduce)),
            "Reduce(count 100, float32, max, root 3)"
        );
        assert_eq!(
            text(&op(OpKind::Broadcast)),
            "Broadcast(count 100, float32, root 3)"
        );
        assert_eq!(text(&op(OpKind::AllToAllv)), "AlltoAllv(float32)");
        assert_eq!(text(&op(OpKind::Barrier)), "Barrier");
        let mut largest = op(OpKind::Reduce);
        largest.count = MAX_COUNT as usize;
        largest.dtype = DataType::Float8e5m2;
        largest.root = 511;
        largest.reduction = Reduction::PreMulSum([0; 8]);
        let expected = format!("Reduce(count {MAX_COUNT}, float8e5m2, premulsum, root 511)");
        assert_eq!(text(&largest), expected);
    }

    #[test]
    fn what_ranks_say_of_their_memory_is_beside_the_fingerprint() {
        let mut largest = op(OpKind::Reduce);
        largest.count = MAX_COUNT as usize;
        let print = Fingerprint::of(&largest);
        for said in [Staging::NONE, Staging::ON_DEVICE, Staging::NO_POOL] {
            assert_eq!(Fingerprint::split(print.with(said)), (print, said));
        }
        let both = Staging::ON_DEVICE.or(Staging::NO_POOL);
        assert!(both.says(Staging::ON_DEVICE) && both.says(Staging::NO_POOL));
        assert!(!Staging::ON_DEVICE.says(Staging::NO_POOL));
    }
}
