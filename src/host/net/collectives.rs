//! The collectives over messages.
//!
//! Small ones are complete after the exchange of headers, with which their data travelled. In larger ones
//! data goes straight from the rank that has it to those that need it:
//!
//! * a reduction in pieces: of every step each rank owns a piece, gets it from all others, folds it in the
//!   order of the ranks and, where the result is wanted, sends it there. Each rank sends and receives as
//!   much as in a ring, and rounds once. Of two ranks each gets everything of the other up to some size, unless
//!   the link is slow, and a root that reduces always;
//! * a broadcast in pieces: each goes to one rank, which passes it on to the others, so that the root sends
//!   the data once; as long as the number of messages counts for more than their bytes it goes along a tree, and so
//!   do the blocks of a scatter (`trees`);
//! * the others by distance: a rank sends to the one that follows it by so much, and receives from the one
//!   before.

use super::exchange::Carried;
use super::run::{Area, Run, Topic};
use super::staged::Steps;
use super::trees;
use crate::error::{Error, Result};
use crate::host::check::{Fingerprint, compare_counts, reduces};
use crate::host::kernels::{Scale, Target, copy};
use crate::host::local::{Reducer, Sources, alone, extent, move_own, offset, private_copy};
use crate::host::op::{HostOp, VectorCounts};
use crate::types::{DataType, OpKind, Reduction};
use std::time::{Duration, Instant};

/// What the pieces of a reduction may take in memory.
const PIECES: usize = 8 << 20;
/// The largest piece of a reduction: it and what is combined with it stay in a core's own cache, and a message
/// is large enough for what it costs by itself.
const REDUCE_PIECE: usize = 192 << 10;
/// Steps of a reduction whose pieces are under way, at least and at most.
const FEW_STEPS: usize = 2;
const MANY_STEPS: usize = 4;
/// Two ranks send each other everything up to here: they fold twice as much as with a half each, but wait
/// only once for each other. Where the link is what takes the time they don't: up to a fifth of a shaped link was
/// lost with it while others used the cores, and nothing with halves.
const BOTH_FOLD: usize = 512 << 10;
/// A link is slow that takes fewer bytes in a microsecond; what is measured is an all-reduce of two ranks.
const SLOW: u128 = 200;
/// The smallest and the largest piece of a broadcast.
pub(super) const SMALL_PIECE: usize = 16 << 10;
const LARGE_PIECE: usize = 192 << 10;
/// Pieces of a broadcast that are under way.
const AHEAD: u64 = 16;
/// Distances at which messages are under way at once.
const WINDOW: usize = 8;

/// Streams of a collective's data.
pub(in crate::host) const FIRST: u64 = 0;
pub(in crate::host) const RESULTS: u64 = 1;

/// Where in memory the block lies that a rank sends to or gets from another, in bytes.
pub(in crate::host) type Blocks<'a> = &'a dyn Fn(usize) -> (usize, usize);

/// How a rank begins a collective.
pub(in crate::host) struct Opening {
    /// What the count means.
    pub bytes: usize,
    /// The operation is over once the ranks have met.
    pub small: bool,
    /// What travels with this rank's header.
    pub carried: Carried,
    pub scale: Scale,
}

/// Whether a link that has taken so long for so many bytes is slow.
pub(super) fn is_slow(bytes: usize, time: Duration) -> bool {
    time.as_micros() * SLOW > bytes as u128
}

/// The counts of all ranks of an AlltoAllv.
pub(in crate::host) struct Rows {
    ranks: usize,
    rows: Vec<u64>,
}

impl Rows {
    /// What a rank sends to another.
    pub(in crate::host) fn sent(&self, from: usize, to: usize) -> u64 {
        self.rows[from * 2 * self.ranks + to]
    }

    /// All ranks compare the same, and come to the same verdict.
    pub(in crate::host) fn compare(&self, sequence: u64, dtype: DataType) -> Result<()> {
        compare_counts(sequence, dtype, self.ranks, |from, to| {
            let expected = self.rows[(to * 2 + 1) * self.ranks + from];
            (self.sent(from, to), expected)
        })
    }
}

impl Run<'_> {
    /// # Safety
    /// As `Engine::run`.
    pub(in crate::host) unsafe fn collective(&mut self, op: &HostOp) -> Result<()> {
        if self.ranks() == 1 {
            // SAFETY: handed down from the caller.
            return unsafe { alone(op) };
        }
        if op.kind == OpKind::AllToAllv {
            // SAFETY: handed down from the caller.
            let result = unsafe { self.all_to_all_v(op) };
            return self.for_all(result);
        }
        let limit = self.state.table.inline();
        // SAFETY: handed down from the caller.
        let opening = unsafe { self.open(op, limit) };
        let Opening {
            bytes,
            small,
            carried,
            scale,
        } = self.for_all(opening)?;
        let sequence = self.begin();
        self.exchange(sequence, Fingerprint::of(op), scale, carried)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: handed down from the caller.
        let result = unsafe {
            match (small, self.state.table.staged()) {
                (true, _) => self.take_from_table(op, bytes),
                (false, None) => self.at_length(op, bytes, sequence),
                (false, Some(step)) => self.staged(op, step, sequence),
            }
        };
        self.for_all(result)
    }

    /// # Safety
    /// As `Engine::run`.
    unsafe fn staged(&mut self, op: &HostOp, step: usize, sequence: u64) -> Result<()> {
        let steps = Steps::new(self, op, step)?;
        // SAFETY: handed down from the caller.
        unsafe {
            steps.run(
                self,
                |run| {
                    run.progress();
                    run.look_up()
                },
                |run, part, bytes| run.at_length(part, bytes, sequence),
            )
        }
    }

    /// Puts this rank's data of a collective, which is no AlltoAllv, into the table, if it is small: at most `limit` bytes
    /// of each rank.
    ///
    /// # Safety
    /// As `Engine::run`.
    pub(in crate::host) unsafe fn open(&mut self, op: &HostOp, limit: usize) -> Result<Opening> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let bytes = match op.kind {
            OpKind::Barrier => 0,
            _ => op.count * op.dtype.size(),
        };
        let frame = match op.kind {
            OpKind::ReduceScatter | OpKind::Scatter | OpKind::AllToAll => bytes * ranks,
            _ => bytes,
        };
        let contributes = match op.kind {
            OpKind::Broadcast | OpKind::Scatter => rank == op.root as usize,
            _ => true,
        };
        let small = frame <= limit.min(self.state.table.inline());
        let carried = if small && contributes { frame } else { 0 };
        let data = self.state.table.data(rank);
        // SAFETY: validation has shown that a contributing rank has a send buffer, of which the caller
        // promised `frame` bytes; the table has room for them.
        unsafe { self.bring(data, op, carried)? };
        let scale = match op.reduction {
            Reduction::PreMulSum(scale) if reduces(op.kind) => scale,
            _ => [0; 8],
        };
        Ok(Opening {
            bytes,
            small,
            carried: self.carried(op, carried),
            scale,
        })
    }

    /// Begins a collective: its number.
    pub(in crate::host) fn begin(&mut self) -> u64 {
        self.state.sequence += 1;
        self.state.sequence
    }

    fn reducer(&mut self, op: &HostOp) -> Result<Reducer> {
        let scales = match op.reduction {
            Reduction::Builtin(_) => Vec::new(),
            Reduction::PreMulSum(_) => (0..self.ranks())
                .map(|rank| self.state.table.scale(rank))
                .collect(),
        };
        Reducer::new(op, scales, self.ranks())
    }

    /// Takes the result from the data that came with the headers.
    ///
    /// # Safety
    /// As `Engine::run`; `bytes` is what `op.count` means.
    pub(in crate::host) unsafe fn take_from_table(
        &mut self,
        op: &HostOp,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.deliver(op, bytes, |run, op| run.take_small(op, bytes)) }
    }

    /// # Safety
    /// As [`Run::take_from_table`], for memory of the host.
    unsafe fn take_small(&mut self, op: &HostOp, bytes: usize) -> Result<()> {
        let (rank, ranks, root) = (self.rank(), self.ranks(), op.root as usize);
        let recv = op.recv;
        let reduced_at = match op.kind {
            OpKind::AllReduce => Some(0),
            OpKind::Reduce if rank == root => Some(0),
            OpKind::ReduceScatter => Some(rank * bytes),
            _ => None,
        };
        if let Some(at) = reduced_at {
            let reducer = self.reducer(op)?;
            let table = &mut self.state.table;
            let data: Vec<*mut u8> = (0..ranks).map(|from| table.data(from)).collect();
            let sources = Sources::new(ranks, |from| offset(data[from], at));
            let to = Target::one(recv, false);
            // SAFETY: all ranks have called the same, so that each one's data holds `frame` bytes, of which
            // `at + bytes` are inside; the caller promised `bytes` bytes at `recv`.
            unsafe { reducer.fold(to, &sources, bytes) };
            return Ok(());
        }
        let (from, at, to_block): (std::ops::Range<usize>, usize, bool) = match op.kind {
            OpKind::Broadcast => (root..root + 1, 0, false),
            OpKind::Scatter => (root..root + 1, rank * bytes, false),
            OpKind::AllGather => (0..ranks, 0, true),
            OpKind::Gather if rank == root => (0..ranks, 0, true),
            OpKind::AllToAll => (0..ranks, rank * bytes, true),
            _ => return Ok(()),
        };
        for peer in from {
            let block = offset(self.state.table.data(peer), at);
            let to = offset(recv, if to_block { peer * bytes } else { 0 });
            // SAFETY: as above; where results are blocks the caller promised room for every rank's.
            unsafe { copy(to, block, bytes, false) };
        }
        Ok(())
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    pub(in crate::host) unsafe fn at_length(
        &mut self,
        op: &HostOp,
        bytes: usize,
        sequence: u64,
    ) -> Result<()> {
        let (rank, ranks, root) = (self.rank(), self.ranks(), op.root as usize);
        let (send, recv) = (op.send, op.recv);
        let about = (Topic::Data, sequence << 8 | FIRST);
        let at = |peer: usize| (peer * bytes, bytes);
        let whole = |_: usize| (0, bytes);
        // SAFETY: the caller promised what each kind reads and writes.
        unsafe {
            match op.kind {
                OpKind::AllReduce if ranks == 2 => {
                    let start = Instant::now();
                    self.reduce(op, bytes, sequence)?;
                    // Said with the next header, so that both ranks know it.
                    self.state.table.finds_slow = is_slow(bytes, start.elapsed());
                    Ok(())
                }
                OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter => {
                    self.reduce(op, bytes, sequence)
                }
                OpKind::Broadcast => {
                    if rank == root {
                        move_own(recv, send, bytes);
                    }
                    match trees::broadcasts(ranks, bytes) {
                        true => self.broadcast_in_tree(op, bytes, sequence),
                        false => self.broadcast(op, bytes, sequence),
                    }
                }
                OpKind::AllGather => {
                    move_own(offset(recv, rank * bytes), send, bytes);
                    self.by_distance(about, send, &whole, recv, &at)
                }
                OpKind::Gather if rank == root => {
                    move_own(offset(recv, rank * bytes), send, bytes);
                    for distance in 1..ranks {
                        let peer = (rank + distance) % ranks;
                        self.recv(
                            peer,
                            about,
                            offset(recv, peer * bytes),
                            bytes,
                            distance as u64,
                        );
                        self.keep_window(distance)?;
                    }
                    self.wait_for_all()
                }
                OpKind::Gather => {
                    self.send(root, about, send, bytes, 0);
                    self.wait_for_all()
                }
                OpKind::Scatter if trees::scatters(ranks, bytes) => {
                    if rank == root {
                        move_own(recv, send.wrapping_add(rank * bytes), bytes);
                    }
                    self.scatter_in_tree(op, bytes, sequence)
                }
                OpKind::Scatter if rank == root => {
                    move_own(recv, send.wrapping_add(rank * bytes), bytes);
                    for distance in 1..ranks {
                        let peer = (rank + distance) % ranks;
                        let from = send.wrapping_add(peer * bytes);
                        self.send(peer, about, from, bytes, distance as u64);
                        self.keep_window(distance)?;
                    }
                    self.wait_for_all()
                }
                OpKind::Scatter => {
                    self.recv(root, about, recv, bytes, 0);
                    self.wait_for_all()
                }
                OpKind::AllToAll => {
                    let vector = VectorCounts::equal(op.count, ranks);
                    self.personal(op, &vector, about)
                }
                OpKind::AllToAllv | OpKind::Barrier | OpKind::Send | OpKind::Recv => Ok(()),
            }
        }
    }

    /// Lets only so many distances be under way.
    fn keep_window(&mut self, distance: usize) -> Result<()> {
        match distance.checked_sub(WINDOW) {
            Some(before @ 1..) => self.wait_for_key(before as u64),
            _ => Ok(()),
        }
    }

    /// Sends every other rank its block and gets one from each. Blocks of no bytes are not sent.
    ///
    /// # Safety
    /// The blocks are readable and writable; what is written is not read.
    pub(in crate::host) unsafe fn by_distance(
        &mut self,
        about: (Topic, u64),
        send: *const u8,
        send_block: Blocks<'_>,
        recv: *mut u8,
        recv_block: Blocks<'_>,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.ranks());
        for distance in 1..ranks {
            let key = distance as u64;
            let from = (rank + ranks - distance) % ranks;
            let (at, bytes) = recv_block(from);
            if bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { self.recv(from, about, offset(recv, at), bytes, key) };
            }
            let to = (rank + distance) % ranks;
            let (at, bytes) = send_block(to);
            if bytes > 0 {
                // SAFETY: the caller's promise.
                unsafe { self.send(to, about, send.wrapping_add(at), bytes, key) };
            }
            self.keep_window(distance)?;
        }
        self.wait_for_all()
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn broadcast(&mut self, op: &HostOp, bytes: usize, sequence: u64) -> Result<()> {
        let (rank, ranks, root) = (self.rank(), self.ranks(), op.root as usize);
        let about = (Topic::Data, sequence << 8 | FIRST);
        let piece = (bytes / 8)
            .next_multiple_of(64)
            .clamp(SMALL_PIECE, LARGE_PIECE);
        let pieces = bytes.div_ceil(piece) as u64;
        let span = |at: u64| {
            let start = at as usize * piece;
            (start, piece.min(bytes - start))
        };
        // The rank that passes a piece on.
        let relay = |at: u64| (root + 1 + at as usize % (ranks - 1)) % ranks;
        if rank == root {
            for at in 0..pieces {
                let (start, len) = span(at);
                // SAFETY: the span lies in the `bytes` bytes at `send` that the caller promised.
                unsafe { self.send(relay(at), about, op.send.wrapping_add(start), len, at) };
                if at >= AHEAD {
                    self.wait_for_key(at - AHEAD)?;
                }
            }
            return self.wait_for_all();
        }
        let mut expected = 0;
        for at in 0..pieces {
            while expected < pieces.min(at + AHEAD) {
                let (start, len) = span(expected);
                let from = match relay(expected) {
                    own if own == rank => root,
                    other => other,
                };
                // SAFETY: as above, at `recv`.
                unsafe { self.recv(from, about, op.recv.wrapping_add(start), len, expected) };
                expected += 1;
            }
            self.wait_for_key(at)?;
            if relay(at) == rank {
                let (start, len) = span(at);
                let others = (1..ranks).map(|distance| (rank + distance) % ranks);
                for peer in others.filter(|peer| *peer != root) {
                    let from = op.recv.wrapping_add(start).cast_const();
                    // SAFETY: the piece has come, and nothing is written there any more.
                    unsafe { self.send(peer, about, from, len, pieces + at) };
                }
            }
            if at >= AHEAD {
                self.wait_for_key(pieces + at - AHEAD)?;
            }
        }
        self.wait_for_all()
    }

    /// # Safety
    /// As `Engine::run`; `bytes`, not 0, is what `op.count` means.
    unsafe fn reduce(&mut self, op: &HostOp, bytes: usize, sequence: u64) -> Result<()> {
        let (rank, ranks, root) = (self.rank(), self.ranks(), op.root as usize);
        let reducer = self.reducer(op)?;
        let scatters = op.kind == OpKind::ReduceScatter;
        let wanted = scatters || op.kind == OpKind::AllReduce || rank == root;
        // Two ranks move no more data if whoever wants the result gets everything.
        let whole = ranks == 2
            && match op.kind {
                OpKind::AllReduce => bytes <= BOTH_FOLD && !self.state.table.is_slow(),
                OpKind::Reduce => true,
                _ => false,
            };
        let contributions = (Topic::Data, sequence << 8 | FIRST);
        let results = (Topic::Data, sequence << 8 | RESULTS);
        let owned = match scatters || whole {
            true => bytes,
            false => bytes.div_ceil(ranks),
        };
        // A step has room for a piece from every rank, and for a result that goes elsewhere.
        let room = ranks + 1;
        let largest = (PIECES / (FEW_STEPS * room) / 64 * 64).clamp(64, REDUCE_PIECE);
        let piece = owned
            .div_ceil(owned.div_ceil(largest))
            .next_multiple_of(64)
            .min(largest);
        let steps = owned.div_ceil(piece);
        let depth = (PIECES / (room * piece))
            .clamp(FEW_STEPS, MANY_STEPS)
            .min(steps);
        // What a rank folds in a step: where it starts in the buffers, and how much it is.
        let span = |step: usize, owner: usize| {
            let start = match scatters || whole {
                true => step * piece,
                false => (step * ranks + owner) * piece,
            };
            let start = start.min(bytes);
            let block = if scatters { owner * bytes } else { 0 };
            (block + start, piece.min(bytes - start))
        };
        let area = self.state.pieces.reserve(depth * room * piece)?;
        let slot = |step: usize, at: usize| offset(area, (step % depth * room + at) * piece);
        let key = |step: usize, part: u64| step as u64 * 3 + part;
        let (gathers, sends, returns) = (0, 1, 2);
        let others = |run: &Run<'_>| {
            let rank = run.rank();
            (1..ranks).map(move |distance| (rank + distance) % ranks)
        };
        // The result of a piece goes to those that want it and have not folded it themselves.
        let gets_result =
            |peer: usize| !scatters && !whole && (op.kind == OpKind::AllReduce || peer == root);
        let begin = |run: &mut Run<'_>, step: usize| {
            let (_, own) = span(step, rank);
            for peer in others(run) {
                if own > 0 && (!whole || wanted) {
                    // SAFETY: a slot that was folded `depth` steps ago.
                    unsafe {
                        run.recv(
                            peer,
                            contributions,
                            slot(step, peer),
                            own,
                            key(step, gathers),
                        )
                    };
                }
                let (start, len) = span(step, peer);
                if len > 0 && gets_result(rank) {
                    let to = op.recv.wrapping_add(start);
                    // SAFETY: the span lies in what the caller promised at `recv`; nothing else is written
                    // there. In place it is this rank's contribution, too, but the peer's result comes
                    // after the peer has got that.
                    unsafe { run.recv(peer, results, to, len, key(step, returns)) };
                }
            }
            for peer in others(run) {
                let (start, len) = span(step, peer);
                if len > 0 && (!whole || op.kind == OpKind::AllReduce || peer == root) {
                    let from = op.send.wrapping_add(start);
                    // SAFETY: the span lies in what the caller promised at `send`. In place it is written
                    // with the peer's result, as above, or after this send is done.
                    unsafe { run.send(peer, contributions, from, len, key(step, sends)) };
                }
            }
        };
        let mut begun = 0;
        for step in 0..steps {
            while begun < steps.min(step + depth) {
                begin(self, begun);
                begun += 1;
            }
            self.wait_for_key(key(step, gathers))?;
            if whole {
                self.wait_for_key(key(step, sends))?;
            }
            if step >= depth {
                self.wait_for_key(key(step - depth, returns))?;
            }
            let (start, len) = span(step, rank);
            if len == 0 || whole && !wanted {
                continue;
            }
            let result = match wanted {
                true if scatters => op.recv.wrapping_add(start - rank * bytes),
                true => op.recv.wrapping_add(start),
                false => slot(step, ranks),
            };
            let sources = Sources::new(ranks, |peer| match peer == rank {
                true => op.send.wrapping_add(start),
                false => slot(step, peer),
            });
            let to = Target::one(result, false);
            // SAFETY: all others' pieces have come; the caller promised the own one at `send`, which in
            // place is where the result goes, and room for the result.
            unsafe { reducer.fold(to, &sources, len) };
            for peer in others(self).filter(|peer| gets_result(*peer)) {
                // SAFETY: the result stays: in the caller's memory, or until the slot is used again.
                unsafe { self.send(peer, results, result, len, key(step, returns)) };
            }
        }
        self.wait_for_all()
    }

    /// # Safety
    /// As `Engine::run`.
    unsafe fn all_to_all_v(&mut self, op: &HostOp) -> Result<()> {
        let limit = self.state.table.inline();
        let (vector, row, carried) = self.put_row(op, limit)?;
        let sequence = self.begin();
        let data = Carried::data(carried);
        self.exchange(sequence, Fingerprint::of(op), [0; 8], data)?;
        let rows = self.all_rows(&row, carried, sequence)?;
        rows.compare(sequence, op.dtype)?;
        let about = (Topic::Data, sequence << 8 | FIRST);
        // SAFETY: handed down from the caller; the counts were found equal.
        unsafe { self.personal(op, vector, about) }
    }

    /// An AlltoAllv's counts: what a rank sends to each, then what it expects from each. They are put into the
    /// table, to travel with the header, unless they take more bytes than `limit`; how many do.
    pub(in crate::host) fn put_row<'v>(
        &mut self,
        op: &'v HostOp,
        limit: usize,
    ) -> Result<(&'v VectorCounts, Vec<u64>, usize)> {
        let vector = op
            .vector
            .as_deref()
            .ok_or_else(|| Error::internal("an AlltoAllv passed validation without counts"))?;
        let row = vector.send_counts.iter().chain(&vector.recv_counts);
        let row: Vec<u64> = row.map(|count| *count as u64).collect();
        let bytes = row.len() * 8;
        if bytes > limit.min(self.state.table.inline()) {
            return Ok((vector, row, 0));
        }
        let to = self.state.table.data(self.rank());
        // SAFETY: the table has room for as much with a header.
        unsafe { copy(to, row.as_ptr().cast(), bytes, false) };
        Ok((vector, row, bytes))
    }

    /// The counts of all ranks: from the table, if `carried` is not 0, else this rank asks for them now.
    pub(in crate::host) fn all_rows(
        &mut self,
        row: &[u64],
        carried: usize,
        sequence: u64,
    ) -> Result<Rows> {
        let (rank, ranks, bytes) = (self.rank(), self.ranks(), row.len() * 8);
        let mut rows = vec![0u64; row.len() * ranks];
        let to: *mut u8 = rows.as_mut_ptr().cast();
        if carried > 0 {
            for peer in 0..ranks {
                let from = self.state.table.data(peer);
                // SAFETY: every rank has called the same and has sent as many counts; `rows` has room for
                // all of them.
                unsafe { copy(offset(to, peer * bytes), from, bytes, false) };
            }
            return Ok(Rows { ranks, rows });
        }
        let mut area = Area::default();
        let gathered = area.reserve(ranks * bytes)?;
        self.buffers.push(area);
        let mut own = Area::default();
        let from = own.reserve(bytes)?;
        self.buffers.push(own);
        let about = (Topic::Data, sequence << 8 | RESULTS);
        let at = |peer: usize| (peer * bytes, bytes);
        let whole = |_: usize| (0, bytes);
        // SAFETY: both areas are this run's and have room for all rows, and for one.
        unsafe {
            copy(from, row.as_ptr().cast(), bytes, false);
            copy(offset(gathered, rank * bytes), from, bytes, false);
            self.by_distance(about, from, &whole, gathered, &at)?;
            copy(to, gathered, ranks * bytes, false);
        }
        Ok(Rows { ranks, rows })
    }

    /// Sends every rank its own block and gets one from each, in place if the buffers overlap.
    ///
    /// # Safety
    /// As `Engine::run`; every rank expects what the others send.
    unsafe fn personal(
        &mut self,
        op: &HostOp,
        vector: &VectorCounts,
        about: (Topic, u64),
    ) -> Result<()> {
        let (rank, size) = (self.rank(), op.dtype.size());
        let send = self.send_apart(op, vector)?;
        let block = |counts: &[usize], displs: &[usize], peer: usize| {
            (displs[peer].wrapping_mul(size), counts[peer] * size)
        };
        let send_block = |peer| block(&vector.send_counts, &vector.send_displs, peer);
        let recv_block = |peer| block(&vector.recv_counts, &vector.recv_displs, peer);
        let ((from, bytes), (to, _)) = (send_block(rank), recv_block(rank));
        // SAFETY: the caller promised both blocks, and all others; the counts are equal.
        unsafe {
            move_own(offset(op.recv, to), send.wrapping_add(from), bytes);
            self.by_distance(about, send, &send_block, op.recv, &recv_block)
        }
    }

    /// Where to send the blocks of an operation from: in place a block could be overwritten before it is sent, so it is
    /// from a copy then.
    pub(in crate::host) fn send_apart(
        &mut self,
        op: &HostOp,
        vector: &VectorCounts,
    ) -> Result<*const u8> {
        let size = op.dtype.size();
        let send_bytes = extent(&vector.send_counts, &vector.send_displs) * size;
        let recv_bytes = extent(&vector.recv_counts, &vector.recv_displs) * size;
        let (send_at, recv_at) = (op.send.addr(), op.recv.addr());
        let overlap = send_at < recv_at.saturating_add(recv_bytes)
            && recv_at < send_at.saturating_add(send_bytes);
        if !overlap {
            return Ok(op.send);
        }
        let copied = private_copy(op.send, vector, size, send_bytes, |to, from, bytes| {
            // SAFETY: the caller promised the send buffer up to the end of its last block.
            unsafe { copy(to, from, bytes, false) };
            Ok(())
        })?;
        Ok(self.keep(copied))
    }
}
