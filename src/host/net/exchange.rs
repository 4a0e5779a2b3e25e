//! How every collective begins: each rank's header goes to all ranks, with its data if that is small, and
//! all compare. They have read the same headers and so come to the same verdict; a disagreement is found
//! before data moves, and the next collective starts from a clean state.

use super::run::{Area, Run, Topic};
use crate::error::{Code, Error, Result};
use crate::host::check::{Fingerprint, mismatch};
use crate::types::{DataType, OpKind, RedOp};
use std::ops::Range;

/// What all ranks' small data may come to.
const GATHERED: usize = 64 << 10;
/// The most that one rank's may be: every rank sends it to every other, which of large data is more than has
/// to be moved. Of two ranks it is not.
const INLINE: usize = 16 << 10;
const INLINE_OF_TWO: usize = 128 << 10;
/// Up to so many ranks each sends to each; above, what was gathered is passed on in ever larger steps.
const DIRECT: usize = 8;

/// In front of a rank's small data: fingerprint, scalar, and what [`Carried`] says, 8 bytes each.
pub(in crate::host) const HEADER: usize = 24;
/// Beside what [`Carried`] says: the rank finds the link slow.
const SLOW: u64 = 1 << 62;

/// What comes with a rank's header, and what it says of the rank's own memory. That is not compared: what one rank
/// says holds for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::host) struct Carried {
    /// Bytes of small data.
    pub bytes: usize,
    /// A buffer is in a device's memory.
    pub on_device: bool,
    /// Bytes that the rank can stage in a step: two to this power.
    pub step: u32,
}

impl Carried {
    const BYTES: u64 = u32::MAX as u64;
    const STEP_SHIFT: u32 = 56;
    const ON_DEVICE: u64 = 1 << 63;

    pub(in crate::host) fn data(bytes: usize) -> Carried {
        Carried {
            bytes,
            ..Carried::default()
        }
    }

    fn word(self) -> u64 {
        let says = if self.on_device { Self::ON_DEVICE } else { 0 };
        self.bytes as u64 | u64::from(self.step & 63) << Self::STEP_SHIFT | says
    }

    fn of(word: u64) -> Carried {
        Carried {
            bytes: (word & Self::BYTES) as usize,
            on_device: word & Self::ON_DEVICE != 0,
            step: (word >> Self::STEP_SHIFT) as u32 & 63,
        }
    }
}

/// How entries are cut into messages of which each comes as a whole or not at all. Where each begins and ends both
/// sides know, by the number of entries; how many bytes the entries have only their sender does.
#[derive(Clone, Copy)]
pub(in crate::host) struct Parts {
    /// The most bytes of an entry, and how many entries a message has.
    pub stride: usize,
    entries: usize,
}

impl Parts {
    /// For entries with so many bytes of data at most, in messages that are no longer than `certain`.
    pub(in crate::host) fn new(inline: usize, certain: usize) -> Parts {
        let stride = HEADER + inline;
        Parts {
            stride,
            entries: (certain / stride).max(1),
        }
    }

    /// The entries of each message in which so many go.
    pub(in crate::host) fn of(self, count: usize) -> impl Iterator<Item = Range<usize>> {
        (0..count)
            .step_by(self.entries)
            .map(move |start| start..start + self.entries.min(count - start))
    }
}

/// The most that an entry's data may be for so many entries to go in one message of at most `certain` bytes. If not
/// even their headers can, it is nothing.
pub(in crate::host) fn inline_of(entries: usize, certain: usize) -> usize {
    (certain / entries).saturating_sub(HEADER) / 8 * 8
}

/// The headers of one collective.
pub(in crate::host) struct Table {
    ranks: usize,
    /// See [`Table::inline`].
    inline: usize,
    /// The longest message that may be sent at the begin of a collective.
    pub(in crate::host) certain: usize,
    entries: Area,
    packed: Area,
    unpacked: Area,
    /// What this rank says of the link, from its next header on.
    pub(in crate::host) finds_slow: bool,
}

impl Table {
    /// `certain` as in the field.
    pub(in crate::host) fn new(ranks: usize, certain: usize) -> Result<Table> {
        let most = match ranks {
            2 => INLINE_OF_TWO,
            ranks => (GATHERED / ranks).min(INLINE),
        };
        let entries = match ranks <= DIRECT {
            true => 1,
            false => ranks.div_ceil(2),
        };
        let mut table = Table {
            ranks,
            inline: (most / 8 * 8).min(inline_of(entries, certain)),
            certain,
            entries: Area::default(),
            packed: Area::default(),
            unpacked: Area::default(),
            finds_slow: false,
        };
        let stride = table.stride();
        table.entries.reserve(ranks * stride)?;
        if ranks > DIRECT {
            table.packed.reserve(ranks.div_ceil(2) * stride)?;
            table.unpacked.reserve(ranks.div_ceil(2) * stride)?;
        }
        Ok(table)
    }

    /// The most that a rank's data may be to travel with its header.
    pub(in crate::host) fn inline(&self) -> usize {
        self.inline
    }

    pub(in crate::host) fn stride(&self) -> usize {
        HEADER + self.inline()
    }

    pub(in crate::host) fn entry(&mut self, rank: usize) -> *mut u8 {
        debug_assert!(rank < self.ranks);
        let at = rank * self.stride();
        self.entries.start().wrapping_add(at)
    }

    fn word(&mut self, rank: usize, index: usize) -> u64 {
        // SAFETY: an entry starts with the three words of a header, aligned as the area and the stride
        // are.
        unsafe { self.entry(rank).cast::<u64>().add(index).read() }
    }

    /// Where this rank puts its small data before an exchange, and where a rank's lies after it.
    pub(in crate::host) fn data(&mut self, rank: usize) -> *mut u8 {
        self.entry(rank).wrapping_add(HEADER)
    }

    /// A rank's scalar.
    pub(in crate::host) fn scale(&mut self, rank: usize) -> [u8; 8] {
        self.word(rank, 1).to_ne_bytes()
    }

    pub(in crate::host) fn print(&mut self, rank: usize) -> Fingerprint {
        Fingerprint(self.word(rank, 0))
    }

    /// Whether any rank's header says that the link is slow: the same on all ranks.
    pub(in crate::host) fn is_slow(&mut self) -> bool {
        (0..self.ranks).any(|rank| self.word(rank, 2) & SLOW != 0)
    }

    /// Bytes of a rank's header and data.
    pub(in crate::host) fn bytes(&mut self, rank: usize) -> Result<usize> {
        match Carried::of(self.word(rank, 2)).bytes {
            data if data <= self.inline() => Ok(HEADER + data),
            _ => Err(Error::internal("a rank's header can't be read")),
        }
    }

    /// Bytes of a step in which all ranks can stage, if any has a buffer in a device's memory.
    pub(in crate::host) fn staged(&mut self) -> Option<usize> {
        let ranks = self.ranks;
        let said = |rank| Carried::of(self.word(rank, 2));
        let says: Vec<Carried> = (0..ranks).map(said).collect();
        let least = says.iter().map(|carried| carried.step).min()?;
        (says.iter().any(|carried| carried.on_device)).then(|| 1 << least)
    }

    pub(in crate::host) fn set(
        &mut self,
        rank: usize,
        print: Fingerprint,
        scale: [u8; 8],
        carried: Carried,
    ) {
        let says = if self.finds_slow { SLOW } else { 0 };
        let words = [print.0, u64::from_ne_bytes(scale), carried.word() | says];
        // SAFETY: as in `word`; nobody else has the entry between two exchanges.
        unsafe { self.entry(rank).cast::<[u64; 3]>().write(words) };
    }

    /// Puts the entries of one message of those from rank `first` on where it is sent from: one after the other; the
    /// bytes.
    fn pack(&mut self, first: usize, part: &Range<usize>) -> Result<usize> {
        let start = part.start * self.stride();
        let mut at = start;
        for number in part.clone() {
            let rank = (first + number) % self.ranks;
            let bytes = self.bytes(rank)?;
            let (from, to) = (self.entry(rank), self.packed.start());
            // SAFETY: an entry has room for its bytes, and there are at most half as many entries, rounded
            // up, as ranks, for which the area was made.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(at), bytes) };
            at += bytes;
        }
        Ok(at - start)
    }

    /// The reverse of `pack`, from what came.
    fn unpack(&mut self, first: usize, part: &Range<usize>) -> Result<()> {
        let mut at = part.start * self.stride();
        for number in part.clone() {
            let rank = (first + number) % self.ranks;
            let (to, stride) = (self.entry(rank), self.stride());
            let from = self.unpacked.start().wrapping_add(at);
            debug_assert!(at + stride <= self.ranks.div_ceil(2) * stride);
            // SAFETY: what came lies within the area, and every entry before was at most a stride, so that
            // a header is within it; `bytes` refuses data that would not be.
            unsafe { std::ptr::copy_nonoverlapping(from, to, HEADER) };
            let bytes = self.bytes(rank)?;
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            at += bytes;
        }
        Ok(())
    }

    /// Gives the memory up to whoever may still write it.
    pub(in crate::host) fn leak(&mut self) {
        for area in [&mut self.entries, &mut self.packed, &mut self.unpacked] {
            std::mem::forget(std::mem::take(area));
        }
    }
}

impl Run<'_> {
    /// Sends this rank's header, with the data that was put into the table, gathers all others'
    /// and compares.
    pub(in crate::host) fn exchange(
        &mut self,
        sequence: u64,
        print: Fingerprint,
        scale: [u8; 8],
        carried: Carried,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.ranks());
        self.state.table.set(rank, print, scale, carried);
        let gathered = match ranks <= DIRECT {
            true => self.gather_directly(sequence),
            false => self.gather_in_steps(sequence),
        };
        if let Err(error) = gathered {
            // A header that can't be read is the end, too.
            return Err(match self.engine_failed() {
                true => error,
                false => self.fatal(error),
            });
        }
        let first = self.state.table.print(0);
        let same = (1..ranks).all(|other| self.state.table.print(other) == first);
        match same {
            true => Ok(()),
            false => Err(mismatch(
                sequence,
                (0..ranks).map(|rank| self.state.table.print(rank)),
            )),
        }
    }

    /// Proves that all ranks reach each other. That counts for no collective: the callers' begin with number 1.
    pub(in crate::host) fn prove(&mut self) -> Result<()> {
        let sum = RedOp::Sum;
        let barrier = Fingerprint::of_right(OpKind::Barrier, DataType::Uint8, sum, 0, 0);
        match self.ranks() {
            1 => Ok(()),
            _ => self.exchange(0, barrier, [0; 8], Carried::data(0)),
        }
    }

    /// The others count on this rank, or wait for it: what goes wrong here alone is the end for all.
    pub(in crate::host) fn for_all<T>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.code() != Code::InvalidUsage && !self.engine_failed() => {
                Err(self.fatal(error))
            }
            result => result,
        }
    }

    fn engine_failed(&self) -> bool {
        self.engine.check_failure().is_err()
    }

    fn gather_directly(&mut self, sequence: u64) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let stride = self.state.table.stride();
        let bytes = self.state.table.bytes(rank)?;
        let about = (Topic::Headers, sequence << 8);
        for peer in (1..ranks).map(|distance| (rank + ranks - distance) % ranks) {
            let to = self.state.table.entry(peer);
            // SAFETY: the peer's entry, which nobody else touches until all requests are done.
            unsafe { self.recv(peer, about, to, stride, 0) };
        }
        for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
            let from = self.state.table.entry(rank);
            // SAFETY: this rank's entry, which stays as it is until all requests are done.
            unsafe { self.send(peer, about, from, bytes, 0) };
        }
        self.wait_for_all()?;
        (0..ranks).try_for_each(|peer| self.state.table.bytes(peer).map(drop))
    }

    fn gather_in_steps(&mut self, sequence: u64) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.ranks());
        let parts = Parts::new(self.state.table.inline(), self.state.table.certain);
        let mut have = 1;
        let mut step = 0;
        while have < ranks {
            let count = have.min(ranks - have);
            let about = (Topic::Headers, (sequence << 8) | step);
            for part in parts.of(count) {
                let at = part.start * parts.stride;
                let bytes = self.state.table.pack(rank, &part)?;
                let to = self.state.table.unpacked.start().wrapping_add(at);
                let from = self.state.table.packed.start().wrapping_add(at);
                let room = part.len() * parts.stride;
                // SAFETY: both areas have room for half of the ranks' entries, rounded up, of which each message
                // has its own, and are left alone until all requests are done.
                unsafe {
                    self.recv((rank + have) % ranks, about, to, room, 0);
                    self.send((rank + ranks - have) % ranks, about, from, bytes, 0);
                }
            }
            self.wait_for_all()?;
            for part in parts.of(count) {
                self.state.table.unpack(rank + have, &part)?;
            }
            have += count;
            step += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_a_rank_can_stage() {
        let carried = Carried {
            bytes: 65_536,
            on_device: true,
            step: 23,
        };
        assert_eq!(Carried::of(carried.word()), carried);
        assert_eq!(Carried::of(Carried::data(7).word()), Carried::data(7));

        let mut table = Table::new(2, usize::MAX).unwrap();
        let mut says = |of: [Carried; 2]| {
            for (rank, carried) in of.into_iter().enumerate() {
                table.set(rank, Fingerprint(1), [0; 8], carried);
            }
            assert_eq!(table.bytes(0).unwrap(), HEADER + of[0].bytes);
            table.staged()
        };
        let host = Carried {
            on_device: false,
            ..carried
        };
        let little = Carried { step: 16, ..host };
        assert_eq!(says([host, host]), None);
        assert_eq!(says([host, carried]), Some(1 << 23));
        assert_eq!(says([carried, little]), Some(1 << 16));
    }
}
