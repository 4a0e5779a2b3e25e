//! Sends and receives.
//!
//! Every ordered pair of ranks has a channel, through which messages pass in pieces: a ring of notes, one for each
//! piece, and a ring of a few slots. A short message lies in its note; a piece of a longer one lies in a slot, and its
//! note says in which. The note has the message's count and data type; the receiver compares them with
//! its own and takes the message, or refuses it, and then drops what is left of it, also while it waits for something
//! else ([`ShmEngine::drop_refused`]). A send is
//! complete when its last piece was taken, so that both sides learn of a mismatch: the verdict stands in the
//! note of the first piece, which the sender reads before it writes another there.
//!
//! Messages of a group to the same rank follow each other without waiting, as far as there are notes.
//!
//! A long message whose buffer the receiver can reach may stay where it is: its one piece tells where that is,
//! and the receiver reads it from there. A receiver that can't declines, and the message goes in pieces. Where the
//! kernel would have to copy, pieces can be faster, as both ranks copy then: the sender tries both on its own messages
//! and times them, by receiver and size ([`Tried`]). It says so in the note of the first piece, and the receiver puts
//! the time that it took into the note of the last.
//!
//! One exception keeps ranks from blocking each other: a send outside a group whose message lies in
//! the channel completely is done as soon as some peer has a message for this rank that it has not
//! received, as that peer may be waiting for it. Such a send can't learn of a mismatch; the
//! receiver's error names it. If the message was offered where it is, the offer is taken back as soon as there is room
//! for all of it in the channel, unless the receiver has begun to read: one of the two changes the word of the offer
//! ([`protocol::take_offer`]). Its first piece takes the place of the offer, so that messages that were offered need as
//! much room as others.

use super::ShmEngine;
use super::collectives::STREAM_FROM;
use super::direct::Tried;
use super::layout::{CHANNEL_DEPTH, DECLINED, NoteWords, REJECTED, TIMED, TIMED_RUNNING};
use super::protocol::{self, Posted};
use super::wait::Waiter;
use crate::error::{Error, Result};
use crate::host::kernels::{copy, fence};
use crate::host::local::{dtype_name, message_mismatch, own_transfers};
use crate::host::op::{HostOp, WaitPolicy};
use crate::sys::stopwatch::Stopwatch;
use crate::types::{DataType, OpKind};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// One send or receive with another rank that is under way.
struct Transfer {
    sends: bool,
    peer: usize,
    buffer: *mut u8,
    /// Set if the buffer is in a device's memory.
    window: Option<Window>,
    count: usize,
    dtype: DataType,
    bytes: usize,
    /// Bytes that passed through the channel on this side.
    done: usize,
    /// A receive has taken the first piece.
    begun: bool,
    /// When it did, if the sender wants to know how long it takes.
    since: Option<Stopwatch>,
    /// The number of a send's first piece, from when it was posted until the receiver has taken it.
    first: Option<u64>,
    /// The number of the message, once its first piece was posted or taken.
    message: Option<u64>,
    /// The channel's count of pieces at which a send is complete, once all are posted.
    last: Option<u64>,
    /// A send whose way has not been chosen: it could stay where it is.
    open: bool,
    /// Where a message lies that the receiver is to read whole; 0 if it goes in pieces.
    whole: u64,
    /// What a send that is timed has cost on this side.
    timing: Option<Timing>,
    /// Complete or refused.
    over: bool,
    /// The number of its peer and direction, and the next one with the same.
    way: u32,
    next: u32,
}

/// A send whose way is tried.
pub(super) struct Timing {
    pub trial: Tried,
    /// Nanoseconds of copying into the channel before the receiver began, and of all of it.
    pub first: u64,
    pub all: u64,
}

/// No transfer.
const NONE: u32 = u32::MAX;

/// Sends and receives with other ranks that are under way together.
pub(in crate::host) struct Transfers {
    all: Vec<Transfer>,
    /// How many are not over.
    left: usize,
    ways: Vec<Way>,
    result: Result<()>,
}

/// Those with one peer in one direction, in the order in which they go.
struct Way {
    sends: bool,
    peer: usize,
    /// The first that is not over, and the last.
    head: u32,
    tail: u32,
    /// The first send that is not posted completely.
    to_post: u32,
}

impl Transfers {
    pub(in crate::host) fn new(engine: &ShmEngine, ops: &[&HostOp]) -> Transfers {
        let mut transfers = Transfers::with_room(ops.len());
        let mut known = Vec::new();
        for op in ops {
            let transfer = Transfer::new(engine, op, ops.len());
            transfers.add(transfer, &mut known, engine.ranks);
        }
        transfers
    }

    fn with_room(transfers: usize) -> Transfers {
        Transfers {
            all: Vec::with_capacity(transfers),
            left: 0,
            ways: Vec::new(),
            result: Ok(()),
        }
    }

    /// Short sends, of which so many first ones are posted in their notes, from that message and piece on.
    pub(super) fn posted(
        engine: &ShmEngine,
        ops: &[&HostOp],
        posted: usize,
        message: u64,
        piece: u64,
    ) -> Transfers {
        let mut transfers = Transfers::new(engine, ops);
        for (n, transfer) in transfers.all.iter_mut().enumerate().take(posted) {
            let n = n as u64;
            transfer.done = transfer.bytes;
            transfer.first = Some(piece + n);
            transfer.message = Some(message + n);
            transfer.last = Some(piece + n + 1);
        }
        if let [way] = &mut transfers.ways[..] {
            way.to_post = u32::try_from(posted).unwrap_or(NONE);
            if posted == ops.len() {
                way.to_post = NONE;
            }
        }
        transfers
    }

    /// Adds one behind the others. `known` has the number of each way, once there is more than one.
    fn add(&mut self, transfer: Transfer, known: &mut Vec<u32>, ranks: usize) {
        let at = self.all.len() as u32;
        let is = |way: &Way| way.peer == transfer.peer && way.sends == transfer.sends;
        let number = |way: &Way| 2 * way.peer + usize::from(way.sends);
        // Mostly it is that of the one before.
        let before = self.all.last().map(|before| before.way);
        let way = match before {
            Some(way) if is(&self.ways[way as usize]) => way,
            _ => {
                let fresh = self.ways.len() as u32;
                let way = Way {
                    sends: transfer.sends,
                    peer: transfer.peer,
                    head: at,
                    tail: NONE,
                    to_post: at,
                };
                let mut place = fresh;
                if fresh > 0 {
                    if known.is_empty() {
                        known.resize(2 * ranks, NONE);
                        known[number(&self.ways[0])] = 0;
                    }
                    let seen = &mut known[number(&way)];
                    if *seen == NONE {
                        *seen = fresh;
                    }
                    place = *seen;
                }
                if place == fresh {
                    self.ways.push(way);
                }
                place
            }
        };
        let tail = std::mem::replace(&mut self.ways[way as usize].tail, at);
        if let Some(before) = self.all.get_mut(tail as usize) {
            before.next = at;
        }
        self.all.push(Transfer { way, ..transfer });
        self.left += 1;
    }

    /// Whether each is complete or was refused.
    pub(in crate::host) fn are_over(&self) -> bool {
        self.left == 0
    }

    /// The ranks that are waited for.
    pub(in crate::host) fn peers(&self) -> Vec<u32> {
        let busy = self.ways.iter().filter(|way| way.head != NONE);
        let mut peers: Vec<u32> = busy.map(|way| way.peer as u32).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// What came of them: the first error.
    pub(in crate::host) fn take_result(&mut self) -> Result<()> {
        std::mem::replace(&mut self.result, Ok(()))
    }
}

/// Bytes that are copied from or to a device at once, and of all transfers of one call together.
const WINDOW: usize = 256 << 10;
const WINDOWS: usize = 8 << 20;

/// A part of a message to or from a device, in host memory: whole pieces.
struct Window {
    memory: Vec<MaybeUninit<u8>>,
    /// Where in the message it begins, and how much of it is here.
    start: usize,
    len: usize,
}

/// What came of one look at a transfer.
enum Outcome {
    Idle,
    Progress,
    Complete,
    Failed(Error),
}

impl Transfer {
    /// One of `together` transfers.
    fn new(engine: &ShmEngine, op: &HostOp, together: usize) -> Transfer {
        let sends = op.kind == OpKind::Send;
        let on_device = if sends {
            op.on_device.send
        } else {
            op.on_device.recv
        };
        let bytes = op.count * op.dtype.size();
        let piece = engine.map.piece_bytes();
        let buffer = if sends { op.send.cast_mut() } else { op.recv };
        let pieces =
            (WINDOW.min(WINDOWS / together) / piece).clamp(1, bytes.div_ceil(piece).max(1));
        Transfer {
            open: sends && !on_device && bytes >= engine.tuning.whole_message_from,
            window: on_device.then(|| Window {
                memory: vec![MaybeUninit::uninit(); pieces * piece],
                start: 0,
                len: 0,
            }),
            ..Transfer::of(sends, op.root as usize, buffer, op.count, op.dtype)
        }
    }

    /// One in host memory that has not begun.
    fn of(sends: bool, peer: usize, buffer: *mut u8, count: usize, dtype: DataType) -> Transfer {
        Transfer {
            sends,
            peer,
            buffer,
            window: None,
            count,
            dtype,
            bytes: count * dtype.size(),
            done: 0,
            begun: false,
            since: None,
            first: None,
            message: None,
            last: None,
            open: false,
            whole: 0,
            timing: None,
            over: false,
            way: NONE,
            next: NONE,
        }
    }
}

impl Transfer {
    /// Whether a send is posted, so that the next of its way may be. A message that lies elsewhere may come again, in
    /// pieces.
    fn lets_others_follow(&self) -> bool {
        self.last.is_some() && self.whole == 0
    }
}

impl ShmEngine {
    /// A send or receive outside a group.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn transfer_alone(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        let mut transfer = Transfer::new(self, op, 1);
        // A peer that is about as far as this rank is there before all that waiting needs could be set up.
        for look in 0..self.first_looks() {
            // SAFETY: handed down from the caller.
            let outcome = unsafe {
                if transfer.sends {
                    let taken = self.map.taken(self.rank, transfer.peer).load(Acquire);
                    self.push(&mut transfer, true, taken)
                } else {
                    self.pull(&mut transfer)
                }
            };
            if !matches!(outcome, Outcome::Idle) {
                self.ring();
            }
            match outcome {
                Outcome::Idle | Outcome::Progress => self.pause_between_looks(look),
                Outcome::Complete => return Ok(()),
                Outcome::Failed(error) => return Err(error),
            }
        }
        let mut transfers = Transfers::with_room(1);
        transfers.add(transfer, &mut Vec::new(), self.ranks);
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_all(&mut transfers, true, wait) }
    }

    /// The sends and receives of a group, all together.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn transfer_together(
        &self,
        ops: &[&HostOp],
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        if self.is_short_run(ops) {
            // SAFETY: handed down from the caller.
            return unsafe { self.run_short(ops, wait) };
        }
        if ops.iter().all(|op| op.root as usize != self.rank) {
            let mut transfers = Transfers::new(self, ops);
            // SAFETY: handed down from the caller.
            return unsafe { self.transfer_all(&mut transfers, false, wait) };
        }
        let (own, others): (Vec<&HostOp>, Vec<&HostOp>) =
            ops.iter().partition(|op| op.root as usize == self.rank);
        let own = own_transfers(self.rank, &own, |on_device, to, from, bytes| {
            // SAFETY: handed down from the caller.
            unsafe { self.keep_own(on_device, to, from, bytes) }
        });
        let mut transfers = Transfers::new(self, &others);
        // SAFETY: handed down from the caller.
        let others = unsafe { self.transfer_all(&mut transfers, false, wait) };
        own.and(others)
    }

    /// Moves all transfers until each is complete or refused.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn transfer_all(
        &self,
        transfers: &mut Transfers,
        lone: bool,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let mut waiter = Waiter::new(self, wait);
        let mut last_look = false;
        while !transfers.are_over() {
            // SAFETY: handed down from the caller.
            if unsafe { self.advance(transfers, lone) } {
                waiter.progressed();
                last_look = false;
            } else {
                let ready = || self.can_move(transfers);
                if let Err(error) = waiter.pause(&ready, &|| transfers.peers()) {
                    // What came before the end of the communicator is taken all the same.
                    if last_look || !self.ended_elsewhere() {
                        return Err(error);
                    }
                    last_look = true;
                }
            }
        }
        transfers.take_result()
    }

    /// Moves transfers as far as they go now; whether any moved. Those with the same peer and direction go in the
    /// order in which they stand.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run), for all of them.
    pub(in crate::host) unsafe fn advance(&self, transfers: &mut Transfers, lone: bool) -> bool {
        let Transfers {
            all,
            left,
            ways,
            result,
        } = transfers;
        let mut moved = self.drop_refused(self.rank);
        for way in ways {
            // Of sends, the pieces that the receiver has taken now: no note is used again before the sends that it
            // belonged to have been looked at since.
            let taken = match way.sends {
                true => self.map.taken(self.rank, way.peer).load(Acquire),
                false => 0,
            };
            let mut at = way.head;
            while let Some(transfer) = all.get_mut(at as usize) {
                if !transfer.over {
                    // SAFETY: handed down from the caller.
                    let outcome = unsafe {
                        match transfer.sends {
                            true => self.push(transfer, lone, taken),
                            false => self.pull(transfer),
                        }
                    };
                    moved |= !matches!(outcome, Outcome::Idle);
                    match outcome {
                        Outcome::Idle | Outcome::Progress => {}
                        Outcome::Complete => transfer.over = true,
                        Outcome::Failed(error) => {
                            transfer.over = true;
                            if result.is_ok() {
                                *result = Err(error);
                            }
                        }
                    }
                    *left -= usize::from(transfer.over);
                }
                let posted = transfer.over || transfer.sends && transfer.lets_others_follow();
                if way.to_post == at && posted {
                    way.to_post = transfer.next;
                }
                if transfer.over {
                    if way.head == at {
                        way.head = transfer.next;
                    }
                    at = transfer.next;
                } else if posted && way.to_post != NONE {
                    // Those between are posted and, like this one, not taken.
                    at = way.to_post;
                } else {
                    break;
                }
            }
        }
        if moved {
            self.ring();
        }
        moved
    }

    /// Whether a look at any transfer may find something to do: a hint for spinning.
    fn can_move(&self, transfers: &Transfers) -> bool {
        transfers.ways.iter().any(|way| {
            let Some(head) = transfers.all.get(way.head as usize) else {
                return false;
            };
            if !way.sends {
                let next = self.map.taken(way.peer, self.rank).load(Relaxed);
                return self.is_posted(way.peer, next);
            }
            let taken = self.map.taken(self.rank, way.peer).load(Acquire);
            let rejected = |first| {
                let note = self.map.note(self.rank, way.peer, first);
                taken > first && note.verdict.load(Relaxed) == REJECTED
            };
            head.last.is_some_and(|last| taken >= last)
                || head.first.is_some_and(rejected)
                || transfers
                    .all
                    .get(way.to_post as usize)
                    .is_some_and(|next| next.last.is_none() && self.has_room(next, taken))
        })
    }

    /// Whether a piece of a peer's is there.
    #[inline]
    fn is_posted(&self, peer: usize, piece: u64) -> bool {
        let note = self.map.note(peer, self.rank, piece);
        note.number.load(Acquire) == piece + 1
    }

    /// Whether the next piece of a send can be posted, if the receiver has taken so many.
    #[inline]
    fn has_room(&self, transfer: &Transfer, taken: u64) -> bool {
        let posted = self.posted[transfer.peer].load(Relaxed);
        if posted - taken >= self.map.notes() {
            return false;
        }
        transfer.whole != 0
            || transfer.bytes <= self.map.note_bytes()
            || self.is_free(transfer.peer, 0, taken)
    }

    /// Whether the slot after the next `ahead` ones is free, if the receiver has taken so many pieces. Then those before it
    /// are, too.
    #[inline]
    fn is_free(&self, peer: usize, ahead: u64, taken: u64) -> bool {
        let slot = self.slots[peer].load(Relaxed) + ahead;
        self.filled[peer][(slot % CHANNEL_DEPTH) as usize].load(Relaxed) <= taken
    }

    /// Frees the slots of these pieces of a message that was refused: its receiver reads no more of it than notes, which it may do late.
    #[cold]
    pub(super) fn take_slots_back(&self, peer: usize, pieces: Range<u64>) {
        for filled in &self.filled[peer] {
            let piece = filled.load(Relaxed).wrapping_sub(1);
            if pieces.contains(&piece) {
                filled.store(0, Relaxed);
            }
        }
    }

    /// Puts the next piece of a send into the `posted`-th note or its slot.
    ///
    /// # Safety
    /// As [`ShmEngine::push`]; there is room, as the receiver has taken what was there.
    unsafe fn put(&self, transfer: &mut Transfer, note: &NoteWords<'_>, posted: u64) -> Result<()> {
        let peer = transfer.peer;
        let len = self.map.piece_bytes().min(transfer.bytes - transfer.done);
        // SAFETY: handed down from the caller; done + len <= bytes.
        let from = unsafe { self.outgoing(transfer)? };
        let to = if transfer.bytes <= self.map.note_bytes() {
            note.payload(transfer.bytes)
        } else {
            let slot = self.slots[peer].load(Relaxed);
            self.slots[peer].store(slot + 1, Relaxed);
            self.filled[peer][(slot % CHANNEL_DEPTH) as usize].store(posted + 1, Relaxed);
            note.slot.store(slot, Relaxed);
            self.map.piece(self.rank, peer, slot)
        };
        // SAFETY: at least `len` bytes are at `from`; the note has room for a message that is so short, the
        // slot for a piece; and the receiver has taken what was in it.
        unsafe { copy(to, from, len, false) };
        transfer.done += len;
        Ok(())
    }

    /// Takes the offer of a message back, and puts its first piece in its place, if there is room for all of it and the
    /// receiver has not begun; whether it did.
    ///
    /// # Safety
    /// As [`ShmEngine::push`].
    unsafe fn take_back(&self, transfer: &mut Transfer, taken: u64) -> Result<bool> {
        let (peer, bytes) = (transfer.peer, transfer.bytes);
        let posted = self.posted[peer].load(Relaxed);
        let pieces = bytes.div_ceil(self.map.piece_bytes()).max(1) as u64;
        let in_note = bytes <= self.map.note_bytes();
        let has_room = posted + pieces - 1 - taken <= self.map.notes()
            && (in_note || self.is_free(peer, pieces - 1, taken));
        let note = self.map.note(self.rank, peer, posted - 1);
        if !self.fits_channel(bytes)
            || !has_room
            || !protocol::take_back(note.whole, transfer.whole)
        {
            return Ok(false);
        }
        self.give_up(transfer);
        (transfer.whole, transfer.last) = (0, None);
        // SAFETY: handed down from the caller; the receiver uses neither note nor slot before there is a piece in it.
        unsafe { self.put(transfer, &note, posted - 1)? };
        if transfer.done == bytes {
            transfer.last = Some(posted);
        }
        protocol::put_instead(note.whole);
        #[cfg(test)]
        {
            crate::ops::lock(&self.direct).ways.taken_back += 1;
        }
        Ok(true)
    }

    /// Posts what there is room for.
    ///
    /// # Safety
    /// The buffer has `bytes` readable bytes.
    unsafe fn push(&self, transfer: &mut Transfer, lone: bool, taken: u64) -> Outcome {
        let mut moved = false;
        if let Some(first) = transfer.first
            && taken > first
        {
            transfer.first = None;
            let note = self.map.note(self.rank, transfer.peer, first);
            match note.verdict.load(Relaxed) {
                REJECTED => {
                    self.give_up(transfer);
                    let end = transfer.last;
                    let end = end.unwrap_or_else(|| self.posted[transfer.peer].load(Relaxed));
                    self.take_slots_back(transfer.peer, first..end);
                    let expected = note.count.load(Relaxed);
                    let expected_dtype = dtype_name(note.dtype.load(Relaxed).into());
                    return Outcome::Failed(message_mismatch(
                        (
                            self.own_name(),
                            transfer.count as u64,
                            transfer.dtype.name(),
                        ),
                        (self.name(transfer.peer), expected, expected_dtype),
                    ));
                }
                DECLINED => {
                    self.is_declined(transfer.peer, transfer.whole)
                        .store(true, Relaxed);
                    self.give_up(transfer);
                    (transfer.whole, transfer.last) = (0, None);
                }
                _ => {}
            }
        }
        let mut posted = self.posted[transfer.peer].load(Relaxed);
        if transfer.open {
            self.choose_message(transfer, lone);
        }
        while transfer.last.is_none() && self.has_room(transfer, taken) {
            let mut timed = 0;
            let message = *transfer.message.get_or_insert_with(|| {
                // Only this rank sends on this channel, one call at a time.
                let message = self.messages[transfer.peer].load(Relaxed) + 1;
                self.messages[transfer.peer].store(message, Relaxed);
                transfer.first = Some(posted);
                timed = match &transfer.timing {
                    Some(timing) if self.times_threads(timing.trial.lone) => TIMED_RUNNING,
                    Some(_) => TIMED,
                    None => 0,
                };
                message
            });
            let note = self.map.note(self.rank, transfer.peer, posted);
            moved = true;
            let begins = (transfer.timing.as_ref())
                .map(|timing| Stopwatch::start(self.times_threads(timing.trial.lone)));
            if transfer.whole == 0 {
                // SAFETY: handed down from the caller; there is room.
                if let Err(error) = unsafe { self.put(transfer, &note, posted) } {
                    return Outcome::Failed(error);
                }
            }
            // The line with the words last, and all at once, as the receiver looks at it all the time.
            note.message.store(message, Relaxed);
            note.count.store(transfer.count as u64, Relaxed);
            note.dtype.store(transfer.dtype as u32, Relaxed);
            note.verdict.store(timed, Relaxed);
            note.whole.store(transfer.whole, Relaxed);
            posted += 1;
            self.posted[transfer.peer].store(posted, Relaxed);
            note.number.store(posted, Release);
            if transfer.whole != 0 {
                transfer.last = Some(posted);
                break;
            }
            if let (Some(timing), Some(begins)) = (&mut transfer.timing, begins) {
                let spent = begins.nanoseconds();
                timing.all += spent;
                if timing.first == 0 {
                    timing.first = spent.max(1);
                }
            }
            if transfer.done == transfer.bytes {
                transfer.last = Some(posted);
            }
        }
        match transfer.last {
            Some(last) if taken >= last => {
                if let Some(timing) = transfer.timing.take() {
                    let note = self.map.note(self.rank, transfer.peer, last - 1);
                    self.learn_message(&timing, note.count.load(Relaxed), transfer.bytes);
                }
                Outcome::Complete
            }
            // It lies in the channel, not in the caller's buffer.
            Some(_) if lone && !moved && self.has_unreceived() => {
                if transfer.whole == 0 {
                    self.give_up(transfer);
                    return Outcome::Complete;
                }
                // SAFETY: handed down from the caller.
                match unsafe { self.take_back(transfer, taken) } {
                    Ok(true) => Outcome::Progress,
                    Ok(false) => Outcome::Idle,
                    Err(error) => Outcome::Failed(error),
                }
            }
            _ if moved => Outcome::Progress,
            _ => Outcome::Idle,
        }
    }

    /// Whether all pieces of a message may be under way at once.
    fn fits_channel(&self, bytes: usize) -> bool {
        bytes <= self.map.piece_bytes() * CHANNEL_DEPTH as usize
    }

    /// Whether a send goes in pieces, or is offered where it is.
    #[cold]
    fn choose_message(&self, transfer: &mut Transfer, lone: bool) {
        transfer.open = false;
        let (whole, tried) = self.offer(transfer.peer, transfer.buffer, transfer.bytes, lone);
        transfer.whole = whole;
        transfer.timing = tried.map(|trial| Timing {
            trial,
            first: 0,
            all: 0,
        });
    }

    /// Whether a message is timed while the threads run only: alone where ranks share cores, as the time that another has the
    /// core then says nothing. Of many together it does, as it is how often the core has to change hands.
    fn times_threads(&self, lone: bool) -> bool {
        lone && !self.spins.load(Relaxed)
    }

    /// What a send has cost, if the receiver needed so many nanoseconds from when its first piece was there.
    #[cold]
    pub(super) fn learn_message(&self, timing: &Timing, receiver: u64, bytes: usize) {
        // Alone, a message is not there before its first piece; where ranks share cores it costs the work of both. Of many
        // together the slower side counts.
        let lone = timing.trial.lone;
        let nanoseconds = match (self.times_threads(lone), lone) {
            (true, _) => receiver + timing.all,
            (false, true) => receiver + timing.first,
            (false, false) => receiver.max(timing.all),
        };
        let cost = nanoseconds.saturating_mul(1000) / bytes.max(1) as u64;
        self.learn_trial(timing.trial, Some(cost.max(1)));
    }

    /// A timed send does not become what was to be timed.
    fn give_up(&self, transfer: &mut Transfer) {
        if let Some(timing) = transfer.timing.take() {
            self.learn_trial(timing.trial, None);
        }
    }

    /// Where the next piece of a message is, in host memory.
    ///
    /// # Safety
    /// As [`ShmEngine::push`].
    unsafe fn outgoing(&self, transfer: &mut Transfer) -> Result<*const u8> {
        let at = transfer.buffer.wrapping_add(transfer.done);
        let Some(window) = &mut transfer.window else {
            return Ok(at);
        };
        if transfer.done >= window.start + window.len {
            let bytes = window.memory.len().min(transfer.bytes - transfer.done);
            let to = window.memory.as_mut_ptr().cast();
            // SAFETY: the caller's promise for a part of the buffer; the window has room for it.
            unsafe { self.bring(true, to, at, bytes)? };
            (window.start, window.len) = (transfer.done, bytes);
        }
        let offset = transfer.done - window.start;
        Ok(window.memory[offset.min(window.memory.len())..]
            .as_ptr()
            .cast())
    }

    /// Takes what has arrived to the device, once the window is full or the message has ended.
    ///
    /// # Safety
    /// As [`ShmEngine::pull`].
    unsafe fn incoming(&self, transfer: &mut Transfer) -> Result<()> {
        let Some(window) = &mut transfer.window else {
            return Ok(());
        };
        let here = transfer.done - window.start;
        if here == window.memory.len() || transfer.done == transfer.bytes {
            let to = transfer.buffer.wrapping_add(window.start);
            // SAFETY: the caller's promise for a part of the buffer; so many bytes of the window were written.
            unsafe { self.deliver(true, to, window.memory.as_ptr().cast(), here)? };
            window.start = transfer.done;
        }
        Ok(())
    }

    /// Reads a message where its sender has it. `false`: it can't be reached, and comes in pieces.
    ///
    /// # Safety
    /// As [`ShmEngine::read_whole`], for a message of the transfer's bytes.
    unsafe fn take_whole(&self, transfer: &mut Transfer, whole: u64) -> Result<bool> {
        let (peer, bytes) = (transfer.peer, transfer.bytes);
        while transfer.done < bytes {
            let done = transfer.done;
            let (to, len) = match &mut transfer.window {
                None => (transfer.buffer, bytes),
                Some(window) => {
                    let len = window.memory.len().min(bytes - done);
                    (window.memory.as_mut_ptr().cast(), len)
                }
            };
            // SAFETY: a part of what the sender has announced, and room for it.
            if !unsafe { self.read_whole(peer, whole + done as u64, to, len)? } {
                transfer.done = 0;
                if let Some(window) = &mut transfer.window {
                    window.start = 0;
                }
                return Ok(false);
            }
            transfer.done += len;
            // SAFETY: handed down from the caller.
            unsafe { self.incoming(transfer)? };
        }
        Ok(true)
    }

    /// Whether a peer has posted a message that this rank has not taken.
    pub(super) fn has_unreceived(&self) -> bool {
        (0..self.ranks)
            .filter(|&peer| peer != self.rank)
            .any(|peer| {
                let next = self.map.taken(peer, self.rank).load(Relaxed);
                let dropped = self.dropped[peer].load(Relaxed);
                (next..next + self.map.notes())
                    .take_while(|&piece| self.is_posted(peer, piece))
                    .any(|piece| {
                        let note = self.map.note(peer, self.rank, piece);
                        note.message.load(Relaxed) > dropped
                    })
            })
    }

    /// Drops what has come of messages that were refused, whose room their senders may wait for; whether there was any.
    /// What their senders had not posted by then may come until the next message does. Not from the rank `except`, from
    /// which the caller is taking what comes; this rank itself: there is none.
    #[inline(always)]
    pub(super) fn drop_refused(&self, except: usize) -> bool {
        self.refuses.load(Relaxed) && self.drop_what_was_refused(except)
    }

    #[cold]
    fn drop_what_was_refused(&self, except: usize) -> bool {
        let (mut moved, mut more) = (false, false);
        for peer in 0..self.ranks {
            let dropped = self.dropped[peer].load(Relaxed);
            if dropped == 0 {
                continue;
            }
            if peer == except {
                more = true;
                continue;
            }
            let taken = self.map.taken(peer, self.rank);
            let first = taken.load(Relaxed);
            let mut next = first;
            let refused = |piece| {
                let note = self.map.note(peer, self.rank, piece);
                note.message.load(Relaxed) <= dropped
            };
            while self.is_posted(peer, next) && refused(next) {
                next += 1;
            }
            if next != first {
                taken.store(next, Release);
                moved = true;
            }
            more |= !self.is_posted(peer, next);
        }
        self.refuses.store(more, Relaxed);
        moved
    }

    /// Takes what has arrived.
    ///
    /// # Safety
    /// The buffer has `bytes` writable bytes.
    unsafe fn pull(&self, transfer: &mut Transfer) -> Outcome {
        let taken = self.map.taken(transfer.peer, self.rank);
        let dropped = &self.dropped[transfer.peer];
        let mut next = taken.load(Relaxed);
        let mut moved = false;
        while self.is_posted(transfer.peer, next) {
            let note = self.map.note(transfer.peer, self.rank, next);
            let message = note.message.load(Relaxed);
            // What is left of a message that was refused.
            if message <= dropped.load(Relaxed) {
                moved = true;
                next += 1;
                taken.store(next, Release);
                continue;
            }
            let found = protocol::look(note.whole);
            // Its sender could not go on with a message and has failed, as the next wait says.
            let broken_off = transfer.begun && transfer.message != Some(message);
            if found == Posted::Nothing || broken_off {
                break;
            }
            moved = true;
            if !transfer.begun {
                transfer.begun = true;
                transfer.message = Some(message);
                let (sent, sent_dtype) = (note.count.load(Relaxed), note.dtype.load(Relaxed));
                if (sent, sent_dtype) != (transfer.count as u64, transfer.dtype as u32) {
                    // So that its sender does not take it for one that lies in the channel.
                    if let Posted::Offer(whole) = found {
                        protocol::take_offer(note.whole, whole);
                    }
                    dropped.store(message, Relaxed);
                    note.count.store(transfer.count as u64, Relaxed);
                    note.dtype.store(transfer.dtype as u32, Relaxed);
                    note.verdict.store(REJECTED, Relaxed);
                    taken.store(next + 1, Release);
                    self.refuses.store(true, Relaxed);
                    self.drop_refused(self.rank);
                    return Outcome::Failed(message_mismatch(
                        (
                            self.name(transfer.peer),
                            sent,
                            dtype_name(sent_dtype.into()),
                        ),
                        (
                            self.own_name(),
                            transfer.count as u64,
                            transfer.dtype.name(),
                        ),
                    ));
                }
                transfer.since = match note.verdict.load(Relaxed) {
                    TIMED => Some(Stopwatch::start(false)),
                    TIMED_RUNNING => Some(Stopwatch::start(true)),
                    _ => None,
                };
            }
            if let Posted::Offer(whole) = found {
                if self.fits_channel(transfer.bytes) && !protocol::take_offer(note.whole, whole) {
                    // Its sender could not wait; a piece will be there.
                    break;
                }
                // SAFETY: the sender has announced a message of as many bytes, and leaves it until the
                // piece is taken.
                match unsafe { self.take_whole(transfer, whole) } {
                    Ok(true) => {}
                    // The same message comes in pieces.
                    Ok(false) => note.verdict.store(DECLINED, Relaxed),
                    // The engine has failed, as the next wait says.
                    Err(_) => return Outcome::Idle,
                }
                let complete = transfer.done == transfer.bytes;
                if let (true, Some(since)) = (complete, transfer.since) {
                    note.count.store(since.nanoseconds(), Relaxed);
                }
                next += 1;
                taken.store(next, Release);
                if complete {
                    return Outcome::Complete;
                }
                continue;
            }
            let len = self.map.piece_bytes().min(transfer.bytes - transfer.done);
            let from = if transfer.bytes <= self.map.note_bytes() {
                note.payload(transfer.bytes)
            } else {
                let slot = note.slot.load(Relaxed);
                self.map.piece(transfer.peer, self.rank, slot)
            };
            let to = match &mut transfer.window {
                None => transfer.buffer.wrapping_add(transfer.done),
                Some(window) => window.memory[transfer.done - window.start..]
                    .as_mut_ptr()
                    .cast(),
            };
            let stream = transfer.bytes >= STREAM_FROM && transfer.window.is_none();
            // SAFETY: done + len <= bytes, or within the window, of whole pieces; the sender has posted a piece
            // of that many bytes, as it cuts a message of the same length in the same way, and leaves it until
            // it is taken.
            unsafe { copy(to, from, len, stream) };
            transfer.done += len;
            // SAFETY: handed down from the caller.
            if let Err(error) = unsafe { self.incoming(transfer) } {
                return Outcome::Failed(error);
            }
            let complete = transfer.done == transfer.bytes;
            if complete {
                if stream {
                    fence();
                }
                if let Some(since) = transfer.since {
                    note.count.store(since.nanoseconds(), Relaxed);
                }
            }
            next += 1;
            taken.store(next, Release);
            if complete {
                return Outcome::Complete;
            }
        }
        if moved {
            Outcome::Progress
        } else {
            Outcome::Idle
        }
    }
}
