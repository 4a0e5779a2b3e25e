//! Init: rendezvous, exchange of facts, one verdict, then the agreed tier on all ranks.

use super::agree::{self, ProbeVote, RankInfo, Verdict};
use super::options::{Limit, Options};
use super::table::{self, Handle, place};
use super::{Backend, Comm, FirstFailure, Made, Native, Parts, Ranks, group, rare};
use crate::bootstrap::interface::{self, Family, Filter};
use crate::bootstrap::rendezvous::{self, Hello};
use crate::bootstrap::unique_id::{self, IdContent, Secret};
use crate::config::{self, DeviceMode, SocketFamily, Tier};
use crate::control::channel::Channel;
use crate::control::patience::{AbortFlag, Impatience, Patience};
use crate::control::wire::{Reader, Writer};
use crate::device::{DeviceWord, Driver};
use crate::error::{Code, Error, Result};
use crate::host::liveness::{Liveness, PeerProcess};
use crate::host::op::{HostOp, WaitPolicy};
use crate::host::port::Runner;
use crate::host::shm::ShmEngine;
use crate::load;
use crate::ops::{HOST, INITIALISING, lock};
use crate::sys::handoff::{Nothing, Receiver, queue};
use crate::sys::memory::Segment;
use crate::sys::{process, unix};
use crate::types::{DataType, MAX_RANKS, OpKind, RedOp, Reduction, UNIQUE_ID_BYTES};
use crate::vendor::NativePort;
use crate::vendor::nccl::{CommOptions, Knob, Library, Progress, VendorComm};
use crate::vendor::port::DevicePolicy;
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long an id that nobody uses is served, as a multiple of the init deadline.
const UNUSED_ID_FACTOR: u32 = 10;

// ---- unique ids

fn family() -> Family {
    match config::get().socket_family {
        None => Family::Any,
        Some(SocketFamily::Ipv4) => Family::V4,
        Some(SocketFamily::Ipv6) => Family::V6,
    }
}

/// The interface filter in force: ours, else the one that the user gave to a vendor.
fn filter() -> Option<Filter> {
    if let Some(own) = &config::get().socket_ifname {
        return Some(Filter::parse("FLAGOSCOMM_SOCKET_IFNAME", own));
    }
    for name in [
        "NCCL_SOCKET_IFNAME",
        "FLAGCX_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
    ] {
        if let Some(value) = config::foreign(name) {
            let value = value.to_string_lossy().into_owned();
            log::info!("{name}={value} guides the choice of the control interface");
            return Some(Filter::parse(name, &value));
        }
    }
    let address = config::foreign("HCCL_IF_IP")?
        .to_string_lossy()
        .into_owned();
    let wanted: std::net::IpAddr = address.parse().ok()?;
    let all = crate::sys::net::interfaces().ok()?;
    let name = &all.iter().find(|i| i.addr == wanted)?.name;
    log::info!("HCCL_IF_IP={address} guides the choice of the control interface");
    Some(Filter::parse("HCCL_IF_IP", &format!("={name}")))
}

fn unused_limit() -> Option<Duration> {
    config::get()
        .timeouts
        .init
        .map(|limit| limit * UNUSED_ID_FACTOR)
}

/// Makes a unique id and serves it from this process.
pub fn get_unique_id() -> Result<[u8; UNIQUE_ID_BYTES]> {
    rendezvous::start(filter().as_ref(), family(), unused_limit())
}

/// An id whose ranks are all in this process.
fn local_unique_id() -> Result<[u8; UNIQUE_ID_BYTES]> {
    let loopback = Filter::parse("loopback", "=lo");
    rendezvous::start(Some(&loopback), Family::Any, unused_limit()).or_else(|_| get_unique_id())
}

// ---- what is to be made

/// One rank's init, with everything that depends on the calling thread already settled.
#[derive(Debug)]
pub(crate) struct Spec {
    pub ids: Vec<IdContent>,
    pub tiers: Vec<Tier>,
    pub info: RankInfo,
    /// The communicator to split, for a vendor that shares resources with it.
    pub parent: Option<VendorParent>,
}

/// What a vendor needs to make a child of one of its communicators.
#[derive(Clone, Debug)]
pub(crate) enum VendorParent {
    /// Every rank of the parent takes part.
    Split {
        parent: Handle,
        color: i32,
        key: i32,
    },
    /// Every rank of the parent but these takes part.
    Shrink {
        parent: Handle,
        excluded: Vec<u32>,
        abort: bool,
    },
}

/// A recorded init or split.
pub(crate) struct Pending {
    pub handle: Handle,
    pub comm: Arc<Comm>,
    pub out: OutHandle,
    pub work: Work,
}

/// What a pending communicator waits for.
pub(crate) enum Work {
    Init(Box<Spec>),
    Split {
        parent: Handle,
        color: i32,
        key: i32,
    },
    Shrink(Box<Shrink>),
}

/// What a shrink is about.
#[derive(Debug)]
pub(crate) struct Shrink {
    pub parent: Handle,
    pub survivors: Vec<u32>,
    pub excluded: Vec<u32>,
    pub abort: bool,
}

impl Pending {
    /// Whether this rank gets a communicator if all goes well.
    fn is_member(&self) -> bool {
        !matches!(self.work, Work::Split { color, .. } if color < 0)
    }

    /// Shows the caller the handle, or nothing if this rank is no member.
    fn deliver(&self) {
        self.out.set(if self.is_member() { self.handle } else { 0 });
    }

    /// Runs it on a thread of its own; [`super::end::comm_async_error`] tells how it goes.
    fn run_in_background(self) -> Result<()> {
        self.deliver();
        let spawned = std::thread::Builder::new()
            .name("flagos-init".into())
            .spawn(move || {
                let Err(error) = run(&self) else { return };
                log::warn!("{error}");
                let place = place(self.handle);
                if place.is_live(self.handle) {
                    place.target.fail(error);
                }
            });
        spawned
            .map(drop)
            .map_err(|e| Error::system("no thread for the init", e))
    }
}

/// Where the caller wants the handle, after a group's end perhaps.
#[derive(Clone, Copy)]
pub(crate) struct OutHandle(*mut Handle);

// SAFETY: the caller promised that the place stays valid until the call or the outermost end
// returns, and both join the threads that write it.
unsafe impl Send for OutHandle {}
// SAFETY: as above; it is written through a shared reference only after the threads have ended.
unsafe impl Sync for OutHandle {}

impl OutHandle {
    /// # Safety
    /// `out` must be valid for writing until the call, and inside a group the outermost end, returns.
    pub(crate) unsafe fn new(out: *mut Handle) -> OutHandle {
        OutHandle(out)
    }

    pub(crate) fn set(self, handle: Handle) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write_unaligned(handle) };
    }
}

fn limit(own: Limit, of_environment: Option<Duration>) -> Option<Duration> {
    match own {
        Limit::Unset => of_environment,
        Limit::None => None,
        Limit::After(limit) => Some(limit),
    }
}

impl Comm {
    pub(crate) fn init_patience(&self) -> Patience {
        let wanted = limit(self.options.init_timeout, config::get().timeouts.init);
        Patience::starting_now(wanted, &self.abort)
    }

    pub(crate) fn destroy_limit(&self) -> Option<Duration> {
        limit(self.options.destroy_timeout, config::get().timeouts.destroy)
    }

    fn collective_limit(&self) -> Option<Duration> {
        limit(
            self.options.collective_timeout,
            config::get().timeouts.collective,
        )
    }
}

/// The order of tiers that this rank wants.
fn tiers(options: &Options) -> Result<Vec<Tier>> {
    match (&options.tiers, &config::get().tiers) {
        (Some(text), _) => agree::parse_order(text),
        (None, Some(order)) => Ok(order.clone()),
        (None, None) => Ok(Tier::DEFAULT_ORDER.to_vec()),
    }
}

/// What this rank says about itself. Asks the driver on the calling thread, now.
fn own_info(nranks: u32, options: &Options, tiers: &[Tier]) -> RankInfo {
    let pid = std::process::id();
    let mut info = RankInfo {
        library_version: crate::internal::version_code() as u32,
        nranks,
        vendor: String::new(),
        no_native: String::new(),
        device: -1,
        uuid: None,
        machine: config::get()
            .hostid
            .clone()
            .unwrap_or_else(process::boot_id),
        host: process::host_name(),
        pid,
        pid_namespace: process::namespace("pid"),
        start_time: process::start_time(pid).unwrap_or(0),
        tiers: tiers.to_vec(),
        checking: config::get().check,
        fatal: None,
    };
    let fatal = |error: Error| Some((error.code() as u32, error.text().to_owned()));
    let chosen = match load::process_vendor() {
        Ok(chosen) => chosen,
        Err(error) => {
            info.fatal = fatal(error);
            return info;
        }
    };
    info.vendor = chosen.vendor.map(|v| v.key.to_owned()).unwrap_or_default();
    let Some(driver) = chosen.driver() else {
        info.no_native = match &chosen.driver {
            Err(error) => error.text().to_owned(),
            Ok(_) => chosen.how.clone(),
        };
        return info;
    };
    match bind(driver, options.device) {
        Ok(device) => {
            info.device = device;
            info.uuid = driver.uuid(device);
        }
        Err(error) if tiers.contains(&Tier::Native) => info.fatal = fatal(error),
        Err(error) => info.no_native = error.text().to_owned(),
    }
    info
}

/// The device that a communicator made now on this thread is bound to.
fn bind(driver: &Driver, wanted: Option<i32>) -> Result<i32> {
    let Some(wanted) = wanted else {
        return driver.current();
    };
    let count = driver.count()?;
    if (0..count).contains(&wanted) {
        return Ok(wanted);
    }
    Err(Error::invalid_argument(format!(
        "device {wanted} is asked for, but the driver has {count} devices (from 0)"
    )))
}

/// Checks the arguments and takes a place in the table.
fn begin(
    nranks: i32,
    rank: i32,
    ids: &[[u8; UNIQUE_ID_BYTES]],
    options: &Options,
) -> Result<(Handle, Arc<Comm>, Spec)> {
    let n = u32::try_from(nranks)
        .ok()
        .filter(|n| (1..=MAX_RANKS as u32).contains(n));
    let n = n.ok_or_else(|| {
        Error::invalid_argument(format!(
            "nranks is {nranks}, but must be from 1 to {MAX_RANKS}"
        ))
    })?;
    let r = u32::try_from(rank).ok().filter(|r| *r < n).ok_or_else(|| {
        Error::invalid_argument(format!(
            "rank is {rank}, but must be from 0 to {} (nranks is {nranks})",
            nranks - 1
        ))
    })?;
    if ids.is_empty() {
        return Err(Error::invalid_argument("no unique id was given"));
    }
    let ids = ids
        .iter()
        .map(unique_id::decode)
        .collect::<Result<Vec<_>>>()?;
    let tiers = tiers(options)?;
    let info = own_info(n, options, &tiers);
    let (handle, comm) = new_comm(n, r, info.device, options)?;
    Ok((
        handle,
        comm,
        Spec {
            ids,
            tiers,
            info,
            parent: None,
        },
    ))
}

/// A communicator whose init goes on, and its handle.
pub(crate) fn new_comm(
    nranks: u32,
    rank: u32,
    device: i32,
    options: &Options,
) -> Result<(Handle, Arc<Comm>)> {
    if config::get().check {
        rare::set(rare::CHECKING);
    }
    let comm = Arc::new(Comm {
        ranks: Ranks::new(rank, nranks),
        name: options.name.clone().unwrap_or_default(),
        options: options.clone(),
        device,
        abort: AbortFlag::default(),
        made: Mutex::new(Made::Pending),
    });
    let handle = table::insert(Arc::clone(&comm))?;
    place(handle).target.set_ops(&INITIALISING);
    Ok((handle, comm))
}

/// Joins a communicator. `Ok(false)`: in progress.
///
/// # Safety
/// `out` must be valid for writing until the call, and inside a group the outermost end, returns.
pub unsafe fn comm_init_rank(
    out: *mut Handle,
    nranks: i32,
    ids: &[[u8; UNIQUE_ID_BYTES]],
    rank: i32,
    options: &Options,
) -> Result<bool> {
    // SAFETY: the caller's promise.
    let out = unsafe { OutHandle::new(out) };
    out.set(0);
    let (handle, comm, spec) = begin(nranks, rank, ids, options)?;
    start(Pending {
        handle,
        comm,
        out,
        work: Work::Init(Box::new(spec)),
    })
}

/// Makes all ranks of a communicator in this process.
///
/// # Safety
/// `out` must be valid for writing `ndev` handles until the call returns.
pub unsafe fn comm_init_all(
    out: *mut Handle,
    ndev: i32,
    devices: Option<&[i32]>,
    options: &Options,
) -> Result<()> {
    let n = usize::try_from(ndev)
        .ok()
        .filter(|n| (1..=MAX_RANKS).contains(n))
        .ok_or_else(|| {
            Error::invalid_argument(format!("ndev is {ndev}, but must be from 1 to {MAX_RANKS}"))
        })?;
    if let Some(devices) = devices.filter(|d| d.len() != n) {
        return Err(Error::invalid_argument(format!(
            "{} devices are listed for {n} ranks",
            devices.len()
        )));
    }
    if group::is_open() {
        return Err(Error::invalid_usage(
            "flagosCommInitAll makes all ranks at once and can't be inside a group",
        ));
    }
    let outs: Vec<OutHandle> = (0..n)
        // SAFETY: the caller's promise: room for `ndev` handles.
        .map(|i| unsafe { OutHandle::new(out.add(i)) })
        .collect();
    outs.iter().for_each(|o| o.set(0));
    let id = [local_unique_id()?];
    // Devices only mean something where a driver is. The host tier may have more ranks than devices.
    let by_device = match load::process_driver()? {
        Some(_) if devices.is_some() || tiers(options)?.contains(&Tier::Native) => true,
        Some(driver) => driver.count()? >= ndev,
        None => false,
    };
    let mut all = Vec::with_capacity(n);
    for (rank, out) in outs.iter().enumerate() {
        let mut own = options.clone();
        own.blocking = None;
        if by_device {
            own.device = Some(devices.map_or(rank as i32, |d| d[rank]));
        }
        match begin(ndev, rank as i32, &id, &own) {
            Ok((handle, comm, spec)) => {
                all.push(Pending {
                    handle,
                    comm,
                    out: *out,
                    work: Work::Init(Box::new(spec)),
                });
            }
            Err(error) => {
                cancel(all);
                rendezvous::cancel(&unique_id::decode(&id[0])?, &quick());
                return Err(error);
            }
        }
    }
    run_all(all).map(drop)
}

fn quick() -> Patience {
    Patience::starting_now(Some(Duration::from_secs(1)), &AbortFlag::default())
}

// ---- running it

/// Runs a pending communicator now, in the background, or at the group's end.
pub(crate) fn start(pending: Pending) -> Result<bool> {
    if group::is_open() {
        return group::defer(pending).map(|()| true);
    }
    if pending.comm.options.blocking == Some(false) {
        return pending.run_in_background().map(|()| false);
    }
    let result = run(&pending);
    match &result {
        Ok(()) => pending.deliver(),
        Err(_) => discard(&pending),
    }
    result.map(|()| true)
}

/// Takes a communicator that never worked off the table.
fn discard(pending: &Pending) {
    pending.out.set(0);
    if table::remove(pending.handle).is_some() {
        table::release(pending.handle);
    }
}

/// Drops recorded inits without running them.
pub(crate) fn cancel(all: Vec<Pending>) {
    for pending in all {
        discard(&pending);
        if let Work::Init(spec) = &pending.work
            && pending.comm.rank() == 0
        {
            spec.ids
                .iter()
                .for_each(|id| rendezvous::cancel(id, &quick()));
        }
    }
}

/// Runs inits and splits together, each on a thread of its own. If one fails, all are taken down.
/// `Ok(false)`: they go on in the background.
pub(crate) fn run_all(all: Vec<Pending>) -> Result<bool> {
    if all.iter().all(|p| p.comm.options.blocking == Some(false)) {
        all.into_iter().try_for_each(Pending::run_in_background)?;
        return Ok(false);
    }
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .map(|pending| {
                let spawned = std::thread::Builder::new()
                    .name("flagos-init".into())
                    .spawn_scoped(scope, || run(pending));
                if spawned.is_err() {
                    // The others must not wait for a rank that will never come.
                    all.iter().for_each(|p| p.comm.abort.set());
                }
                spawned
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.map(|t| t.join()) {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(Error::internal("a thread of an init panicked")),
                Err(e) => Err(Error::system("no thread for an init", e)),
            })
            .collect()
    });
    // An error that says more than "another rank failed" comes first.
    let first = results
        .iter()
        .filter_map(|r| r.as_ref().err())
        .min_by_key(|e| matches!(e.code(), Code::RemoteError | Code::Aborted));
    match first {
        None => {
            all.iter().for_each(Pending::deliver);
            Ok(true)
        }
        Some(error) => {
            let error = error.clone();
            for (pending, result) in all.iter().zip(&results) {
                pending.out.set(0);
                if result.is_ok() {
                    let _ = super::end::comm_abort(pending.handle);
                } else {
                    discard(pending);
                }
            }
            Err(error)
        }
    }
}

fn run(pending: &Pending) -> Result<()> {
    let comm = &pending.comm;
    let made = match &pending.work {
        Work::Init(spec) => make(comm, spec, &comm.init_patience()).map(Some),
        Work::Split { parent, color, key } => super::split::make(comm, *parent, *color, *key),
        Work::Shrink(shrink) => super::split::make_shrunk(comm, shrink).map(Some),
    };
    let parts = match made {
        Ok(Some(parts)) => Arc::new(parts),
        Ok(None) => {
            // No colour: this rank only took part.
            if table::remove(pending.handle).is_some() {
                table::release(pending.handle);
            }
            return Ok(());
        }
        Err(error) => {
            let error = error.context(comm.label());
            fail(pending.handle, comm, &error);
            return Err(error);
        }
    };
    install(pending.handle, comm, &parts)
}

/// Remembers why an init failed; a handle that was aborted meanwhile gives its place back.
fn fail(handle: Handle, comm: &Comm, error: &Error) {
    let mut made = lock(&comm.made);
    if place(handle).is_live(handle) {
        *made = Made::Failed(error.clone());
    } else {
        *made = Made::Gone;
        table::release(handle);
    }
}

/// Puts what was made behind the handle.
fn install(handle: Handle, comm: &Arc<Comm>, parts: &Arc<Parts>) -> Result<()> {
    let place = place(handle);
    let target = &place.target;
    target.reset(comm.label(), comm.rank(), comm.nranks());
    let mut made = lock(&comm.made);
    if comm.abort.is_set() || !place.is_live(handle) {
        drop(made);
        let error = Error::new(
            Code::Aborted,
            "the communicator was aborted during its init",
        );
        let _ = super::end::take_down(comm, parts, true);
        fail(handle, comm, &error);
        return Err(error);
    }
    match &parts.backend {
        Backend::Native(native) => {
            let policy = match config::get().device {
                Some(DeviceMode::Guard) => DevicePolicy::Guard,
                Some(DeviceMode::Error) => DevicePolicy::Error,
                Some(DeviceMode::Trust) => DevicePolicy::Trust,
                None if native.library().vendor.quirks.needs_device => DevicePolicy::Guard,
                None => DevicePolicy::Trust,
            };
            let driver = load::process_driver()?
                .ok_or_else(|| Error::internal("a native communicator without a driver"))?;
            let (library, raw) = (native.library(), native.raw());
            let word = native.word.address();
            NativePort::attach(target, library, raw, driver, word, policy, comm.device);
        }
        Backend::Host(engine) => {
            let own = &parts.infos[comm.rank() as usize];
            let processes = parts
                .infos
                .iter()
                .map(|info| PeerProcess {
                    pid: info.pid,
                    start_time: info.start_time,
                    watchable: info.pid_namespace == own.pid_namespace
                        && info.machine == own.machine
                        && info.pid != own.pid
                        && info.start_time != 0,
                })
                .collect();
            let runner = Runner {
                engine: Arc::clone(engine),
                liveness: Liveness::new(
                    Arc::clone(&parts.channel),
                    comm.abort.clone(),
                    processes,
                    comm.collective_limit(),
                ),
                label: comm.label(),
                failed: Arc::clone(&parts.failed),
            };
            target
                .host
                .attach(runner, load::process_driver()?, comm.device);
            target.set_ops(&HOST);
        }
    }
    *made = Made::Ready(Arc::clone(parts));
    Ok(())
}

/// From the first connection to a tier that all ranks agreed on.
pub(crate) fn make(comm: &Comm, spec: &Spec, patience: &Patience) -> Result<Parts> {
    let id = &spec.ids[0];
    let (rank, nranks) = (comm.rank(), comm.nranks());
    // Several ids are for vendors that want several roots; one rendezvous is enough for us.
    if rank == 0 {
        spec.ids[1..]
            .iter()
            .for_each(|id| rendezvous::cancel(id, patience));
    }
    let hub = match rank {
        0 => Some(rendezvous::listen(filter_for(id).as_ref(), family())?),
        _ => None,
    };
    let hello = Hello {
        nranks,
        rank,
        pid: spec.info.pid,
        host: spec.info.host.clone(),
        hub: hub
            .as_ref()
            .map(|h| h.addresses.clone())
            .unwrap_or_default(),
    };
    let addresses = rendezvous::arrive(id, &hello, patience)?;
    let mut channel = match &hub {
        Some(hub) => Channel::accept(hub, &id.secret, nranks, patience)?,
        None => Channel::join(&addresses, &id.secret, rank, nranks, patience)?,
    };
    drop(hub);
    let infos = channel.allgather("the exchange of facts", &spec.info.encode(), patience)?;
    let infos: Option<Vec<RankInfo>> = infos.iter().map(|i| RankInfo::decode(i)).collect();
    let infos = infos.ok_or_else(|| Error::internal("a rank's facts can't be read"))?;
    channel.set_names(infos.iter().map(RankInfo::place).collect());
    agree::consistent(&infos)?;

    let mut declined: Vec<(Tier, String)> = Vec::new();
    let mut code = Code::NotSupported;
    for tier in &spec.tiers {
        let outcome = match agree::worth_probing(*tier, &infos) {
            Verdict::Go => match tier {
                Tier::Native => native(comm, spec, &mut channel, &infos, patience, &mut code)?,
                Tier::Host => host(comm, &id.secret, &mut channel, &infos, patience)?,
                Tier::Flagcx => Err(String::from("FlagCX is not driven by this version")),
            },
            Verdict::Decline(reason) => Err(reason),
            Verdict::Stop(text) => return Err(Error::invalid_usage(text)),
        };
        match outcome {
            Ok(backend) => {
                say(comm, *tier, &declined, &infos, &backend);
                return Ok(Parts {
                    tier: *tier,
                    channel: Arc::new(Mutex::new(channel)),
                    backend,
                    infos,
                    failed: FirstFailure::default(),
                    collective: Mutex::new(()),
                    secret: id.secret,
                });
            }
            Err(reason) => declined.push((*tier, reason)),
        }
    }
    Err(Error::new(
        code,
        format!("no tier can be used: {}", declined_text(&declined)),
    ))
}

/// A rendezvous on loopback is met on loopback.
fn filter_for(id: &IdContent) -> Option<Filter> {
    if id.addresses.iter().all(|a| a.ip().is_loopback()) {
        let lo = crate::sys::net::interfaces().ok()?;
        if interface::choose(&lo, Some(&Filter::parse("loopback", "=lo")), family()).is_ok() {
            return Some(Filter::parse("loopback", "=lo"));
        }
    }
    filter()
}

fn declined_text(declined: &[(Tier, String)]) -> String {
    let each: Vec<String> = declined
        .iter()
        .map(|(tier, reason)| format!("{}: {reason}", tier.name()))
        .collect();
    each.join("; ")
}

/// Says once, on rank 0, what was agreed and why not something better.
fn say(
    comm: &Comm,
    tier: Tier,
    declined: &[(Tier, String)],
    infos: &[RankInfo],
    backend: &Backend,
) {
    if comm.rank() != 0 {
        return;
    }
    let what = match backend {
        Backend::Native(native) => {
            let library = native.library();
            format!(
                "{} {} ({})",
                library.vendor.title,
                library.version_text(),
                library.path().display()
            )
        }
        Backend::Host(_) => String::from("host memory"),
    };
    log::info!("{} runs on the {} tier: {what}", comm.label(), tier.name());
    let native = declined.iter().find(|(tier, _)| *tier == Tier::Native);
    if let Some((_, reason)) = native {
        let text = format!("{} does not use a vendor's library: {reason}", comm.label());
        // A machine without an accelerator is nothing to warn of.
        if infos.iter().any(|i| !i.vendor.is_empty()) {
            log::warn!("{text}");
        } else {
            log::info!("{text}");
        }
    }
}

// ---- the native tier

/// The options as the vendor's config takes them.
pub(crate) fn vendor_options(options: &Options) -> Result<CommOptions> {
    let knobs = &options.vendor;
    let mut out = CommOptions::default();
    if options.vendor_nonblocking {
        out.set(Knob::Blocking, 0);
    }
    for (knob, value) in [
        (Knob::CgaClusterSize, knobs.cga_cluster_size),
        (Knob::MinCtas, knobs.min_ctas),
        (Knob::MaxCtas, knobs.max_ctas),
        (Knob::SplitShare, knobs.split_share),
        (Knob::TrafficClass, knobs.traffic_class),
        (Knob::CollnetEnable, knobs.collnet_enable),
        (Knob::CtaPolicy, knobs.cta_policy),
        (Knob::ShrinkShare, knobs.shrink_share),
        (Knob::NvlsCtas, knobs.nvls_ctas),
        (Knob::NChannelsPerNetPeer, knobs.n_channels_per_net_peer),
        (Knob::NvlinkCentricSched, knobs.nvlink_centric_sched),
        (Knob::GraphUsageMode, knobs.graph_usage_mode),
        (Knob::NumRmaCtx, knobs.num_rma_ctx),
        (Knob::MaxP2pPeers, knobs.max_p2p_peers),
    ] {
        if let Some(value) = value {
            out.set(knob, value);
        }
    }
    if let Some(name) = &knobs.net_name {
        out.set_net_name(name.clone());
    }
    if let Some(name) = &options.name {
        let name = std::ffi::CString::new(name.as_str())
            .map_err(|_| Error::invalid_argument("the communicator's name holds a NUL"))?;
        out.set_comm_name(name);
    }
    Ok(out)
}

/// A rank's vote on the vendor's init: nothing, or code and text.
fn init_vote(result: &Result<()>) -> Vec<u8> {
    let mut writer = Writer::default();
    match result {
        Ok(()) => writer.u32(0),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    writer.0
}

fn vote_code(vote: &[u8]) -> u32 {
    Reader(vote).u32().unwrap_or(Code::InternalError as u32)
}

fn native(
    comm: &Comm,
    spec: &Spec,
    channel: &mut Channel,
    infos: &[RankInfo],
    patience: &Patience,
    code: &mut Code,
) -> Result<std::result::Result<Backend, String>> {
    let opened = load::process_library();
    let mut vote = ProbeVote {
        reason: String::new(),
        version: 0,
        path: String::new(),
        id: Vec::new(),
    };
    match &opened {
        Err(error) => vote.reason = error.text().to_owned(),
        Ok(library) => {
            vote.version = library.version.map_or(0, |v| v.nccl_code() as i32);
            vote.path = library.path().display().to_string();
            // Several ids of ours mean several roots of the vendor's, one on each of the first ranks.
            if (comm.rank() as usize) < roots(spec, library) {
                match library.unique_id() {
                    Ok(id) => vote.id = id,
                    Err(error) => vote.reason = error.text().to_owned(),
                }
            }
        }
    }
    let votes = channel.allgather("the vote on the vendor's library", &vote.encode(), patience)?;
    let votes: Option<Vec<ProbeVote>> = votes.iter().map(|v| ProbeVote::decode(v)).collect();
    let votes = votes.ok_or_else(|| Error::internal("a rank's vote can't be read"))?;
    match agree::after_probe(infos, &votes) {
        Verdict::Go => {}
        Verdict::Decline(reason) => return Ok(Err(reason)),
        Verdict::Stop(text) => return Err(Error::invalid_usage(text)),
    }
    let library = opened?;
    let phase = format!("the initialisation of {}", library.vendor.title);
    let ids = votes
        .into_iter()
        .take(roots(spec, library))
        .map(|vote| vote.id)
        .collect();
    let mut helper = VendorInit::start(comm, spec, library, ids)?;
    let mut own: Option<Result<Native>> = None;
    let mut ready = || {
        let result = helper.poll()?;
        let vote = init_vote(&result.as_ref().map(drop).map_err(Error::clone));
        own = Some(result);
        Some(vote)
    };
    let gathered = channel.allgather_when(&phase, &mut ready, &|v| vote_code(v) != 0, patience);
    let votes = match gathered {
        Ok(votes) => votes,
        Err(error) => {
            helper.give_up(own);
            return Err(error);
        }
    };
    let failed = votes
        .iter()
        .flatten()
        .map(|v| vote_code(v))
        .find(|c| *c != 0);
    if let Some(first) = failed {
        *code = Code::from_raw(first as i32).unwrap_or(Code::UnhandledCclError);
        let texts: Vec<String> = votes
            .iter()
            .map(|vote| {
                let mut reader = Reader(vote.as_deref().unwrap_or_default());
                reader
                    .u32()
                    .filter(|c| *c != 0)
                    .and_then(|_| reader.text())
                    .unwrap_or_default()
            })
            .collect();
        helper.give_up(own);
        let reasons = agree::reasons(infos, texts.iter().map(String::as_str));
        return Ok(Err(
            reasons.unwrap_or_else(|| String::from("its initialisation failed"))
        ));
    }
    match own {
        Some(Ok(native)) => Ok(Ok(Backend::Native(Arc::new(native)))),
        _ => Err(Error::internal(
            "the vendor's communicator is not there after a good vote",
        )),
    }
}

/// How many of the vendor's roots an init has.
fn roots(spec: &Spec, library: &Library) -> usize {
    match library.symbols.comm_init_rank_scalable {
        Some(_) => spec.ids.len().min(spec.info.nranks as usize),
        None => 1,
    }
}

/// Whether the vendor made what was asked for.
fn check_answers(comm: &VendorComm, nranks: i32, rank: i32, device: i32) -> Result<()> {
    let symbols = &comm.library().symbols;
    let answers = [
        (
            "number of ranks",
            symbols.comm_count.is_some().then(|| comm.count()),
            nranks,
        ),
        (
            "rank",
            symbols.comm_user_rank.is_some().then(|| comm.user_rank()),
            rank,
        ),
        (
            "device",
            symbols.comm_device.is_some().then(|| comm.device()),
            device,
        ),
    ];
    for (what, answer, wanted) in answers {
        if let Some(answer) = answer {
            let answer = answer?;
            if answer != wanted {
                let _ = comm.abort();
                return Err(Error::internal(format!(
                    "the vendor's communicator has {what} {answer} instead of {wanted}"
                )));
            }
        }
    }
    Ok(())
}

/// The vendor's init on a helper thread, with the device set: it may hang, and can't be
/// interrupted by anything but its own abort.
struct VendorInit {
    result: Receiver<Result<Native>>,
    unwanted: Arc<AtomicBool>,
    title: &'static str,
    received: bool,
}

impl VendorInit {
    fn start(
        comm: &Comm,
        spec: &Spec,
        library: &'static Library,
        ids: Vec<Vec<u8>>,
    ) -> Result<VendorInit> {
        let (sender, result) = queue();
        let unwanted = Arc::new(AtomicBool::new(false));
        let options = vendor_options(&comm.options)?;
        let (nranks, rank, device) = (comm.nranks() as i32, comm.rank() as i32, comm.device);
        let parent = spec.parent.clone();
        let abort = comm.abort.clone();
        let flag = Arc::clone(&unwanted);
        let work = move || {
            let made = || -> Result<Native> {
                let driver = load::process_driver()?
                    .ok_or_else(|| Error::internal("a vendor's init without a driver"))?;
                driver.prepare_thread(device)?;
                let word = DeviceWord::new(driver)?;
                let of_parent = |handle| -> Result<Arc<Native>> {
                    let parts = table::get(handle)?.parts()?;
                    let native = parts.native().map(Arc::clone);
                    native.ok_or_else(|| Error::internal("the parent is not native"))
                };
                let (comm, mut progress) = match parent {
                    Some(VendorParent::Split { parent, color, key }) => {
                        let (child, progress) =
                            of_parent(parent)?.split(Some(color), key, &options)?;
                        let child = child
                            .ok_or_else(|| Error::internal("a split with a colour gave nothing"))?;
                        (child, progress)
                    }
                    Some(VendorParent::Shrink {
                        parent,
                        excluded,
                        abort,
                    }) => {
                        let excluded: Vec<i32> = excluded.iter().map(|r| *r as i32).collect();
                        of_parent(parent)?.shrink(&excluded, abort, &options)?
                    }
                    None if ids.len() > 1 => {
                        library.init_rank_scalable(nranks, rank, &ids, &options)?
                    }
                    None => library.init_rank(nranks, &ids[0], rank, &options)?,
                };
                while progress == Progress::Pending {
                    if flag.load(Ordering::Acquire) || abort.is_set() {
                        let _ = comm.abort();
                        return Err(Error::new(
                            Code::Aborted,
                            "aborted during the vendor's init",
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    progress = comm.async_error()?;
                }
                check_answers(&comm, nranks, rank, device)?;
                Ok(Native { comm, word })
            };
            let result = made();
            // Nobody waits any more: what came too late goes again.
            if flag.load(Ordering::Acquire) {
                if let Ok(comm) = result {
                    let _ = comm.abort();
                }
            } else {
                let _ = sender.send(result);
            }
        };
        std::thread::Builder::new()
            .name("flagos-vendor".into())
            .spawn(work)
            .map_err(|e| Error::system("no thread for the vendor's init", e))?;
        Ok(VendorInit {
            result,
            unwanted,
            title: library.vendor.title,
            received: false,
        })
    }

    /// The result, once it is there.
    fn poll(&mut self) -> Option<Result<Native>> {
        match self.result.try_take() {
            Ok(result) => {
                self.received = true;
                Some(result)
            }
            Err(Nothing::Late) => None,
            Err(Nothing::Gone) => {
                self.received = true;
                Some(Err(Error::internal(
                    "the thread of the vendor's init panicked",
                )))
            }
        }
    }

    /// The others failed or the deadline passed: what this rank has, or gets later, is aborted.
    fn give_up(&mut self, own: Option<Result<Native>>) {
        self.unwanted.store(true, Ordering::Release);
        let own = own.or_else(|| self.poll());
        if let Some(Ok(comm)) = own {
            super::end::abort_in_background(comm);
        } else if !self.received {
            log::warn!(
                "{} is still inside its init, which can't be interrupted: its thread and \
                 communicator are left behind",
                self.title
            );
        }
    }
}

// ---- the host tier

fn host(
    comm: &Comm,
    secret: &Secret,
    channel: &mut Channel,
    infos: &[RankInfo],
    patience: &Patience,
) -> Result<std::result::Result<Backend, String>> {
    let elsewhere: Vec<u32> = (0..comm.nranks())
        .filter(|r| infos[*r as usize].machine != infos[0].machine)
        .collect();
    if !elsewhere.is_empty() {
        return Ok(Err(format!(
            "the ranks are on several machines (rank {} is not where rank 0 is), and this version's \
             host tier serves one",
            rendezvous::ranks_text(elsewhere)
        )));
    }
    let bytes = match ShmEngine::segment_bytes(comm.nranks()) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error.text().to_owned())),
    };
    // Rank 0 makes the segment and says under which name it can be had.
    let mut made = None;
    let mut offer: Result<Vec<u8>> = Ok(Vec::new());
    if comm.rank() == 0 {
        offer = (|| {
            let token: [u8; 16] = process::random()
                .map_err(|e| Error::system("the kernel gave no random bytes", e))?;
            let name = [&b"flagos-comm-"[..], &token].concat();
            let (segment, fd) = Segment::create(bytes)?;
            made = Some((segment, fd, unix::listen(&name)?));
            Ok(name)
        })();
    }
    let mut writer = Writer::default();
    match &offer {
        Ok(name) => writer.u32(0).bytes(name),
        Err(error) => writer
            .u32(error.code() as u32)
            .bytes(error.text().as_bytes()),
    };
    let offers = channel.allgather("the offer of shared memory", &writer.0, patience)?;
    let mut reader = Reader(&offers[0]);
    let refused = reader.u32() != Some(0);
    let name = reader.bytes().unwrap_or_default().to_vec();
    if refused {
        return Ok(Err(format!("rank 0: {}", String::from_utf8_lossy(&name))));
    }

    let mut served = 1;
    let mut attached: Option<ShmEngine> = None;
    let mut ready = || {
        let result: Result<()> = (|| match &made {
            Some((_, fd, listener)) => {
                while served < comm.nranks() {
                    match unix::accept(listener, Instant::now()) {
                        Ok(stream) => {
                            served += u32::from(hand_over(&stream, fd.as_fd(), secret)?);
                        }
                        Err(e) if e.code() == Code::Timeout => {
                            return Err(Error::new(Code::InProgress, ""));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Ok(())
            }
            None => {
                let limit = patience.left().unwrap_or(Duration::from_secs(120));
                let segment = fetch(&name, secret, bytes, Instant::now() + limit)?;
                attached = Some(ShmEngine::attach(
                    Arc::new(segment),
                    comm.rank(),
                    comm.nranks(),
                )?);
                Ok(())
            }
        })();
        match &result {
            Err(e) if e.code() == Code::InProgress => None,
            _ => Some(init_vote(&result)),
        }
    };
    let votes = channel.allgather_when(
        "the sharing of memory",
        &mut ready,
        &|v| vote_code(v) != 0,
        patience,
    )?;
    let texts: Vec<String> = votes
        .iter()
        .map(|vote| {
            let mut reader = Reader(vote.as_deref().unwrap_or_default());
            reader
                .u32()
                .filter(|c| *c != 0)
                .and_then(|_| reader.text())
                .unwrap_or_default()
        })
        .collect();
    if let Some(reasons) = agree::reasons(infos, texts.iter().map(String::as_str)) {
        return Ok(Err(reasons));
    }
    let engine = match (attached, made) {
        (Some(engine), _) => engine,
        (None, Some((segment, ..))) => {
            ShmEngine::attach(Arc::new(segment), comm.rank(), comm.nranks())?
        }
        (None, None) => return Err(Error::internal("no segment after a good vote")),
    };
    // The first collective shows the engine on which processors the ranks may run.
    let first = HostOp {
        kind: OpKind::Barrier,
        send: std::ptr::null(),
        recv: std::ptr::null_mut(),
        count: 0,
        dtype: DataType::Int8,
        reduction: Reduction::Builtin(RedOp::Sum),
        root: 0,
        vector: None,
    };
    // SAFETY: a barrier has no buffers.
    unsafe { engine.run(&first, &InitWait(patience, RefCell::new(channel)))? };
    Ok(Ok(Backend::Host(Arc::new(engine))))
}

/// The wait of an init inside the engine: its limits, and the channel, which knows who has died.
struct InitWait<'a>(&'a Patience, RefCell<&'a mut Channel>);

impl WaitPolicy for InitWait<'_> {
    fn check(&self, waiting_for: &dyn Fn() -> Vec<u32>) -> Result<()> {
        self.0.slice().map(drop).map_err(|end| {
            let missing = rendezvous::ranks_text(waiting_for());
            match end {
                Impatience::Expired => Error::new(
                    Code::Timeout,
                    format!("timed out in the first barrier; missing: rank {missing}"),
                ),
                Impatience::Aborted => Error::new(Code::Aborted, "aborted in the first barrier"),
            }
        })?;
        let mut channel = self.1.borrow_mut();
        channel.look()?;
        channel.first_dead()
    }
}

/// How long a connection to the segment's socket may take to prove that it belongs here.
const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Gives the segment to a connection that knows the secret; `false`: it does not.
fn hand_over(
    stream: &std::os::unix::net::UnixStream,
    fd: std::os::fd::BorrowedFd<'_>,
    secret: &Secret,
) -> Result<bool> {
    let deadline = Instant::now() + PROOF_LIMIT;
    let mut proof = Secret::default();
    if unix::read_exact(stream, &mut proof, deadline).is_err()
        || !rendezvous::same_secret(&proof, secret)
    {
        log::debug!("a local connection without our secret was closed");
        return Ok(false);
    }
    unix::send_fd(stream.as_fd(), fd, deadline)?;
    Ok(true)
}

fn fetch(name: &[u8], secret: &Secret, bytes: usize, deadline: Instant) -> Result<Segment> {
    let hint = "shared memory can't be had from rank 0: the ranks may be in different network \
                namespaces (containers)";
    let stream = unix::connect(name, deadline.min(Instant::now() + PROOF_LIMIT))
        .map_err(|e| e.context(hint))?;
    unix::write_all(&stream, secret, deadline)?;
    let fd = unix::recv_fd(stream.as_fd(), deadline)?;
    Segment::open(fd.as_fd(), bytes)
}
