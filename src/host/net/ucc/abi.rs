//! The functions and structs of UCC (libucc) that are used. Its structs carry masks of what is set in them; those
//! that are passed have room for what later versions add. A test compares them with UCC's header.

use crate::error::{Code, Error};
use crate::host::net::versioned::{self, versioned_library};
use crate::load::open::{Accepted, Lib, Refusal};
use crate::load::symbols::Layout;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// The file's name.
pub(crate) const SONAMES: &[&str] = &["libucc.so.1"];
/// What it and its parts need, of which a folder of its own may have other versions than the system, in the order in
/// which they need each other.
pub(crate) const COMPANIONS: &[&str] =
    &["libucm.so.0", "libucs.so.0", "libuct.so.0", "libucp.so.0"];
/// A function that only this library has.
pub(crate) const FINGERPRINT: &str = "ucc_context_progress";
/// What is put into the environment before UCC is loaded, where it is unset. UCC writes to standard output, and an error
/// for every connection that the other side closes first, as one side does in every orderly end.
pub(crate) const ENVIRONMENT: [(&str, &str); 2] = [
    ("UCC_LOG_FILE", "stderr"),
    ("UCC_TL_UCP_LOG_LEVEL", "fatal"),
];
/// As above, where neither is set. UCC gives its UCX no other settings than the environment's: as the engine over UCX
/// does by itself, pieces are to go out at once over TCP.
pub(crate) const SEGMENT_SIZES: [(&str, &str); 2] = [
    ("UCX_TCP_TX_SEG_SIZE", "260k"),
    ("UCX_TCP_RX_SEG_SIZE", "260k"),
];

/// The version of the interface that we use; later libraries serve it.
const API: (c_uint, c_uint) = (1, 2);

/// `UCC_OK` and `UCC_INPROGRESS`; errors are negative.
pub(super) const OK: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 1;
/// `UCC_ERR_NO_MESSAGE`, for errors that have no number of their own.
pub(super) const ERR_NO_MESSAGE: c_int = -6;

const LIB_THREAD_MODE: u64 = 1;
const THREAD_MULTIPLE: c_uint = 2;
const TEAM_OOB: u64 = 1 << 7;
const COLL_BCAST: c_uint = 1 << 6;
const COLL_TAG: u64 = 1 << 1;
const COLL_ACTIVE_SET: u64 = 1 << 4;
/// `UCC_DT_UINT8`.
const UINT8: u64 = 5 << 3;
/// `UCC_MEMORY_TYPE_HOST`.
const HOST: c_uint = 0;

/// `ucc_lib_params_t`.
#[repr(C)]
struct LibParams {
    mask: u64,
    thread_mode: c_uint,
    rest: [u64; 16],
}

/// `ucc_oob_coll_t`: how UCC exchanges bytes before it has a network.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OobColl {
    pub allgather: AllGather,
    pub req_test: Test,
    pub req_free: Test,
    pub coll_info: *mut c_void,
    pub n_oob_eps: u32,
    pub oob_ep: u32,
}

pub(super) type AllGather =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void, *mut *mut c_void) -> c_int;
pub(super) type Test = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `ucc_context_params_t`, of which nothing is set.
#[repr(C)]
struct ContextParams {
    mask: u64,
    rest: [u64; 32],
}

/// `ucc_team_params_t`.
#[repr(C)]
struct TeamParams {
    mask: u64,
    flags: u64,
    ordering: c_uint,
    outstanding_colls: u64,
    ep: u64,
    ep_list: *const u64,
    ep_range: c_uint,
    team_size: u64,
    sync_type: c_uint,
    oob: OobColl,
    rest: [u64; 32],
}

/// `ucc_coll_buffer_info_t`, and room for the one with counts.
#[repr(C)]
struct BufferInfo {
    buffer: *mut c_void,
    count: u64,
    datatype: u64,
    mem_type: c_uint,
    rest: u64,
}

#[repr(C)]
struct ActiveSet {
    start: u64,
    stride: i64,
    size: u64,
}

/// `ucc_coll_args_t`.
#[repr(C)]
pub(super) struct CollArgs {
    mask: u64,
    coll_type: c_uint,
    src: BufferInfo,
    dst: BufferInfo,
    op: c_uint,
    flags: u64,
    root: u64,
    error_type: c_uint,
    tag: u16,
    global_work_buffer: *mut c_void,
    cb: [*mut c_void; 2],
    timeout: f64,
    active_set: ActiveSet,
    rest: [u64; 16],
}

impl CollArgs {
    /// A broadcast from one rank to another, which nobody else takes part in.
    pub(super) fn message(
        from: usize,
        to: usize,
        tag: u16,
        buffer: *mut c_void,
        bytes: usize,
    ) -> CollArgs {
        let nowhere = || BufferInfo {
            buffer: null_mut(),
            count: 0,
            datatype: UINT8,
            mem_type: HOST,
            rest: 0,
        };
        CollArgs {
            mask: COLL_TAG | COLL_ACTIVE_SET,
            coll_type: COLL_BCAST,
            src: BufferInfo {
                buffer,
                count: bytes as u64,
                ..nowhere()
            },
            dst: nowhere(),
            op: 0,
            flags: 0,
            root: from as u64,
            error_type: 0,
            tag,
            global_work_buffer: null_mut(),
            cb: [null_mut(); 2],
            timeout: 0.0,
            active_set: ActiveSet {
                start: from as u64,
                stride: to as i64 - from as i64,
                size: 2,
            },
            rest: [0; 16],
        }
    }
}

versioned_library! {
    "ucc", "UCC";
    get_version "ucc_get_version" (*mut c_uint, *mut c_uint, *mut c_uint) -> ();
    status_string "ucc_status_string" (c_int) -> *const c_char;
    lib_config_read "ucc_lib_config_read" (*const c_char, *const c_char, *mut *mut c_void) -> c_int;
    lib_config_release "ucc_lib_config_release" (*mut c_void) -> ();
    init "ucc_init_version" (c_uint, c_uint, *const c_void, *mut c_void, *mut *mut c_void) -> c_int;
    finalize "ucc_finalize" (*mut c_void) -> c_int;
    context_config_read "ucc_context_config_read" (*mut c_void, *const c_char, *mut *mut c_void) -> c_int;
    context_config_release "ucc_context_config_release" (*mut c_void) -> ();
    context_create "ucc_context_create" (*mut c_void, *const c_void, *mut c_void, *mut *mut c_void) -> c_int;
    context_progress "ucc_context_progress" (*mut c_void) -> c_int;
    context_destroy "ucc_context_destroy" (*mut c_void) -> c_int;
    team_create_post "ucc_team_create_post" (*mut *mut c_void, c_uint, *const c_void, *mut *mut c_void) -> c_int;
    team_create_test "ucc_team_create_test" (*mut c_void) -> c_int;
    team_destroy "ucc_team_destroy" (*mut c_void) -> c_int;
    collective_init "ucc_collective_init" (*mut c_void, *mut *mut c_void, *mut c_void) -> c_int;
    collective_post "ucc_collective_post" (*mut c_void) -> c_int;
    collective_finalize "ucc_collective_finalize" (*mut c_void) -> c_int;
}

/// The structs that are passed, for the check against UCC's header.
pub(crate) fn layouts() -> Vec<Layout> {
    let layout = |name, size, fields| Layout {
        library: "ucc",
        name,
        size,
        exact: false,
        fields,
    };
    vec![
        layout(
            "ucc_lib_params",
            size_of::<LibParams>(),
            vec![
                ("mask", offset_of!(LibParams, mask)),
                ("thread_mode", offset_of!(LibParams, thread_mode)),
            ],
        ),
        layout(
            "ucc_oob_coll",
            size_of::<OobColl>(),
            vec![
                ("allgather", offset_of!(OobColl, allgather)),
                ("req_test", offset_of!(OobColl, req_test)),
                ("req_free", offset_of!(OobColl, req_free)),
                ("coll_info", offset_of!(OobColl, coll_info)),
                ("n_oob_eps", offset_of!(OobColl, n_oob_eps)),
                ("oob_ep", offset_of!(OobColl, oob_ep)),
            ],
        ),
        layout(
            "ucc_context_params",
            size_of::<ContextParams>(),
            vec![("mask", offset_of!(ContextParams, mask))],
        ),
        layout(
            "ucc_team_params",
            size_of::<TeamParams>(),
            vec![
                ("mask", offset_of!(TeamParams, mask)),
                ("team_size", offset_of!(TeamParams, team_size)),
                ("oob", offset_of!(TeamParams, oob)),
            ],
        ),
        layout(
            "ucc_coll_buffer_info",
            size_of::<BufferInfo>(),
            vec![
                ("buffer", offset_of!(BufferInfo, buffer)),
                ("count", offset_of!(BufferInfo, count)),
                ("datatype", offset_of!(BufferInfo, datatype)),
                ("mem_type", offset_of!(BufferInfo, mem_type)),
            ],
        ),
        layout(
            "ucc_coll_args",
            size_of::<CollArgs>(),
            vec![
                ("mask", offset_of!(CollArgs, mask)),
                ("coll_type", offset_of!(CollArgs, coll_type)),
                ("src", offset_of!(CollArgs, src)),
                ("dst", offset_of!(CollArgs, dst)),
                ("op", offset_of!(CollArgs, op)),
                ("flags", offset_of!(CollArgs, flags)),
                ("root", offset_of!(CollArgs, root)),
                ("tag", offset_of!(CollArgs, tag)),
                ("cb", offset_of!(CollArgs, cb)),
                ("timeout", offset_of!(CollArgs, timeout)),
                ("active_set", offset_of!(CollArgs, active_set)),
            ],
        ),
    ]
}

impl Api {
    /// Takes an opened library if it has all that is needed.
    pub(crate) fn accept(lib: &Lib) -> std::result::Result<Accepted<Api>, Refusal> {
        Api::accept_since(lib, &[], API)
    }

    pub(super) fn words(&self, status: c_int) -> String {
        // SAFETY: the function answers every number with a string that lives for ever.
        unsafe { versioned::words((self.status_string)(status), status) }
    }

    pub(super) fn failed(&self, what: &str, status: c_int) -> Error {
        Error::new(
            Code::SystemError,
            format!(
                "{what} of {} failed: {} ({status})",
                self.about(),
                self.words(status)
            ),
        )
    }

    /// The library's own start, for one communicator: it may be called from any thread.
    pub(super) fn start(&self) -> Result<*mut c_void, Error> {
        let (mut config, mut lib) = (null_mut(), null_mut());
        // SAFETY: without a prefix and a file it reads the environment; the place is written on success.
        let status = unsafe { (self.lib_config_read)(null(), null(), &mut config) };
        if status < 0 {
            return Err(self.failed("ucc_lib_config_read", status));
        }
        let params = LibParams {
            mask: LIB_THREAD_MODE,
            thread_mode: THREAD_MULTIPLE,
            rest: [0; 16],
        };
        let params = (&raw const params).cast();
        // SAFETY: the struct is UCC's, of which it reads what the mask names; the configuration was just made.
        let status = unsafe { (self.init)(API.0, API.1, params, config, &mut lib) };
        // SAFETY: made above, and what is needed of it was copied.
        unsafe { (self.lib_config_release)(config) };
        match status {
            OK => Ok(lib),
            status => Err(self.failed("ucc_init", status)),
        }
    }

    /// A context, which reaches nobody yet. It is told of no exchange among all processes: with one, its end would
    /// wait for all of them, and connections would not tell of a peer's death.
    ///
    /// # Safety
    /// `lib` is what [`Api::start`] gave.
    pub(super) unsafe fn context(&self, lib: *mut c_void) -> Result<*mut c_void, Error> {
        let (mut config, mut context) = (null_mut(), null_mut());
        // SAFETY: the caller's promise; without a file the environment is read.
        let status = unsafe { (self.context_config_read)(lib, null(), &mut config) };
        if status < 0 {
            return Err(self.failed("ucc_context_config_read", status));
        }
        let params = ContextParams {
            mask: 0,
            rest: [0; 32],
        };
        let params = (&raw const params).cast();
        // SAFETY: as above; of the struct nothing is set.
        let status = unsafe { (self.context_create)(lib, params, config, &mut context) };
        // SAFETY: made above, and what is needed of it was copied.
        unsafe { (self.context_config_release)(config) };
        match status {
            OK => Ok(context),
            status => Err(self.failed("ucc_context_create", status).context(
                "UCC found no transport that works; it needs UCX (libucp.so.0), and UCC_LOG_LEVEL=info shows its own words",
            )),
        }
    }

    /// Begins the team of all ranks, which exchange what they say of themselves by `oob`.
    ///
    /// # Safety
    /// The context is what [`Api::context`] gave, and what `oob` points to stays until the team is made.
    pub(super) unsafe fn team(
        &self,
        mut context: *mut c_void,
        oob: OobColl,
    ) -> Result<*mut c_void, Error> {
        let mut team = null_mut();
        let params = TeamParams {
            mask: TEAM_OOB,
            flags: 0,
            ordering: 0,
            outstanding_colls: 0,
            ep: 0,
            ep_list: null(),
            ep_range: 0,
            team_size: 0,
            sync_type: 0,
            oob,
            rest: [0; 32],
        };
        let params = (&raw const params).cast();
        // SAFETY: the caller's promise; the struct is UCC's, of which it reads what the mask names.
        let status = unsafe { (self.team_create_post)(&mut context, 1, params, &mut team) };
        match status {
            OK | IN_PROGRESS => Ok(team),
            status => Err(self.failed("ucc_team_create_post", status)),
        }
    }
}
