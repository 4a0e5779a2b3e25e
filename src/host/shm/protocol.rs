//! The rules by which ranks hand memory to each other: who may write what, and when.
//!
//! Generic over the words in which ranks tell each other how far they are, and on nothing but `core`:
//! `tests/model` runs this very file on the words of model checkers.
//!
//! Every collective starts with an [`exchange`]. Two headers and two slots by parity are enough: a rank
//! reuses one only after the next exchange, which no peer enters before it has finished with the
//! previous collective.
//!
//! Larger operations go on in piece steps through areas that stay in the cache, two of them by
//! parity. The number of a step grows over the life of the engine, equally on all ranks. Two rules
//! keep the areas right:
//!
//! * an inbound area is rewritten in step g only after every reader has published that it consumed
//!   step g - 2;
//! * an outbound area is rewritten in step g only after *every* rank has posted step g, as it does
//!   so only after it has copied out step g - 2.
//!
//! Operations that touch the others' own buffers end with [`leave`]: a rank gives its buffers back to
//! its caller only once the others have left them.
//!
//! A message that is offered where it lies is read by its receiver or taken back by its sender, whoever changes the word
//! of the offer first ([`take_offer`], [`take_back`]). Its sender then puts a piece of it in the place of the offer
//! ([`put_instead`]), so that an offer which is taken back costs nothing.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering::{self, Acquire, Release};

/// A shared word.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Whether it was `current`, and now is `new`.
    fn replace(&self, current: u64, new: u64, order: Ordering) -> bool;
}

/// One word that a rank writes and others poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Counter {
    /// Piece steps whose data this rank has put into its areas.
    Posted,
    /// Piece steps whose data this rank has taken from the others, and whose results lie in its
    /// outbound area.
    Consumed,
    /// How often this rank has left the others' buffers.
    Left,
    /// Number of the last collective of one parity that this rank has announced.
    Header(usize),
}

/// The ranks of one communicator, seen from one of them.
pub(crate) trait Group {
    type Word: Word;
    type Error;

    /// Whether a result waits until all ranks have posted. Model checkers deny it, to see that they find
    /// what happens then.
    const RESULT_AFTER_ALL: bool = true;

    fn rank(&self) -> usize;
    fn ranks(&self) -> usize;
    fn counter(&self, counter: Counter, rank: usize) -> &Self::Word;
    /// Wakes the ranks that sleep, after something was published.
    fn ring(&self);
    /// Returns once `ready`, or with the error that ended the wait; `missing` names who is waited for.
    fn wait_until(
        &self,
        ready: impl Fn() -> bool,
        missing: impl Fn() -> Vec<u32>,
    ) -> Result<(), Self::Error>;
    /// The same where whoever has come has nothing else to do before all have.
    fn wait_to_meet(
        &self,
        ready: impl Fn() -> bool,
        missing: impl Fn() -> Vec<u32>,
    ) -> Result<(), Self::Error> {
        self.wait_until(ready, missing)
    }
}

/// The ranks that have a part in a step.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Peers {
    All,
    Only(usize),
    Except(usize),
}

impl Peers {
    pub(crate) fn has(self, rank: usize) -> bool {
        match self {
            Peers::All => true,
            Peers::Only(only) => only == rank,
            Peers::Except(except) => except != rank,
        }
    }
}

/// The other ranks, starting after this one, so that not all read from the same one.
pub(crate) fn others<G: Group>(group: &G) -> impl Iterator<Item = usize> + use<G> {
    let (rank, ranks) = (group.rank(), group.ranks());
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}

/// The ranks for which something holds, as waits report them.
fn ranks_where<G: Group>(group: &G, holds: impl Fn(usize) -> bool) -> Vec<u32> {
    (0..group.ranks())
        .filter(|&rank| holds(rank))
        .map(|rank| rank as u32)
        .collect()
}

/// Announces this rank's part of collective number `sequence`, which lies in its header and slot
/// already, and calls `met` for each other rank once that one's lies there.
#[inline(always)]
pub(crate) fn exchange<G: Group>(
    group: &G,
    sequence: u64,
    mut met: impl FnMut(usize),
) -> Result<(), G::Error> {
    let header = Counter::Header((sequence & 1) as usize);
    group.counter(header, group.rank()).store(sequence, Release);
    group.ring();
    let arrived = |rank| group.counter(header, rank).load(Acquire) >= sequence;
    let missing = || ranks_where(group, |rank| !arrived(rank));
    for rank in 0..group.ranks() {
        if rank != group.rank() {
            group.wait_to_meet(|| arrived(rank), missing)?;
            met(rank);
        }
    }
    Ok(())
}

/// Publishes that this rank's counter reached `value`.
#[inline]
pub(crate) fn publish<G: Group>(group: &G, counter: Counter, value: u64) {
    group.counter(counter, group.rank()).store(value, Release);
    group.ring();
}

/// Waits until the counters of some other ranks reached `value`.
#[inline]
pub(crate) fn await_peers<G: Group>(
    group: &G,
    counter: Counter,
    peers: Peers,
    value: u64,
) -> Result<(), G::Error> {
    let reached = |rank| group.counter(counter, rank).load(Acquire) >= value;
    let concerns = |rank| rank != group.rank() && peers.has(rank);
    let missing = || ranks_where(group, |rank| concerns(rank) && !reached(rank));
    for rank in (0..group.ranks()).filter(|&rank| concerns(rank)) {
        group.wait_until(|| reached(rank), missing)?;
    }
    Ok(())
}

/// Says that this rank has left the others' buffers for the `number`-th time, and waits until those
/// who were in this rank's have left them, too. What this rank has to do with its own buffers, of which the
/// others only read, it does `meanwhile`.
#[inline]
pub(crate) fn leave<G: Group>(
    group: &G,
    number: u64,
    visitors: Peers,
    meanwhile: impl FnOnce(),
) -> Result<(), G::Error> {
    publish(group, Counter::Left, number);
    meanwhile();
    await_peers(group, Counter::Left, visitors, number)
}

/// Piece steps, numbered from `base`, in which `writers` fill their inbound area by `put` and then
/// `readers` use those of all writers by `take`; both get the step and the parity of the areas. The
/// next step is put before the previous is taken.
#[inline]
pub(crate) fn pipeline<G: Group>(
    group: &G,
    base: u64,
    steps: u64,
    (writers, readers): (Peers, Peers),
    put: impl Fn(u64, usize),
    take: impl Fn(u64, usize),
) -> Result<(), G::Error> {
    let writes = writers.has(group.rank());
    let reads = readers.has(group.rank());
    for step in 0..=steps {
        if writes && step < steps {
            let now = base + step;
            if step >= 2 {
                await_peers(group, Counter::Consumed, readers, now - 1)?;
            }
            put(step, (now & 1) as usize);
            publish(group, Counter::Posted, now + 1);
        }
        if reads && step > 0 {
            let now = base + step - 1;
            await_peers(group, Counter::Posted, writers, now + 1)?;
            take(step - 1, (now & 1) as usize);
            publish(group, Counter::Consumed, now + 1);
        }
    }
    Ok(())
}

/// Piece steps in which each rank fills its inbound area by `put`, makes its part of the result by
/// `fold` in its outbound area, and `receivers` take the parts of the others by `take`, which gets the
/// step, whose part, and the parity of the areas.
#[inline]
pub(crate) fn reduce_steps<G: Group>(
    group: &G,
    base: u64,
    steps: u64,
    receivers: Peers,
    put: impl Fn(u64, usize),
    mut fold: impl FnMut(u64, usize) -> Result<(), G::Error>,
    take: impl Fn(u64, usize, usize),
) -> Result<(), G::Error> {
    let receives = receivers.has(group.rank());
    for step in 0..=steps {
        if step < steps {
            let now = base + step;
            let area = (now & 1) as usize;
            // Every peer had posted step - 1, and so has consumed step - 2: the inbound area is free.
            put(step, area);
            publish(group, Counter::Posted, now + 1);
            // Also proves that every peer has left this rank's outbound area of step - 2.
            let posted = if G::RESULT_AFTER_ALL {
                Peers::All
            } else {
                Peers::Only((group.rank() + 1) % group.ranks())
            };
            await_peers(group, Counter::Posted, posted, now + 1)?;
            fold(step, area)?;
            publish(group, Counter::Consumed, now + 1);
        }
        if receives && step > 0 {
            let now = base + step - 1;
            for peer in others(group) {
                await_peers(group, Counter::Consumed, Peers::Only(peer), now + 1)?;
                take(step - 1, peer, (now & 1) as usize);
            }
        }
    }
    Ok(())
}

/// There is a piece instead of an offer, or the offer was taken by its receiver or taken back by its sender: no address of
/// a message.
const PIECE: u64 = 0;
const TAKEN: u64 = 1;
const TAKEN_BACK: u64 = 2;

/// What the receiver finds in a note that was posted.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Posted {
    /// A piece of a message.
    Piece,
    /// A message that may be read where it lies.
    Offer(u64),
    /// An offer that was taken back, in whose place a piece will be.
    Nothing,
}

/// Looks at the word of an offer.
#[inline]
pub(crate) fn look<W: Word>(offer: &W) -> Posted {
    match offer.load(Acquire) {
        PIECE => Posted::Piece,
        TAKEN | TAKEN_BACK => Posted::Nothing,
        offered => Posted::Offer(offered),
    }
}

/// The receiver takes a message where it lies, as offered. `false`: its sender has taken the offer back, and may use
/// the buffer for something else.
#[inline]
pub(crate) fn take_offer<W: Word>(offer: &W, offered: u64) -> bool {
    offer.replace(offered, TAKEN, Acquire)
}

/// The sender takes an offer back. `false`: the receiver has taken it, and reads.
#[inline]
pub(crate) fn take_back<W: Word>(offer: &W, offered: u64) -> bool {
    offer.replace(offered, TAKEN_BACK, Acquire)
}

/// The sender has put a piece where the receiver looks for one, after it has taken the offer back.
#[inline]
pub(crate) fn put_instead<W: Word>(offer: &W) {
    offer.store(PIECE, Release);
}
