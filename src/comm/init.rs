//! Init: what is to be made, and who runs it: the calling thread, one in the background, or the
//! outermost end of a group.

mod host;
mod ids;
mod native;
mod tiers;
mod turn;

pub use ids::get_unique_id;
pub(crate) use native::vendor_options;
pub(crate) use tiers::make;
#[cfg(test)]
pub(crate) use tiers::{vote_code, vote_texts};

use super::agree::{self, Common, RankInfo};
use super::options::{Caller, Limit, Options};
use super::table::{self, Handle, place};
use super::{Backend, Comm, Made, Parts, Ranks, UnderWay, group, rare, watch};
use crate::bootstrap::rendezvous;
use crate::bootstrap::unique_id::{self, IdContent};
use crate::config::{self, DeviceMode, Tier};
use crate::control::patience::{AbortFlag, Patience};
use crate::device::Driver;
use crate::error::{Code, Error, Result};
use crate::host::liveness::{Liveness, PeerProcess};
use crate::host::port::Runner;
use crate::load;
use crate::ops::{HOST, INITIALISING, lock};
use crate::sys::process;
use crate::types::{MAX_RANKS, UNIQUE_ID_BYTES};
use crate::vendor::port::DevicePolicy;
use crate::vendor::{FLAGCX, Library, NativePort};
use crate::words::counted;
use ids::local_unique_id;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// One rank's init, with everything that depends on the calling thread already settled.
#[derive(Debug)]
pub(crate) struct Spec {
    pub ids: Vec<IdContent>,
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

impl VendorParent {
    fn handle(&self) -> Handle {
        match self {
            VendorParent::Split { parent, .. } | VendorParent::Shrink { parent, .. } => *parent,
        }
    }
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

impl Work {
    /// The communicator that a child is made of.
    fn parent(&self) -> Option<Handle> {
        match self {
            Work::Init(_) => None,
            Work::Split { parent, .. } => Some(*parent),
            Work::Shrink(shrink) => Some(shrink.parent),
        }
    }
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
        let (handle, out) = (self.handle, self.out);
        // The parent of a split is busy with it.
        let busy = self
            .work
            .parent()
            .and_then(|parent| table::get(parent).ok()?.parts().ok())
            .map(|parts| UnderWay::begin(&parts));
        let spawned = std::thread::Builder::new()
            .name("flagos-init".into())
            .spawn(move || {
                let outcome = run(&self);
                drop(busy);
                let Err(error) = outcome else { return };
                log::warn!("{error}");
                let place = place(self.handle);
                if place.is_live(self.handle) {
                    place.target.fail(error);
                }
            });
        spawned.map(drop).map_err(|e| {
            forget(handle, out);
            Error::system("no thread for the init", e)
        })
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
    let mut order = match (&options.tiers, &config::get().tiers) {
        (Some(text), _) => agree::parse_order(text)?,
        (None, Some(order)) => order.clone(),
        (None, None) if options.caller == Caller::FlagcxPlugin => vec![Tier::Native],
        (None, None) => Tier::DEFAULT_ORDER.to_vec(),
    };
    if options.caller != Caller::Program {
        order.retain(|tier| *tier != Tier::Flagcx);
    }
    match order.is_empty() {
        true => Err(Error::invalid_argument(
            "the flagcx tier alone is asked for, by a call that came from FlagCX or that can't have it: a \
             drop-in library never uses FlagCX",
        )),
        false => Ok(order),
    }
}

/// What this rank says about itself. Asks the driver on the calling thread, now.
fn own_info(nranks: u32, options: &Options, tiers: &[Tier]) -> RankInfo {
    let pid = std::process::id();
    let common = Common {
        library_version: crate::internal::version_code() as u32,
        nranks,
        vendor: String::new(),
        no_native: String::new(),
        machine: config::get()
            .hostid
            .clone()
            .unwrap_or_else(process::boot_id),
        host: process::host_name(),
        pid_namespace: process::namespace("pid"),
        network: process::namespace("net"),
        engine: config::get().host_engine,
        hierarchy: config::get().host_hierarchy,
        tiers: tiers.to_vec(),
        checking: config::get().check,
        liveness_ms: watch::agreed_ms(),
        // Known when the ranks have met.
        address: None,
    };
    let mut info = RankInfo::new(common, pid, process::start_time(pid).unwrap_or(0));
    let fatal = |error: Error| Some(Box::new((error.code() as u32, error.text().to_owned())));
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
        "device {wanted} is asked for, but the driver has {} (from 0)",
        counted(count as u64, "device")
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
    config::warn_of_unknown(&load::vendor_names());
    let tiers = tiers(options)?;
    let info = own_info(n, options, &tiers);
    let (handle, comm) = new_comm(n, r, info.device, options)?;
    Ok((
        handle,
        comm,
        Spec {
            ids,
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
        default_name: OnceLock::new(),
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
    if n > table::CAPACITY {
        return Err(Error::invalid_argument(format!(
            "{n} ranks are more than one process can have ({})",
            table::CAPACITY
        )));
    }
    if let Some(devices) = devices.filter(|d| d.len() != n) {
        return Err(Error::invalid_argument(format!(
            "{} listed for {}",
            match devices.len() {
                1 => String::from("1 device is"),
                n => format!("{n} devices are"),
            },
            counted(n as u64, "rank")
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
    forget(pending.handle, pending.out);
}

fn forget(handle: Handle, out: OutHandle) {
    out.set(0);
    if table::remove(handle).is_some() {
        table::release(handle);
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
        let mut all = all.into_iter();
        if let Some(Err(error)) = all
            .by_ref()
            .map(Pending::run_in_background)
            .find(Result::is_err)
        {
            cancel(all.collect());
            return Err(error);
        }
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

/// Whether calls need the communicator's device to be current. FlagCX needs what the vendor needs.
fn needs_device(library: &Library) -> Result<bool> {
    let vendor = load::process_vendor()?.vendor;
    let of_vendor = vendor.is_some_and(|vendor| vendor.ccl.quirks.needs_device);
    Ok(library.row.quirks.needs_device || of_vendor && library.row.key == FLAGCX.key)
}

/// Puts what was made behind the handle.
fn install(handle: Handle, comm: &Arc<Comm>, parts: &Arc<Parts>) -> Result<()> {
    let place = place(handle);
    let target = &place.target;
    let _ = comm.default_name.set(format!("comm-{:08x}", parts.tag()));
    target.reset(comm.label(), comm.rank(), comm.nranks());
    let mut made = lock(&comm.made);
    if comm.abort.is_set() || !place.is_live(handle) {
        drop(made);
        let error = Error::new(
            Code::Aborted,
            "the communicator was aborted during its init",
        );
        let _ = super::end::take_down(comm, parts, super::end::End::Abort);
        fail(handle, comm, &error);
        return Err(error);
    }
    match &parts.backend {
        Backend::Native(native) => {
            let policy = match config::get().device {
                Some(DeviceMode::Guard) => DevicePolicy::Guard,
                Some(DeviceMode::Error) => DevicePolicy::Error,
                Some(DeviceMode::Trust) => DevicePolicy::Trust,
                None if needs_device(native.library())? => DevicePolicy::Guard,
                None => DevicePolicy::Trust,
            };
            let driver = load::process_driver()?
                .ok_or_else(|| Error::internal("a native communicator without a driver"))?;
            let (library, raw) = (native.library(), native.raw());
            let word = native.word.address();
            NativePort::attach(target, library, raw, driver, word, policy, comm.device);
            let (comm, parts) = (Arc::downgrade(comm), Arc::downgrade(parts));
            target.on_break(move |error| match (comm.upgrade(), parts.upgrade()) {
                // The vendor's group has to be closed before its communicator is aborted.
                (Some(_), Some(_)) if group::is_open() => target.keep_break(error),
                (Some(comm), Some(parts)) if place.is_live(handle) => {
                    super::end::break_down(handle, &comm, &parts, error);
                }
                _ => {}
            });
        }
        Backend::Host(engine) => {
            let own = &parts.infos[comm.rank() as usize];
            let beside = parts.infos.iter().enumerate().any(|(rank, info)| {
                rank != comm.rank() as usize
                    && info.pid == own.pid
                    && info.pid_namespace == own.pid_namespace
                    && info.device == own.device
            });
            if let (true, Some(shm)) = (beside, engine.shared_memory()) {
                shm.shares_device();
            }
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
                    engine.is_far(),
                ),
                label: comm.label(),
                failed: Arc::clone(&parts.failed),
            };
            target.device.store(comm.device, Ordering::Relaxed);
            target.host.attach(runner, load::process_driver()?);
            target.set_ops(&HOST);
        }
    }
    *made = Made::Ready(Arc::clone(parts));
    drop(made);
    watch::start(handle, comm, parts);
    Ok(())
}
