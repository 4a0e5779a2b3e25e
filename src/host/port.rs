//! The way of an operation into the host tier: from the uniform table to the engine, in the order
//! of issue, on the caller's thread or a stream's.

use super::engine::Engine;
use super::liveness::Liveness;
use super::op::{HostOp, OnDevice, VectorCounts, WaitPolicy};
use super::shm::{MOST_SHORT, MOST_TINY, Plan, ShmEngine, Short, Tiny};
use super::stage::{self, DeviceMover, Worker};
use super::stream;
use crate::config;
use crate::device::{Driver, Guard, RawStream, stream_of};
use crate::error::{Code, Error, Result};
use crate::ops::{Call, Target, lock};
use crate::sys::handoff::{Sender, queue};
use crate::sys::per_process::PerProcess;
use crate::sys::turnstile::{Entered, Turn, Turnstile};
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the end of a communicator waits for operations whose waits have been cut short.
const AFTER_CUT: Duration = Duration::from_secs(1);

/// What the operations of one communicator of the host tier run on. Part of reserved memory that
/// is never freed.
pub(crate) struct HostPort {
    runner: Turnstile<Option<Box<Runner>>>,
    /// The machine's driver, whose streams and memory the callers then use.
    driver: AtomicPtr<Driver>,
}

/// What calls of one communicator need before it is their turn, on a machine with a driver.
struct Front {
    engine: Arc<dyn Engine>,
    /// Made when the first operation needs them.
    mover: Option<Arc<DeviceMover>>,
    worker: Option<Worker>,
}

type EngineAndMover = (Arc<dyn Engine>, Option<Arc<DeviceMover>>);

/// By the address of the port, which has no room for it.
fn fronts() -> &'static Mutex<HashMap<usize, Front>> {
    static FRONTS: PerProcess<Mutex<HashMap<usize, Front>>> = PerProcess::new();
    FRONTS.get_or_init(Mutex::default)
}

/// One rank's engine and what its waits ask.
pub(crate) struct Runner {
    pub engine: Arc<dyn Engine>,
    pub liveness: Liveness,
    /// For error texts.
    pub label: String,
    /// Where an error on a stream is kept for those who ask the communicator.
    pub failed: Arc<Mutex<Option<Error>>>,
}

impl HostPort {
    pub(crate) const fn new() -> HostPort {
        HostPort {
            runner: Turnstile::new(None),
            driver: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Puts a runner behind the table.
    pub(crate) fn attach(&self, runner: Runner, driver: Option<&'static Driver>) {
        if driver.is_some() {
            let front = Front {
                engine: Arc::clone(&runner.engine),
                mover: None,
                worker: None,
            };
            lock(fronts()).insert(self.key(), front);
        }
        let driver = driver.map_or(std::ptr::null_mut(), |d| std::ptr::from_ref(d).cast_mut());
        self.driver.store(driver, Ordering::Relaxed);
        *self.runner.lock() = Some(Box::new(runner));
    }

    /// Waits until every operation that was issued has ended.
    pub(crate) fn flush(&self) {
        drop(self.runner.lock());
    }

    fn driver(&self) -> Option<&'static Driver> {
        // SAFETY: set by `attach`; drivers live for ever.
        unsafe { self.driver.load(Ordering::Relaxed).as_ref() }
    }

    /// Takes the runner away, after every operation issued before has ended. `patient` is asked
    /// between looks; when it says no, the waits are cut short by `cut`. What is still queued a
    /// moment later waits on its stream for something that is not ours to cut: then the turn comes
    /// back, for [`HostPort::detach_later`].
    pub(crate) fn detach(&self, patient: impl Fn() -> bool, cut: impl FnOnce()) -> Option<Turn> {
        let turn = self.runner.draw();
        let served_while = |patient: &dyn Fn() -> bool| {
            while !self.runner.is_served(&turn) {
                if !patient() {
                    return false;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            true
        };
        if !served_while(&patient) {
            cut();
            let since = Instant::now();
            if !served_while(&|| since.elapsed() < AFTER_CUT) {
                return Some(turn);
            }
        }
        self.detach_later(turn);
        None
    }

    /// Waits for the turn as long as it takes, and takes the runner away, with all that it made.
    pub(crate) fn detach_later(&self, turn: Turn) {
        *self.runner.enter(turn) = None;
        let Some(front) = lock(fronts()).remove(&self.key()) else {
            return;
        };
        if let Some(worker) = front.worker {
            worker.end();
        }
        if let Some(shm) = front.engine.shared_memory() {
            shm.retire();
        }
        let Some(mover) = front.mover else { return };
        let left = match mover.close() {
            Ok(closed) => !closed,
            Err(error) => {
                log::warn!("what staged device buffers can't be freed: {error}");
                false
            }
        };
        if left {
            log::warn!(
                "copies of device buffers still wait for streams of the program's; the memory that they \
                 use stays"
            );
            std::mem::forget((front.engine, mover));
        }
    }

    /// The engine, and where it is `needed` what moves bytes between host and device.
    fn front(&self, driver: &'static Driver, device: i32, needed: bool) -> Result<EngineAndMover> {
        let (engine, mover) = {
            let fronts = lock(fronts());
            let front = fronts.get(&self.key()).ok_or_else(ended)?;
            (Arc::clone(&front.engine), front.mover.clone())
        };
        if !needed || mover.is_some() {
            return Ok((engine, mover));
        }
        // Not under the lock: the driver may wait for the device, and so for other communicators.
        let mover = Arc::new(DeviceMover::new(driver, device)?);
        if !self.keep_mover(&mover) {
            // An abort came in between, and whoever closes movers has been there.
            if let Err(error) = mover.close() {
                log::warn!("{error}");
            }
            return Err(ended());
        }
        engine.set_mover(Arc::clone(&mover) as _);
        Ok((engine, Some(mover)))
    }

    /// Gives the communicator what moves its bytes. `false`: it has ended.
    fn keep_mover(&self, mover: &Arc<DeviceMover>) -> bool {
        let mut fronts = lock(fronts());
        let front = fronts.get_mut(&self.key());
        front
            .map(|front| front.mover = Some(Arc::clone(mover)))
            .is_some()
    }

    /// Gives work to the communicator's own thread.
    fn give(&self, driver: &'static Driver, device: i32, work: stage::Work) -> Result<()> {
        let mut fronts = lock(fronts());
        let front = fronts.get_mut(&self.key()).ok_or_else(ended)?;
        let worker = match &mut front.worker {
            Some(worker) => worker,
            none => none.insert(Worker::new(driver, device)?),
        };
        worker.give(work)
    }
}

#[cold]
fn ended() -> Error {
    Error::invalid_usage("the communicator was destroyed or aborted before this operation ran")
}

/// Operations of one communicator that are launched together.
pub(crate) struct Batch {
    pub ops: Vec<HostOp>,
    /// The call of the first one, for texts.
    pub first: Call,
    /// Those that they are on. One may stand here several times.
    streams: Vec<*mut c_void>,
}

impl Batch {
    /// One operation, with room for some more.
    pub(crate) fn new(op: HostOp, call: &Call, room: usize) -> Batch {
        let mut ops = Vec::with_capacity(room.max(1));
        ops.push(op);
        Batch {
            ops,
            first: *call,
            streams: vec![call.stream],
        }
    }

    /// Adds an operation.
    #[inline(always)]
    pub(crate) fn push(&mut self, op: HostOp, stream: *mut c_void) {
        self.ops.push(op);
        if self.streams.last() != Some(&stream) {
            self.streams.push(stream);
        }
    }
}

// SAFETY: the pointers inside belong to the caller, who promised to leave the buffers alone until
// the operations are complete; `HostOp` says the same of itself.
unsafe impl Send for Batch {}

/// What an operation needs, checked and copied: the caller may forget its arrays afterwards.
///
/// # Safety
/// The call's pointers must be what the C header asks for.
pub(crate) unsafe fn prepare(target: &'static Target, call: &Call) -> Result<HostOp> {
    let (rank, nranks) = (target.rank(), target.nranks());
    let dtype = call.check(rank, nranks)?;
    let reduction = match RedOp::from_raw(call.op) {
        _ if !call.reduces() => Reduction::Builtin(RedOp::Sum),
        Some(op) => Reduction::Builtin(op),
        None => Reduction::PreMulSum(target.redop(call.op, dtype)?.scalar),
    };
    let vector = (call.kind == OpKind::AllToAllv).then(|| {
        let read = |at: usize| {
            let entry = |rank: u32| {
                // SAFETY: `check` found the array not NULL; one entry per rank is the caller's promise.
                unsafe { call.vector[at].add(rank as usize).read_unaligned() }
            };
            (0..nranks).map(entry).collect()
        };
        Box::new(VectorCounts {
            send_counts: read(0),
            send_displs: read(1),
            recv_counts: read(2),
            recv_displs: read(3),
        })
    });
    Ok(HostOp {
        kind: call.kind,
        send: call.send.cast(),
        recv: call.recv.cast(),
        count: call.count,
        dtype,
        reduction,
        root: call.root as u32,
        vector,
        on_device: OnDevice::default(),
    })
}

/// As [`prepare`] for a message about which nothing is special. `None`: that is for [`prepare`] to look at.
#[inline(always)]
pub(crate) fn prepare_message(target: &'static Target, call: &Call) -> Option<HostOp> {
    /// So many elements fit into memory, whatever the number of ranks and the data type.
    const MOST: usize = 1 << 24;
    let buffer = match call.kind {
        OpKind::Send => call.send.cast_mut(),
        OpKind::Recv => call.recv,
        _ => return None,
    };
    let plain = !buffer.is_null() && call.count <= MOST && (call.root as u32) < target.nranks();
    let dtype = DataType::from_raw(call.dtype).filter(|_| plain)?;
    Some(HostOp {
        kind: call.kind,
        send: call.send.cast(),
        recv: call.recv.cast(),
        count: call.count,
        dtype,
        reduction: Reduction::Builtin(RedOp::Sum),
        root: call.root as u32,
        vector: None,
        on_device: OnDevice::default(),
    })
}

/// Runs one operation, or puts it on its stream.
///
/// # Safety
/// The call's pointers must be what the C header asks for.
pub(crate) unsafe fn run(target: &'static Target, call: &Call) -> Result<()> {
    // SAFETY: the caller's promise.
    let op = unsafe { prepare(target, call)? };
    if call.stream.is_null() && target.host.driver().is_none() {
        // The short way: on this thread, now.
        let runner = target.host.runner.lock();
        let runner = open(&runner)?;
        // SAFETY: the caller's promise about the buffers.
        return unsafe { run_one(runner, &op, call) };
    }
    // SAFETY: as above.
    unsafe { submit(target, Batch::new(op, call, 1)) }
}

/// A collective that takes the shortest way, if it is small and nothing is special about it. `None`: it has
/// not begun, [`run`] takes it.
///
/// # Safety
/// As [`run`].
#[inline(always)]
pub(crate) unsafe fn tiny(
    target: &'static Target,
    plain: &Call,
    call: impl Fn() -> Call,
) -> Option<Result<()>> {
    let sends = plain.kind != OpKind::Broadcast || plain.root as u32 == target.rank();
    let right = !(plain.recv.is_null() || sends && plain.send.is_null());
    let few = (1..=MOST_TINY).contains(&plain.count);
    if !right || !few || !plain.stream.is_null() || target.host.driver().is_some() {
        return None;
    }
    let tiny = Tiny {
        kind: plain.kind,
        send: plain.send.cast(),
        recv: plain.recv.cast(),
        count: plain.count,
        dtype: DataType::from_raw(plain.dtype)?,
        op: match plain.reduces() {
            true => RedOp::from_raw(plain.op)?,
            false => RedOp::Sum,
        },
        root: match plain.kind {
            OpKind::Broadcast => usize::try_from(plain.root).ok()?,
            _ => 0,
        },
    };
    let runner = target.host.runner.lock();
    let runner = runner.as_deref()?;
    let shm = runner.engine.shared_memory()?;
    let fold = shm.takes_tiny(&tiny)?;
    target.count_operation(plain.kind);
    let text = || call().text();
    let wait = runner.liveness.of(&text);
    // SAFETY: the caller's promise about the buffers, none of which is on a device where there is no
    // driver; this is the one operation that goes on, in its turn.
    Some(unsafe { shm.run_tiny(&tiny, fold, &wait) })
}

/// A message that takes the shortest way, if nothing is special about it. `None`: it has not begun, [`run`] takes it.
///
/// # Safety
/// As [`run`].
#[inline(always)]
pub(crate) unsafe fn short(
    target: &'static Target,
    plain: &Call,
    call: impl Fn() -> Call,
) -> Option<Result<()>> {
    let buffer = match plain.kind {
        OpKind::Send => plain.send.cast_mut(),
        _ => plain.recv,
    };
    let few = (1..=MOST_SHORT).contains(&plain.count);
    let right = !buffer.is_null() && few;
    if !right || !plain.stream.is_null() || target.host.driver().is_some() {
        return None;
    }
    let short = Short {
        buffer: buffer.cast(),
        count: plain.count,
        dtype: DataType::from_raw(plain.dtype)?,
        peer: usize::try_from(plain.root).ok()?,
    };
    let runner = target.host.runner.lock();
    let runner = runner.as_deref()?;
    let shm = runner.engine.shared_memory()?;
    let counts = || target.count_operation(plain.kind);
    if plain.kind == OpKind::Recv {
        // SAFETY: as in `tiny`.
        unsafe { shm.receive_short(&short)? };
        counts();
        return Some(Ok(()));
    }
    let text = || call().text();
    let wait = runner.liveness.of(&text);
    // SAFETY: as above.
    unsafe { shm.send_short(&short, counts, &wait) }
}

fn open<'a>(entered: &'a Entered<'_, Option<Box<Runner>>>) -> Result<&'a Runner> {
    entered.as_deref().ok_or_else(ended)
}

unsafe fn run_one(runner: &Runner, op: &HostOp, call: &Call) -> Result<()> {
    let text = || call.text();
    let wait = runner.liveness.of(&text);
    // SAFETY: the caller's promise about the buffers.
    unsafe { runner.engine.run(op, &wait) }
}

unsafe fn run_batch(runner: &Runner, batch: &Batch) -> Result<()> {
    if let [op] = &batch.ops[..] {
        // SAFETY: the caller's promise about the buffers.
        return unsafe { run_one(runner, op, &batch.first) };
    }
    let text = || format!("a group of {} operations", batch.ops.len());
    let wait = runner.liveness.of(&text);
    // SAFETY: as above.
    unsafe { runner.engine.run_group(&batch.ops, &wait) }
}

/// Runs a batch on one of its streams, after what the others hold.
///
/// # Safety
/// As [`run`], for every operation.
pub(crate) unsafe fn submit(target: &'static Target, mut batch: Batch) -> Result<()> {
    let mut streams = std::mem::take(&mut batch.streams);
    streams.sort_unstable();
    streams.dedup();
    match target.host.driver() {
        Some(driver) => {
            // SAFETY: the caller's promise about the buffers.
            let work = || unsafe { on_device_streams(target, driver, &streams, batch) };
            // NULL is the default stream of the communicator's device, and what is allocated on the
            // way must not bring a context to another one.
            match target.device.load(Ordering::Relaxed) {
                device @ 0.. => Guard::with(driver, device, work),
                _ => work(),
            }
        }
        None if streams.iter().all(|stream| stream.is_null()) => {
            let runner = target.host.runner.lock();
            // SAFETY: the caller's promise about the buffers.
            unsafe { run_batch(open(&runner)?, &batch) }
        }
        None => {
            for stream in &streams {
                stream::check(*stream)?;
            }
            let turn = target.host.runner.draw();
            let carrier = streams.last().copied().unwrap_or(std::ptr::null_mut());
            // What is on NULL is done when the call returns, and with it all of the group.
            let blocks = streams.iter().any(|stream| stream.is_null());
            let (done, outcome) = queue();
            let work = Submitted {
                target,
                turn: Some(turn),
                batch,
                done: blocks.then_some(done),
            };
            // Several streams in one group: the carrier waits for what the others hold, and they
            // for the group.
            let mut after = Vec::new();
            for other in streams.iter().filter(|s| **s != carrier && !s.is_null()) {
                let event = stream::event_create(false)?;
                stream::event_record(event, *other)?;
                stream::wait_event(carrier, event)?;
                stream::event_destroy(event)?;
                after.push(*other);
            }
            stream::enqueue(carrier, Box::new(move || work.run()))?;
            for other in after {
                let event = stream::event_create(false)?;
                stream::event_record(event, carrier)?;
                stream::wait_event(other, event)?;
                stream::event_destroy(event)?;
            }
            if !blocks {
                return Ok(());
            }
            let lost = || Err(Error::internal("a stream ended before its work was done"));
            outcome.take_within(None).unwrap_or_else(|_| lost())
        }
    }
}

/// Runs a batch after the work that the vendor's streams hold, and before what they get next.
unsafe fn on_device_streams(
    target: &'static Target,
    driver: &'static Driver,
    streams: &[*mut c_void],
    mut batch: Batch,
) -> Result<()> {
    // NULL, which may be no stream of the driver's, is the first in order.
    let streams = match streams {
        [first, rest @ ..] if first.is_null() && !driver.has_null_stream() => rest,
        all => all,
    };
    let streams: Vec<RawStream> = streams.iter().map(|stream| stream_of(*stream)).collect();
    for stream in &streams {
        if driver.is_capturing(*stream)? {
            return Err(Error::not_supported(
                "the stream is being captured, and the host tier's work can't become part of a \
                 graph",
            ));
        }
    }
    let mut on_device = true;
    let mut staged = false;
    for op in &mut batch.ops {
        on_device &= stage::locate(driver, op, target.rank())? && op.kind != OpKind::Barrier;
        staged |= op.on_device.any();
    }
    let device = target.device.load(Ordering::Relaxed);
    let (engine, mover) = target.host.front(driver, device, staged)?;
    let Some(shm) = engine.shared_memory() else {
        let mover = mover.as_deref().filter(|_| staged);
        // SAFETY: as above.
        return unsafe { wait_and_run(target, driver, &streams, batch, mover) };
    };
    for op in &batch.ops {
        shm.prepare(op);
    }
    let streams_wait = staged && on_device && !streams.is_empty() && config::get().streams_wait;
    if let Some(mover) = mover.filter(|mover| streams_wait && mover.queues())
        && shm.may_queue()
    {
        for op in &batch.ops {
            engine.accepts(op)?;
        }
        if let Some((plan, placed)) = plan(target, shm, &mover, &batch) {
            let queued = Arc::new(mover.reserve(&plan)?);
            let work = Deferred {
                target,
                engine: Arc::clone(&engine),
                mover,
                queued: Some(Arc::clone(&queued)),
                turn: Some(target.host.runner.draw()),
                placed: placed.is_some(),
                batch: Batch {
                    ops: placed.unwrap_or(batch.ops),
                    ..batch
                },
            };
            shm.queued();
            (target.host).give(driver, device, Box::new(move || work.run()))?;
            // SAFETY: the plan's copies are those of the batch, whose buffers the caller promised, and of
            // memory of ours that the driver has pinned.
            let put = unsafe { queued.put(&streams, &plan) };
            // Some copies are missing, for which nobody must wait.
            return put.inspect_err(|error| engine.poison(error));
        }
    }
    // SAFETY: as above.
    unsafe { wait_and_run(target, driver, &streams, batch, None) }
}

/// A batch's copies, if they can be queued now. With them come its operations in host memory, where they don't go
/// in steps.
fn plan(
    target: &'static Target,
    engine: &ShmEngine,
    mover: &DeviceMover,
    batch: &Batch,
) -> Option<(Plan, Option<Vec<HostOp>>)> {
    match &batch.ops[..] {
        [op] if engine.goes_in_steps(op) => {
            let plan = mover.queues_pool().then(|| engine.plan(op))?;
            plan.map(|plan| (plan, None))
        }
        ops if ops.iter().any(|op| engine.goes_in_steps(op)) => None,
        ops => {
            let (rank, nranks) = (target.rank(), target.nranks());
            let (placed, plan) = stage::in_place_of_ours(mover, ops, rank, nranks)?;
            Some((plan, Some(placed)))
        }
    }
}

/// Runs a batch when the streams have come to their end, and returns when it is done. `whole` is what brings
/// buffers in devices' memory to the host before and results back, for an engine that does not stage them.
///
/// # Safety
/// As [`run`], for every operation.
unsafe fn wait_and_run(
    target: &'static Target,
    driver: &'static Driver,
    streams: &[RawStream],
    mut batch: Batch,
    whole: Option<&DeviceMover>,
) -> Result<()> {
    for stream in streams {
        driver.stream_synchronize(*stream)?;
    }
    let runner = target.host.runner.lock();
    let runner = open(&runner)?;
    let Some(mover) = whole else {
        // SAFETY: the caller's promise about the buffers.
        return unsafe { run_batch(runner, &batch) };
    };
    for op in &batch.ops {
        runner.engine.accepts(op)?;
    }
    let text = || batch.first.text();
    let ended = |error: Error| {
        // The others wait for this rank's part, or go on without knowing that it has not its results.
        runner.engine.poison(&error);
        runner.liveness.of(&text).failed(&error);
        error
    };
    let place = (target.rank(), target.nranks());
    let stages = |op: &HostOp| runner.engine.stages(op);
    // SAFETY: as above.
    let brought = unsafe { stage::to_host(mover, &batch.ops, place, stages) };
    let (ops, results) = brought.map_err(ended)?;
    batch.ops = ops;
    // SAFETY: the buffers are the caller's, or copies that live on.
    if let Err(error) = unsafe { run_batch(runner, &batch) } {
        if runner.engine.has_left_behind() {
            // What can't be taken back may still read and write the copies.
            std::mem::forget(results);
        }
        return Err(error);
    }
    // SAFETY: as above.
    unsafe { results.deliver(mover) }.map_err(ended)
}

/// A batch whose copies are queued. They go on whatever becomes of it.
struct Deferred {
    target: &'static Target,
    engine: Arc<dyn Engine>,
    mover: Arc<DeviceMover>,
    queued: Option<Arc<stage::Queued>>,
    turn: Option<Turn>,
    /// Its buffers are in a place of ours.
    placed: bool,
    batch: Batch,
}

impl Deferred {
    fn run(mut self) {
        let Some(turn) = self.turn.take() else { return };
        let entered = self.target.host.runner.enter(turn);
        let (Ok(runner), Some(queued)) = (open(&entered), self.queued.clone()) else {
            return self.release();
        };
        let patient = || runner.engine.check_failure();
        let set_mover = |mover| {
            if let Some(shm) = runner.engine.shared_memory() {
                shm.set_mover(mover);
            }
        };
        let ran = (|| {
            queued.await_start(&patient)?;
            if self.placed {
                queued.bring_all(&patient)?;
                // SAFETY: the promise of the caller of `submit`; the buffers are a place of ours.
                return unsafe { run_batch(runner, &self.batch) };
            }
            set_mover(queued as _);
            // SAFETY: as above; what was queued are this batch's copies.
            let ran = unsafe { run_batch(runner, &self.batch) };
            set_mover(Arc::clone(&self.mover) as _);
            // What was planned behind it counts on its steps.
            ran.inspect_err(|error| runner.engine.poison(error))
        })();
        if let Err(error) = ran {
            // Nobody waits for this error: it has to say whose it is.
            let error = error.context(&runner.label);
            log::warn!("{error}");
            lock(&runner.failed).get_or_insert(error);
        }
        // In turn: what comes after has later numbers.
        self.release();
    }

    fn release(&mut self) {
        if let Some(queued) = self.queued.take() {
            queued.release();
            if let Some(shm) = self.engine.shared_memory() {
                shm.unqueued();
            }
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let entered = self.target.host.runner.enter(turn);
            self.release();
            drop(entered);
        }
        self.release();
    }
}

/// A batch on its way to a stream's thread. Its turn is used even if it never runs.
struct Submitted {
    target: &'static Target,
    turn: Option<Turn>,
    batch: Batch,
    /// Where the call waits for it, if it does not return before.
    done: Option<Sender<Result<()>>>,
}

impl Submitted {
    fn run(mut self) -> Result<()> {
        let Some(turn) = self.turn.take() else {
            return Ok(());
        };
        let entered = self.target.host.runner.enter(turn);
        let runner = open(&entered);
        let result = match &runner {
            // SAFETY: the promise of the caller of `submit`.
            Ok(runner) => unsafe { run_batch(runner, &self.batch) },
            Err(ended) => Err(ended.clone()),
        };
        if let Some(done) = self.done.take() {
            // The caller gets it, and nobody else has to hear of it.
            let _ = done.send(result);
            return Ok(());
        }
        // Nobody who knows the communicator waits for this error: it has to say whose it is.
        let runner = runner?;
        result.map_err(|error| {
            let error = error.context(&runner.label);
            lock(&runner.failed).get_or_insert_with(|| error.clone());
            error
        })
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            drop(self.target.host.runner.enter(turn));
        }
    }
}

/// The scalar of a pre-multiplied sum, read from where the caller has it.
///
/// # Safety
/// `scalar` must point to one element of `dtype`; on the host, or on a device if `on_device`.
pub(crate) unsafe fn read_scalar(
    scalar: *const c_void,
    dtype: DataType,
    on_device: bool,
    driver: Option<&'static Driver>,
) -> Result<[u8; 8]> {
    let mut bytes = [0u8; 8];
    let to = bytes.as_mut_ptr();
    match (on_device, driver) {
        (true, Some(driver)) => {
            // SAFETY: the caller's promise; the array has room for the largest element.
            unsafe { driver.copy_to_host(to.cast(), scalar, dtype.size())? };
        }
        (true, None) => {
            return Err(Error::new(
                Code::InvalidArgument,
                "the scalar is said to be on a device, but this machine has no accelerator's driver",
            ));
        }
        (false, _) => {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(scalar.cast::<u8>(), to, dtype.size()) };
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call that waits for its group gets the error, and the stream does not keep it.
    #[test]
    fn a_group_that_waits_hears_that_its_communicator_has_ended() {
        let target: &'static Target = Box::leak(Box::new(Target::new()));
        let stream = stream::create().unwrap();
        // No runner is there, as after an abort that was served before the stream came to this.
        let call = Call::new(OpKind::Barrier);
        let on_stream = Call { stream, ..call };
        // SAFETY: a barrier has no buffers.
        let [first, second] =
            [call, on_stream].map(|call| unsafe { prepare(target, &call) }.unwrap());
        let mut batch = Batch::new(first, &call, 2);
        batch.push(second, stream);
        // SAFETY: as above.
        let error = unsafe { submit(target, batch) }.unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage, "{error}");
        assert_eq!(error.text(), ended().text());
        stream::synchronize(stream).unwrap();
        stream::destroy(stream).unwrap();
    }
}
