//! The shortest ways: collectives whose data travels in the lines of the headers, and messages in their notes.
//!
//! They are the same as in `collectives` and `p2p`, and meet ranks that take the long way to them: only what this rank
//! knows already is left out, such as what its arguments can't be.

use super::ShmEngine;
use super::layout::{LINE_PAYLOAD, MAX_MESSAGING_RANKS, NoteWords, REJECTED};
use super::p2p::Transfers;
use super::protocol::{self, Posted};
use crate::error::Result;
use crate::host::check::{Fingerprint, Staging, reduces};
use crate::host::engine::Engine;
use crate::host::kernels::{Folding, Target, copy, copy_few, prefetch_for_writing};
use crate::host::local::Sources;
use crate::host::op::{HostOp, OnDevice, WaitPolicy};
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::cell::RefCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The most bytes that a rank of a tiny collective shows the others.
pub(crate) const MOST_TINY: usize = LINE_PAYLOAD;

/// An AllReduce, ReduceScatter, AllGather, AllToAll or Broadcast in the host's memory.
#[derive(Clone, Copy)]
pub(crate) struct Tiny {
    pub kind: OpKind,
    pub send: *const u8,
    pub recv: *mut u8,
    pub count: usize,
    pub dtype: DataType,
    pub op: RedOp,
    pub root: usize,
}

/// A message in the host's memory.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    pub buffer: *mut u8,
    pub count: usize,
    pub dtype: DataType,
    pub peer: usize,
}

/// The most bytes of a lone message that goes the short way: longer ones gain nothing, as their lines take longer.
pub(crate) const MOST_SHORT: usize = 512;

/// Messages that a receiver takes before it says so, if the next one is there: the sender reads the word that says it only
/// when it has no note left.
const TAKEN_TOGETHER: u64 = 8;

/// How far ahead a sender asks for the lines of a note that it will write, if they are several: else it waits for one
/// after the other.
const NOTES_AHEAD: u64 = 2;

/// A copy that in place is none.
///
/// # Safety
/// The ranges are the same or apart, and valid for so many bytes.
#[inline(always)]
unsafe fn keep_few(to: *mut u8, from: *const u8, bytes: usize) {
    if !std::ptr::eq(to, from) {
        // SAFETY: handed down from the caller.
        unsafe { copy_few(to, from, bytes) }
    }
}

impl ShmEngine {
    /// What a rank of a tiny collective shows the others, in bytes.
    #[inline(always)]
    fn tiny_frame(&self, tiny: &Tiny) -> usize {
        let bytes = tiny.count * tiny.dtype.size();
        match tiny.kind {
            OpKind::ReduceScatter | OpKind::AllToAll => bytes * self.ranks,
            _ => bytes,
        }
    }

    /// Whether this engine has such a way, and for this operation; then also how it is reduced, if it is.
    #[inline(always)]
    pub(crate) fn takes_tiny(&self, tiny: &Tiny) -> Option<Option<Folding>> {
        // What others take in steps is not tiny, however short it is.
        let most = MOST_TINY.min(self.one_exchange(tiny.kind));
        if self.ranks == 1 || self.tiny_frame(tiny) > most || tiny.root >= self.ranks {
            return None;
        }
        match reduces(tiny.kind) {
            true => self.folds.get(tiny.dtype, tiny.op).map(Some),
            false => Some(None),
        }
    }

    /// Runs an operation to its end.
    ///
    /// # Safety
    /// As [`Engine::run`]; [`ShmEngine::takes_tiny`] has given the `folding` for this operation, which is not empty.
    #[inline(always)]
    pub(crate) unsafe fn run_tiny(
        &self,
        tiny: &Tiny,
        folding: Option<Folding>,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        self.published_failure()?;
        let bytes = tiny.count * tiny.dtype.size();
        let frame = self.tiny_frame(tiny);
        let (rank, ranks) = (self.rank, self.ranks);
        let (sequence, parity) = self.begin();
        let stage = |rank| self.map.stage(rank, parity, frame);
        let is_root = tiny.kind != OpKind::Broadcast || rank == tiny.root;
        if is_root {
            // SAFETY: the caller promised `frame` bytes at `send`; the stage has room for them, and no peer
            // reads it, as all have entered the previous exchange.
            unsafe { copy_few(stage(rank), tiny.send, frame) };
        }
        let print = Fingerprint::of_right(tiny.kind, tiny.dtype, tiny.op, tiny.root, tiny.count);
        let met = self.exchange(sequence, print, Staging::NONE, wait);
        if let Err(error) = met {
            return self.departed(Err(error));
        }
        // What was just written to the stage, and is read by others, is slow to read.
        let part = |from: usize, at: usize| match from == rank {
            true => tiny.send.wrapping_add(at),
            false => stage(from).wrapping_add(at).cast_const(),
        };
        // SAFETY: after the exchange every stage holds `frame` bytes and stays as it is until the next
        // exchange, as does the caller's buffer where it is not overwritten in place; the caller promised at `recv` what
        // the kind has there; the fold is that of the data type.
        unsafe {
            match (tiny.kind, folding) {
                (_, Some(folding)) => {
                    let at = match tiny.kind {
                        OpKind::ReduceScatter => rank * bytes,
                        _ => 0,
                    };
                    if ranks == 2 {
                        (folding.pair)(tiny.recv, part(0, at), part(1, at), tiny.count);
                    } else {
                        let sources = Sources::new(ranks, |from| part(from, at));
                        let to = Target::one(tiny.recv, false);
                        (folding.fold)(to, sources.as_slice(), &[], ranks, tiny.count);
                    }
                }
                (OpKind::Broadcast, _) => keep_few(tiny.recv, part(tiny.root, 0), bytes),
                (kind, _) => {
                    let at = match kind {
                        OpKind::AllToAll => rank * bytes,
                        _ => 0,
                    };
                    for from in 0..ranks {
                        keep_few(tiny.recv.wrapping_add(from * bytes), part(from, at), bytes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether there is a short way for a message.
    #[inline(always)]
    fn takes_short(&self, short: &Short) -> bool {
        let bytes = short.count * short.dtype.size();
        let most = self.map.note_bytes().min(MOST_SHORT);
        // What may be offered where it lies is not short, whatever the limit.
        bytes <= most
            && bytes < self.tuning.whole_message_from
            && short.peer < self.ranks
            && short.peer != self.rank
            && self.ranks <= MAX_MESSAGING_RANKS
            && self.published_failure().is_ok()
    }

    /// Sends a message that lies in its note. `None`: it has not begun.
    ///
    /// # Safety
    /// As [`Engine::run`].
    #[inline(always)]
    pub(crate) unsafe fn send_short(
        &self,
        short: &Short,
        begins: impl FnOnce(),
        wait: &dyn WaitPolicy,
    ) -> Option<Result<()>> {
        let (rank, peer) = (self.rank, short.peer);
        if !self.takes_short(short) {
            return None;
        }
        let taken = self.map.taken(rank, peer);
        let piece = self.posted[peer].load(Relaxed);
        let known = &self.known_taken[peer];
        if piece - known.load(Relaxed) >= self.map.notes() {
            known.store(taken.load(Acquire), Relaxed);
            if piece - known.load(Relaxed) >= self.map.notes() {
                return None;
            }
        }
        begins();
        let message = self.messages[peer].load(Relaxed) + 1;
        self.messages[peer].store(message, Relaxed);
        let note = self.map.note(rank, peer, piece);
        // SAFETY: handed down from the caller; there is room, as the receiver has taken what was in the note.
        unsafe { fill_note(&note, short.buffer, short.count, short.dtype, message) };
        self.posted[peer].store(piece + 1, Relaxed);
        note.number.store(piece + 1, Release);
        self.ring();
        // The receiver writes the word faster if it is not read all the time, and mostly its answer comes then.
        let seldom = if self.spins.load(Relaxed) { 4 } else { 1 };
        for look in 0..self.first_looks() {
            let now = match look % seldom + 1 == seldom {
                true => taken.load(Acquire),
                false => 0,
            };
            if now > piece {
                known.store(now, Relaxed);
                if note.verdict.load(Relaxed) == REJECTED {
                    break;
                }
                return Some(Ok(()));
            }
            if self.has_unreceived() {
                // It lies in the channel.
                return Some(Ok(()));
            }
            self.pause_between_looks(look);
        }
        let op = HostOp {
            kind: OpKind::Send,
            send: short.buffer,
            recv: std::ptr::null_mut(),
            count: short.count,
            dtype: short.dtype,
            reduction: Reduction::Builtin(RedOp::Sum),
            root: peer as u32,
            vector: None,
            on_device: OnDevice::default(),
        };
        let mut transfers = Transfers::posted(self, &[&op], 1, message, piece);
        // SAFETY: handed down from the caller.
        let result = unsafe { self.transfer_all(&mut transfers, true, wait) };
        Some(self.departed(result))
    }

    /// Receives a message that lies in its note and is there, or comes soon. `None`: it has not begun.
    ///
    /// # Safety
    /// As [`Engine::run`].
    #[inline(always)]
    pub(crate) unsafe fn receive_short(&self, short: &Short) -> Option<()> {
        let (rank, peer) = (self.rank, short.peer);
        if !self.takes_short(short) {
            return None;
        }
        let taken = self.map.taken(peer, rank);
        let next = taken.load(Relaxed);
        let note = self.map.note(peer, rank, next);
        let mut look = 0;
        while note.number.load(Acquire) != next + 1 {
            if look == self.first_looks() {
                return None;
            }
            self.pause_between_looks(look);
            look += 1;
        }
        let dropped = self.dropped[peer].load(Relaxed);
        if !is_usual(&note, short.count, short.dtype, dropped) {
            return None;
        }
        let bytes = short.count * short.dtype.size();
        // SAFETY: the sender has posted so many bytes and leaves them until they are taken; the caller promised room.
        unsafe { copy_note(short.buffer, note.payload(bytes), bytes) };
        taken.store(next + 1, Release);
        self.ring();
        Some(())
    }

    /// Whether all of a group are short messages of one direction with one other rank.
    pub(super) fn is_short_run(&self, ops: &[&HostOp]) -> bool {
        let (most, limit) = (self.map.note_bytes(), self.tuning.whole_message_from);
        let Some((kind, peer)) = ops.first().map(|op| (op.kind, op.root)) else {
            return false;
        };
        peer as usize != self.rank
            && ops.iter().all(|op| {
                let bytes = op.count * op.dtype.size();
                let short = bytes <= most && bytes < limit && !op.on_device.any();
                short && op.kind == kind && op.root == peer
            })
    }

    /// Runs what [`ShmEngine::is_short_run`] has found, one after the other.
    ///
    /// # Safety
    /// As [`Engine::run_group`].
    pub(super) unsafe fn run_short(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        let rest = unsafe {
            match ops[0].kind {
                OpKind::Send => self.send_run(ops, wait)?,
                _ => self.receive_run(ops, wait)?,
            }
        };
        match rest {
            None => Ok(()),
            // SAFETY: handed down from the caller.
            Some(mut rest) => unsafe { self.transfer_all(&mut rest, false, wait) },
        }
    }

    /// Posts all and waits until they are taken. What is left where one was refused: from that one on.
    ///
    /// # Safety
    /// As [`ShmEngine::run_short`].
    unsafe fn send_run(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<Option<Transfers>> {
        let (rank, peer) = (self.rank, ops[0].root as usize);
        let taken = self.map.taken(rank, peer);
        let (first, before) = (
            self.posted[peer].load(Relaxed),
            self.messages[peer].load(Relaxed),
        );
        // Pieces of this run that were posted, and those that are known to be right.
        let (mut posted, mut right) = (first, first);
        let mut known = taken.load(Acquire);
        let total = first + ops.len() as u64;
        let refused = loop {
            while posted < total && posted - known < self.map.notes() {
                let n = posted - first;
                let op = ops[n as usize];
                let note = self.map.note(rank, peer, posted);
                let bytes = op.count * op.dtype.size();
                let free = posted + NOTES_AHEAD - known < self.map.notes();
                if free && bytes > LINE_PAYLOAD {
                    let soon = self.map.note(rank, peer, posted + NOTES_AHEAD).line();
                    for at in (0..64 + bytes).step_by(64) {
                        prefetch_for_writing(soon.wrapping_add(at));
                    }
                }
                // SAFETY: handed down from the caller; there is room, as the receiver has taken what was in the note.
                unsafe { fill_note(&note, op.send, op.count, op.dtype, before + 1 + n) };
                posted += 1;
                note.number.store(posted, Release);
            }
            self.posted[peer].store(posted, Relaxed);
            self.messages[peer].store(before + (posted - first), Relaxed);
            self.ring();
            let wanted = match posted == total {
                true => total,
                false => posted - self.map.notes() + 1,
            };
            self.await_peer(peer, rank, wait, || {
                known = taken.load(Acquire);
                known >= wanted
            })?;
            let is_right = |piece| {
                let note = self.map.note(rank, peer, piece);
                note.verdict.load(Relaxed) != REJECTED
            };
            while right < known.min(posted) && is_right(right) {
                right += 1;
            }
            if right == total {
                break false;
            }
            if right < known.min(posted) {
                break true;
            }
        };
        Ok(refused.then(|| {
            let at = (right - first) as usize;
            let under_way = (posted - first) as usize;
            Transfers::posted(
                self,
                &ops[at..],
                under_way - at,
                before + 1 + at as u64,
                right,
            )
        }))
    }

    /// Waits for something of a peer's, and drops meanwhile what was refused, as in [`ShmEngine::drop_refused`].
    #[inline]
    fn await_peer(
        &self,
        peer: usize,
        except: usize,
        wait: &dyn WaitPolicy,
        ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let ready = RefCell::new(ready);
        let ready = || {
            if self.drop_refused(except) {
                self.ring();
            }
            (ready.borrow_mut())()
        };
        self.wait_until(wait, ready, || vec![peer as u32])
    }

    /// Takes all of them. What is left where one is not what is expected, or not in its note.
    ///
    /// # Safety
    /// As [`ShmEngine::run_short`].
    unsafe fn receive_run(
        &self,
        ops: &[&HostOp],
        wait: &dyn WaitPolicy,
    ) -> Result<Option<Transfers>> {
        let (rank, peer) = (self.rank, ops[0].root as usize);
        let taken = self.map.taken(peer, rank);
        let dropped = self.dropped[peer].load(Relaxed);
        let mut published = taken.load(Relaxed);
        let first = published;
        let publish = |next: u64| {
            taken.store(next, Release);
            self.ring();
            next
        };
        for (n, op) in ops.iter().enumerate() {
            let next = first + n as u64;
            let note = self.map.note(peer, rank, next);
            let is_there = || note.number.load(Acquire) == next + 1;
            if next - published == TAKEN_TOGETHER || next != published && !is_there() {
                published = publish(next);
            }
            if !is_there() {
                self.await_peer(peer, peer, wait, is_there)?;
            }
            if !is_usual(&note, op.count, op.dtype, dropped) {
                publish(next);
                return Ok(Some(Transfers::new(self, &ops[n..])));
            }
            let bytes = op.count * op.dtype.size();
            // SAFETY: the sender has posted so many bytes and leaves them until they are taken; the caller promised
            // room.
            unsafe { copy_note(op.recv, note.payload(bytes), bytes) };
        }
        publish(first + ops.len() as u64);
        Ok(None)
    }
}

/// Writes a note but for its number.
///
/// # Safety
/// So many elements are at `from`; the note has room for them, and the receiver has taken what was in it.
#[inline(always)]
unsafe fn fill_note(
    note: &NoteWords<'_>,
    from: *const u8,
    count: usize,
    dtype: DataType,
    message: u64,
) {
    let bytes = count * dtype.size();
    // The line with the words last, and all at once, as the receiver looks at it all the time.
    // SAFETY: handed down from the caller.
    unsafe { copy_note(note.payload(bytes), from, bytes) };
    note.message.store(message, Relaxed);
    note.count.store(count as u64, Relaxed);
    note.dtype.store(dtype as u32, Relaxed);
    note.verdict.store(0, Relaxed);
    note.whole.store(0, Relaxed);
}

/// Whether a note that is there is that of a message as the receiver expects it.
#[inline(always)]
fn is_usual(note: &NoteWords<'_>, count: usize, dtype: DataType, dropped: u64) -> bool {
    let sent = (note.count.load(Relaxed), note.dtype.load(Relaxed));
    sent == (count as u64, dtype as u32)
        && note.message.load(Relaxed) > dropped
        && protocol::look(note.whole) == Posted::Piece
}

/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_note(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: handed down from the caller.
    unsafe {
        if bytes <= LINE_PAYLOAD {
            copy_few(to, from, bytes);
        } else {
            copy(to, from, bytes, false);
        }
    }
}
