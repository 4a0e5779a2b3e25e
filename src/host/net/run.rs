//! One operation under way: its requests, and how it waits for them.

use super::{Group, Shared, State, Ticket};
use crate::error::{Code, Error, Result};
use crate::host::op::WaitPolicy;
use crate::sys::futex;
use crate::words::counted;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a wait looks before it sleeps, if every rank can have a core of its own and if not.
const SPIN: Duration = Duration::from_micros(200);
const YIELD: Duration = Duration::from_micros(20);
/// Whoever has the core for so long after this rank gave way is no rank that looks for its messages, too.
const GONE: Duration = Duration::from_micros(50);
/// How long waits then sleep at once, at first and at most.
const CROWDED: Duration = Duration::from_millis(20);
const LONG_CROWDED: Duration = Duration::from_millis(320);
/// So many calls of progress in a row that move something, and the policy is asked.
const MOVES: u32 = 64;
/// Nothing moves any more if nothing has come for so long.
const QUIET: Duration = Duration::from_millis(10);
/// Nothing has moved for long.
const SILENCE: Duration = Duration::from_millis(100);
/// How often the policy is asked.
const SLICE: Duration = Duration::from_millis(1);
/// Letters that may be on their way.
const MOST_LETTERS: usize = 64;
/// Whoever closes a connection is given this long to be named by the control channel, which knows more.
const CAUSE: Duration = Duration::from_millis(150);

/// Where the topic begins in a tag; below the sender, which takes the ten bits from 48 on, is the number.
const TOPIC_SHIFT: u32 = 60;
/// What is above the sender, and how many bits of it are ever set.
const KIND_SHIFT: u32 = 58;
const KIND_BITS: u32 = 5;
const _: () = assert!(crate::host::check::MAX_ENGINE_RANKS <= 1 << (KIND_SHIFT - 48));
/// The shortest tags that a library may have, and how many numbers in a row these tell apart.
pub(super) const LEAST_TAG_BITS: u32 = 15;
pub(super) const NUMBERS: usize = 1 << (LEAST_TAG_BITS - KIND_BITS);

/// What a message is about: the top bits of its tag.
#[derive(Clone, Copy)]
pub(in crate::host) enum Topic {
    /// The headers of a collective.
    Headers = 1,
    /// Data of a collective, in streams that don't disturb each other's order.
    Data = 2,
    /// The header of a message from rank to rank, and the data of a small one.
    Message = 3,
    /// The answer to the header of a large one.
    Answer = 4,
    /// The data of a large one.
    Payload = 5,
}

/// A tag for a library whose tags have so many bits, at least [`LEAST_TAG_BITS`], and which tells senders apart by
/// itself. What is left out of the number matters only for what is under way at once between two ranks: collectives and
/// their streams are sent in the order in which they are received, and of the messages between two ranks no more are
/// under way at once than have different numbers here; so whoever receives would see two that could be taken for one
/// another.
pub(super) fn narrow_tag(tag: u64, bits: u32) -> i32 {
    let low = bits.min(31) - KIND_BITS;
    let (kind, number) = (tag >> KIND_SHIFT, tag & ((1 << low) - 1));
    ((kind << low) | number) as i32
}

/// Whether both sides of a message with this tag know how long it is. What begins a collective or a message tells that
/// itself.
pub(super) fn agreed_size(tag: u64) -> bool {
    let topic = tag >> TOPIC_SHIFT;
    topic == Topic::Data as u64 || topic == Topic::Payload as u64
}

/// Memory of our own through which messages pass. Only raw pointers go to it.
#[derive(Default)]
pub(in crate::host) struct Area {
    words: Vec<u64>,
}

impl Area {
    /// Room for so many bytes; what was in it is lost.
    pub(in crate::host) fn reserve(&mut self, bytes: usize) -> Result<*mut u8> {
        let words = bytes.div_ceil(8);
        if self.words.len() < words {
            self.words = Vec::new();
            self.words.try_reserve_exact(words).map_err(|_| {
                Error::new(Code::SystemError, format!("no memory for {bytes} bytes"))
            })?;
            self.words.resize(words, 0);
        }
        Ok(self.start())
    }

    pub(in crate::host) fn start(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
}

/// Whether others want the cores on which this rank looks for messages. Whoever looks uses up its share of a
/// core, and then stands in line where a sleeper would be woken at once.
#[derive(Default)]
pub(super) struct Crowd {
    until: Option<Instant>,
    length: Duration,
}

impl Crowd {
    pub(super) fn is_there(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// This rank gave way at `then` and has the core again at `now`.
    pub(super) fn gave_way(&mut self, then: Instant, now: Instant) {
        if now - then < GONE {
            return;
        }
        let again = self.until.is_some_and(|end| now < end + 2 * self.length);
        self.length = match again {
            true => (2 * self.length).min(LONG_CROWDED),
            false => CROWDED,
        };
        self.until = Some(now + self.length);
    }
}

/// One request that is not known to be done.
struct Pending {
    ticket: Ticket,
    peer: usize,
    /// Its number in this run.
    id: usize,
    /// What is waited for together.
    key: u64,
    receives: bool,
}

/// See the module.
pub(in crate::host) struct Run<'a> {
    pub engine: &'a Shared,
    pub state: &'a mut State,
    /// Those who work together now. Ranks of operations are places in it; everything else, requests and texts, names ranks of
    /// the communicator.
    group: Arc<Group>,
    policy: &'a dyn WaitPolicy,
    /// Ranks for which the operation waits in another way.
    others: Vec<u32>,
    pending: Vec<Pending>,
    /// By the number of the request.
    done: Vec<bool>,
    /// Calls of progress in a row that moved something.
    moves: u32,
    /// Since when nothing has moved.
    idle: Option<Instant>,
    /// When something has moved again after a long time.
    silence: Option<Instant>,
    checked: Option<Instant>,
    /// A connection that has failed, since when, and how.
    broken: Option<(Instant, usize, String)>,
    /// Memory of this run's messages, and copies of what the caller sends.
    pub buffers: Vec<Area>,
    copies: Vec<Vec<MaybeUninit<u8>>>,
}

impl<'a> Run<'a> {
    pub(in crate::host) fn new(
        engine: &'a Shared,
        state: &'a mut State,
        policy: &'a dyn WaitPolicy,
    ) -> Run<'a> {
        Run {
            engine,
            state,
            group: Arc::clone(&engine.all),
            policy,
            others: Vec::new(),
            pending: Vec::new(),
            done: Vec::new(),
            moves: 0,
            idle: None,
            silence: None,
            checked: None,
            broken: None,
            buffers: Vec::new(),
            copies: Vec::new(),
        }
    }

    /// This rank's place among those who work together now.
    pub(in crate::host) fn rank(&self) -> usize {
        self.group.place
    }

    /// How many work together now.
    pub(in crate::host) fn ranks(&self) -> usize {
        self.group.members.len()
    }

    /// From now on these work together.
    pub(in crate::host) fn turn_to(&mut self, group: &Arc<Group>) {
        self.group = Arc::clone(group);
    }

    /// From now on all ranks work together.
    pub(in crate::host) fn turn_to_all(&mut self) {
        self.group = Arc::clone(&self.engine.all);
    }

    fn tag(&self, topic: Topic, from: usize, number: u64) -> u64 {
        ((topic as u64) << TOPIC_SHIFT)
            | (self.group.id << KIND_SHIFT)
            | ((from as u64) << 48)
            | (number & ((1 << 48) - 1))
    }

    /// Begins to send; the request's number.
    ///
    /// # Safety
    /// The bytes are readable and stay as they are until the request is done or the run is over.
    pub(in crate::host) unsafe fn send(
        &mut self,
        to: usize,
        (topic, number): (Topic, u64),
        from: *const u8,
        bytes: usize,
        key: u64,
    ) -> usize {
        let tag = self.tag(topic, self.engine.rank, number);
        let to = self.group.members[to];
        // SAFETY: handed down from the caller; `give_up` ends what is not done.
        let begun = unsafe { self.state.transport.send(to, tag, from, bytes) };
        self.note(begun, to, key, false)
    }

    /// Begins to receive; the request's number.
    ///
    /// # Safety
    /// The bytes are writable, and nobody touches them until the request is done or the run is over.
    pub(in crate::host) unsafe fn recv(
        &mut self,
        from: usize,
        (topic, number): (Topic, u64),
        to: *mut u8,
        bytes: usize,
        key: u64,
    ) -> usize {
        let from = self.group.members[from];
        let tag = self.tag(topic, from, number);
        // SAFETY: handed down from the caller; `give_up` ends what is not done.
        let begun = unsafe { self.state.transport.recv(from, tag, to, bytes) };
        self.note(begun, from, key, true)
    }

    fn note(
        &mut self,
        begun: std::result::Result<Option<Ticket>, String>,
        peer: usize,
        key: u64,
        receives: bool,
    ) -> usize {
        let id = self.done.len();
        self.done.push(matches!(begun, Ok(None)));
        match begun {
            Ok(None) => {}
            Ok(Some(ticket)) => self.pending.push(Pending {
                ticket,
                peer,
                id,
                key,
                receives,
            }),
            Err(text) => self.breaks(peer, text),
        }
        id
    }

    fn breaks(&mut self, peer: usize, text: String) {
        self.broken
            .get_or_insert_with(|| (Instant::now(), peer, text));
    }

    /// Whether a request is done.
    pub(in crate::host) fn is_done(&self, id: usize) -> bool {
        self.done[id]
    }

    /// Moves on what can be moved; whether something did move. Where data moves all the time it says no now
    /// and then, so that whoever waits does not forget to pause.
    pub(in crate::host) fn progress(&mut self) -> bool {
        let moved = self.state.transport.progress();
        self.state.sort_letters();
        if let Some((to, text)) = self.state.letters.failed.take() {
            self.breaks(to, text);
        }
        let mut ended = false;
        let mut at = 0;
        while at < self.pending.len() {
            let Some(outcome) = self.state.transport.done(self.pending[at].ticket) else {
                at += 1;
                continue;
            };
            let pending = self.pending.swap_remove(at);
            match outcome {
                Ok(()) => {
                    self.done[pending.id] = true;
                    ended = true;
                }
                Err(text) => self.breaks(pending.peer, text),
            }
        }
        if !moved && !ended {
            self.moves = 0;
            return false;
        }
        if let Some(start) = self.idle.take() {
            let now = Instant::now();
            if now - start >= SILENCE {
                self.silence = Some(now);
            }
        }
        self.moves += 1;
        !self.moves.is_multiple_of(MOVES)
    }

    /// Whether there are requests that are not known to be done.
    pub(in crate::host) fn has_requests(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Waits until no request with this key is left.
    pub(in crate::host) fn wait_for_key(&mut self, key: u64) -> Result<()> {
        self.wait(|run| run.pending.iter().all(|p| p.key != key))
    }

    /// Waits until no request is left.
    pub(in crate::host) fn wait_for_all(&mut self) -> Result<()> {
        self.wait(|run| run.pending.is_empty())
    }

    fn wait(&mut self, over: impl Fn(&Run<'_>) -> bool) -> Result<()> {
        loop {
            if self.broken.is_none() && over(self) {
                return Ok(());
            }
            if !self.progress() {
                self.pause()?;
            }
        }
    }

    /// Says for which ranks the operation waits beside those of its messages.
    pub(in crate::host) fn also_waits_for(&mut self, ranks: Vec<u32>) {
        self.others = ranks;
    }

    fn waiting_for(&self) -> Vec<u32> {
        let mut peers: Vec<u32> = match &self.broken {
            Some((_, peer, _)) => vec![*peer as u32],
            None => {
                // Whoever does not send is more to blame than whoever does not take.
                let receives = self.pending.iter().any(|p| p.receives);
                let blamed = self.pending.iter().filter(|p| p.receives == receives);
                let blamed = blamed.map(|p| p.peer as u32);
                blamed.chain(self.others.iter().copied()).collect()
            }
        };
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Passes a little time. An error ends the run, and the engine, for good.
    pub(in crate::host) fn pause(&mut self) -> Result<()> {
        if let Err(error) = self.engine.check_failure() {
            self.give_up();
            return Err(error);
        }
        let now = Instant::now();
        let start = *self.idle.get_or_insert(now);
        let checked = *self.checked.get_or_insert(now);
        if now - checked >= SLICE {
            self.checked = Some(now);
            if self.broken.is_none()
                && let Some((peer, text)) = self.pending.iter().find_map(|p| {
                    let text = self.state.transport.lost(p.peer).filter(|_| p.receives)?;
                    Some((p.peer, text))
                })
            {
                self.breaks(peer, text);
            }
            // What the dead and those who left have sent may still be on its way.
            let missed = self.broken.is_some() || now - start >= QUIET;
            let waiting_for = || match missed {
                true => self.waiting_for(),
                false => Vec::new(),
            };
            let mut checked = self.policy.check(&waiting_for);
            let late = checked.as_ref().is_err_and(|e| e.code() == Code::Timeout);
            if late && self.silence.is_some_and(|end| now - end < QUIET) {
                // What moves at last may be the end of a connection to a rank whose deadline was just before
                // this one's. Those for whom both have waited are named.
                checked = self.policy.check(&|| self.waiting_for()).and(checked);
            }
            if let Err(error) = checked {
                return Err(self.fatal(error));
            }
            if let Some((since, peer, text)) = &self.broken
                && since.elapsed() >= CAUSE
            {
                let text = match self.policy.gone(*peer as u32) {
                    Some(how) => how,
                    None => format!("the connection to rank {peer} has failed: {text}"),
                };
                return Err(self.fatal(Error::new(Code::RemoteError, text)));
            }
        }
        let limit = match self.engine.spins {
            true => SPIN,
            false => YIELD,
        };
        if now - start < limit && !self.state.crowd.is_there(now) {
            futex::yield_now();
            self.state.crowd.gave_way(now, Instant::now());
        } else {
            self.state.transport.sleep(SLICE);
        }
        Ok(())
    }

    /// Asks now and then whether the run may go on, while it waits for no rank.
    pub(in crate::host) fn look_up(&mut self) -> Result<()> {
        if let Err(error) = self.engine.check_failure() {
            self.give_up();
            return Err(error);
        }
        let now = Instant::now();
        if now - *self.checked.get_or_insert(now) < SLICE {
            return Ok(());
        }
        self.checked = Some(now);
        let checked = self.policy.check(&Vec::new);
        checked.map_err(|error| self.fatal(error))
    }

    /// Ends the run and the engine: the requests are given up, and the other ranks hear of it.
    pub(in crate::host) fn fatal(&mut self, error: Error) -> Error {
        self.engine.poison(&error);
        self.policy.failed(&error);
        self.give_up();
        error
    }

    /// Ends all requests: afterwards nobody touches their memory.
    fn give_up(&mut self) {
        if std::mem::replace(&mut self.state.given_up, true) && self.pending.is_empty() {
            return;
        }
        let mut tickets: Vec<Ticket> = self.pending.drain(..).map(|p| p.ticket).collect();
        let letters = std::mem::take(&mut self.state.letters.under_way);
        for (ticket, _, area) in letters {
            tickets.push(ticket);
            self.buffers.push(area);
        }
        let left = self.state.transport.give_up(&tickets);
        if left > 0 {
            self.engine.left_behind.store(true, Ordering::Release);
            // Our own memory at least stays where it is.
            std::mem::forget(std::mem::take(&mut self.buffers));
            std::mem::forget(std::mem::take(&mut self.copies));
            std::mem::forget(std::mem::take(&mut self.state.pieces));
            std::mem::forget(std::mem::take(&mut self.state.room));
            self.state.table.leak();
            log::warn!(
                "{} of a communicator that has failed can't be taken back by {}; what is read and written \
                 for that may still be read and written",
                counted(left as u64, "message"),
                self.engine.about
            );
        }
    }

    /// Lets a send from the run's only buffer go on by itself when the run is over: the receiver may come
    /// much later. Not too many of them: who sends without end waits for who receives.
    pub(in crate::host) fn post_letter(&mut self, id: usize) -> Result<()> {
        self.wait(|run| run.state.letters.under_way.len() < MOST_LETTERS || run.done[id])?;
        if let Some(at) = self.pending.iter().position(|p| p.id == id)
            && let Some(area) = self.buffers.pop()
        {
            let Pending { ticket, peer, .. } = self.pending.swap_remove(at);
            self.done[id] = true;
            self.state.letters.under_way.push((ticket, peer, area));
        }
        Ok(())
    }

    /// Keeps a copy of what the caller sends until the run is over.
    pub(in crate::host) fn keep(&mut self, copied: Vec<MaybeUninit<u8>>) -> *const u8 {
        let start = copied.as_ptr().cast();
        self.copies.push(copied);
        start
    }

    /// The end of an operation.
    pub(in crate::host) fn finish(mut self, result: Result<()>) -> Result<()> {
        if self.engine.check_failure().is_err() {
            self.give_up();
            return result;
        }
        let left = self.wait_for_all();
        result.and(left)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            self.engine
                .poison(&Error::internal("an operation ended before its messages"));
            self.give_up();
        }
    }
}
