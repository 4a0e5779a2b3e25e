//! The collectives.
//!
//! Every collective starts with an exchange: each rank publishes a header with the collective's
//! number and fingerprint and compares those of all others. Small operations carry their data with
//! the header, in its cache line or in a slot, and are complete after it. Two headers and two slots
//! by parity are enough: a rank reuses one only after the next exchange, which no peer enters before
//! it has finished with the previous collective.
//!
//! Larger operations go on in piece steps through areas that stay in the cache, two of them by
//! parity. The number of a step grows over the life of the engine, equally on all ranks. Two rules
//! keep the areas right:
//!
//! * an inbound area is rewritten in step g only after every reader has published that it consumed
//!   step g - 2;
//! * an outbound area is rewritten in step g only after *every* rank has posted step g, as it does
//!   so only after it has copied out step g - 2.

use super::ShmEngine;

use super::layout::{Counter, SLOT};
use crate::error::{Error, Result};
use crate::host::check::{Fingerprint, counts_differ, mismatch, reduces};
use crate::host::kernels::{Target, copy, fence};
use crate::host::local::{Reducer, Sources, alone, extent, move_own, offset, private_copy};
use crate::host::op::{HostOp, WaitPolicy};
use crate::types::{DataType, OpKind, Reduction};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Largest piece of a reduction that one rank reduces in one step.
const REDUCE_PIECE: usize = 256 << 10;

/// Largest piece that is copied in one step.
const COPY_PIECE: usize = 256 << 10;

/// Smallest piece into which data is cut that flows from one rank to others or the other way round.
const ONE_WAY_PIECE: usize = 16 << 10;

/// Results from this size on are written past the caches.
const STREAM_FROM: usize = 4 << 20;

/// What a large all-reduce may read on every rank to be done in one exchange.
const GATHERED: usize = 64 << 10;

/// The ranks that have a part in a step.
#[derive(Clone, Copy, PartialEq)]
enum Peers {
    All,
    Only(usize),
    Except(usize),
}

impl Peers {
    fn has(self, rank: usize) -> bool {
        match self {
            Peers::All => true,
            Peers::Only(only) => only == rank,
            Peers::Except(except) => except != rank,
        }
    }
}

impl ShmEngine {
    /// Runs one validated collective.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn run_collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe {
            if self.ranks == 1 {
                return alone(op);
            }
            if op.kind == OpKind::AllToAllv {
                return self.all_to_all_v(op, wait);
            }
            let bytes = op.count * op.dtype.size();
            let frame = match op.kind {
                OpKind::ReduceScatter | OpKind::Scatter | OpKind::AllToAll => bytes * self.ranks,
                OpKind::Barrier => 0,
                _ => bytes,
            };
            let gathers = matches!(op.kind, OpKind::AllReduce | OpKind::Reduce);
            let limit = if gathers {
                SLOT.min(GATHERED / self.ranks)
            } else {
                SLOT
            };
            // The place for another path, such as one that reads a peer's memory directly.
            if frame <= limit {
                self.in_one_exchange(op, bytes, frame, wait)
            } else {
                self.in_pieces(op, bytes, wait)
            }
        }
    }

    /// Starts the next collective: its number, and the parity of its header and slot.
    #[inline]
    fn begin(&self) -> (u64, usize) {
        let sequence = self.sequence.load(Relaxed) + 1;
        self.sequence.store(sequence, Relaxed);
        (sequence, (sequence & 1) as usize)
    }

    /// Publishes this rank's header and waits for all others'. On a mismatch all ranks return the
    /// same error, having read the same headers; nothing else has happened, so the next collective
    /// starts from a clean state.
    #[inline]
    fn exchange(&self, sequence: u64, print: Fingerprint, wait: &dyn WaitPolicy) -> Result<()> {
        let parity = (sequence & 1) as usize;
        self.map
            .header_fingerprint(self.rank, parity)
            .store(print.0, Relaxed);
        self.map
            .header_sequence(self.rank, parity)
            .store(sequence, Release);
        self.ring();
        let arrived = |rank| self.map.header_sequence(rank, parity).load(Acquire) >= sequence;
        let missing = || self.ranks_where(|rank| !arrived(rank));
        let mut different = 0;
        for rank in 0..self.ranks {
            self.wait_until(wait, || arrived(rank), missing)?;
            different |= self.map.header_fingerprint(rank, parity).load(Relaxed) ^ print.0;
        }
        if sequence == 1 {
            self.choose_wait();
        }
        if different == 0 {
            Ok(())
        } else {
            Err(self.disagreement(sequence))
        }
    }

    #[cold]
    fn disagreement(&self, sequence: u64) -> Error {
        let parity = (sequence & 1) as usize;
        let print = |rank| Fingerprint(self.map.header_fingerprint(rank, parity).load(Relaxed));
        let odd = (1..self.ranks)
            .find(|&rank| print(rank) != print(0))
            .unwrap_or(0);
        mismatch(sequence, (0, print(0)), (odd, print(odd)))
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
    fn reducer(&self, op: &HostOp, parity: usize) -> Result<Reducer> {
        let scales = match op.reduction {
            Reduction::Builtin(_) => Vec::new(),
            Reduction::PreMulSum(_) => (0..self.ranks)
                .map(|rank| self.map.scale(rank, parity).load(Relaxed).to_ne_bytes())
                .collect(),
        };
        Reducer::new(op, scales)
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); `bytes` is what `op.count` means, `frame` at most [`SLOT`].
    unsafe fn in_one_exchange(
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
            unsafe { copy(stage(self.rank), op.send, frame, false) };
        }
        self.publish_scale(op, parity);
        self.exchange(sequence, Fingerprint::of(op), wait)?;
        if bytes == 0 {
            return Ok(());
        }
        let (rank, recv) = (self.rank, op.recv);
        let reduce_from = |at: usize| -> Result<()> {
            let reducer = self.reducer(op, parity)?;
            let sources = Sources::new(self.ranks, |rank| offset(stage(rank), at));
            let to = Target {
                first: recv,
                second: std::ptr::null_mut(),
                stream: false,
            };
            // SAFETY: after the exchange every stage holds `frame` bytes, at + bytes of which are
            // inside, and stays as it is until the next exchange; the caller promised `bytes` bytes
            // at `recv`.
            unsafe { reducer.fold(to, &sources, bytes) };
            Ok(())
        };
        let take = |from: usize, from_at: usize, to_at: usize| {
            // SAFETY: as above; the caller promised that `recv` has room for every rank's block
            // where the kind has blocks.
            unsafe {
                copy(
                    offset(recv, to_at),
                    offset(stage(from), from_at),
                    bytes,
                    false,
                )
            };
        };
        match op.kind {
            OpKind::AllReduce => reduce_from(0)?,
            OpKind::Reduce if rank == root => reduce_from(0)?,
            OpKind::ReduceScatter => reduce_from(rank * bytes)?,
            OpKind::Broadcast => take(root, 0, 0),
            OpKind::Scatter => take(root, rank * bytes, 0),
            OpKind::AllGather => (0..self.ranks).for_each(|from| take(from, 0, from * bytes)),
            OpKind::Gather if rank == root => {
                (0..self.ranks).for_each(|from| take(from, 0, from * bytes));
            }
            OpKind::AllToAll => {
                (0..self.ranks).for_each(|from| take(from, rank * bytes, from * bytes));
            }
            _ => {}
        }
        Ok(())
    }

    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); `bytes`, not 0, is what `op.count` means.
    unsafe fn in_pieces(&self, op: &HostOp, bytes: usize, wait: &dyn WaitPolicy) -> Result<()> {
        let (sequence, parity) = self.begin();
        self.publish_scale(op, parity);
        self.exchange(sequence, Fingerprint::of(op), wait)?;
        let (rank, ranks, root) = (self.rank, self.ranks, op.root as usize);
        let (send, recv) = (op.send, op.recv);
        let stream = bytes >= STREAM_FROM;
        // Each step moves `piece` bytes of every block; `span` is where they lie in a block.
        let blocks = match op.kind {
            OpKind::Scatter | OpKind::AllToAll | OpKind::ReduceScatter => ranks,
            _ => 1,
        };
        // Where data flows one way, several pieces let the readers take one while the writers put the
        // next; where all write and read, fewer pieces mean fewer waits.
        let one_way = matches!(
            op.kind,
            OpKind::Broadcast | OpKind::Scatter | OpKind::Gather
        );
        let wanted = if one_way {
            (bytes / 8)
                .next_multiple_of(64)
                .clamp(ONE_WAY_PIECE, COPY_PIECE)
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
        let put_whole = |step: u64, area: *mut u8| {
            let (start, len) = span(step);
            // SAFETY: the span lies in the `bytes` bytes at `send` that the caller promised, `len`
            // is at most the size of the area, and the pipeline gives an area that nobody reads.
            unsafe { copy(area, send.wrapping_add(start), len, false) };
        };
        let put_blocks = |step: u64, area: *mut u8| {
            let (start, len) = span(step);
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
            OpKind::AllReduce | OpKind::Reduce => {
                let receivers = if op.kind == OpKind::Reduce {
                    Peers::Only(root)
                } else {
                    Peers::All
                };
                // SAFETY: handed down from the caller.
                unsafe { self.reduce_pieces(op, bytes, parity, receivers, stream, wait)? };
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
                        let to = Target {
                            first,
                            second: std::ptr::null_mut(),
                            stream,
                        };
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

    /// The other ranks, starting after this one, so that not all read from the same one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    /// The ranks for which something holds, as waits report them.
    fn ranks_where(&self, holds: impl Fn(usize) -> bool) -> Vec<u32> {
        (0..self.ranks)
            .filter(|&rank| holds(rank))
            .map(|rank| rank as u32)
            .collect()
    }

    /// Publishes that this rank's counter reached `value`.
    #[inline]
    fn publish(&self, counter: Counter, value: u64) {
        self.map.counter(counter, self.rank).store(value, Release);
        self.ring();
    }

    /// Waits until the counters of some other ranks reached `value`.
    #[inline]
    fn await_peers(
        &self,
        counter: Counter,
        peers: Peers,
        value: u64,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let reached = |rank| self.map.counter(counter, rank).load(Acquire) >= value;
        let concerns = |rank| rank != self.rank && peers.has(rank);
        let missing = || self.ranks_where(|rank| concerns(rank) && !reached(rank));
        for rank in (0..self.ranks).filter(|&rank| concerns(rank)) {
            self.wait_until(wait, || reached(rank), missing)?;
        }
        Ok(())
    }

    /// Piece steps in which `writers` fill their inbound area by `put` and then `readers` use those
    /// of all writers by `take`. The next step is put before the previous is taken.
    fn pipeline(
        &self,
        steps: u64,
        writers: Peers,
        readers: Peers,
        wait: &dyn WaitPolicy,
        put: impl Fn(u64, *mut u8),
        take: impl Fn(u64, usize),
    ) -> Result<()> {
        let base = self.step.load(Relaxed);
        let writes = writers.has(self.rank);
        let reads = readers.has(self.rank);
        for step in 0..=steps {
            if writes && step < steps {
                let now = base + step;
                if step >= 2 {
                    self.await_peers(Counter::Consumed, readers, now - 1, wait)?;
                }
                put(step, self.map.inbound(self.rank, (now & 1) as usize));
                self.publish(Counter::Posted, now + 1);
            }
            if reads && step > 0 {
                let now = base + step - 1;
                self.await_peers(Counter::Posted, writers, now + 1, wait)?;
                take(step - 1, (now & 1) as usize);
                self.publish(Counter::Consumed, now + 1);
            }
        }
        self.step.store(base + steps, Relaxed);
        Ok(())
    }

    /// Reduces whole vectors: each rank reduces its piece of every step and, unless it is the only
    /// receiver, leaves the result for the receivers.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    unsafe fn reduce_pieces(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        receivers: Peers,
        stream: bool,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let reducer = self.reducer(op, parity)?;
        let (rank, ranks) = (self.rank, self.ranks);
        let receives = receivers.has(rank);
        let largest = (self.map.inbound_bytes() / ranks / 64 * 64)
            .min(self.map.outbound_bytes())
            .min(REDUCE_PIECE);
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
        let base = self.step.load(Relaxed);
        for step in 0..=steps {
            if step < steps {
                let now = base + step;
                let area = (now & 1) as usize;
                if step >= 2 {
                    self.await_peers(Counter::Consumed, Peers::All, now - 1, wait)?;
                }
                for peer in self.others() {
                    let (start, len) = span(step, peer);
                    let to = offset(self.map.inbound(rank, area), peer * piece);
                    // SAFETY: the span lies in the `bytes` bytes at `send`; the inbound area has
                    // room for a piece of every rank, and all have consumed what was in it.
                    unsafe { copy(to, op.send.wrapping_add(start), len, false) };
                }
                self.publish(Counter::Posted, now + 1);
                // Also proves that every peer has left this rank's outbound area of step - 2.
                self.await_peers(Counter::Posted, Peers::All, now + 1, wait)?;
                let (start, len) = span(step, rank);
                let sources = Sources::new(ranks, |peer| {
                    if peer == rank {
                        op.send.wrapping_add(start)
                    } else {
                        offset(self.map.inbound(peer, area), rank * piece)
                    }
                });
                let outbound = self.map.outbound(rank, area);
                let recv = op.recv.wrapping_add(start);
                let to = match receivers {
                    Peers::All => Target {
                        first: recv,
                        second: outbound,
                        stream,
                    },
                    _ if receives => Target {
                        first: recv,
                        second: std::ptr::null_mut(),
                        stream,
                    },
                    _ => Target {
                        first: outbound,
                        second: std::ptr::null_mut(),
                        stream: false,
                    },
                };
                // SAFETY: all peers have posted this step and leave it until it is consumed; the
                // caller promised `bytes` bytes at `send` and, on receivers, at `recv`, which are
                // the same or apart; nobody reads the outbound area any more (see above).
                unsafe { reducer.fold(to, &sources, len) };
                self.publish(Counter::Consumed, now + 1);
            }
            if receives && step > 0 {
                let now = base + step - 1;
                for peer in self.others() {
                    let peers = Peers::Only(peer);
                    self.await_peers(Counter::Consumed, peers, now + 1, wait)?;
                    let (start, len) = span(step - 1, peer);
                    let from = self.map.outbound(peer, (now & 1) as usize);
                    // SAFETY: the peer has written its result of this step and leaves it until this
                    // rank posts the step after the next; the caller promised the bytes at `recv`.
                    unsafe { copy(op.recv.wrapping_add(start), from, len, stream) };
                }
            }
        }
        self.step.store(base + steps, Relaxed);
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
            // SAFETY: the caller promised the send buffer up to the end of its last block.
            Some(unsafe { private_copy(op.send, vector, size, send_bytes)? })
        } else {
            None
        };
        let send = copied.as_ref().map_or(op.send, |copy| copy.as_ptr().cast());

        let (sequence, parity) = self.begin();
        for peer in 0..ranks {
            let count = |list: &[usize]| list[peer] as u64;
            self.map
                .row(rank, parity, false, peer)
                .store(count(&vector.send_counts), Relaxed);
            self.map
                .row(rank, parity, true, peer)
                .store(count(&vector.recv_counts), Relaxed);
        }
        let sent = |from: usize, to: usize| -> usize {
            self.map.row(from, parity, false, to).load(Relaxed) as usize * size
        };
        let own_total = vector
            .send_counts
            .iter()
            .fold(0usize, |sum, &n| sum.saturating_add(n));
        if own_total.saturating_mul(size) <= SLOT {
            let mut at = 0;
            for peer in 0..ranks {
                let len = vector.send_counts[peer] * size;
                let from = send.wrapping_add(vector.send_displs[peer].wrapping_mul(size));
                // SAFETY: the caller promised this block of the send buffer; all blocks together fit
                // into the slot, which no peer reads, as all have entered the previous exchange.
                unsafe { copy(offset(self.map.slot(rank, parity), at), from, len, false) };
                at += len;
            }
        }
        self.exchange(sequence, Fingerprint::of(op), wait)?;
        self.compare_rows(sequence, parity, op.dtype)?;

        let total = |from: usize| -> usize {
            (0..ranks).fold(0usize, |sum, to| sum.saturating_add(sent(from, to)))
        };
        if (0..ranks).all(|from| total(from) <= SLOT) {
            for from in 0..ranks {
                let at: usize = (0..rank).map(|to| sent(from, to)).sum();
                let to = op
                    .recv
                    .wrapping_add(vector.recv_displs[from].wrapping_mul(size));
                let slot = self.map.slot(from, parity);
                // SAFETY: every rank has put its blocks into its slot in this order before the
                // exchange, and its row is what this rank expects, for which the caller promised
                // room.
                unsafe { copy(to, offset(slot, at), sent(from, rank), false) };
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
            move_own(
                op.recv
                    .wrapping_add(vector.recv_displs[rank].wrapping_mul(size)),
                send.wrapping_add(vector.send_displs[rank].wrapping_mul(size)),
                own,
            );
        }
        let put = |step: u64, area: *mut u8| {
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
        self.pipeline(steps, Peers::All, Peers::All, wait, put, |step, area| {
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
        })
    }

    /// Compares what every rank sends to every other with what that one expects: all ranks look at
    /// the same table and come to the same verdict.
    fn compare_rows(&self, sequence: u64, parity: usize, dtype: DataType) -> Result<()> {
        for from in 0..self.ranks {
            for to in 0..self.ranks {
                let sent = self.map.row(from, parity, false, to).load(Relaxed);
                let expected = self.map.row(to, parity, true, from).load(Relaxed);
                if sent != expected {
                    return Err(counts_differ(sequence, dtype, (from, sent), (to, expected)));
                }
            }
        }
        Ok(())
    }
}
