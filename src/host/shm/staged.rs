//! Collectives of ranks of which some have their buffers in a device's memory.
//!
//! Each rank has an area of several slots in memory that all share: the pool, which the device's driver
//! has pinned, or where not all ranks have it, the inbound areas. A collective goes through steps. In
//! each a rank copies a piece of its data into a slot of its area, by its device where it has one, and
//! the others copy it from there to where they want it, by their devices; a reduction is done in
//! between, in place, every rank doing its part. The host copies nothing that a device can copy, and
//! steps overlap: while one is reduced, the next come in and those before go out.
//!
//! What is reduced of a step lies in the slot of one rank, another one in each step, so that a device
//! takes it in one copy.
//!
//! Three counters say how far a rank is. Its slot of step g has its data (`Staged`); its part of the
//! reduction is done (`Folded`); it needs nothing of step g any more (`Left`). A slot is used again for
//! step g only after every rank has left step g - slots.

use super::ShmEngine;
use super::layout::StageCounter;
use super::protocol::Peers;
use super::wait::Waiter;
use crate::error::{Error, Result};
use crate::host::check::Staging;
use crate::host::crew::{Crew, Job};
use crate::host::kernels::{Fold, Scale, Target, copy, fold_for};
use crate::host::local::move_own;
use crate::host::op::{CopySpan, HostOp, Mover, SLOTS, WaitPolicy, Way};
use crate::ops::lock;
use crate::sys::cpu::{self, CPU_WORDS};
use crate::sys::futex;
use crate::sys::memory::{Segment, allocate};
use crate::types::{OpKind, Reduction};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Largest piece of a step.
const LARGEST: usize = 4 << 20;
/// Smallest into which data is cut for steps to overlap.
const SMALLEST: usize = 256 << 10;
/// Of what one rank reads or writes, at least so many steps are made if they stay that large.
const STEPS: usize = 16;
/// With fewer bytes for a rank in a step, fewer and larger slots are better.
const WORTH: usize = 8 << 10;
/// More threads than this take more of the memory's bandwidth from the devices' copies than they give.
const MOST_THREADS: usize = 4;
/// While copies or reductions are under way: how long a rank without a core of its own yields before
/// it sleeps, and how long then.
const YIELD: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

/// How far this rank's part of the pool is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Unused,
    Ready,
    Failed,
}

/// Memory for staging that all ranks share.
#[derive(Debug)]
pub(super) struct Pool {
    segment: Arc<Segment>,
    fd: OwnedFd,
    /// This rank has no driver, and so has no buffers by which it would know that the pool is needed.
    always: bool,
    part: Mutex<Part>,
}

/// What staging needs beside memory.
#[derive(Default)]
pub(super) struct Helpers {
    pub(super) mover: Option<Arc<dyn Mover>>,
    pub(super) crew: Option<Arc<Crew>>,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mover: {}, {:?}", self.mover.is_some(), self.crew)
    }
}

/// How an area of so many bytes is cut: slots and bytes of each.
fn cut(area: usize, ranks: usize) -> (usize, usize) {
    let piece = |slots: usize| (area / slots / 64 * 64).min(LARGEST);
    let slots = [SLOTS, SLOTS / 2]
        .into_iter()
        .find(|&slots| piece(slots) / ranks >= WORTH);
    let slots = slots.unwrap_or(2);
    (slots, piece(slots))
}

/// Bytes of the pool for so many ranks if it may have `limit` bytes; 0 if that is too little for one.
pub(crate) fn pool_bytes(limit: usize, ranks: u32) -> usize {
    let ranks = ranks as usize;
    let share = (limit / ranks / 4096 * 4096).min(SLOTS * LARGEST);
    let (slots, piece) = cut(share, ranks);
    if piece / ranks < WORTH {
        return 0;
    }
    let share = (slots * piece).next_multiple_of(4096).min(share);
    share * ranks
}

/// The slots of all ranks during one collective.
struct Areas<'a> {
    engine: &'a ShmEngine,
    pool: Option<&'a Pool>,
    slots: usize,
    bytes: usize,
    base: u64,
}

impl<'a> Areas<'a> {
    fn new(engine: &'a ShmEngine, pooled: bool, base: u64) -> Areas<'a> {
        let pool = engine.pool.as_ref().filter(|_| pooled);
        let share = match pool {
            Some(pool) => pool.segment.len() / engine.ranks,
            None => engine.map.inbound_pair(0).1,
        };
        let (slots, bytes) = cut(share, engine.ranks);
        Areas {
            engine,
            pool,
            slots,
            bytes,
            base,
        }
    }

    fn slot(&self, step: u64) -> usize {
        ((self.base + step) % self.slots as u64) as usize
    }

    fn at(&self, rank: usize, step: u64) -> *mut u8 {
        let start = match self.pool {
            Some(pool) => {
                let share = pool.segment.len() / self.engine.ranks;
                pool.segment.base().wrapping_add(rank * share)
            }
            None => self.engine.map.inbound_pair(rank).0,
        };
        start.wrapping_add(self.slot(step) * self.bytes)
    }
}

/// Steps of one collective that are put on streams at once, at most.
const MOST_PLANNED: u64 = 2048;

/// See [`ShmEngine::plan`].
pub(crate) struct Plan {
    /// So many copies in may be begun before the first one out of the same collective is done.
    pub slots: usize,
    /// Within the rank's own buffers, before all others.
    pub own: Option<CopySpan>,
    /// By step.
    pub inward: Vec<Vec<CopySpan>>,
    pub outward: Vec<Vec<CopySpan>>,
}

/// What one rank does in the steps of a collective.
struct Script<'a> {
    steps: u64,
    /// Who puts data into its slot.
    writers: Peers,
    /// Who copies results out.
    readers: Peers,
    /// What has to be true of whom before.
    needs: (StageCounter, Peers),
    put: &'a dyn Fn(u64, &mut Vec<CopySpan>),
    fold: Option<&'a dyn Fn(u64) -> Option<Job>>,
    take: &'a dyn Fn(u64, &mut Vec<CopySpan>),
}

impl ShmEngine {
    /// Gives this rank the memory that all share for staging. `always`: this rank has no driver.
    pub(crate) fn with_pool(mut self, segment: Arc<Segment>, fd: OwnedFd, always: bool) -> Self {
        self.pool = Some(Pool {
            segment,
            fd,
            always,
            part: Mutex::new(Part::Unused),
        });
        self
    }

    /// Bytes of the memory for staging; 0 if there is none.
    pub(crate) fn pool_len(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.segment.len())
    }

    /// Ends the threads that reduce, and forgets the mover. No operation is going on.
    pub(crate) fn retire(&self) {
        let helpers = std::mem::take(&mut *lock(&self.helpers));
        drop(helpers);
    }

    /// Prepares the pool for an operation that will be run later, when it would be too late for what the
    /// driver does then.
    pub(crate) fn prepare(&self, op: &HostOp) {
        if op.on_device.any() && self.goes_in_steps(op) {
            self.pool_is_ready(true);
        }
    }

    /// Whether this rank's part of the pool can be used; makes it so if it is `wanted` and was not tried.
    fn pool_is_ready(&self, wanted: bool) -> bool {
        let Some(pool) = &self.pool else { return false };
        let mut part = lock(&pool.part);
        if *part == Part::Unused && wanted {
            let share = pool.segment.len() / self.ranks;
            *part = match allocate(pool.fd.as_fd(), self.rank * share, share) {
                Ok(()) => Part::Ready,
                Err(error) => {
                    log::warn!(
                        "device buffers are staged through less memory, which is slower: {share} bytes of \
                         shared memory can't be had: {error}"
                    );
                    Part::Failed
                }
            };
            if *part == Part::Ready
                && let Some(mover) = self.mover_or_none()
            {
                mover.will_use(pool.segment.base(), pool.segment.len());
            }
        }
        *part == Part::Ready
    }

    /// What this rank says of its memory at a collective that goes in steps.
    pub(super) fn staging(&self, op: &HostOp) -> Staging {
        let Some(pool) = &self.pool else {
            return match op.on_device.any() {
                true => Staging::ON_DEVICE.or(Staging::NO_POOL),
                false => Staging::NO_POOL,
            };
        };
        let on_device = op.on_device.any();
        let ready = self.pool_is_ready(on_device || pool.always);
        let mut says = Staging::NONE;
        if on_device {
            says = says.or(Staging::ON_DEVICE);
        }
        if !ready {
            says = says.or(Staging::NO_POOL);
        }
        says
    }

    fn mover_or_none(&self) -> Option<Arc<dyn Mover>> {
        lock(&self.helpers).mover.clone()
    }

    fn mover(&self) -> Result<Arc<dyn Mover>> {
        self.mover_or_none()
            .ok_or_else(|| Error::internal("a buffer is on a device, and nothing can reach it"))
    }

    /// The threads that reduce, if cores allow any.
    fn crew(&self) -> Option<Arc<Crew>> {
        let mut helpers = lock(&self.helpers);
        if helpers.crew.is_none() {
            let threads = match self.threads {
                Some(threads) => threads,
                None => {
                    let cpus: [u64; CPU_WORDS] =
                        std::array::from_fn(|word| self.map.cpus(word).load(Relaxed));
                    let all = cpu::count(&cpus).min(self.quota.unwrap_or(usize::MAX));
                    // One core of this rank's is for the thread that runs the operation.
                    (all / self.ranks).saturating_sub(1).min(MOST_THREADS)
                }
            };
            helpers.crew = Some(Arc::new(Crew::new(if threads < 2 { 0 } else { threads })));
        }
        helpers.crew.clone().filter(|crew| crew.len() > 0)
    }

    /// The error of a copy, which every rank is told: they wait for what was to be copied.
    fn told<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.publish_failure(error))
    }

    /// Copies what an operation reads to the host.
    ///
    /// # Safety
    /// As [`copy`], where `on_device` is not set; else as [`Mover::copy`].
    #[inline]
    pub(super) unsafe fn bring(
        &self,
        on_device: bool,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if on_device && bytes > 0 {
            let span = CopySpan { to, from, bytes };
            // SAFETY: handed down from the caller.
            return self.told((|| unsafe { self.mover()?.copy(Way::In, span) })());
        }
        // SAFETY: as above.
        unsafe { copy(to, from, bytes, false) };
        Ok(())
    }

    /// Copies what an operation writes from the host.
    ///
    /// # Safety
    /// As [`ShmEngine::bring`].
    #[inline]
    pub(super) unsafe fn deliver(
        &self,
        on_device: bool,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if on_device && bytes > 0 {
            let span = CopySpan { to, from, bytes };
            // SAFETY: handed down from the caller.
            return self.told((|| unsafe { self.mover()?.copy(Way::Out, span) })());
        }
        // SAFETY: as above.
        unsafe { copy(to, from, bytes, false) };
        Ok(())
    }

    /// Copies between an operation's own buffers.
    ///
    /// # Safety
    /// Both are valid for `bytes` bytes, and where one is on a device, apart or the same.
    pub(super) unsafe fn keep_own(
        &self,
        on_device: bool,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if on_device && bytes > 0 && !std::ptr::eq(to, from) {
            let span = CopySpan { to, from, bytes };
            // SAFETY: handed down from the caller.
            return self.told((|| unsafe { self.mover()?.copy_own(span) })());
        }
        // SAFETY: as above.
        unsafe { move_own(to, from, bytes) };
        Ok(())
    }

    /// Reduces what a single rank has on a device: multiplies it by its scalar.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run), for a communicator of one rank.
    pub(super) unsafe fn scale_alone(&self, op: &HostOp, scale: Scale) -> Result<()> {
        let size = op.dtype.size();
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        let (area, room) = self.map.inbound_pair(0);
        let mut at = 0;
        while at < op.count * size {
            let bytes = room.min(op.count * size - at);
            let to = Target::one(area, false);
            // SAFETY: the caller promised both buffers, of which this is a part; the area is as large as
            // that and nobody else's.
            unsafe {
                self.bring(op.on_device.send, area, op.send.wrapping_add(at), bytes)?;
                fold(to, &[area.cast_const()], &[scale], 1, bytes / size);
                self.deliver(op.on_device.recv, op.recv.wrapping_add(at), area, bytes)?;
            }
            at += bytes;
        }
        Ok(())
    }

    /// The steps of a collective, after its exchange. `bytes` is not 0.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn in_stages(
        &self,
        op: &HostOp,
        bytes: usize,
        parity: usize,
        staging: Staging,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let pooled = !staging.says(Staging::NO_POOL);
        self.pool_agreed.store(pooled, Relaxed);
        let areas = Areas::new(self, pooled, self.staged.load(Relaxed));
        let folds = match op.kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter => {
                Some(self.fold_of(op, parity)?)
            }
            _ => None,
        };
        if let Some(span) = self.own_copy(op, bytes) {
            let on_device = op.on_device.any();
            // SAFETY: handed down from the caller.
            unsafe { self.keep_own(on_device, span.to, span.from, span.bytes)? };
        }
        self.script(op, bytes, &areas, folds, &mut |script| {
            // SAFETY: as above.
            unsafe { self.play(op, &areas, script, wait) }
        })
    }

    /// What a rank copies from its own send buffer to its own receive buffer.
    fn own_copy(&self, op: &HostOp, bytes: usize) -> Option<CopySpan> {
        let (rank, at_root) = (self.rank, self.rank == op.root as usize);
        let (to, from) = match op.kind {
            OpKind::Broadcast if at_root => (0, 0),
            OpKind::Scatter if at_root => (0, rank * bytes),
            OpKind::Gather if at_root => (rank * bytes, 0),
            OpKind::AllGather => (rank * bytes, 0),
            OpKind::AllToAll => (rank * bytes, rank * bytes),
            _ => return None,
        };
        Some(CopySpan {
            to: op.recv.wrapping_add(to),
            from: op.send.wrapping_add(from),
            bytes,
        })
    }

    /// Makes the script of a collective in which a block has `bytes` bytes, and gives it to `with`.
    /// `folds` is what a reduction needs to be played.
    fn script(
        &self,
        op: &HostOp,
        bytes: usize,
        areas: &Areas<'_>,
        folds: Option<(Fold, Arc<[Scale]>)>,
        with: &mut dyn FnMut(&Script<'_>) -> Result<()>,
    ) -> Result<()> {
        let (rank, ranks, root) = (self.rank, self.ranks, op.root as usize);
        let (send, recv) = (op.send, op.recv);
        let blocks = match op.kind {
            OpKind::Scatter | OpKind::AllToAll | OpKind::ReduceScatter => ranks,
            _ => 1,
        };
        let piece = piece_of(areas.bytes, blocks, bytes);
        let steps = bytes.div_ceil(piece) as u64;
        let span = move |step: u64| {
            let start = step as usize * piece;
            (start, piece.min(bytes - start))
        };
        // Every pointer that is made lies in a buffer of which the caller promised that much, or in a
        // slot, which has room for `blocks` pieces.
        let put_whole = |step: u64, spans: &mut Vec<CopySpan>| {
            let (start, bytes) = span(step);
            spans.push(CopySpan {
                to: areas.at(rank, step),
                from: send.wrapping_add(start),
                bytes,
            });
        };
        let put_blocks = |step: u64, spans: &mut Vec<CopySpan>| {
            let (start, len) = span(step);
            let reduces = op.kind == OpKind::ReduceScatter;
            for peer in (0..ranks).filter(|&peer| reduces || peer != rank) {
                spans.push(CopySpan {
                    to: areas.at(rank, step).wrapping_add(peer * piece),
                    from: send.wrapping_add(peer * bytes + start),
                    bytes: len,
                });
            }
        };
        let take = |peer: usize, step: u64, block: usize, to_at: usize| {
            let (start, bytes) = span(step);
            CopySpan {
                to: recv.wrapping_add(to_at + start),
                from: areas.at(peer, step).wrapping_add(block * piece),
                bytes,
            }
        };
        // A reduction of `part(step)`, where it starts in the slots and its bytes, into one rank's slot.
        let job = |step: u64, home: usize, (start, len): (usize, usize)| {
            let at = |of: usize| areas.at(of, step).wrapping_add(start);
            let sources = (0..ranks).map(|of| at(of).cast_const()).collect();
            let (fold, scales) = folds.as_ref()?;
            let size = op.dtype.size();
            // SAFETY: all have put their data there and leave it until this rank has left the step; of the
            // home's slot nobody else reads, writes or reduces this part.
            Some(unsafe { Job::new(*fold, at(home), sources, Arc::clone(scales), len, size) })
        };
        let script = |writers, readers| Script {
            steps,
            writers,
            readers,
            needs: (StageCounter::Staged, writers),
            put: &put_whole,
            fold: None,
            take: &|_, _| {},
        };
        match op.kind {
            OpKind::AllReduce | OpKind::Reduce => {
                // Every rank reduces a part of the step's piece, in the slot of one.
                let home = |step: u64| (step % ranks as u64) as usize;
                let fold = |step: u64| {
                    let (_, len) = span(step);
                    let part = len.div_ceil(ranks).next_multiple_of(64);
                    let start = (part * rank).min(len);
                    job(step, home(step), (start, part.min(len - start)))
                };
                let readers = match op.kind {
                    OpKind::Reduce => Peers::Only(root),
                    _ => Peers::All,
                };
                with(&Script {
                    needs: (StageCounter::Folded, Peers::All),
                    fold: Some(&fold),
                    take: &|step, spans| spans.push(take(home(step), step, 0, 0)),
                    ..script(Peers::All, readers)
                })
            }
            OpKind::ReduceScatter => {
                let fold = |step: u64| job(step, rank, (rank * piece, span(step).1));
                with(&Script {
                    put: &put_blocks,
                    needs: (StageCounter::Folded, Peers::Only(rank)),
                    fold: Some(&fold),
                    take: &|step, spans| spans.push(take(rank, step, rank, 0)),
                    ..script(Peers::All, Peers::All)
                })
            }
            OpKind::Broadcast => with(&Script {
                take: &|step, spans| spans.push(take(root, step, 0, 0)),
                ..script(Peers::Only(root), Peers::Except(root))
            }),
            OpKind::Gather | OpKind::AllGather => {
                let (writers, readers) = match op.kind {
                    OpKind::Gather => (Peers::Except(root), Peers::Only(root)),
                    _ => (Peers::All, Peers::All),
                };
                with(&Script {
                    take: &|step, spans| {
                        spans.extend(self.others().map(|peer| take(peer, step, 0, peer * bytes)));
                    },
                    ..script(writers, readers)
                })
            }
            OpKind::Scatter => with(&Script {
                put: &put_blocks,
                take: &|step, spans| spans.push(take(root, step, rank, 0)),
                ..script(Peers::Only(root), Peers::Except(root))
            }),
            OpKind::AllToAll => with(&Script {
                put: &put_blocks,
                take: &|step, spans| {
                    spans.extend(
                        self.others()
                            .map(|peer| take(peer, step, rank, peer * bytes)),
                    );
                },
                ..script(Peers::All, Peers::All)
            }),
            OpKind::AllToAllv | OpKind::Barrier | OpKind::Send | OpKind::Recv => Ok(()),
        }
    }

    /// Whether operations may be queued, that is, run later than they are called.
    pub(crate) fn may_queue(&self) -> bool {
        !self.shares_device.load(Relaxed)
    }

    /// Another rank is in this process and on this rank's device. Their copies could stand in one queue, in
    /// which one waits for the other.
    pub(crate) fn shares_device(&self) {
        self.shares_device.store(true, Relaxed);
    }

    /// An operation was queued; one that was is over.
    pub(crate) fn queued(&self) {
        self.pending.fetch_add(1, AcqRel);
    }

    /// See [`ShmEngine::queued`].
    pub(crate) fn unqueued(&self) {
        self.pending.fetch_sub(1, AcqRel);
    }

    /// The copies of a collective that will be queued, in the order in which it will need them; `None` if
    /// they can't be told yet. Every collective that goes in steps is planned too, or is over.
    pub(crate) fn plan(&self, op: &HostOp) -> Option<Plan> {
        let idle = self.pending.load(Acquire) == 0;
        let known = matches!(op.kind, OpKind::AllToAllv | OpKind::Barrier);
        if self.ranks == 1 || known || !self.goes_in_steps(op) || !self.pool_agreed.load(Relaxed) {
            return None;
        }
        let base = match idle {
            true => self.staged.load(Relaxed),
            false => self.planned.load(Relaxed),
        };
        let areas = Areas::new(self, true, base);
        let bytes = op.count * op.dtype.size();
        let mut plan = Plan {
            slots: areas.slots,
            own: self
                .own_copy(op, bytes)
                .filter(|own| !std::ptr::eq(own.to, own.from)),
            inward: Vec::new(),
            outward: Vec::new(),
        };
        let planned = self.script(op, bytes, &areas, None, &mut |script| {
            if script.steps > MOST_PLANNED {
                return Err(Error::not_supported("too many steps to plan"));
            }
            let each = |copies: &dyn Fn(u64, &mut Vec<CopySpan>)| {
                (0..script.steps)
                    .map(|step| {
                        let mut spans = Vec::new();
                        copies(step, &mut spans);
                        spans
                    })
                    .collect()
            };
            if script.writers.has(self.rank) {
                plan.inward = each(script.put);
            }
            if script.readers.has(self.rank) {
                plan.outward = each(script.take);
            }
            self.planned.store(base + script.steps, Relaxed);
            Ok(())
        });
        planned.ok().map(|()| plan)
    }

    /// The steps of an AlltoAllv, after its exchange: `sends(peer)` and `receives(peer)` are where in the
    /// buffers the blocks of the others begin, and their bytes, of which the largest of all ranks has
    /// `longest`.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run).
    pub(super) unsafe fn all_to_all_v_in_stages(
        &self,
        op: &HostOp,
        longest: usize,
        sends: &dyn Fn(usize) -> (usize, usize),
        receives: &dyn Fn(usize) -> (usize, usize),
        staging: Staging,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank, self.ranks);
        let pooled = !staging.says(Staging::NO_POOL);
        let areas = Areas::new(self, pooled, self.staged.load(Relaxed));
        let piece = piece_of(areas.bytes, ranks, longest);
        let span = move |step: u64, bytes: usize| {
            let start = (step as usize * piece).min(bytes);
            (start, piece.min(bytes - start))
        };
        let put = |step: u64, spans: &mut Vec<CopySpan>| {
            for peer in self.others() {
                let (at, bytes) = sends(peer);
                let (start, bytes) = span(step, bytes);
                spans.push(CopySpan {
                    to: areas.at(rank, step).wrapping_add(peer * piece),
                    from: op.send.wrapping_add(at).wrapping_add(start),
                    bytes,
                });
            }
        };
        let take = |step: u64, spans: &mut Vec<CopySpan>| {
            for peer in self.others() {
                let (at, bytes) = receives(peer);
                let (start, bytes) = span(step, bytes);
                spans.push(CopySpan {
                    to: op.recv.wrapping_add(at).wrapping_add(start),
                    from: areas.at(peer, step).wrapping_add(rank * piece),
                    bytes,
                });
            }
        };
        let script = Script {
            steps: longest.div_ceil(piece) as u64,
            writers: Peers::All,
            readers: Peers::All,
            needs: (StageCounter::Staged, Peers::All),
            put: &put,
            fold: None,
            take: &take,
        };
        debug_assert!(ranks > 1);
        // SAFETY: handed down from the caller.
        unsafe { self.play(op, &areas, &script, wait) }
    }

    /// The fold of an operation and all ranks' scalars, after the exchange.
    fn fold_of(&self, op: &HostOp, parity: usize) -> Result<(Fold, Arc<[Scale]>)> {
        let fold = fold_for(op.dtype, op.reduction)
            .ok_or_else(|| Error::internal("a reduction passed validation but has no kernel"))?;
        let scales = match op.reduction {
            Reduction::Builtin(_) => Arc::default(),
            Reduction::PreMulSum(_) => self.scales(parity).collect(),
        };
        Ok((fold, scales))
    }

    /// Whether a counter of the ranks concerned, this one too, has reached a value.
    fn all_reached(&self, counter: StageCounter, peers: Peers, value: u64) -> bool {
        (0..self.ranks)
            .filter(|&rank| peers.has(rank))
            .all(|rank| self.map.stage_counter(counter, rank).load(Acquire) >= value)
    }

    fn tell(&self, counter: StageCounter, value: u64) {
        self.map
            .stage_counter(counter, self.rank)
            .store(value, Release);
        self.ring();
    }

    /// Plays a script to its end. After an error nothing of this rank's is under way any more, but for copies that wait
    /// in the caller's streams: they go on as these do.
    ///
    /// # Safety
    /// As [`Engine::run`](crate::host::engine::Engine::run); the script's spans lie in the operation's buffers and in the slots of the
    /// step.
    unsafe fn play(
        &self,
        op: &HostOp,
        areas: &Areas<'_>,
        script: &Script<'_>,
        wait: &dyn WaitPolicy,
    ) -> Result<()> {
        let mover = match op.on_device.any() {
            true => Some(self.mover()?),
            false => None,
        };
        let mut player = Player {
            engine: self,
            areas,
            script,
            crew: script.fold.and_then(|_| self.crew()),
            input: mover.as_deref().filter(|_| op.on_device.send),
            output: mover.as_deref().filter(|_| op.on_device.recv),
            writes: script.writers.has(self.rank),
            reads: script.readers.has(self.rank),
            begun_in: 0,
            staged: 0,
            folded: 0,
            begun_out: 0,
            out: 0,
            left: 0,
            job: None,
            spans: Vec::new(),
        };
        // SAFETY: handed down from the caller.
        let result = unsafe { player.run(wait) };
        if let Err(error) = &result {
            self.publish_failure(error);
            player.stop();
        }
        self.staged.store(areas.base + script.steps, Relaxed);
        result
    }
}

/// Bytes of a block that one step moves.
fn piece_of(slot: usize, blocks: usize, bytes: usize) -> usize {
    let wanted = (bytes / STEPS).next_multiple_of(64).max(SMALLEST / blocks);
    (slot / blocks / 64 * 64).min(wanted.next_multiple_of(64))
}

/// One rank on its way through the steps of a collective.
struct Player<'a> {
    engine: &'a ShmEngine,
    areas: &'a Areas<'a>,
    script: &'a Script<'a>,
    crew: Option<Arc<Crew>>,
    /// What moves its data in and out, where its buffers are on a device.
    input: Option<&'a dyn Mover>,
    output: Option<&'a dyn Mover>,
    writes: bool,
    reads: bool,
    /// Steps of which each has been done.
    begun_in: u64,
    staged: u64,
    folded: u64,
    begun_out: u64,
    out: u64,
    left: u64,
    job: Option<Arc<Job>>,
    spans: Vec<CopySpan>,
}

impl Player<'_> {
    fn slots(&self) -> u64 {
        self.areas.slots as u64
    }

    /// The slot of the next step may be filled.
    fn can_put(&self) -> bool {
        if !self.writes || self.begun_in >= self.script.steps {
            return false;
        }
        let Some(before) = self.begun_in.checked_sub(self.slots()) else {
            return true;
        };
        let left = self.areas.base + before + 1;
        self.engine
            .all_reached(StageCounter::Left, Peers::All, left)
    }

    /// The next step may be reduced.
    fn can_fold(&self) -> bool {
        let (engine, script) = (self.engine, self.script);
        script.fold.is_some()
            && self.job.is_none()
            && self.folded < script.steps
            && engine.all_reached(
                StageCounter::Staged,
                script.writers,
                self.areas.base + self.folded + 1,
            )
    }

    /// The results of the next step may be copied out.
    fn can_take(&self) -> bool {
        let (counter, of) = self.script.needs;
        self.reads
            && self.begun_out < self.script.steps
            && self.begun_out - self.out < self.slots()
            // In place, a step may write only what this rank has sent.
            && (!self.writes || self.staged > self.begun_out)
            && (self.engine).all_reached(counter, of, self.areas.base + self.begun_out + 1)
    }

    /// Whether copies or reductions of its own are under way.
    fn is_busy(&self) -> bool {
        self.begun_in > self.staged || self.begun_out > self.out || self.job.is_some()
    }

    fn is_over(&self) -> bool {
        let steps = self.script.steps;
        (!self.writes || self.staged == steps)
            && (self.script.fold.is_none() || self.folded == steps)
            && (!self.reads || self.out == steps)
    }

    /// The ranks for which it waits.
    fn missing(&self) -> Vec<u32> {
        let base = self.areas.base;
        let late = |counter, of: Peers, value: u64| {
            move |rank: &usize| {
                of.has(*rank) && self.engine.map.stage_counter(counter, *rank).load(Relaxed) < value
            }
        };
        let (counter, of) = self.script.needs;
        let is_late = |rank: &usize| {
            *rank != self.engine.rank
                && ((self.reads && late(counter, of, base + self.begun_out + 1)(rank))
                    || (self.script.fold.is_some()
                        && late(
                            StageCounter::Staged,
                            self.script.writers,
                            base + self.folded + 1,
                        )(rank))
                    || (self.writes
                        && self.begun_in >= self.slots()
                        && late(
                            StageCounter::Left,
                            Peers::All,
                            base + self.begun_in - self.slots() + 1,
                        )(rank)))
        };
        let ranks = 0..self.engine.ranks;
        ranks.filter(is_late).map(|rank| rank as u32).collect()
    }

    /// # Safety
    /// As [`ShmEngine::play`].
    unsafe fn run(&mut self, wait: &dyn WaitPolicy) -> Result<()> {
        let mut waiter = Waiter::new(self.engine, wait);
        let mut idle: Option<Instant> = None;
        if let Some(crew) = &self.crew {
            // While the first copies come in they wake up.
            crew.alert();
        }
        self.leave();
        while !self.is_over() {
            // SAFETY: handed down from the caller.
            if unsafe { self.advance()? } {
                waiter.progressed();
                idle = None;
                continue;
            }
            let ready = || self.can_put() || self.can_fold() || self.can_take();
            let missing = || self.missing();
            if !self.is_busy() {
                waiter.pause(&ready, &missing)?;
                continue;
            }
            // Nobody rings when a device is done.
            waiter.look(&missing)?;
            if self.engine.spins.load(Relaxed) {
                std::hint::spin_loop();
            } else if idle.get_or_insert_with(Instant::now).elapsed() < YIELD {
                futex::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        Ok(())
    }

    /// Does what can be done now. `false`: nothing.
    ///
    /// # Safety
    /// As [`ShmEngine::play`].
    unsafe fn advance(&mut self) -> Result<bool> {
        let mut moved = false;
        if self.can_put() {
            self.spans.clear();
            (self.script.put)(self.begun_in, &mut self.spans);
            // SAFETY: handed down from the caller; all have left what was in the slot.
            unsafe { self.begin(Way::In, self.begun_in)? };
            self.begun_in += 1;
            moved = true;
        }
        while self.staged < self.begun_in && self.is_done(Way::In, self.staged)? {
            self.staged += 1;
            self.tell(StageCounter::Staged, self.staged);
            moved = true;
        }
        if self.job.as_ref().is_some_and(|job| job.is_done()) {
            self.job = None;
            self.folded += 1;
            self.tell(StageCounter::Folded, self.folded);
            moved = true;
        }
        if self.can_fold()
            && let Some(job) = self.script.fold.and_then(|fold| fold(self.folded))
        {
            let job = Arc::new(job);
            match &self.crew {
                Some(crew) => crew.give(&job),
                None => job.work(),
            }
            self.job = Some(job);
            moved = true;
        }
        if self.can_take() {
            self.spans.clear();
            (self.script.take)(self.begun_out, &mut self.spans);
            // SAFETY: handed down from the caller; what is copied was published by those who made it.
            unsafe { self.begin(Way::Out, self.begun_out)? };
            self.begun_out += 1;
            moved = true;
        }
        while self.out < self.begun_out && self.is_done(Way::Out, self.out)? {
            self.out += 1;
            moved = true;
        }
        if moved {
            self.leave();
        }
        Ok(moved)
    }

    /// Says what this rank needs no more.
    fn leave(&mut self) {
        let steps = self.script.steps;
        let folded = self.script.fold.map_or(steps, |_| self.folded);
        let out = if self.reads { self.out } else { steps };
        let left = folded.min(out);
        if left > self.left {
            self.left = left;
            self.tell(StageCounter::Left, left);
        }
    }

    fn tell(&self, counter: StageCounter, steps: u64) {
        self.engine.tell(counter, self.areas.base + steps);
    }

    fn mover(&self, way: Way) -> Option<&dyn Mover> {
        match way {
            Way::In => self.input,
            Way::Out => self.output,
        }
    }

    /// # Safety
    /// As [`ShmEngine::play`].
    unsafe fn begin(&self, way: Way, step: u64) -> Result<()> {
        match self.mover(way) {
            // SAFETY: handed down from the caller; a slot is used again when it is done.
            Some(mover) => unsafe { mover.begin(way, self.areas.slot(step), &self.spans) },
            None => {
                for span in &self.spans {
                    // SAFETY: as above.
                    unsafe { copy(span.to, span.from, span.bytes, false) };
                }
                Ok(())
            }
        }
    }

    fn is_done(&self, way: Way, step: u64) -> Result<bool> {
        match self.mover(way) {
            Some(mover) => mover.is_done(way, self.areas.slot(step)),
            None => Ok(true),
        }
    }

    /// After an error: waits for what is under way, as it uses the caller's buffers and this rank's slots.
    fn stop(&mut self) {
        if let Some(job) = self.job.take() {
            job.work();
            while !job.is_done() {
                futex::yield_now();
            }
        }
        if let Some(mover) = self.input.or(self.output) {
            mover.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_stays_below_its_limit_and_is_cut_into_slots_that_fit() {
        for ranks in [1, 2, 3, 8, 64, 1024] {
            for limit in [0, 4096, 1 << 20, 3_000_001, 64 << 20, 1 << 40] {
                let bytes = pool_bytes(limit, ranks);
                assert!(bytes <= limit, "{ranks} ranks, {limit}: {bytes}");
                let share = bytes / ranks as usize;
                assert_eq!(share % 4096, 0);
                if bytes > 0 {
                    let (slots, piece) = cut(share, ranks as usize);
                    assert!(slots * piece <= share && (2..=SLOTS).contains(&slots));
                    assert!(piece / ranks as usize >= WORTH && piece <= LARGEST);
                }
            }
        }
        assert_eq!(pool_bytes(64 << 20, 2), 64 << 20);
        assert_eq!(pool_bytes(1 << 40, 2), 2 * SLOTS * LARGEST);
    }

    #[test]
    fn a_piece_fits_into_a_slot_with_those_of_all_blocks() {
        for (slot, blocks) in [(4 << 20, 1), (256 << 10, 8), (64 << 10, 1024), (1 << 20, 3)] {
            for bytes in [1, 64, 20_000, 1 << 20, 1 << 30] {
                let piece = piece_of(slot, blocks, bytes);
                assert!(
                    piece >= 64 && piece.is_multiple_of(64),
                    "{slot} {blocks} {bytes}"
                );
                assert!(piece * blocks <= slot);
            }
        }
    }
}
