//! What lies where in the shared segment.
//!
//! All ranks compute the same offsets from the number of ranks alone. The segment starts as zeros,
//! which is the valid initial state of every word in it. Words that one rank writes and others poll
//! have 128 bytes to themselves, as adjacent cache lines are fetched in pairs.

use super::protocol::{Counter, Word};
use crate::error::{Error, Result};
use crate::host::check::MAX_ENGINE_RANKS;
use crate::sys::cpu::CPU_WORDS;
use crate::sys::memory::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// With more ranks than this there are no messages from rank to rank: a channel for each two of them
/// would take gigabytes.
pub(super) const MAX_MESSAGING_RANKS: usize = 128;

/// Payload bytes that fit into the pair of cache lines of a call's header; 48 of them lie in the line that
/// others poll.
pub(super) const LINE_PAYLOAD: usize = PAIR - 16;

/// Payload bytes of a slot, from which small collectives are done in one exchange.
pub(super) const SLOT: usize = 16 << 10;

/// Distance of slots: no multiple of a page, so that a load from one does not have to wait for a store
/// to the same place of another.
pub(super) const SLOT_STRIDE: usize = SLOT + 1024 + 64;

/// The same of the slots that there are for at most so many ranks, for when they have fewer cores: each further handshake
/// then costs changes of the thread that runs, which is more than a longer copy.
pub(super) const WIDE_SLOT: usize = 64 << 10;
pub(super) const WIDE_SLOT_RANKS: usize = 32;
const WIDE_SLOT_STRIDE: usize = WIDE_SLOT + SLOT_STRIDE - SLOT;

/// Pieces of point-to-point messages that can be under way on one channel, of those that do not fit into their notes.
pub(super) const CHANNEL_DEPTH: u64 = 4;

/// Notes of a channel: one for each piece, in which a short message lies itself. With more ranks than this there
/// are fewer and shorter ones, as there is a channel for each two.
const FEW_RANKS: usize = 8;
const NOTES: usize = 64;
const NOTES_OF_MANY: usize = CHANNEL_DEPTH as usize;
/// Payload of a note behind its first cache line, and in it.
const NOTE_PAYLOAD: usize = 1 << 10;
const NOTE_PAYLOAD_OF_MANY: usize = 64;
const NOTE_LINE_PAYLOAD: usize = NOTE_HEADER - NOTE_WORDS;

/// Largest payload of one piece of a message: small enough that the receiver takes one piece while the
/// sender puts the next.
const CHANNEL_PIECE: usize = 32 << 10;

/// Words of a set of ranks of a communicator.
pub(super) const AWAITED_WORDS: usize = MAX_ENGINE_RANKS / 64;

/// Longest text of a published failure.
pub(super) const FAILURE_TEXT: usize = 2048;

const PAGE: usize = 4096;
const PAIR: usize = 128;
/// Bytes between the slots of a channel, as between those of collectives.
const PIECE_GAP: usize = 64;
/// Bytes in front of the payload of a note, and those of them that its words take.
const NOTE_HEADER: usize = 64;
const NOTE_WORDS: usize = 40;

const fn round_up(value: usize, to: usize) -> usize {
    value.div_ceil(to) * to
}

const fn clamp(value: usize, low: usize, high: usize) -> usize {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// Distance of notes.
const fn note_stride(note_bytes: usize) -> usize {
    round_up(NOTE_HEADER + note_bytes, PAIR)
}

/// Offsets of the areas, each the start of an array that the accessors of [`Map`] index.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    failure: usize,
    sleepers: usize,
    bells: usize,
    cpus: usize,
    headers: usize,
    scales: usize,
    posted: usize,
    consumed: usize,
    left: usize,
    staged: usize,
    facts: usize,
    awaited: usize,
    channels: usize,
    rows: usize,
    slots: usize,
    wide_slots: usize,
    inbound: usize,
    outbound: usize,
    notes: usize,
    pieces: usize,
    end: usize,
    /// Bytes of one rank's inbound area of one parity.
    inbound_bytes: usize,
    /// Bytes of one rank's outbound area of one parity.
    outbound_bytes: usize,
    /// Notes of one channel, and the payload bytes of one.
    notes_of_channel: usize,
    note_bytes: usize,
    /// Payload bytes of one slot of a channel.
    piece_bytes: usize,
}

impl Offsets {
    const fn new(ranks: usize) -> Offsets {
        // The budgets: 32 + 8 MiB for pieces of collectives and 16 MiB for messages at most, which
        // the floors exceed only beyond 64 ranks: 128 + 32 MiB for 1024.
        let inbound_bytes = clamp(round_up((16 << 20) / ranks, PAGE), 64 << 10, 1 << 20);
        let outbound_bytes = inbound_bytes / 4;
        let channels_per_rank = if ranks <= MAX_MESSAGING_RANKS {
            ranks
        } else {
            0
        };
        let per_channel = (16 << 20) / (ranks * ranks * CHANNEL_DEPTH as usize) / 64 * 64;
        let piece_bytes = clamp(per_channel, 1 << 10, CHANNEL_PIECE + PIECE_GAP) - PIECE_GAP;
        let (notes_of_channel, note_bytes) = if ranks <= FEW_RANKS {
            (NOTES, NOTE_PAYLOAD)
        } else {
            (NOTES_OF_MANY, NOTE_PAYLOAD_OF_MANY)
        };

        let failure = 0;
        let sleepers = PAGE;
        let bells = sleepers + PAIR;
        let cpus = bells + ranks * PAIR;
        let headers = cpus + PAIR;
        let scales = headers + ranks * 2 * PAIR;
        let posted = scales + ranks * 2 * PAIR;
        let consumed = posted + ranks * PAIR;
        let left = consumed + ranks * PAIR;
        let staged = left + ranks * PAIR;
        let facts = staged + ranks * PAIR;
        let awaited = facts + ranks * PAIR;
        let channels = awaited + ranks * PAIR;
        let rows = channels + ranks * channels_per_rank * PAIR;
        let slots = round_up(rows + ranks * 2 * 3 * ranks * 8, PAGE);
        let wide_slots = round_up(slots + ranks * 2 * SLOT_STRIDE, PAGE);
        let widely = if ranks <= WIDE_SLOT_RANKS { ranks } else { 0 };
        let inbound = round_up(wide_slots + widely * 2 * WIDE_SLOT_STRIDE, PAGE);
        let outbound = inbound + ranks * 2 * inbound_bytes;
        let channels_in_all = ranks * channels_per_rank;
        let notes = outbound + ranks * 2 * outbound_bytes;
        let pieces = round_up(
            notes + channels_in_all * notes_of_channel * note_stride(note_bytes),
            PAGE,
        );
        let end = pieces + channels_in_all * CHANNEL_DEPTH as usize * (piece_bytes + PIECE_GAP);
        Offsets {
            failure,
            sleepers,
            bells,
            cpus,
            headers,
            scales,
            posted,
            consumed,
            left,
            staged,
            facts,
            awaited,
            channels,
            rows,
            slots,
            wide_slots,
            inbound,
            outbound,
            notes,
            pieces,
            end: round_up(end, PAGE),
            inbound_bytes,
            outbound_bytes,
            notes_of_channel,
            note_bytes,
            piece_bytes,
        }
    }
}

/// Bytes of a segment for so many ranks.
pub(super) const fn segment_bytes(ranks: usize) -> usize {
    Offsets::new(ranks).end
}

/// What a rank says about its process, so that others can reach its memory.
#[derive(Clone, Copy)]
pub(super) enum Fact {
    /// A random number that its threads share, and no other process has; 0 before it has attached.
    Process,
    /// Its number and its pid namespace, and when it started.
    Pid,
    PidNamespace,
    StartTime,
    /// Where it keeps a random number, and the number: who reads it there reads this process.
    ProbeAddress,
    ProbeValue,
    /// What it wants: [`SingleCopy`](crate::config::SingleCopy) as a number.
    SingleCopy,
    /// Its heap: address in its own memory, descriptor, bytes, and the secret at the heap's start.
    HeapBase,
    HeapFd,
    HeapBytes,
    HeapSecret,
}

/// A list of an AlltoAllv, with one entry per peer.
#[derive(Clone, Copy)]
pub(super) enum Row {
    /// What a rank sends.
    Sent,
    /// What it expects.
    Expected,
    /// Where what it sends lies in its send buffer.
    Displacement,
}

/// How far a rank is in the steps of staged collectives.
#[derive(Clone, Copy)]
pub(super) enum StageCounter {
    /// Those whose data this rank has put into its area.
    Staged,
    /// Those of which this rank's part of the reduction is done.
    Folded,
    /// Those of which this rank needs nothing any more.
    Left,
}

/// Which of a rank's buffers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Side {
    Send,
    Recv,
}

/// The shared words about a failure. `aborted` is a rank plus one.
pub(super) struct FailureWords<'a> {
    pub aborted: &'a AtomicU32,
    pub state: &'a AtomicU32,
    pub rank: &'a AtomicU32,
    pub code: &'a AtomicU32,
    pub len: &'a AtomicU32,
    pub text: *mut u8,
}

/// One note of a channel from one rank to another. The sender writes all of it, and the number last; until the piece
/// is consumed it is the receiver's, who may leave a verdict in it, and what it expected.
pub(super) struct NoteWords<'a> {
    /// Number of the piece plus one, once it is posted.
    pub number: &'a AtomicU64,
    /// Number of the message that the piece belongs to.
    pub message: &'a AtomicU64,
    /// Elements and data type of the whole message; of a refused one, what the receiver expected. In the note of a
    /// timed message's last piece, in the end, the nanoseconds that the receiver needed for it.
    pub count: &'a AtomicU64,
    pub dtype: &'a AtomicU32,
    /// 0, [`TIMED`] or [`TIMED_RUNNING`]; what the receiver says of a message whose first piece this is: [`REJECTED`] or [`DECLINED`].
    pub verdict: &'a AtomicU32,
    /// Where the whole message lies, as in [`Map::buffer`], until the offer is taken or taken back; 0 if the payload is
    /// a piece of it.
    pub whole: &'a AtomicU64,
    /// The number of the slot in which the piece lies, of those of a message that is too long for its note.
    pub slot: &'a AtomicU64,
    start: *mut u8,
}

/// The receiver expects another message.
pub(super) const REJECTED: u32 = 1;
/// The receiver could not read the message where it was.
pub(super) const DECLINED: u32 = 2;
/// The sender wants to know how long the receiver needs for the message.
pub(super) const TIMED: u32 = 3;
/// The same, but only while the receiver's thread runs.
pub(super) const TIMED_RUNNING: u32 = 4;

impl NoteWords<'_> {
    /// The line in which its words lie.
    #[inline]
    pub(super) fn line(&self) -> *const u8 {
        self.start
    }

    /// Where a message of so many bytes lies, at most [`Map::note_bytes`]: with the words if there is room.
    #[inline]
    pub(super) fn payload(&self, bytes: usize) -> *mut u8 {
        let offset = if bytes <= NOTE_LINE_PAYLOAD {
            NOTE_WORDS
        } else {
            NOTE_HEADER
        };
        self.start.wrapping_add(offset)
    }
}

/// A mapped segment, seen as its words and areas.
#[derive(Debug)]
pub(super) struct Map {
    segment: Arc<Segment>,
    ranks: usize,
    offsets: Offsets,
}

impl Map {
    pub(super) fn new(segment: Arc<Segment>, ranks: usize) -> Result<Map> {
        let offsets = Offsets::new(ranks);
        if segment.len() != offsets.end {
            return Err(Error::internal(format!(
                "a shared segment of {} bytes instead of {} for {ranks} ranks",
                segment.len(),
                offsets.end
            )));
        }
        Ok(Map {
            segment,
            ranks,
            offsets,
        })
    }

    /// Bytes of one rank's inbound area of one parity.
    #[inline]
    pub(super) fn inbound_bytes(&self) -> usize {
        self.offsets.inbound_bytes
    }

    /// Bytes of one rank's outbound area of one parity.
    #[inline]
    pub(super) fn outbound_bytes(&self) -> usize {
        self.offsets.outbound_bytes
    }

    /// Payload bytes of one slot of a channel.
    #[inline]
    pub(super) fn piece_bytes(&self) -> usize {
        self.offsets.piece_bytes
    }

    /// Bytes of the longest message that goes in a note.
    #[inline]
    pub(super) fn note_bytes(&self) -> usize {
        self.offsets.note_bytes
    }

    /// Notes of a channel.
    #[inline]
    pub(super) fn notes(&self) -> u64 {
        self.offsets.notes_of_channel as u64
    }

    #[inline(always)]
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.offsets.end);
        // SAFETY: every caller adds to the start of an area less than the area's size, so the
        // offset is below `end`, which `new` compared with the length of the mapping.
        unsafe { self.segment.base().add(offset) }
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.offsets.end);
        // SAFETY: inside the mapping, which `self.segment` keeps; aligned, as areas start at
        // multiples of 128 and callers add multiples of 8; every rank touches these words only as
        // atomics, and any bytes are a valid value.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    #[inline(always)]
    fn half_word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.offsets.end);
        // SAFETY: as in `word`, with multiples of 4.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    #[inline(always)]
    pub(super) fn failure(&self) -> FailureWords<'_> {
        let start = self.offsets.failure;
        FailureWords {
            aborted: self.half_word(start),
            state: self.half_word(start + 4),
            rank: self.half_word(start + 8),
            code: self.half_word(start + 12),
            len: self.half_word(start + 16),
            text: self.at(start + PAIR),
        }
    }

    /// How many ranks sleep or are about to.
    #[inline(always)]
    pub(super) fn sleepers(&self) -> &AtomicU32 {
        self.half_word(self.offsets.sleepers)
    }

    /// The word on which a rank sleeps.
    #[inline]
    pub(super) fn bell(&self, rank: usize) -> &AtomicU32 {
        self.half_word(self.offsets.bells + rank * PAIR)
    }

    /// Whether a rank sleeps or is about to.
    #[inline]
    pub(super) fn asleep(&self, rank: usize) -> &AtomicU32 {
        self.half_word(self.offsets.bells + rank * PAIR + 4)
    }

    /// One word of the set of processors on which any of the ranks may run.
    pub(super) fn cpus(&self, word: usize) -> &AtomicU64 {
        self.word(self.offsets.cpus + word * 8)
    }

    #[inline(always)]
    fn header(&self, rank: usize, parity: usize) -> usize {
        self.offsets.headers + (rank * 2 + parity) * PAIR
    }

    /// What the announced collective is.
    #[inline(always)]
    pub(super) fn header_fingerprint(&self, rank: usize, parity: usize) -> &AtomicU64 {
        self.word(self.header(rank, parity) + 8)
    }

    /// A buffer of a rank that has announced a large collective: its address, and in the uppermost bit
    /// whether it lies in the heap of the rank's process. It lies where small collectives have their data.
    #[inline]
    pub(super) fn buffer(&self, rank: usize, parity: usize, side: Side) -> &AtomicU64 {
        self.word(self.header(rank, parity) + 64 + side as usize * 8)
    }

    /// What a rank's last timed collective has cost.
    #[inline]
    pub(super) fn cost(&self, rank: usize, parity: usize) -> &AtomicU64 {
        self.word(self.header(rank, parity) + 80)
    }

    /// What a rank says to the last question of one parity.
    pub(super) fn answer(&self, rank: usize, parity: usize) -> &AtomicU64 {
        self.word(self.offsets.scales + (rank * 2 + parity) * PAIR + 64)
    }

    /// What a rank says about its process.
    pub(super) fn fact(&self, rank: usize, fact: Fact) -> &AtomicU64 {
        self.word(self.offsets.facts + rank * PAIR + fact as usize * 8)
    }

    /// One word of the set of ranks of other machines for which a rank waits.
    pub(super) fn awaited(&self, rank: usize, word: usize) -> &AtomicU64 {
        debug_assert!(word < AWAITED_WORDS);
        self.word(self.offsets.awaited + rank * PAIR + word * 8)
    }

    /// Whether a rank is at work in the others' buffers.
    #[inline]
    pub(super) fn visiting(&self, rank: usize) -> &AtomicU32 {
        self.half_word(self.offsets.bells + rank * PAIR + 64)
    }

    /// The processor on which a rank ran when it last waited, plus one; 0 before.
    #[inline]
    pub(super) fn ran_on(&self, rank: usize) -> &AtomicU32 {
        self.half_word(self.offsets.bells + rank * PAIR + 68)
    }

    /// Where a rank's data of a small collective lies: in the header's own cache lines if it fits.
    #[inline(always)]
    pub(super) fn stage(&self, rank: usize, parity: usize, bytes: usize) -> *mut u8 {
        if bytes <= LINE_PAYLOAD {
            self.at(self.header(rank, parity) + 16)
        } else if bytes <= SLOT {
            self.slot(rank, parity)
        } else {
            debug_assert!(bytes <= WIDE_SLOT && self.ranks <= WIDE_SLOT_RANKS);
            self.at(self.offsets.wide_slots + (rank * 2 + parity) * WIDE_SLOT_STRIDE)
        }
    }

    /// A rank's slot.
    #[inline(always)]
    pub(super) fn slot(&self, rank: usize, parity: usize) -> *mut u8 {
        self.at(self.offsets.slots + (rank * 2 + parity) * SLOT_STRIDE)
    }

    /// A rank's scalar of PreMulSum.
    #[inline]
    pub(super) fn scale(&self, rank: usize, parity: usize) -> &AtomicU64 {
        self.word(self.offsets.scales + (rank * 2 + parity) * PAIR)
    }

    /// One entry of a rank's counts and displacements of an AlltoAllv.
    #[inline]
    pub(super) fn row(&self, rank: usize, parity: usize, row: Row, peer: usize) -> &AtomicU64 {
        let row = (rank * 2 + parity) * 3 + row as usize;
        self.word(self.offsets.rows + (row * self.ranks + peer) * 8)
    }

    /// A rank's progress.
    #[inline(always)]
    pub(super) fn counter(&self, counter: Counter, rank: usize) -> &AtomicU64 {
        let start = match counter {
            Counter::Posted => self.offsets.posted,
            Counter::Consumed => self.offsets.consumed,
            Counter::Left => self.offsets.left,
            Counter::Header(parity) => return self.word(self.header(rank, parity)),
        };
        self.word(start + rank * PAIR)
    }

    /// A rank's progress in staged collectives.
    #[inline]
    pub(super) fn stage_counter(&self, counter: StageCounter, rank: usize) -> &AtomicU64 {
        self.word(self.offsets.staged + rank * PAIR + counter as usize * 8)
    }

    /// Where a rank puts pieces for others to take or reduce.
    #[inline]
    pub(super) fn inbound(&self, rank: usize, parity: usize) -> *mut u8 {
        self.at(self.offsets.inbound + (rank * 2 + parity) * self.offsets.inbound_bytes)
    }

    /// Both inbound areas of a rank, one behind the other, and their bytes.
    pub(super) fn inbound_pair(&self, rank: usize) -> (*mut u8, usize) {
        (self.inbound(rank, 0), 2 * self.offsets.inbound_bytes)
    }

    /// Where a rank puts reduced pieces for others to take.
    #[inline]
    pub(super) fn outbound(&self, rank: usize, parity: usize) -> *mut u8 {
        self.at(self.offsets.outbound + (rank * 2 + parity) * self.offsets.outbound_bytes)
    }

    /// Pieces that the receiver of a channel has taken.
    #[inline]
    pub(super) fn taken(&self, from: usize, to: usize) -> &AtomicU64 {
        self.word(self.offsets.channels + (from * self.ranks + to) * PAIR)
    }

    /// The note of a channel's `piece`-th piece.
    #[inline]
    pub(super) fn note(&self, from: usize, to: usize, piece: u64) -> NoteWords<'_> {
        let notes = self.offsets.notes_of_channel;
        let note = (from * self.ranks + to) * notes + piece as usize % notes;
        let start = self.offsets.notes + note * note_stride(self.offsets.note_bytes);
        NoteWords {
            number: self.word(start),
            message: self.word(start + 8),
            count: self.word(start + 16),
            dtype: self.half_word(start + 24),
            verdict: self.half_word(start + 28),
            whole: self.word(start + 32),
            slot: self.word(start + NOTE_WORDS),
            start: self.at(start),
        }
    }

    /// The `number`-th slot of a channel, which are used in turns.
    #[inline]
    pub(super) fn piece(&self, from: usize, to: usize, number: u64) -> *mut u8 {
        let slot =
            (from * self.ranks + to) * CHANNEL_DEPTH as usize + (number % CHANNEL_DEPTH) as usize;
        self.at(self.offsets.pieces + slot * (self.offsets.piece_bytes + PIECE_GAP))
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    fn replace(&self, current: u64, new: u64, order: Ordering) -> bool {
        AtomicU64::compare_exchange(self, current, new, order, Ordering::Relaxed).is_ok()
    }
}

const _: () = assert!(PAIR + FAILURE_TEXT <= PAGE && CPU_WORDS * 8 <= PAIR);
const _: () = assert!(AWAITED_WORDS * 8 <= PAIR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stay_within_their_budget() {
        assert!(segment_bytes(2) <= 40 << 20);
        for ranks in 1..=64 {
            let offsets = Offsets::new(ranks);
            assert!(
                offsets.end <= 64 << 20,
                "{ranks} ranks: {} bytes",
                offsets.end
            );
            assert!(offsets.inbound_bytes / ranks >= 64);
            assert!(ranks > WIDE_SLOT_RANKS || offsets.outbound_bytes >= WIDE_SLOT);
            for area in [
                offsets.headers,
                offsets.channels,
                offsets.slots,
                offsets.wide_slots,
                offsets.inbound,
                offsets.notes,
                offsets.pieces,
            ] {
                assert_eq!(area % PAIR, 0);
            }
            assert_eq!(offsets.piece_bytes % 64, 0);
        }
        assert!(segment_bytes(MAX_MESSAGING_RANKS) <= 128 << 20);
        assert!(segment_bytes(MAX_MESSAGING_RANKS + 1) <= 64 << 20);
        assert!(segment_bytes(MAX_ENGINE_RANKS) <= 256 << 20);
    }
}
