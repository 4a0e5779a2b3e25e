//! Waiting for other ranks, and telling them that waiting is in vain.
//!
//! A wait spins for a moment if every rank can have a core of its own, else it yields at once, unless all are
//! to meet and those that have not come last waited on other cores: giving way would then cost two changes of thread for
//! nothing. Then
//! it sleeps on the rank's bell for at most a millisecond at a time. Whoever publishes something rings the bells
//! of sleepers, without a fence: a ring that gets lost in a store buffer costs one sleep.

use super::ShmEngine;
use super::layout::{FAILURE_TEXT, Map};
use super::protocol::{Counter, Group};
use crate::error::{Code, Error, Result};
use crate::host::op::WaitPolicy;
use crate::sys::{cpu, futex};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// How long a wait spins if there are cores enough.
const SPIN: Duration = Duration::from_micros(200);
/// How long a wait yields before it sleeps if there are not. With cores enough it never yields: that
/// would hand the core to a stranger for a whole slice, while a sleeper is woken at once.
const YIELD: Duration = Duration::from_millis(2);
/// The same for waits that may be long.
const YIELD_IN_LONG: Duration = Duration::from_micros(20);
/// How long one sleep may last in these: ranks of other machines may need an answer of this one's library.
const SLEEP_IN_LONG: Duration = Duration::from_micros(100);
/// How long one sleep may last, and how often the policy is asked.
const SLICE: Duration = Duration::from_millis(1);
/// How long it may take to write down a failure.
const TELLING: Duration = Duration::from_millis(100);
/// Looks at the awaited word between two looks at the clock.
const SPINS_PER_LOOK: u32 = 64;

/// Looks at the awaited word before the wait begins in earnest, if there are cores enough.
const FIRST_LOOKS: u32 = 512;
/// Those of them before which there is no pause. A near peer is there after the first, which pause so as not to
/// disturb its writing; where the cache line takes its time, a pause is a good part of that.
const EAGER: std::ops::Range<u32> = 2..480;

/// What passes after one of the first looks.
#[inline(always)]
fn pause_after(look: u32) {
    if !EAGER.contains(&look) {
        std::hint::spin_loop();
    }
}

/// The same if there are not, each after the core was given to others: mostly the peer has it then.
const FIRST_YIELDS: u32 = 4;

/// States of the published failure.
const NONE: u32 = 0;
pub(super) const WRITING: u32 = 1;
const SET: u32 = 2;
/// In the place of a failure's code: a rank has ended the communicator's operations, and the text is what it did.
const ENDED: u32 = u32::MAX;
/// Beside a failure's code: the text is what all ranks are told, by the one that it is about.
const ANNOUNCED: u32 = 1 << 30;

/// One wait that is going on.
pub(super) struct Waiter<'a> {
    engine: &'a ShmEngine,
    policy: &'a dyn WaitPolicy,
    start: Option<Instant>,
    checked: Option<Instant>,
    /// How long it yields before it sleeps.
    yields: Duration,
    /// How long one sleep may last.
    sleeps: Duration,
    /// The bell as it was before the caller last looked at its condition, once this rank counts as
    /// a sleeper.
    bell: Option<u32>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(engine: &'a ShmEngine, policy: &'a dyn WaitPolicy) -> Waiter<'a> {
        let long = policy.may_be_long();
        Waiter {
            engine,
            policy,
            start: None,
            checked: None,
            yields: if long { YIELD_IN_LONG } else { YIELD },
            sleeps: if long { SLEEP_IN_LONG } else { SLICE },
            bell: None,
        }
    }

    /// There was progress: the next pause is the first of a new wait.
    pub(super) fn progressed(&mut self) {
        self.wake();
        self.start = None;
    }

    /// Whether to go on waiting. An error ends the wait for good: the engine is failed, and all ranks
    /// know.
    pub(super) fn look(&mut self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<Instant> {
        let engine = self.engine;
        engine.published_failure()?;
        let now = Instant::now();
        let checked = *self.checked.get_or_insert(now);
        if now - checked >= SLICE {
            self.checked = Some(now);
            if let Err(error) = self.policy.check(waiting_for) {
                engine.publish_failure(&error);
                return Err(error);
            }
        }
        Ok(now)
    }

    /// Passes a little time; the caller looks at its condition between two pauses. Errors are those of
    /// [`Waiter::look`].
    pub(super) fn pause(
        &mut self,
        ready: &dyn Fn() -> bool,
        waiting_for: &dyn Fn() -> Vec<u32>,
    ) -> Result<()> {
        let engine = self.engine;
        let busy = self.policy.idle();
        let now = self.look(waiting_for)?;
        let start = *self.start.get_or_insert(now);
        let waited = now - start;
        let spins = engine.spins.load(Relaxed);
        if spins && waited < SPIN {
            for _ in 0..SPINS_PER_LOOK {
                std::hint::spin_loop();
                if ready() {
                    return Ok(());
                }
            }
        } else if busy || !spins && waited < self.yields {
            futex::yield_now();
        } else {
            let bell = engine.map.bell(engine.rank);
            match self.bell {
                // First only announce it, so that the condition is looked at once more.
                None => {
                    engine.map.sleepers().fetch_add(1, AcqRel);
                    engine.map.asleep(engine.rank).store(1, Release);
                }
                Some(seen) => futex::wait(bell, seen, self.sleeps),
            }
            self.bell = Some(bell.load(Acquire));
        }
        Ok(())
    }

    fn wake(&mut self) {
        if self.bell.take().is_some() {
            self.engine.map.asleep(self.engine.rank).store(0, Release);
            self.engine.map.sleepers().fetch_sub(1, AcqRel);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.wake();
    }
}

/// The ranks' words, seen from one of them, and what its waits ask.
pub(super) struct Flags<'a> {
    pub engine: &'a ShmEngine,
    pub wait: &'a dyn WaitPolicy,
}

impl Group for Flags<'_> {
    type Word = AtomicU64;
    type Error = Error;

    #[inline(always)]
    fn rank(&self) -> usize {
        self.engine.rank
    }

    #[inline(always)]
    fn ranks(&self) -> usize {
        self.engine.ranks
    }

    #[inline(always)]
    fn counter(&self, counter: Counter, rank: usize) -> &AtomicU64 {
        self.engine.map.counter(counter, rank)
    }

    #[inline(always)]
    fn ring(&self) {
        self.engine.ring();
    }

    #[inline(always)]
    fn wait_until(&self, ready: impl Fn() -> bool, missing: impl Fn() -> Vec<u32>) -> Result<()> {
        let ready = || ready() || self.drop_refused();
        self.engine.wait_until(self.wait, ready, missing)
    }

    #[inline(always)]
    fn wait_to_meet(&self, ready: impl Fn() -> bool, missing: impl Fn() -> Vec<u32>) -> Result<()> {
        let ready = || ready() || self.drop_refused();
        self.engine.wait_as::<true>(self.wait, ready, missing)
    }
}

impl Flags<'_> {
    /// Makes room for others' messages meanwhile: nothing that is awaited.
    #[inline(always)]
    fn drop_refused(&self) -> bool {
        if self.engine.drop_refused(self.engine.rank) {
            self.engine.ring();
        }
        false
    }
}

impl ShmEngine {
    /// Looks at what is awaited before a wait begins in earnest.
    #[inline]
    pub(super) fn first_looks(&self) -> u32 {
        if self.spins.load(Relaxed) {
            FIRST_LOOKS
        } else {
            FIRST_YIELDS
        }
    }

    /// What passes after one of these.
    #[inline]
    pub(super) fn pause_between_looks(&self, look: u32) {
        if self.spins.load(Relaxed) {
            pause_after(look);
        } else {
            futex::yield_now();
        }
    }

    /// Returns once `ready`, or with the error that ended the wait.
    #[inline]
    pub(super) fn wait_until(
        &self,
        policy: &dyn WaitPolicy,
        ready: impl Fn() -> bool,
        waiting_for: impl Fn() -> Vec<u32>,
    ) -> Result<()> {
        self.wait_as::<false>(policy, ready, waiting_for)
    }

    /// As [`ShmEngine::wait_until`]. `MEETING`: ranks that are not awaited have nothing to do meanwhile.
    #[inline]
    fn wait_as<const MEETING: bool>(
        &self,
        policy: &dyn WaitPolicy,
        ready: impl Fn() -> bool,
        waiting_for: impl Fn() -> Vec<u32>,
    ) -> Result<()> {
        if ready() {
            return Ok(());
        }
        // A peer that is about as far as this rank is there before a clock could be read.
        if self.spins.load(Relaxed) {
            for look in 0..FIRST_LOOKS {
                pause_after(look);
                if ready() {
                    return Ok(());
                }
            }
        } else if !policy.may_be_long() {
            for _ in 0..FIRST_YIELDS {
                let came = match MEETING {
                    true => self.give_way(&ready, &waiting_for),
                    false => {
                        futex::yield_now();
                        ready()
                    }
                };
                if came {
                    return Ok(());
                }
            }
        }
        self.wait_slowly(policy, &ready, &waiting_for)
    }

    /// Lets others have the core, unless all that is awaited comes from other cores: then it looks on for about as long as
    /// giving way and coming back takes. Whether what is awaited is there.
    #[inline(never)]
    pub(super) fn give_way(
        &self,
        ready: &dyn Fn() -> bool,
        waiting_for: &dyn Fn() -> Vec<u32>,
    ) -> bool {
        let here = cpu::current();
        let own = self.map.ran_on(self.rank);
        if own.load(Relaxed) != here {
            own.store(here, Relaxed);
        }
        let beside = |rank: usize| rank != self.rank && self.map.ran_on(rank).load(Relaxed) == here;
        let neighbours = (0..self.ranks).filter(|rank| beside(*rank)).count();
        let any_awaited = || waiting_for().into_iter().any(|rank| beside(rank as usize));
        let all = neighbours + 1 == self.ranks;
        if !all && (neighbours == 0 || !any_awaited()) {
            for look in 0..FIRST_LOOKS {
                pause_after(look);
                if ready() {
                    return true;
                }
            }
        }
        futex::yield_now();
        ready()
    }

    #[cold]
    fn wait_slowly(
        &self,
        policy: &dyn WaitPolicy,
        ready: &dyn Fn() -> bool,
        waiting_for: &dyn Fn() -> Vec<u32>,
    ) -> Result<()> {
        let mut waiter = Waiter::new(self, policy);
        loop {
            let paused = waiter.pause(ready, waiting_for);
            // A rank that has done its part may end the communicator before this one has seen it: what is
            // awaited is there all the same.
            if ready() && (paused.is_ok() || self.ended_elsewhere()) {
                return Ok(());
            }
            paused?;
        }
    }

    /// Whether the published end of this engine, if there is one, came from another rank.
    pub(super) fn ended_elsewhere(&self) -> bool {
        let words = self.map.failure();
        let failed = words.state.load(Acquire) == SET;
        !self.aborted.load(Acquire)
            && (words.aborted.load(Acquire) != 0 || failed)
            && !(failed && words.rank.load(Relaxed) as usize == self.rank)
    }

    /// Wakes the ranks that sleep, after something was published.
    #[inline]
    pub(super) fn ring(&self) {
        if self.map.sleepers().load(Relaxed) != 0 {
            ring_sleepers(&self.map, self.ranks);
        }
    }

    /// The failure that ended this engine, if there was one.
    #[inline]
    pub(super) fn published_failure(&self) -> Result<()> {
        let words = self.map.failure();
        if words.aborted.load(Relaxed) == 0 && words.state.load(Relaxed) == NONE {
            return Ok(());
        }
        Err(self.failure())
    }

    #[cold]
    fn failure(&self) -> Error {
        let words = self.map.failure();
        let aborted = words.aborted.load(Acquire);
        if self.aborted.load(Acquire) {
            return Error::new(Code::Aborted, "the communicator was aborted on this rank");
        }
        // A rank that is about to say what it has met has failed already, whatever becomes of it.
        let start = Instant::now();
        while aborted == 0 && words.state.load(Acquire) == WRITING {
            if start.elapsed() >= TELLING {
                let text = "another rank failed, and was lost before it said why";
                return Error::new(Code::RemoteError, text);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        if words.state.load(Acquire) != SET {
            let text = format!(
                "rank {} aborted the communicator",
                self.name(aborted.saturating_sub(1) as usize)
            );
            return Error::new(Code::RemoteError, text);
        }
        let len = (words.len.load(Relaxed) as usize).min(FAILURE_TEXT);
        let mut text = vec![0u8; len];
        // SAFETY: the text area has FAILURE_TEXT bytes, of which `len` are copied into a vector of
        // that length; they were written before the state became SET and are never written again.
        unsafe { std::ptr::copy_nonoverlapping(words.text, text.as_mut_ptr(), len) };
        let text = String::from_utf8_lossy(&text);
        let rank = words.rank.load(Relaxed);
        let code = words.code.load(Relaxed);
        if code == ENDED {
            let (code, who) = match rank as usize == self.rank {
                true => (Code::Aborted, String::from("this rank")),
                false => (
                    Code::RemoteError,
                    format!("rank {}", self.name(rank as usize)),
                ),
            };
            return Error::new(code, format!("{who} {text}")).announced();
        }
        if code & ANNOUNCED != 0 {
            return Error::new(Code::RemoteError, text).announced();
        }
        if rank as usize == self.rank {
            let code = Code::from_raw(code as i32);
            Error::new(code.unwrap_or(Code::InternalError), text)
        } else {
            let name = self.name(rank as usize);
            Error::new(Code::RemoteError, format!("rank {name} failed: {text}"))
        }
    }

    /// Ends every wait of every rank, now and from now on: here with [`Code::Aborted`], elsewhere
    /// with [`Code::RemoteError`]. May be called from any thread, at any time, any number of times.
    pub(super) fn publish_abort(&self) {
        self.aborted.store(true, Release);
        let rank = self.rank as u32 + 1;
        // The first to abort is the one that the others name.
        let _ = self
            .map
            .failure()
            .aborted
            .compare_exchange(0, rank, AcqRel, Relaxed);
        ring_sleepers(&self.map, self.ranks);
    }

    /// Publishes that this rank has failed for good: every call of every rank ends with
    /// [`Code::RemoteError`] and a text that names this rank and what it met; on this rank with the
    /// error itself. The first failure of a segment is kept. May be called from any thread.
    pub(super) fn publish_failure(&self, error: &Error) {
        let announced = if error.is_announced() { ANNOUNCED } else { 0 };
        self.publish(error.code() as i32 as u32 | announced, error.text());
    }

    /// As [`ShmEngine::publish_failure`], of what this rank did that ends everything.
    pub(super) fn publish_end(&self, deed: &str) {
        self.publish(ENDED, deed);
    }

    fn publish(&self, code: u32, text: &str) {
        let words = self.map.failure();
        if words
            .state
            .compare_exchange(NONE, WRITING, AcqRel, Relaxed)
            .is_err()
        {
            return;
        }
        let mut len = text.len().min(FAILURE_TEXT);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        // SAFETY: the text area has FAILURE_TEXT >= len bytes, and only the one rank that moved the
        // state from NONE to WRITING writes them.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), words.text, len) };
        words.len.store(len as u32, Relaxed);
        words.rank.store(self.rank as u32, Relaxed);
        words.code.store(code, Relaxed);
        words.state.store(SET, Release);
        ring_sleepers(&self.map, self.ranks);
    }
}

#[cold]
fn ring_sleepers(map: &Map, ranks: usize) {
    for rank in 0..ranks {
        if map.asleep(rank).load(Acquire) != 0 {
            let bell = map.bell(rank);
            bell.fetch_add(1, AcqRel);
            futex::wake_all(bell);
        }
    }
}
