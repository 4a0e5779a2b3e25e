//! What happens to a communicator that works: questions, finalize, revoke, abort, destroy.
#![forbid(unsafe_code)]

use super::options::Caller;
use super::table::{self, Handle, place};
use super::{Backend, Comm, Made, Native, Parts, UnderWay};
use crate::config::Tier;
use crate::control::channel::Channel;
use crate::control::patience::{Impatience, Patience};
use crate::control::wire::{Reader, Writer};
use crate::differing::{Disagreement, Field, Shape, disagreement};
use crate::error::{Code, Error, Result};
use crate::internal::CommInfo;
use crate::load;
use crate::ops::{CLOSED, Call, FINALIZED, breaks, lock};
use crate::sys::handoff::{Nothing, queue};
use crate::sys::turnstile::Turn;
use crate::types::OpKind;
use crate::vendor::library::Progress;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long an abort waits for a thread of its own that is on the control channel.
const ABORT_COURTESY: Duration = Duration::from_millis(150);
/// How long a destroy waits for the thread that looks at it, so that the others hear a goodbye and not a
/// closed connection.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long the control channel may be behind the vendor with the news of a rank that is gone.
const NEWS: Duration = Duration::from_millis(60);

// ---- questions

/// Number of ranks.
pub fn comm_count(handle: Handle) -> Result<i32> {
    let comm = table::get(handle)?;
    comm.parts()?;
    Ok(comm.nranks() as i32)
}

/// Rank of the caller.
pub fn comm_user_rank(handle: Handle) -> Result<i32> {
    let comm = table::get(handle)?;
    comm.parts()?;
    Ok(comm.rank() as i32)
}

/// Device the communicator is bound to, -1 for none.
pub fn comm_device(handle: Handle) -> Result<i32> {
    let comm = table::get(handle)?;
    comm.parts()?;
    Ok(comm.device)
}

/// Name of the communicator: the caller's, or one that is the same on all ranks.
pub fn comm_name(handle: Handle) -> Result<String> {
    let comm = table::get(handle)?;
    if comm.name.is_empty() {
        comm.parts()?;
    }
    Ok(comm.shown_name().to_owned())
}

/// What the communicator runs on.
pub fn comm_info(handle: Handle) -> Result<CommInfo> {
    let comm = table::get(handle)?;
    let parts = comm.parts()?;
    let vendor = parts
        .infos
        .get(comm.rank() as usize)
        .map(|i| i.vendor.clone())
        .unwrap_or_default();
    let driver = load::process_driver()?.is_some();
    Ok(match &parts.backend {
        Backend::Native(native) => CommInfo {
            tier: parts.tier as i32,
            vendor,
            library_path: native.library().path().display().to_string(),
            library_version: native.library().version_code,
            host_engine: String::new(),
            host_engine_text: String::new(),
            stream_kind: 1,
            completion: 1,
        },
        Backend::Host(engine) => CommInfo {
            tier: parts.tier as i32,
            vendor: if driver { vendor } else { String::new() },
            library_path: String::new(),
            library_version: 0,
            host_engine: engine.key(),
            host_engine_text: engine.about(),
            stream_kind: if driver { 1 } else { 2 },
            completion: if driver { 3 } else { 2 },
        },
    })
}

/// The asynchronous state: 0, InProgress or an error code.
pub fn comm_async_error(handle: Handle) -> Result<i32> {
    let comm = table::get(handle)?;
    let parts = match &*lock(&comm.made) {
        Made::Pending => return Ok(Code::InProgress as i32),
        Made::Failed(error) => {
            place(handle).target.fail(error.clone());
            return Ok(error.code() as i32);
        }
        Made::Gone => return Ok(Code::Aborted as i32),
        Made::Ready(parts) => Arc::clone(parts),
    };
    let state = (|| {
        if let Some(error) = &*lock(&parts.failed) {
            return Err(error.clone());
        }
        if parts.is_busy() {
            return Ok(Progress::Pending);
        }
        // Whoever is on the channel now looks for us.
        if let Ok(mut channel) = parts.channel.try_lock() {
            look(handle, &parts, &mut channel)?;
        }
        match &parts.backend {
            Backend::Native(native) => {
                if native.library().symbols.comm_get_async_error.is_none() {
                    return Ok(Progress::Done);
                }
                native.async_error().map_err(|error| {
                    if breaks(error.code()) {
                        break_down(handle, &comm, &parts, &error)
                    } else {
                        error
                    }
                })
            }
            Backend::Host(engine) => engine.check_failure().map(|()| Progress::Done),
        }
    })();
    match state {
        Ok(Progress::Done) => Ok(0),
        Ok(Progress::Pending) => Ok(Code::InProgress as i32),
        Err(error) => {
            parts.record_failure(&error);
            let code = error.code() as i32;
            if parts.native().is_some() && is_end_of_all(&error) {
                place(handle).target.end(error.clone());
                place(handle).target.set_ops(&CLOSED);
            }
            place(handle).target.fail(error);
            Ok(code)
        }
    }
}

/// Whether a rank is gone or has ended the communicator, after which none can work with it.
pub(crate) fn is_end_of_all(error: &Error) -> bool {
    matches!(error.code(), Code::RemoteError | Code::Aborted)
}

/// Looks at the channel of a communicator: the first thing that ends it on all ranks, or that lets this one
/// wait for ever.
pub(crate) fn look(handle: Handle, parts: &Parts, channel: &mut Channel) -> Result<()> {
    channel.look()?;
    channel.first_dead()?;
    match &parts.backend {
        Backend::Native(_) => channel.left_early(place(handle).target.counts().collectives),
        // Its operations see by themselves who is gone.
        Backend::Host(_) => channel.ended(),
    }
}

/// The vendor's communicator has become unusable on this rank: the others, who may wait for it inside the
/// vendor's work, are told, and no call goes to the vendor any more. What the communicator has failed with.
pub(crate) fn break_down(handle: Handle, comm: &Comm, parts: &Parts, error: &Error) -> Error {
    let first = lock(&parts.failed).clone();
    if let Some(first) = first {
        return first;
    }
    // A vendor that misses another rank mostly knows less of it than the channel, if not later.
    let cause = match error.code() {
        Code::RemoteError => cause_elsewhere(handle, parts),
        _ => None,
    };
    let told = cause.is_some();
    let error = cause.unwrap_or_else(|| error.clone());
    parts.record_failure(&error);
    if !told {
        tell(comm, parts, &error);
    }
    let target = &place(handle).target;
    target.end(error.clone());
    target.set_ops(&CLOSED);
    if parts.infos[comm.rank() as usize].liveness_ms > 0
        && let Some(native) = parts.native()
    {
        abort_vendor(handle, comm, native);
    }
    error
}

/// Tells the other ranks that this one can't go on.
fn tell(comm: &Comm, parts: &Parts, error: &Error) {
    let until = Instant::now() + ABORT_COURTESY;
    loop {
        match parts.channel.try_lock() {
            Ok(mut channel) => return channel.announce_failure(error),
            // Somebody looks at it.
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_micros(200)),
            Err(_) => {
                return log::warn!("{}: the other ranks can't be told: {error}", comm.label());
            }
        }
    }
}

/// What the channel knows, or hears within a moment, of other ranks.
fn cause_elsewhere(handle: Handle, parts: &Parts) -> Option<Error> {
    let until = Instant::now() + NEWS;
    while Instant::now() < until {
        if let Ok(mut channel) = parts.channel.try_lock()
            && let Err(error) = look(handle, parts, &mut channel)
        {
            return Some(error);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Compares calls across the ranks before they are made, where call checking is on. `first` is the
/// number of the first of their collectives.
pub(crate) fn compare_calls(comm: &Comm, calls: &[Call], first: u64) -> Result<()> {
    let parts = comm.parts()?;
    if parts.native().is_none() {
        // The host tier always compares by itself.
        return Ok(());
    }
    // Messages are a matter of two ranks; a barrier compares by being one.
    let checked: Vec<&Call> = calls
        .iter()
        .filter(|c| !matches!(c.kind, OpKind::Send | OpKind::Recv | OpKind::Barrier))
        .collect();
    if checked.is_empty() {
        return Ok(());
    }
    if let Some(driver) = load::process_driver()? {
        for call in &checked {
            if driver.is_capturing(crate::device::stream_of(call.stream))? {
                return Err(Error::not_supported(
                    "calls are compared across ranks (FLAGOSCOMM_CHECK), which needs the host at \
                     every call, and the stream is being captured",
                ));
            }
        }
    }
    let mut writer = Writer::default();
    // A call that this rank refuses by itself is told to the others, who would wait for it.
    let mut refused = None;
    for (number, call) in (first..).zip(&checked) {
        let mut shape = call.shape().with(Field::Number, number);
        if let Err(error) = call.check(comm.rank(), comm.nranks()) {
            shape = shape.with(Field::Refusal, error.text());
            refused.get_or_insert(error);
        }
        shape.encode(&mut writer);
    }
    let patience = comm.init_patience();
    let all = lock(&parts.channel).allgather("a comparison of calls", &writer.0, &patience)?;
    if let Some(refused) = refused {
        return Err(refused);
    }
    if all.all().all(|body| body == all.of(0)) {
        return Ok(());
    }
    let shapes = |body: &[u8]| {
        let mut reader = Reader(body);
        let mut shapes = Vec::new();
        while !reader.0.is_empty() {
            shapes.push(Shape::decode(&mut reader)?);
        }
        Some(shapes)
    };
    let each: Option<Vec<Vec<Shape>>> = all.all().map(shapes).collect();
    let each = each.ok_or_else(|| Error::internal("a rank's calls can't be read"))?;
    match disagreement(&each) {
        None => Ok(()),
        Some(Disagreement { fields, who }) => Err(Error::invalid_usage(format!(
            "the ranks make different calls, in {fields}: {who}"
        ))),
    }
}

// ---- the end

/// Flushes the communicator; collective. Afterwards only questions, abort and destroy are left. `Ok(false)`:
/// in progress.
pub fn comm_finalize(handle: Handle) -> Result<bool> {
    let comm = table::get(handle)?;
    let parts = comm.working()?;
    if comm.options.blocking != Some(false) {
        return finalize(handle, &comm, &parts).map(|()| true);
    }
    if parts.is_busy() {
        return Err(Error::invalid_usage(
            "another call on this communicator is in progress",
        ));
    }
    let busy = UnderWay::begin(&parts);
    let work = move || {
        if let Err(error) = finalize(handle, &comm, &parts) {
            log::warn!("{}: {error}", comm.label());
            parts.record_failure(&error);
        }
        drop(busy);
    };
    std::thread::Builder::new()
        .name("flagos-finalize".into())
        .spawn(work)
        .map_err(|e| Error::system("no thread for the finalize", e))?;
    Ok(false)
}

fn finalize(handle: Handle, comm: &Comm, parts: &Parts) -> Result<()> {
    let _one = parts.collective.try_lock().map_err(|_| {
        Error::invalid_usage("another collective call on this communicator is going on")
    })?;
    let patience = comm.init_patience();
    match &parts.backend {
        Backend::Native(native) if native.library().symbols.comm_finalize.is_some() => {
            bounded(comm, native, "finalize", &patience, finalize_now)?;
        }
        Backend::Native(_) => {}
        Backend::Host(_) => place(handle).target.host.flush(),
    }
    // Programs of NCCL's finalize the ranks of one thread one after the other.
    if !(comm.options.caller == Caller::NcclProgram && parts.shares_a_process()) {
        lock(&parts.channel).allgather("the finalize of all ranks", &[], &patience)?;
    }
    parts.finalized.store(true, Ordering::Release);
    place(handle).target.set_ops(&FINALIZED);
    Ok(())
}

fn finalize_now(native: &Native) -> Result<()> {
    let mut progress = native.finalize()?;
    while progress == Progress::Pending {
        std::thread::sleep(Duration::from_millis(1));
        progress = native.async_error()?;
    }
    Ok(())
}

/// Runs a call of the vendor's that may hang on a helper thread with the device set, and waits for
/// it as long as the patience lasts. A call that lasts longer goes on, for nobody.
pub(crate) fn bounded<T: Send + 'static>(
    comm: &Comm,
    native: &Arc<Native>,
    what: &str,
    patience: &Patience,
    call: impl FnOnce(&Native) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, result) = queue();
    let native = Arc::clone(native);
    let device = comm.device;
    let work = move || {
        let prepared = match load::process_driver() {
            Ok(Some(driver)) => driver.prepare_thread(device),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        let _ = sender.send(prepared.and_then(|()| call(&native)));
    };
    std::thread::Builder::new()
        .name("flagos-vendor".into())
        .spawn(work)
        .map_err(|e| Error::system("no thread for a call of the vendor's", e))?;
    loop {
        let slice = patience.slice().map_err(|end| {
            let (code, how) = match end {
                Impatience::Expired => (Code::Timeout, "did not return in time"),
                Impatience::Aborted => (Code::Aborted, "was aborted"),
            };
            Error::new(code, format!("{}: the vendor's {what} {how}", comm.label()))
        })?;
        match result.take_within(Some(slice)) {
            Ok(result) => return result,
            Err(Nothing::Late) => {}
            Err(Nothing::Gone) => {
                return Err(Error::internal("the thread of a vendor's call panicked"));
            }
        }
    }
}

/// Frees the communicator; local, and bounded by the destroy deadline.
pub fn comm_destroy(handle: Handle) -> Result<()> {
    let comm = table::get(handle)?;
    let parts = match &*lock(&comm.made) {
        Made::Pending => {
            return Err(Error::invalid_usage(format!(
                "{} is still being initialised: abort it, or wait until its init is over",
                comm.label()
            )));
        }
        Made::Failed(_) | Made::Gone => None,
        Made::Ready(parts) => Some(Arc::clone(parts)),
    };
    if table::remove(handle).is_none() {
        return Err(table::stale(handle));
    }
    let Some(parts) = parts else {
        table::release(handle);
        return Ok(());
    };
    let started = Instant::now();
    let limit = comm.destroy_limit();
    let patient = || limit.is_none_or(|limit| started.elapsed() < limit);
    while parts.is_busy() && patient() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stuck = parts.is_busy();
    if stuck {
        comm.abort.set();
    }
    let queued = match &parts.backend {
        Backend::Host(engine) => place(handle).target.host.detach(patient, || engine.abort()),
        Backend::Native(_) => None,
    };
    let target = &place(handle).target;
    target.native.detach();
    let end = match stuck {
        true => End::Abort,
        false => End::Destroy(target.counts().collectives),
    };
    let result = take_down(&comm, &parts, end);
    release(handle, queued);
    result
}

/// Ends everything on the communicator and frees it; from any thread.
pub fn comm_abort(handle: Handle) -> Result<()> {
    let comm = table::get(handle)?;
    if table::remove(handle).is_none() {
        return Err(table::stale(handle));
    }
    comm.abort.set();
    let parts = match &*lock(&comm.made) {
        Made::Ready(parts) => Arc::clone(parts),
        // The init sees the flag, and what it has made by then goes again. Its place is left to it.
        Made::Pending | Made::Gone => return Ok(()),
        Made::Failed(_) => {
            table::release(handle);
            return Ok(());
        }
    };
    let queued = match &parts.backend {
        Backend::Host(engine) => {
            engine.abort();
            place(handle).target.host.detach(|| false, || {})
        }
        Backend::Native(_) => None,
    };
    place(handle).target.native.detach();
    let result = take_down(&comm, &parts, End::Abort);
    release(handle, queued);
    result
}

/// Gives the place back, now, or when the last queued operation has found that it is too late.
fn release(handle: Handle, queued: Option<Turn>) {
    let Some(turn) = queued else {
        table::release(handle);
        return;
    };
    let work = move || {
        place(handle).target.host.detach_later(turn);
        table::release(handle);
    };
    let spawned = std::thread::Builder::new()
        .name("flagos-end".into())
        .spawn(work);
    if let Err(e) = spawned {
        log::warn!("no thread to wait for operations that are still on their streams: {e}");
    }
}

/// Why the work of a communicator that stays is stopped.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    Revoke,
    Shrink,
}

impl Stop {
    /// What this rank did, and what is left to do.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Stop::Revoke => (
                "revoked the communicator (flagosCommRevoke)",
                "it can be shrunk, split and destroyed",
            ),
            Stop::Shrink => (
                "stopped the communicator's work for a shrink (FLAGOS_SHRINK_ABORT)",
                "it can be destroyed",
            ),
        }
    }
}

/// Stops the work of a communicator that stays for a shrink and its destroy.
pub(crate) fn stop_work(handle: Handle, comm: &Comm, parts: &Parts, stop: Stop) {
    let (deed, left) = stop.words();
    let target = &place(handle).target;
    target.end(Error::invalid_usage(format!("this rank {deed}; {left}")));
    target.set_ops(&CLOSED);
    match &parts.backend {
        Backend::Host(engine) => {
            if engine.is_far() {
                announce_end(parts, deed);
            }
            engine.end_by(deed);
        }
        Backend::Native(native) => {
            if native.library().symbols.comm_revoke.is_some()
                && let Err(error) = native.revoke(0)
            {
                log::warn!("{}: {error}", comm.label());
            }
        }
    }
    parts.record_failure(&Error::new(
        Code::Aborted,
        format!("{}: this rank {deed}; {left}", comm.label()),
    ));
}

/// Tells ranks that share no memory with this one what it did.
fn announce_end(parts: &Parts, deed: &str) {
    let until = Instant::now() + ABORT_COURTESY;
    loop {
        match parts.channel.try_lock() {
            Ok(mut channel) => return channel.announce_end(deed),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            // A call waits on it, which the others' end will end.
            Err(_) => return,
        }
    }
}

/// Ends the work of the communicator but keeps it for shrink and destroy.
pub fn comm_revoke(handle: Handle, flags: i32) -> Result<()> {
    let comm = table::get(handle)?;
    let parts = comm.parts()?;
    if flags != 0 {
        return Err(Error::invalid_argument(format!(
            "the flags of a revoke are 0 (default), not {flags}"
        )));
    }
    if let Some(native) = parts.native() {
        native
            .library()
            .symbols
            .comm_revoke
            .ok_or_else(|| native.library().lacks("CommRevoke"))?;
    }
    stop_work(handle, &comm, &parts, Stop::Revoke);
    Ok(())
}

/// Releases device resources until resume.
pub fn comm_suspend(handle: Handle, flags: i32) -> Result<()> {
    let parts = table::get(handle)?.parts()?;
    match parts.native() {
        Some(native) => native.suspend(flags).map(drop),
        None => Err(nothing_to_suspend(parts.tier, "suspended")),
    }
}

/// Takes them back.
pub fn comm_resume(handle: Handle) -> Result<()> {
    let parts = table::get(handle)?.parts()?;
    match parts.native() {
        Some(native) => native.resume().map(drop),
        None => Err(nothing_to_suspend(parts.tier, "resumed")),
    }
}

fn nothing_to_suspend(tier: Tier, what: &str) -> Error {
    let text = format!(
        "a communicator of the {} tier can't be {what}: it holds no device resources of a vendor's library",
        tier.name()
    );
    Error::new(Code::NotSupported, text)
}

/// How a communicator ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// In order, after so many collectives.
    Destroy(u64),
    Abort,
}

/// Takes down what an init has made: the vendor's communicator under the destroy deadline, then
/// the control channel, in order or with an announcement.
pub(crate) fn take_down(comm: &Comm, parts: &Parts, end: End) -> Result<()> {
    let abort = end == End::Abort;
    let result = match &parts.backend {
        Backend::Host(engine) => {
            if abort {
                engine.abort();
            }
            Ok(())
        }
        Backend::Native(_) => Ok(()),
    };
    // First the others learn of it, since the vendor's end may take its time.
    let until = Instant::now() + if abort { ABORT_COURTESY } else { GOODBYE };
    loop {
        match parts.channel.try_lock() {
            Ok(mut channel) => {
                match end {
                    End::Abort => {
                        channel.announce_abort("");
                        channel.leave(None);
                    }
                    End::Destroy(collectives) => channel.leave(Some(collectives)),
                }
                break;
            }
            // Somebody waits on it: with an abort it sees the flag, tells the others and leaves.
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => break,
        }
    }
    if let Backend::Native(native) = &parts.backend {
        // The vendor's destroy may wait for a rank that is gone, or that has given up.
        let broken = lock(&parts.failed).is_some();
        return end_vendor(comm, native, abort || broken);
    }
    result
}

/// Runs the vendor's destroy or abort on a helper thread and waits for it at most so long.
fn end_vendor(comm: &Comm, native: &Arc<Native>, abort: bool) -> Result<()> {
    let what = if abort { "abort" } else { "destroy" };
    if !native.end.begin() {
        return wait_for_end(comm, native);
    }
    let ending = Arc::clone(native);
    let (sender, done) = queue();
    let device = comm.device;
    let abort = abort && ending.library().symbols.comm_abort.is_some();
    let work = move || {
        let _ = sender.send(end_now(&ending, device, abort));
    };
    std::thread::Builder::new()
        .name("flagos-end".into())
        .spawn(work)
        .map_err(|e| Error::system("no thread for the vendor's end", e))?;
    match done.take_within(comm.destroy_limit()) {
        Ok(result) => result,
        Err(Nothing::Gone) => Err(Error::internal("the thread of the vendor's end panicked")),
        Err(Nothing::Late) => Err(late(comm, what)),
    }
}

fn late(comm: &Comm, what: &str) -> Error {
    let hint = match what {
        "destroy" if comm.nranks() > 1 => " (it may wait for the other ranks' destroy)",
        _ => "",
    };
    let error = Error::new(
        Code::Timeout,
        format!(
            "{}: the vendor's {what} did not return in time{hint}; its communicator is left behind \
             (the limit: FLAGOSCOMM_DESTROY_TIMEOUT, or the configuration's)",
            comm.label()
        ),
    );
    log::warn!("{error}");
    error
}

/// The thread that watches the ranks has aborted it already, or is about to.
fn wait_for_end(comm: &Comm, native: &Native) -> Result<()> {
    let (started, limit) = (Instant::now(), comm.destroy_limit());
    while !native.end.is_over() {
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            return Err(late(comm, "abort"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Aborts the vendor's communicator of one that stays for its destroy, on a thread of its own: whoever
/// waits on the device, or inside a call of the vendor's, is free then.
pub(crate) fn abort_vendor(handle: Handle, comm: &Comm, native: &Arc<Native>) {
    if native.library().symbols.comm_abort.is_none() {
        log::warn!(
            "{}: {}, so that what waits on the device can't be freed",
            comm.label(),
            native.library().lacks("CommAbort")
        );
        return;
    }
    if !native.end.begin() {
        return;
    }
    // As for an abort by the caller: no call reaches the vendor's communicator from here on.
    place(handle).target.set_ops(&CLOSED);
    place(handle).target.native.detach();
    let ending = Arc::clone(native);
    let (device, label) = (comm.device, comm.label());
    let work = move || {
        if let Err(error) = end_now(&ending, device, true) {
            log::warn!("{label}: the vendor's communicator can't be aborted: {error}");
        }
        ending.end.set_over();
    };
    let spawned = std::thread::Builder::new()
        .name("flagos-end".into())
        .spawn(work);
    if let Err(e) = spawned {
        log::warn!("no thread to abort a vendor's communicator: {e}");
        native.end.set_over();
    }
}

fn end_now(native: &Native, device: i32, abort: bool) -> Result<()> {
    let driver = load::process_driver()?;
    if let Some(driver) = driver {
        driver.prepare_thread(device)?;
    }
    let _ = if abort {
        native.abort()?
    } else {
        native.destroy()?
    };
    driver.map_or(Ok(()), |driver| native.word.free(driver))
}

/// Aborts a vendor's communicator that nobody wants, without waiting for it.
pub(crate) fn abort_in_background(native: Arc<Native>) {
    let work = move || {
        let outcome = if native.library().symbols.comm_abort.is_some() {
            native.abort()
        } else {
            native.destroy()
        };
        if let Err(error) = outcome {
            log::warn!("a vendor's communicator can't be aborted: {error}");
        }
    };
    if let Err(e) = std::thread::Builder::new()
        .name("flagos-end".into())
        .spawn(work)
    {
        log::warn!("no thread to abort a vendor's communicator: {e}");
    }
}
