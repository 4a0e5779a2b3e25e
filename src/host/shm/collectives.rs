//! The collectives.
//!
//! Small operations carry their data with the header, in its cache line or in a slot, and are complete
//! after the exchange. Larger ones work in the others' buffers if these can be reached (`direct`), else
//! they go on in piece steps. `protocol` has the rules.

use super::ShmEngine;
use super::direct::{Direct, LentCopy, Visit};
use super::layout::{Row, SLOT, Side, WIDE_SLOT, WIDE_SLOT_RANKS};
use super::protocol::{self, Counter, Peers};
use super::wait::Flags;
use crate::error::{Error, Result};
use crate::host::check::{Fingerprint, Staging, compare_counts, mismatch, reduces};
use crate::host::kernels::{Scale, Target, copy, fence};
use crate::host::local::{
    Reducer, Sources, alone, extent, move_own, offset, own_block, private_copy,
};
use crate::host::op::{HostOp, OnDevice, WaitPolicy};
use crate::ops::lock;
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::sync::atomic::Ordering::Relaxed;

/// Largest piece of a reduction that one rank reduces in one step.
const REDUCE_PIECE: usize = 256 << 10;

/// Largest piece that is copied in one step.
const COPY_PIECE: usize = 256 << 10;

/// Smallest piece into which data is cut that flows from one rank to others or the other way round.
const ONE_WAY_PIECE: usize = 16 << 10;

/// The same of an all-reduce of which both ranks reduce all: two areas of each rank stay in the cache beside the
/// buffers.
const BOTH_REDUCE_PIECE: usize = 128 << 10;

/// The largest of them: beyond, writing twice as much into the areas costs near cores more than a wait.
const BOTH_REDUCE_MOST: usize = 256 << 10;

/// Results from this size on are written past the caches.
pub(super) const STREAM_FROM: usize = 4 << 20;

/// What a large all-reduce may read on every rank to be done in one exchange.
const GATHERED: usize = 64 << 10;

impl ShmEngine {
    /// Runs one validated collective.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn run_collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe {
            if self.ranks == 1 {
                return match op.on_device.any() {
                    true => self.alone_on_device(op),
                    false => alone(op),
                };
            }
            if op.kind == OpKind::AllToAllv {
                return self.all_to_all_v(op, wait);
            }
            let (bytes, frame) = self.frame(op);
            if self.goes_in_steps(op) {
                self.large(op, bytes, frame, wait)
            } else if self.may_be_copied(op, frame) {
                self.at_once_or_copied(op, bytes, frame, wait)
            } else {
                self.in_one_exchange(op, bytes, frame, wait)
            }
        }
    }

    /// What the count means in bytes, and how many bytes of it a rank shows the others at once.
    #[inline]
    fn frame(&self, op: &HostOp) -> (usize, usize) {
        let bytes = op.count * op.dtype.size();
        let frame = match op.kind {
            OpKind::ReduceScatter | OpKind::Scatter | OpKind::AllToAll => bytes * self.ranks,
            OpKind::Barrier => 0,
            _ => bytes,
        };
        (bytes, frame)
    }

    /// Whether a validated collective is too large for one exchange. Of an AlltoAllv only all ranks
    /// together know: it may be.
    #[inline]
    pub(crate) fn goes_in_steps(&self, op: &HostOp) -> bool {
        match op.kind {
            OpKind::AllToAllv => true,
            OpKind::Send | OpKind::Recv => false,
            kind => self.frame(op).1 > self.one_exchange(kind),
        }
    }

    /// How much a rank may have to show in a collective that is done in one exchange.
    #[inline]
    pub(super) fn one_exchange(&self, kind: OpKind) -> usize {
        let limit = match kind {
            OpKind::AllReduce | OpKind::Reduce => SLOT.min(GATHERED / self.ranks),
            _ if self.few_cores.load(Relaxed) && self.ranks <= WIDE_SLOT_RANKS => WIDE_SLOT,
            _ => SLOT,
        };
        limit.min(self.tuning.one_exchange)
    }

    /// Starts the next collective: its number, and the parity of its header and slot.
    #[inline]
    pub(super) fn begin(&self) -> (u64, usize) {
        let sequence = self.sequence.load(Relaxed) + 1;
        self.sequence.store(sequence, Relaxed);
        (sequence, (sequence & 1) as usize)
    }

    /// Publishes this rank's header and waits for all others'. On a mismatch all ranks return the
    /// same error, having read the same headers; nothing else has happened, so the next collective
    /// starts from a clean state. Returns what any rank says of its memory.
    #[inline(always)]
    pub(super) fn exchange(
        &self,
        sequence: u64,
        print: Fingerprint,
        says: Staging,
        wait: &dyn WaitPolicy,
    ) -> Result<Staging> {
        let parity = (sequence & 1) as usize;
        self.map
            .header_fingerprint(self.rank, parity)
            .store(print.with(says), Relaxed);
        let mut different = 0;
        let mut all_say = says;
        protocol::exchange(&self.flags(wait), sequence, |rank| {
            let header = self.map.header_fingerprint(rank, parity).load(Relaxed);
            let (theirs, says) = Fingerprint::split(header);
            different |= theirs.0 ^ print.0;
            all_say = all_say.or(says);
        })?;
        if sequence == 1 {
            self.choose_wait();
        }
        if different == 0 {
            Ok(all_say)
        } else {
            Err(self.disagreement(sequence))
        }
    }

    #[cold]
    fn disagreement(&self, sequence: u64) -> Error {
        let parity = (sequence & 1) as usize;
        let header = |rank| self.map.header_fingerprint(rank, parity).load(Relaxed);
        let print = |rank| Fingerprint::split(header(rank)).0;
        mismatch(sequence, (0..self.ranks).map(print))
    }

    /// Publishes this rank's scalar, before the exchange.
    #[inline]
    fn publish_scale(&self, op: &HostOp, parity: usize) {
        if let Reduction::PreMulSum(scale) = op.reduction
            && reduces(op.kind)
        {
            self.map
                .scale(self.rank, parity)
                .store(u64::from_ne_bytes(scale), Relaxed);
        }
    }

    /// The fold and, after the exchange, all ranks' scalars.
    #[inline]
    pub(super) fn reducer(&self, op: &HostOp, parity: usize) -> Result<Reducer> {
        let scales = match op.reduction {
            Reduction::Builtin(_) => Vec::new(),
            Reduction::PreMulSum(_) => self.scales(parity).collect(),
        };
        Reducer::new(op, scales, self.ranks)
    }

    /// All ranks' scalars, after the exchange.
    pub(super) fn scales(&self, parity: usize) -> impl Iterator<Item = Scale> {
        (0..self.ranks).map(move |rank| self.map.scale(rank, parity).load(Relaxed).to_ne_bytes())
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); `bytes` is what `op.count` means, `frame` at most [`SLOT`], or [`WIDE_SLOT`].
    pub(super) unsafe fn in_one_exchange(
        &self,
        op: &HostOp,
        bytes: usize,
        frame: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (sequence, parity) = self.begin();
        let root = op.root as usize;
        let contributes = match op.kind {
            OpKind::Broadcast | OpKind::Scatter => self.rank == root,
            OpKind::Barrier => false,
            _ => true,
        };
        let stage = |rank| self.map.stage(rank, parity, frame);
        if contributes {
            // SAFETY: validation has shown that a contributing rank has a send buffer, of which the
            // caller promised `frame` bytes; the stage has room for them, and no peer reads it, as
            // all have entered the previous exchange.
            unsafe {
                if op.on_device.any() || bytes == frame {
                    self.bring(op.on_device.send, stage(self.rank), op.send, frame)?;
                } else {
                    // A block of each rank, of which this one takes its own from where it is.
                    let (own, next) = (self.rank * bytes, (self.rank + 1) * bytes);
                    copy(stage(self.rank), op.send, own, false);
                    let to = offset(stage(self.rank), next);
                    copy(to, op.send.wrapping_add(next), frame - next, false);
                }
            }
        }
        self.publish_scale(op, parity);
        self.exchange(sequence, Fingerprint::of(op), Staging::NONE, wait)?;
        if bytes == 0 {
            return Ok(());
        }
        let (rank, recv, on_device) = (self.rank, op.recv, op.on_device.recv);
        let reduce_from = |at: usize| -> Result<()> {
            let reducer = self.reducer(op, parity)?;
            let sources = Sources::new(self.ranks, |from| {
                // What was just written to the stage, and is read by others, is slow to read.
                if from == rank && !op.on_device.send {
                    op.send.wrapping_add(at)
                } else {
                    offset(stage(from), at)
                }
            });
            let first = match on_device {
                true => self.map.outbound(rank, 0),
                false => recv,
            };
            let to = Target::one(first, false);
            // SAFETY: after the exchange every stage holds `frame` bytes, at + bytes of which are
            // inside, and stays as it is until the next exchange; so does the caller's buffer, which in place is
            // `recv` where it is read; the caller promised `bytes` bytes at `recv`; the outbound area has room
            // for a stage's bytes, and all have left what was in it, as they have entered this exchange.
            unsafe {
                reducer.fold(to, &sources, bytes);
                if on_device {
                    self.deliver(true, recv, to.first, bytes)?;
                }
            }
            Ok(())
        };
        let take = |from: usize, from_at: usize, to_at: usize| {
            let to = offset(recv, to_at);
            if from == rank && !op.on_device.any() {
                // What was just written to the stage is slow to read.
                // SAFETY: the stage is a copy of what the caller promised at `send`; in place the block is there.
                unsafe { move_own(to, op.send.wrapping_add(from_at), bytes) };
                return Ok(());
            }
            // SAFETY: as above; the caller promised that `recv` has room for every rank's block
            // where the kind has blocks.
            unsafe { self.deliver(on_device, to, offset(stage(from), from_at), bytes) }
        };
        match op.kind {
            OpKind::AllReduce => reduce_from(0)?,
            OpKind::Reduce if rank == root => reduce_from(0)?,
            OpKind::ReduceScatter => reduce_from(rank * bytes)?,
            OpKind::Broadcast => take(root, 0, 0)?,
            OpKind::Scatter => take(root, rank * bytes, 0)?,
            OpKind::AllGather => {
                (0..self.ranks).try_for_each(|from| take(from, 0, from * bytes))?
            }
            OpKind::Gather if rank == root => {
                (0..self.ranks).try_for_each(|from| take(from, 0, from * bytes))?;
            }
            OpKind::AllToAll => {
                (0..self.ranks).try_for_each(|from| take(from, rank * bytes, from * bytes))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); `bytes`, not 0, is what `op.count` means, and `frame` what the largest
    /// buffer of a rank holds.
    unsafe fn large(
        &self,
        op: &HostOp,
        bytes: usize,
        frame: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (sequence, parity) = self.begin();
        self.publish_scale(op, parity);
        let direct = &mut *lock(&self.direct);
        let loan = (!op.on_device.any()).then(|| self.announce(direct, op, bytes, parity));
        let says = self.staging(op);
        let met = self.exchange(sequence, Fingerprint::of(op), says, wait);
        let staging = match (met, loan) {
            (Ok(staging), Some(loan)) if !staging.says(Staging::ON_DEVICE) => {
                // SAFETY: handed down from the caller.
                let done = unsafe { self.large_on_host(direct, op, (bytes, frame), parity, wait) };
                if done.is_ok() {
                    loan.ended();
                }
                return done;
            }
            // Ranks that disagree, or stage, write to nobody's buffer.
            (Ok(staging), loan) => {
                if let Some(loan) = loan {
                    loan.ended();
                }
                staging
            }
            (Err(error), loan) => {
                if let Some(loan) = loan
                    && self.published_failure().is_ok()
                {
                    loan.ended();
                }
                return Err(error);
            }
        };
        // SAFETY: handed down from the caller.
        unsafe { self.in_stages(op, bytes, parity, staging, wait) }
    }

    /// # Safety
    /// As [`ShmEngine::large`], after the exchange, in which no rank has said that its buffers are on a device.
    unsafe fn large_on_host(
        &self,
        direct: &mut Direct,
        op: &HostOp,
        (bytes, frame): (usize, usize),
        parity: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let way = self.choose(direct, op, frame, parity, wait)?;
        let clock = way.clock(self);
        // SAFETY: handed down from the caller; all ranks have chosen the same way.
        unsafe {
            match self.visit(direct, &way, parity, wait)? {
                Some(visit) => self.directly(op, bytes, parity, visit)?,
                None => self.in_pieces(op, bytes, parity, wait)?,
            }
        }
        direct.note(way, clock, frame);
        Ok(())
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run), after the exchange; `bytes`, not 0, is what `op.count` means.
    unsafe fn in_pieces(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (rank, ranks, root) = (self.rank, self.ranks, op.root as usize);
        let (send, recv) = (op.send, op.recv);
        let stream = bytes >= STREAM_FROM;
        // Each step moves `piece` bytes of every block; `span` is where they lie in a block.
        let blocks = match op.kind {
            OpKind::Scatter | OpKind::AllToAll | OpKind::ReduceScatter => ranks,
            _ => 1,
        };
        // Where data flows one way, several pieces let the readers take one while the writers put the
        // next; where all write and read, or have to wait for a core, fewer pieces mean fewer waits.
        let one_way = matches!(
            op.kind,
            OpKind::Broadcast | OpKind::Scatter | OpKind::Gather
        );
        let wanted = if one_way && !self.few_cores.load(Relaxed) {
            (bytes / 8)
                .next_multiple_of(64)
                .clamp(ONE_WAY_PIECE, COPY_PIECE)
        } else if self.both_reduce(op) {
            BOTH_REDUCE_PIECE
        } else {
            COPY_PIECE
        };
        let piece = (self.map.inbound_bytes() / blocks / 64 * 64).min(wanted);
        let steps = bytes.div_ceil(piece) as u64;
        let span = |step: u64| {
            let start = step as usize * piece;
            (start, piece.min(bytes - start))
        };
        // What every kind but the reductions to a whole vector is made of. In each of them the
        // pointers that a closure uses are there, as it runs only on ranks that write or read.
        let put_whole = |step: u64, parity: usize| {
            let (start, len) = span(step);
            let area = self.map.inbound(rank, parity);
            // SAFETY: the span lies in the `bytes` bytes at `send` that the caller promised, `len`
            // is at most the size of the area, and the pipeline gives an area that nobody reads.
            unsafe { copy(area, send.wrapping_add(start), len, false) };
        };
        let put_blocks = |step: u64, parity: usize| {
            let (start, len) = span(step);
            let area = self.map.inbound(rank, parity);
            for peer in (0..ranks).filter(|&peer| peer != rank) {
                let from = send.wrapping_add(peer * bytes + start);
                // SAFETY: as above, for one of `ranks` blocks on either side.
                unsafe { copy(offset(area, peer * piece), from, len, false) };
            }
        };
        let take_from = |peer: usize, step: u64, block: usize, to_at: usize, parity: usize| {
            let (start, len) = span(step);
            let from = offset(self.map.inbound(peer, parity), block * piece);
            // SAFETY: the peer has posted this step's pieces and leaves them until this rank has
            // consumed the step; the caller promised the bytes at `recv`.
            unsafe { copy(offset(recv, to_at + start), from, len, stream) };
        };
        match op.kind {
            OpKind::AllReduce if self.both_reduce(op) => {
                let reducer = self.reducer(op, parity)?;
                self.pipeline(steps, Peers::All, Peers::All, wait, put_whole, |step, p| {
                    let (start, len) = span(step);
                    let sources = Sources::new(ranks, |from| {
                        if from == rank {
                            send.wrapping_add(start)
                        } else {
                            self.map.inbound(from, p)
                        }
                    });
                    let to = Target::one(offset(recv, start), stream);
                    // SAFETY: the peer has posted this step and leaves it until it is consumed; the caller
                    // promised `bytes` bytes at `send` and `recv`, which are the same or apart, and this
                    // rank has put what lies here of `send` before.
                    unsafe { reducer.fold(to, &sources, len) };
                })?;
            }
            OpKind::AllReduce | OpKind::Reduce => {
                let receivers = if op.kind == OpKind::Reduce {
                    Peers::Only(root)
                } else {
                    Peers::All
                };
                // SAFETY: handed down from the caller.
                unsafe { self.reduce_pieces(op, bytes, parity, receivers, None, wait)? };
            }
            OpKind::Broadcast => {
                if rank == root {
                    // SAFETY: the caller promised `bytes` bytes at both on the root.
                    unsafe { move_own(recv, send, bytes) };
                }
                let (writers, readers) = (Peers::Only(root), Peers::Except(root));
                self.pipeline(steps, writers, readers, wait, put_whole, |step, p| {
                    take_from(root, step, 0, 0, p);
                })?;
            }
            OpKind::Gather | OpKind::AllGather => {
                let (writers, readers) = match op.kind {
                    OpKind::Gather => (Peers::Except(root), Peers::Only(root)),
                    _ => (Peers::All, Peers::All),
                };
                if readers.has(rank) {
                    // SAFETY: the caller promised `bytes` bytes at `send` and a block of every rank
                    // at `recv`.
                    unsafe { move_own(offset(recv, rank * bytes), send, bytes) };
                }
                self.pipeline(steps, writers, readers, wait, put_whole, |step, p| {
                    for peer in self.others() {
                        take_from(peer, step, 0, peer * bytes, p);
                    }
                })?;
            }
            OpKind::Scatter => {
                if rank == root {
                    // SAFETY: the caller promised a block of every rank at `send` on the root.
                    unsafe { move_own(recv, send.wrapping_add(rank * bytes), bytes) };
                }
                let (writers, readers) = (Peers::Only(root), Peers::Except(root));
                self.pipeline(steps, writers, readers, wait, put_blocks, |step, p| {
                    take_from(root, step, rank, 0, p);
                })?;
            }
            OpKind::AllToAll => {
                let own = rank * bytes;
                // SAFETY: the caller promised a block of every rank at both.
                unsafe { move_own(offset(recv, own), send.wrapping_add(own), bytes) };
                // In place, a step writes only what it or an earlier one has sent.
                self.pipeline(
                    steps,
                    Peers::All,
                    Peers::All,
                    wait,
                    put_blocks,
                    |step, p| {
                        for peer in self.others() {
                            take_from(peer, step, rank, peer * bytes, p);
                        }
                    },
                )?;
            }
            OpKind::ReduceScatter => {
                let reducer = self.reducer(op, parity)?;
                self.pipeline(
                    steps,
                    Peers::All,
                    Peers::All,
                    wait,
                    put_blocks,
                    |step, p| {
                        let (start, len) = span(step);
                        let sources = Sources::new(ranks, |peer| {
                            if peer == rank {
                                send.wrapping_add(rank * bytes + start)
                            } else {
                                offset(self.map.inbound(peer, p), rank * piece)
                            }
                        });
                        let first = offset(recv, start);
                        let to = Target::one(first, stream);
                        // SAFETY: all peers have posted this step and leave it until it is consumed; the
                        // caller promised the own block at `send`, which in place is `recv`, and `bytes`
                        // bytes at `recv`.
                        unsafe { reducer.fold(to, &sources, len) };
                    },
                )?;
            }
            OpKind::AllToAllv | OpKind::Barrier | OpKind::Send | OpKind::Recv => {}
        }
        if stream {
            fence();
        }
        Ok(())
    }

    /// Whether each of two ranks reduces all of an all-reduce: they move no more than if each reduced a half and
    /// fetched the other's, and wait half as often. Where a reduction takes longer than moving what it reads, they
    /// share it.
    fn both_reduce(&self, op: &HostOp) -> bool {
        let averages_integers = op.reduction == Reduction::Builtin(RedOp::Avg)
            && !matches!(op.dtype, DataType::Float32 | DataType::Float64);
        self.ranks == 2
            && op.kind == OpKind::AllReduce
            && op.dtype.size() >= 4
            && op.count * op.dtype.size() <= BOTH_REDUCE_MOST
            && !averages_integers
    }

    /// The other ranks, starting after this one, so that not all read from the same one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    /// The ranks' words, and what waits ask.
    pub(super) fn flags<'a>(&'a self, wait: &'a dyn WaitPolicy) -> Flags<'a> {
        Flags { engine: self, wait }
    }

    /// [`protocol::pipeline`] with the next steps of this engine.
    pub(super) fn pipeline(
        &self,
        steps: u64,
        writers: Peers,
        readers: Peers,
        wait: &dyn WaitPolicy,
        put: impl Fn(u64, usize),
        take: impl Fn(u64, usize),
    ) -> Result<()> {
        let base = self.step.load(Relaxed);
        protocol::pipeline(
            &self.flags(wait),
            base,
            steps,
            (writers, readers),
            put,
            take,
        )?;
        self.step.store(base + steps, Relaxed);
        Ok(())
    }

    /// Reduces whole vectors: each rank reduces its piece of every step and, unless it is the only
    /// receiver, leaves the result for the receivers. The contributions come through the inbound areas,
    /// or with a visit from where they are.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); if one rank has a visit, all have.
    pub(super) unsafe fn reduce_pieces(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        receivers: Peers,
        mut visit: Option<&mut Visit<'_>>,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let reducer = self.reducer(op, parity)?;
        let (rank, ranks) = (self.rank, self.ranks);
        let receives = receivers.has(rank);
        let stream = bytes >= STREAM_FROM;
        let largest = match &visit {
            Some(visit) => visit.chunk().min(self.map.outbound_bytes()),
            None => (self.map.inbound_bytes() / ranks / 64 * 64)
                .min(self.map.outbound_bytes())
                .min(REDUCE_PIECE),
        };
        let steps = bytes.div_ceil(largest * ranks) as u64;
        // Equal pieces of whole cache lines, so that no rank waits for another's longer one.
        let piece = bytes
            .div_ceil(steps as usize * ranks)
            .next_multiple_of(64)
            .min(largest);
        let span = |step: u64, owner: usize| {
            let start = ((step as usize * ranks + owner) * piece).min(bytes);
            (start, piece.min(bytes - start))
        };
        let visits = visit.is_some();
        let put = |step: u64, area: usize| {
            if visits {
                return;
            }
            for peer in self.others() {
                let (start, len) = span(step, peer);
                let to = offset(self.map.inbound(rank, area), peer * piece);
                // SAFETY: the span lies in the `bytes` bytes at `send`; the inbound area has room for a
                // piece of every rank, and all have consumed what was in it.
                unsafe { copy(to, op.send.wrapping_add(start), len, false) };
            }
        };
        let fold = |step: u64, area: usize| -> Result<()> {
            let (start, len) = span(step, rank);
            let sources = match &mut visit {
                // SAFETY: the span lies in the `bytes` bytes at every rank's `send`.
                Some(visit) => unsafe { visit.sources(start, len)? },
                None => Sources::new(ranks, |peer| {
                    if peer == rank {
                        op.send.wrapping_add(start)
                    } else {
                        offset(self.map.inbound(peer, area), rank * piece)
                    }
                }),
            };
            let outbound = self.map.outbound(rank, area);
            let recv = op.recv.wrapping_add(start);
            let to = match receivers {
                Peers::All => Target {
                    first: recv,
                    second: outbound,
                    stream,
                    stream_second: false,
                },
                _ if receives => Target::one(recv, stream),
                _ => Target::one(outbound, false),
            };
            // SAFETY: all peers have posted this step and leave it until it is consumed; the caller
            // promised `bytes` bytes at `send` and, on receivers, at `recv`, which are the same or apart;
            // nobody reads the outbound area any more, as the protocol says.
            unsafe { reducer.fold(to, &sources, len) };
            Ok(())
        };
        let take = |step: u64, peer: usize, area: usize| {
            let (start, len) = span(step, peer);
            let from = self.map.outbound(peer, area);
            // SAFETY: the peer has written its result of this step and leaves it until this rank posts
            // the step after the next; the caller promised the bytes at `recv`.
            unsafe { copy(op.recv.wrapping_add(start), from, len, stream) };
        };
        let base = self.step.load(Relaxed);
        let flags = self.flags(wait);
        protocol::reduce_steps(&flags, base, steps, receivers, put, fold, take)?;
        self.step.store(base + steps, Relaxed);
        if visits {
            // Nobody leaves while its buffer is read.
            protocol::await_peers(&flags, Counter::Consumed, Peers::All, base + steps)?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    unsafe fn all_to_all_v(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        let Some(vector) = op.vector.as_deref() else {
            return Err(Error::internal(
                "an AlltoAllv passed validation without counts",
            ));
        };
        let size = op.dtype.size();
        let (rank, ranks) = (self.rank, self.ranks);
        // In place a step could overwrite what a later one has yet to send: send from a copy.
        let send_bytes = extent(&vector.send_counts, &vector.send_displs) * size;
        let recv_bytes = extent(&vector.recv_counts, &vector.recv_displs) * size;
        let (send_at, recv_at) = (op.send.addr(), op.recv.addr());
        let overlap = send_at < recv_at.saturating_add(recv_bytes)
            && recv_at < send_at.saturating_add(send_bytes);
        let copied = if overlap {
            let copied = private_copy(op.send, vector, size, send_bytes, |to, from, bytes| {
                // SAFETY: the caller promised the send buffer up to the end of its last block.
                unsafe { self.bring(op.on_device.send, to, from, bytes) }
            });
            Some(self.lend_copy(copied?))
        } else {
            None
        };
        let send = copied.as_ref().map_or(op.send, LentCopy::start);
        let send_on_device = op.on_device.send && copied.is_none();
        let on_device = OnDevice {
            send: send_on_device,
            recv: op.on_device.recv,
        };

        let (sequence, parity) = self.begin();
        for peer in 0..ranks {
            let count = |list: &[usize]| list[peer] as u64;
            self.map
                .row(rank, parity, Row::Sent, peer)
                .store(count(&vector.send_counts), Relaxed);
            self.map
                .row(rank, parity, Row::Expected, peer)
                .store(count(&vector.recv_counts), Relaxed);
            self.map
                .row(rank, parity, Row::Displacement, peer)
                .store(count(&vector.send_displs), Relaxed);
        }
        let sent = |from: usize, to: usize| -> usize {
            self.map.row(from, parity, Row::Sent, to).load(Relaxed) as usize * size
        };
        let one_exchange = SLOT.min(self.tuning.one_exchange);
        let own_total = vector
            .send_counts
            .iter()
            .fold(0usize, |sum, &n| sum.saturating_add(n));
        if own_total.saturating_mul(size) <= one_exchange {
            let mut at = 0;
            for peer in 0..ranks {
                let len = vector.send_counts[peer] * size;
                let from = send.wrapping_add(vector.send_displs[peer].wrapping_mul(size));
                // SAFETY: the caller promised this block of the send buffer; all blocks together fit
                // into the slot, which no peer reads, as all have entered the previous exchange.
                unsafe {
                    let to = offset(self.map.slot(rank, parity), at);
                    self.bring(send_on_device, to, from, len)?;
                }
                at += len;
            }
        }
        let direct = &mut *lock(&self.direct);
        if !on_device.any() {
            self.announce_one(direct, Side::Send, parity, send, send_bytes);
            // Nothing: its word is where small operations have their data.
            self.announce_one(direct, Side::Recv, parity, std::ptr::null(), 0);
        }
        let says = self.staging(op);
        let staging = self.exchange(sequence, Fingerprint::of(op), says, wait)?;
        self.compare_rows(sequence, parity, op.dtype)?;

        let total = |from: usize| -> usize {
            (0..ranks).fold(0usize, |sum, to| sum.saturating_add(sent(from, to)))
        };
        let largest = (0..ranks).map(total).max().unwrap_or(0);
        if largest <= one_exchange {
            for from in 0..ranks {
                let at: usize = (0..rank).map(|to| sent(from, to)).sum();
                let to = op
                    .recv
                    .wrapping_add(vector.recv_displs[from].wrapping_mul(size));
                let slot = self.map.slot(from, parity);
                // SAFETY: every rank has put its blocks into its slot in this order before the
                // exchange, and its row is what this rank expects, for which the caller promised
                // room.
                unsafe {
                    let bytes = sent(from, rank);
                    self.deliver(op.on_device.recv, to, offset(slot, at), bytes)?;
                }
            }
            return Ok(());
        }
        let longest = (0..ranks)
            .flat_map(|from| (0..ranks).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|(from, to)| sent(from, to))
            .max()
            .unwrap_or(0);
        let piece = (self.map.inbound_bytes() / ranks / 64 * 64).min(COPY_PIECE);
        let steps = longest.div_ceil(piece) as u64;
        let span = |step: u64, bytes: usize| {
            let start = (step as usize * piece).min(bytes);
            (start, piece.min(bytes - start))
        };
        let own = vector.send_counts[rank] * size;
        // SAFETY: the caller promised both blocks; the counts were found equal.
        unsafe {
            self.keep_own(
                on_device.any(),
                op.recv
                    .wrapping_add(vector.recv_displs[rank].wrapping_mul(size)),
                send.wrapping_add(vector.send_displs[rank].wrapping_mul(size)),
                own,
            )?;
        }
        if staging.says(Staging::ON_DEVICE) {
            let of = |counts: &[usize], displs: &[usize], peer: usize| {
                (displs[peer].wrapping_mul(size), counts[peer] * size)
            };
            let op = HostOp {
                send,
                on_device,
                ..op.clone()
            };
            // SAFETY: handed down from the caller; `send` is the caller's or the copy, which lives on.
            return unsafe {
                self.all_to_all_v_in_stages(
                    &op,
                    longest,
                    &|peer| of(&vector.send_counts, &vector.send_displs, peer),
                    &|peer| of(&vector.recv_counts, &vector.recv_displs, peer),
                    staging,
                    wait,
                )
            };
        }
        let way = self.choose(direct, op, largest, parity, wait)?;
        let clock = way.clock(self);
        let read = |visit: Visit<'_>| {
            for peer in self.others() {
                let displ = self.map.row(peer, parity, Row::Displacement, rank);
                let from = (displ.load(Relaxed) as usize).wrapping_mul(size);
                let to = op
                    .recv
                    .wrapping_add(vector.recv_displs[peer].wrapping_mul(size));
                // SAFETY: the peer's block for this rank, and the room for it that the caller promised.
                unsafe { visit.fetch(peer, from, to, sent(peer, rank), false)? };
            }
            self.leave(visit, Peers::All, || {})
        };
        let put = |step: u64, area: usize| {
            let area = self.map.inbound(rank, area);
            for peer in (0..ranks).filter(|&peer| peer != rank) {
                let (start, len) = span(step, vector.send_counts[peer] * size);
                let from = send.wrapping_add(
                    vector.send_displs[peer]
                        .wrapping_mul(size)
                        .wrapping_add(start),
                );
                // SAFETY: the span lies in the block that the caller promised, and the area has room
                // for a piece for every rank.
                unsafe { copy(offset(area, peer * piece), from, len, false) };
            }
        };
        let take = |step: u64, area: usize| {
            for peer in self.others() {
                let (start, len) = span(step, sent(peer, rank));
                let to = op.recv.wrapping_add(
                    vector.recv_displs[peer]
                        .wrapping_mul(size)
                        .wrapping_add(start),
                );
                let from = offset(self.map.inbound(peer, area), rank * piece);
                // SAFETY: the peer has posted the piece and leaves it until it is consumed; what it
                // sends is what this rank expects, for which the caller promised room.
                unsafe { copy(to, from, len, false) };
            }
        };
        // SAFETY: all ranks have chosen the same way, and what they have announced is what the caller
        // promised.
        match unsafe { self.visit(direct, &way, parity, wait)? } {
            Some(visit) => read(visit)?,
            None => self.pipeline(steps, Peers::All, Peers::All, wait, put, take)?,
        }
        direct.note(way, clock, largest);
        Ok(())
    }

    /// Compares what every rank sends to every other with what that one expects: all ranks look at
    /// the same table and come to the same verdict.
    fn compare_rows(&self, sequence: u64, parity: usize, dtype: DataType) -> Result<()> {
        compare_counts(sequence, dtype, self.ranks, |from, to| {
            let sent = self.map.row(from, parity, Row::Sent, to);
            let expected = self.map.row(to, parity, Row::Expected, from);
            (sent.load(Relaxed), expected.load(Relaxed))
        })
    }

    /// A communicator of one rank with a buffer on a device.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    unsafe fn alone_on_device(&self, op: &HostOp) -> Result<()> {
        let Some((send, recv, count)) = own_block(op)? else {
            return Ok(());
        };
        // SAFETY: handed down from the caller.
        unsafe {
            match op.reduction {
                Reduction::PreMulSum(scale) if reduces(op.kind) => self.scale_alone(op, scale),
                _ => self.keep_own(true, recv, send, count * op.dtype.size()),
            }
        }
    }
}
