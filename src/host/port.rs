//! The way of an operation into the host tier: from the uniform table to the engine, in the order
//! of issue, on the caller's thread or a stream's.

use super::engine::Engine;
use super::liveness::Liveness;
use super::op::{HostOp, VectorCounts};
use super::stage;
use super::stream;
use crate::device::{Driver, Guard, stream_of};
use crate::error::{Code, Error, Result};
use crate::ops::{Call, Target, lock};
use crate::sys::turnstile::{Entered, Turn, Turnstile};
use crate::types::{DataType, OpKind, RedOp, Reduction};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
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
    /// The communicator's device, -1 for none.
    device: AtomicI32,
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
            device: AtomicI32::new(0),
        }
    }

    /// Puts a runner behind the table.
    pub(crate) fn attach(&self, runner: Runner, driver: Option<&'static Driver>, device: i32) {
        self.device.store(device, Ordering::Relaxed);
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

    /// Waits for the turn as long as it takes, and takes the runner away.
    pub(crate) fn detach_later(&self, turn: Turn) {
        *self.runner.enter(turn) = None;
    }
}

/// Operations of one communicator that are launched together, with their streams.
pub(crate) struct Batch {
    pub ops: Vec<HostOp>,
    pub texts: Vec<Call>,
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
    unsafe {
        submit(
            target,
            Batch {
                ops: vec![op],
                texts: vec![*call],
            },
        )
    }
}

fn open<'a>(entered: &'a Entered<'_, Option<Box<Runner>>>) -> Result<&'a Runner> {
    entered.as_deref().ok_or_else(|| {
        Error::invalid_usage("the communicator was destroyed or aborted before this operation ran")
    })
}

unsafe fn run_one(runner: &Runner, op: &HostOp, call: &Call) -> Result<()> {
    let text = || call.text();
    let wait = runner.liveness.of(&text);
    // SAFETY: the caller's promise about the buffers.
    unsafe { runner.engine.run(op, &wait) }
}

unsafe fn run_batch(runner: &Runner, batch: &Batch) -> Result<()> {
    if let [call] = batch.texts[..] {
        // SAFETY: the caller's promise about the buffers.
        return unsafe { run_one(runner, &batch.ops[0], &call) };
    }
    let text = || format!("a group of {} operations", batch.ops.len());
    let wait = runner.liveness.of(&text);
    // SAFETY: as above.
    unsafe { runner.engine.run_group(&batch.ops, &wait) }
}

/// Runs a batch on its stream: that of its first operation, after what the other streams hold.
///
/// # Safety
/// As [`run`], for every operation.
pub(crate) unsafe fn submit(target: &'static Target, batch: Batch) -> Result<()> {
    let streams: Vec<*mut c_void> = {
        let mut streams: Vec<*mut c_void> = batch.texts.iter().map(|c| c.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    };
    match target.host.driver() {
        Some(driver) => {
            // SAFETY: the caller's promise about the buffers.
            let work = || unsafe { on_device_streams(target, driver, &streams, batch) };
            // NULL is the default stream of the communicator's device, and what is allocated on the
            // way must not bring a context to another one.
            match target.host.device.load(Ordering::Relaxed) {
                device @ 0.. => Guard::with(driver, device, work),
                _ => work(),
            }
        }
        None => {
            for stream in &streams {
                stream::check(*stream)?;
            }
            let turn = target.host.runner.draw();
            let carrier = streams.last().copied().unwrap_or(std::ptr::null_mut());
            let work = Submitted {
                target,
                turn: Some(turn),
                batch,
                deferred: !carrier.is_null(),
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
            Ok(())
        }
    }
}

/// Runs a batch now, after the work that the vendor's streams hold.
unsafe fn on_device_streams(
    target: &'static Target,
    driver: &'static Driver,
    streams: &[*mut c_void],
    batch: Batch,
) -> Result<()> {
    let raw = |stream: &*mut c_void| stream_of(*stream);
    // The last one: NULL, which may be no stream of the driver's, is the first in order.
    let last = raw(streams.last().unwrap_or(&std::ptr::null_mut()));
    let streams = match streams {
        [first, rest @ ..] if first.is_null() && !driver.has_null_stream() => rest,
        all => all,
    };
    for stream in streams {
        if driver.is_capturing(raw(stream))? {
            return Err(Error::not_supported(
                "the stream is being captured, and the host tier's work can't become part of a \
                 graph",
            ));
        }
    }
    // The work is ordered after the streams by waiting for them, and before what follows because
    // it is done when the call returns.
    for stream in streams {
        driver.stream_synchronize(raw(stream))?;
    }
    let runner = target.host.runner.lock();
    let runner = open(&runner)?;
    driver.on_some_stream(last, |on| {
        let (rank, nranks) = (target.rank(), target.nranks());
        let (staged, back) = stage::to_host(driver, &batch.ops, rank, nranks, on)?;
        let batch = Batch {
            ops: staged,
            texts: batch.texts,
        };
        // SAFETY: the staged operations point to our own host buffers or the caller's.
        unsafe { run_batch(runner, &batch)? };
        back.copy(driver, on)
    })
}

/// A batch on its way to a stream's thread. Its turn is used even if it never runs.
struct Submitted {
    target: &'static Target,
    turn: Option<Turn>,
    batch: Batch,
    /// The call returns before it has run.
    deferred: bool,
}

impl Submitted {
    fn run(mut self) -> Result<()> {
        let Some(turn) = self.turn.take() else {
            return Ok(());
        };
        let entered = self.target.host.runner.enter(turn);
        let runner = open(&entered)?;
        // SAFETY: the promise of the caller of `submit`.
        let result = unsafe { run_batch(runner, &self.batch) };
        if !self.deferred {
            return result;
        }
        // Nobody who knows the communicator waits for this error: it has to say whose it is.
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
