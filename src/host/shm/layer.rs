//! What an engine over several machines (`host::layers`) needs of the ranks of one: meetings, at which each shows
//! the others something, and steps in which each hands pieces to the others. What the ranks show and hand over
//! is the business of that engine; they meet in the same order, and `protocol` has the rules.

use super::ShmEngine;
use super::layout::{AWAITED_WORDS, MAX_MESSAGING_RANKS, SLOT, SLOT_STRIDE};
use super::protocol::Peers;
use crate::error::Result;
use crate::host::check::{Fingerprint, Staging};
use crate::host::op::WaitPolicy;
use std::sync::atomic::Ordering::Relaxed;

/// What every rank calls at a meeting.
const MEETING: Fingerprint = Fingerprint(u64::MAX << 43);

/// What a rank can show at a meeting, in bytes: a slot's data, and what stands before it.
pub(in crate::host) const SHOWN: usize = SLOT + 64;
const _: () = assert!(SHOWN <= SLOT_STRIDE);

impl ShmEngine {
    /// Gives the ranks other names in texts than their numbers here.
    pub(crate) fn with_names(mut self, names: Vec<u32>) -> ShmEngine {
        self.names = names.into();
        self
    }

    /// The ranks of this segment are not the only ones that want these cores: waits don't spin.
    pub(in crate::host) fn shares_cores(&mut self) {
        self.crowded = true;
        self.choose_wait();
    }

    /// Whether waits spin.
    #[cfg(test)]
    pub(in crate::host) fn waits_spin(&self) -> bool {
        self.spins.load(Relaxed)
    }

    /// What a rank is called.
    pub(super) fn name(&self, rank: usize) -> usize {
        self.names.get(rank).map_or(rank, |name| *name as usize)
    }

    pub(super) fn own_name(&self) -> usize {
        self.name(self.rank)
    }

    /// Whether there are messages between these ranks.
    pub(in crate::host) fn has_messages(&self) -> bool {
        self.ranks <= MAX_MESSAGING_RANKS
    }

    /// Where this rank puts what it shows at the next meeting: [`SHOWN`] bytes, which no other rank reads before, and
    /// none after the meeting that follows it.
    pub(in crate::host) fn to_show(&self) -> *mut u8 {
        let next = self.sequence.load(Relaxed) + 1;
        self.map.slot(self.rank, (next & 1) as usize)
    }

    /// What a rank has shown at the last meeting.
    pub(in crate::host) fn shown_by(&self, rank: usize) -> *const u8 {
        let last = self.sequence.load(Relaxed);
        self.map.slot(rank, (last & 1) as usize)
    }

    /// A larger place, which its rank may write between a meeting and the next, at which it shows it; the others may
    /// read it until they meet again or hand over pieces.
    pub(in crate::host) fn board_of(&self, rank: usize) -> (*mut u8, usize) {
        self.map.inbound_pair(rank)
    }

    /// Waits until all ranks have come here.
    pub(in crate::host) fn meet(&self, wait: &dyn WaitPolicy) -> Result<()> {
        let (sequence, _) = self.begin();
        self.exchange(sequence, MEETING, Staging::NONE, wait)?;
        Ok(())
    }

    /// What a rank can hand over in one step, in bytes.
    pub(in crate::host) fn step_bytes(&self) -> usize {
        self.map.inbound_bytes()
    }

    /// A meeting, and then steps: in each, every rank fills its place by `put(step, place)`, and then `take(step,
    /// place_of)` uses what all have put there, `place_of(rank)`. The next is put before the previous is taken.
    pub(in crate::host) fn hand_over(
        &self,
        steps: usize,
        wait: &dyn WaitPolicy,
        put: impl Fn(usize, *mut u8),
        take: impl Fn(usize, &dyn Fn(usize) -> *mut u8),
    ) -> Result<()> {
        // Nobody reads any more what was put before: all have entered.
        self.meet(wait)?;
        let put = |step: u64, parity| put(step as usize, self.map.inbound(self.rank, parity));
        let take = |step: u64, parity| take(step as usize, &|rank| self.map.inbound(rank, parity));
        self.pipeline(steps as u64, Peers::All, Peers::All, wait, put, take)
    }

    /// Says for which ranks of other machines this rank waits; none, if it waits for none.
    pub(in crate::host) fn say_awaited(&self, ranks: &[u32]) {
        let mut words = [0u64; AWAITED_WORDS];
        for rank in ranks {
            words[*rank as usize / 64] |= 1 << (rank % 64);
        }
        for (at, word) in words.into_iter().enumerate() {
            self.map.awaited(self.rank, at).store(word, Relaxed);
        }
    }

    /// For which ranks of other machines a rank says that it waits.
    pub(in crate::host) fn awaited_by(&self, rank: usize) -> impl Iterator<Item = u32> {
        (0..AWAITED_WORDS).flat_map(move |at| {
            let word = self.map.awaited(rank, at).load(Relaxed);
            (0..64u32)
                .filter(move |bit| word >> bit & 1 != 0)
                .map(move |bit| at as u32 * 64 + bit)
        })
    }
}
