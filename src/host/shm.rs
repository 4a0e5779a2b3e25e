//! The engine for ranks of one host: collectives and messages through one shared segment.
//!
//! Ranks may be processes that map the segment each for itself, or threads of one process. Results
//! are the same bit by bit on all ranks: contributions are always combined in the order of the ranks.
//! Every collective is checked against those of the other ranks before data moves.
//!
//! What the ranks tell each other:
//!
//! * `layout`: where the words and areas lie,
//! * `protocol`: the rules by which ranks hand memory to each other,
//! * `collectives`, `p2p`: what moves through the segment,
//! * `tiny`: the shortest ways of small collectives and of short messages,
//! * `direct`: what is read and written where the callers have it,
//! * `staged`: the protocol of collectives with buffers in devices' memory,
//! * `layer`: what an engine over several machines needs of the ranks of one,
//! * `wait`: waiting, failures and aborts.
//!
//! After [`Code::InvalidUsage`](crate::Code::InvalidUsage) because ranks disagreed, the engine goes
//! on: no data has moved, and all ranks count the call as done. After any error of a wait (abort,
//! deadline, dead peer) it does not: the error is published, and every later call on every rank fails.

mod collectives;
mod direct;
pub(super) mod layer;
mod layout;
pub(super) mod p2p;
mod protocol;
mod staged;
mod tiny;
mod wait;

#[cfg(test)]
pub(crate) mod tests;

use crate::config::HostEngine;
use crate::error::{Error, Result};
use crate::host::check::MAX_ENGINE_RANKS;
use crate::host::engine::Engine;
use crate::host::kernels::Folds;
use crate::host::op::{HostOp, Mover, WaitPolicy};
use crate::ops::lock;
use crate::sys::cpu::{self, CPU_WORDS};
use crate::sys::memory::Segment;
use direct::{Direct, Tuning};
use layout::{CHANNEL_DEPTH, MAX_MESSAGING_RANKS, Map};
use staged::{Helpers, Pool};
pub(crate) use staged::{Plan, pool_bytes};
#[cfg(test)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
pub(crate) use tiny::{MOST_SHORT, MOST_TINY, Short, Tiny};

/// One rank's end of a shared segment.
#[derive(Debug)]
pub(crate) struct ShmEngine {
    map: Map,
    rank: usize,
    ranks: usize,
    /// What the ranks are called in texts, if not by their numbers here.
    names: Box<[u32]>,
    /// Whether waits spin: every rank can have a core of its own. Known after the first collective.
    spins: AtomicBool,
    /// There are fewer cores than ranks, the same on all ranks: what they exchange in one go may be longer.
    few_cores: AtomicBool,
    /// Others than the ranks of this segment want these cores, too, so that waits don't spin.
    crowded: bool,
    /// Processors' worth of time that a control group leaves this rank, if that is a limit.
    quota: Option<usize>,
    /// Collectives that this rank has begun.
    sequence: AtomicU64,
    /// Piece steps of all collectives so far, the same on all ranks.
    step: AtomicU64,
    /// Steps of all staged collectives so far, the same on all ranks.
    staged: AtomicU64,
    /// Those that there will be when all that was planned has been run.
    planned: AtomicU64,
    /// Operations that are queued.
    pending: AtomicU64,
    /// See [`ShmEngine::shares_device`].
    shares_device: AtomicBool,
    /// A staged collective has shown that all ranks have their part of the pool, which stays so.
    pool_agreed: AtomicBool,
    /// Memory for staging, where any rank may need it.
    pool: Option<Pool>,
    helpers: Mutex<Helpers>,
    /// See [`ShmEngine::with_threads`].
    threads: Option<usize>,
    /// Pieces that this rank has posted to each other rank.
    posted: Box<[AtomicU64]>,
    /// Those of them that lie in slots.
    slots: Box<[AtomicU64]>,
    /// Of the slots for each other rank: how many pieces it has to have taken before the slot is free.
    filled: Box<[[AtomicU64; CHANNEL_DEPTH as usize]]>,
    /// How many of these each has taken, as far as short messages have looked.
    known_taken: Box<[AtomicU64]>,
    /// Messages that this rank has sent, by receiver.
    messages: Box<[AtomicU64]>,
    /// The last message that this rank has refused, by sender.
    dropped: Box<[AtomicU64]>,
    /// Something of a message that this rank has refused may still come.
    refuses: AtomicBool,
    /// Receivers that can't read this rank's ordinary memory, and its heap.
    declined: Box<[[AtomicBool; 2]]>,
    /// How often this rank has left the others' buffers, the same on all ranks.
    left: AtomicU64,
    /// The receive buffer to which others may write; no bytes: there is none.
    lent_at: AtomicPtr<u8>,
    lent_bytes: AtomicUsize,
    /// See `stop_while_pushing`.
    #[cfg(test)]
    stops: AtomicBool,
    /// 1: this rank is to rest in another's buffer; 2: it does.
    #[cfg(test)]
    rests: AtomicU32,
    tuning: Tuning,
    /// For operations that are too short to look one up.
    folds: Folds,
    /// What is known about the others' memory. Locked by the one operation that is going on.
    direct: Mutex<Direct>,
    /// [`ShmEngine::abort`] was called here.
    aborted: AtomicBool,
}

impl ShmEngine {
    /// Bytes of the segment that so many ranks share.
    pub(crate) fn segment_bytes(ranks: u32) -> Result<usize> {
        check_ranks(ranks)?;
        Ok(layout::segment_bytes(ranks as usize))
    }

    /// One rank's engine over a segment of [`ShmEngine::segment_bytes`] that was all zeros before
    /// the first rank attached. A segment serves one communicator: no rank may attach twice.
    pub(crate) fn attach(segment: Arc<Segment>, rank: u32, ranks: u32) -> Result<ShmEngine> {
        ShmEngine::attach_tuned(segment, rank, ranks, Tuning::of_process()?)
    }

    fn attach_tuned(
        segment: Arc<Segment>,
        rank: u32,
        ranks: u32,
        tuning: Tuning,
    ) -> Result<ShmEngine> {
        check_ranks(ranks)?;
        if rank >= ranks {
            return Err(Error::invalid_argument(format!(
                "rank {rank} of {ranks} ranks"
            )));
        }
        let ranks = ranks as usize;
        let zeros = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
        let map = Map::new(segment, ranks)?;
        let cpus = cpu::allowed();
        for (word, bits) in cpus.into_iter().enumerate() {
            map.cpus(word).fetch_or(bits, Relaxed);
        }
        let engine = ShmEngine {
            map,
            rank: rank as usize,
            ranks,
            names: Box::default(),
            spins: AtomicBool::new(false),
            few_cores: AtomicBool::new(false),
            crowded: false,
            quota: cpu::quota(&cpus),
            sequence: AtomicU64::new(0),
            step: AtomicU64::new(0),
            staged: AtomicU64::new(0),
            planned: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            shares_device: AtomicBool::new(false),
            pool_agreed: AtomicBool::new(false),
            pool: None,
            helpers: Mutex::default(),
            threads: None,
            posted: zeros(),
            slots: zeros(),
            filled: (0..ranks).map(|_| Default::default()).collect(),
            known_taken: zeros(),
            messages: zeros(),
            dropped: zeros(),
            refuses: AtomicBool::new(false),
            declined: (0..ranks).map(|_| Default::default()).collect(),
            left: AtomicU64::new(0),
            lent_at: AtomicPtr::new(std::ptr::null_mut()),
            lent_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            stops: AtomicBool::new(false),
            #[cfg(test)]
            rests: AtomicU32::new(0),
            tuning,
            folds: Folds::new(),
            direct: Mutex::new(Direct::new(ranks)),
            aborted: AtomicBool::new(false),
        };
        engine.tell_facts()?;
        Ok(engine)
    }

    /// Reduces what is staged with so many threads, rather than with as many as cores allow. One is the
    /// thread that runs the operation.
    pub(crate) fn with_threads(mut self, threads: usize) -> ShmEngine {
        self.threads = Some(threads);
        self
    }

    /// Decides whether waits spin, once all ranks have attached and so have said where they may run:
    /// they may be bound to a core each, or all to the same one. The first collective does it, too.
    pub(crate) fn choose_wait(&self) {
        let cpus: [u64; CPU_WORDS] = std::array::from_fn(|word| self.map.cpus(word).load(Relaxed));
        let few = cpu::count(&cpus) < self.ranks;
        let enough = !few && self.quota.is_none_or(|n| n >= self.ranks);
        self.few_cores.store(few, Relaxed);
        self.spins.store(enough && !self.crowded, Relaxed);
    }
}

impl Engine for ShmEngine {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn messaging_ranks(&self) -> usize {
        MAX_MESSAGING_RANKS
    }

    fn is_far(&self) -> bool {
        false
    }

    fn stages(&self, _op: &HostOp) -> bool {
        true
    }

    fn set_mover(&self, mover: Arc<dyn Mover>) {
        lock(&self.helpers).mover = Some(mover);
    }

    #[cfg(test)]
    fn has_mover(&self) -> bool {
        lock(&self.helpers).mover.is_some()
    }

    fn about(&self) -> String {
        String::from("shared memory")
    }

    fn key(&self) -> String {
        HostEngine::Shm.name().to_owned()
    }

    unsafe fn collective(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.run_collective(op, wait) }
    }

    unsafe fn lone_transfer(&self, op: &HostOp, wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_alone(op, wait) }
    }

    unsafe fn grouped_transfers(&self, ops: &[&HostOp], wait: &dyn WaitPolicy) -> Result<()> {
        // SAFETY: handed down from the caller.
        unsafe { self.transfer_together(ops, wait) }
    }

    fn await_visitors(&self) {
        self.await_departure();
    }

    fn shared_memory(&self) -> Option<&ShmEngine> {
        Some(self)
    }

    fn check_failure(&self) -> Result<()> {
        self.published_failure()
    }

    fn poison(&self, error: &Error) {
        self.publish_failure(error);
    }

    fn end_by(&self, deed: &str) {
        self.publish_end(deed);
    }

    fn abort(&self) {
        self.publish_abort();
    }
}

fn check_ranks(ranks: u32) -> Result<()> {
    if ranks == 0 {
        return Err(Error::invalid_argument(
            "a communicator has at least one rank",
        ));
    }
    if ranks as usize > MAX_ENGINE_RANKS {
        return Err(Error::not_supported(format!(
            "{ranks} ranks on one machine, but the host tier serves at most {MAX_ENGINE_RANKS} there"
        )));
    }
    Ok(())
}
