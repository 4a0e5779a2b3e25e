//! What the C libraries need of the engine beside the Rust API: one function per C function.
//!
//! Not part of the Rust API and not stable. Functions on the path of every operation return the
//! C result code themselves and have recorded the text of an error; the others return a
//! [`Result`], which the caller's boundary turns into a code with [`fail`].

use crate::comm::init::OutHandle;
use crate::comm::options::Options;
use crate::comm::split;
use crate::comm::table::place;
use crate::error::{Code, Error, Result, last};
use std::ffi::{CStr, c_char};

pub use crate::comm::below::{nccl_function, nccl_function_alone, nccl_version};
pub use crate::comm::call::{
    all_gather, all_reduce, all_to_all, all_to_allv, barrier, broadcast, fail, gather, recv,
    reduce, reduce_scatter, scatter, send,
};
pub use crate::comm::end::{
    comm_abort, comm_async_error, comm_count, comm_destroy, comm_device, comm_finalize, comm_info,
    comm_name, comm_resume, comm_revoke, comm_suspend, comm_user_rank,
};
pub use crate::comm::group::{
    end as group_end, simulate_end as group_simulate_end, start as group_start,
};
pub use crate::comm::init::{comm_init_all, comm_init_rank, get_unique_id};
pub use crate::comm::local::{
    device_count, device_pci_bus_id, device_synchronize, device_uuid, event_create, event_destroy,
    event_elapsed, event_query, event_record, event_synchronize, get_device, memcpy_async,
    memset_async, pointer_attributes, set_device, stream_create, stream_destroy, stream_query,
    stream_synchronize, stream_wait_event, vendor,
};
pub use crate::comm::memory::{
    comm_deregister, comm_register, comm_window_deregister, comm_window_register, device_alloc,
    mem_alloc, mem_free, redop_create_pre_mul_sum, redop_destroy,
};
pub use crate::comm::table::plugin_operations;
pub use crate::comm::vote::{Agreement, comm_agree};
pub use crate::log::{LogCallback, install as install_log_sink, set_callback as set_log_callback};

pub use crate::sys::per_process::PerProcess;
pub use crate::sys::process::first_number;

/// The value of a C communicator handle. 0 is NULL. Never dereferenced.
pub type Handle = usize;

/// Version as one number: major * 10000 + minor * 100 + patch.
pub fn version_code() -> i32 {
    const fn number(text: &str) -> i32 {
        let bytes = text.as_bytes();
        let mut value = 0;
        let mut i = 0;
        while i < bytes.len() {
            value = value * 10 + (bytes[i] - b'0') as i32;
            i += 1;
        }
        value
    }
    const CODE: i32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"));
    CODE
}

/// The sentence for a result code; a fixed text for numbers that are not codes.
pub fn error_string(code: i32) -> &'static CStr {
    match Code::from_raw(code) {
        None if code == 0 => c"success",
        None => c"unknown result code",
        Some(code) => match code {
            Code::UnhandledDeviceError => c"a call to the accelerator's driver failed",
            Code::SystemError => c"the operating system refused a request",
            Code::InternalError => c"internal error of flagos-comm",
            Code::InvalidArgument => c"invalid argument",
            Code::InvalidUsage => c"invalid usage",
            Code::RemoteError => c"another rank failed or left",
            Code::InProgress => c"in progress",
            Code::UnhandledCclError => c"the vendor's collective library failed",
            Code::NotSupported => c"not supported",
            Code::Timeout => c"timed out",
            Code::Aborted => c"the communicator was aborted",
            Code::UnboundDevice => c"the calling thread has no current device",
        },
    }
}

/// Text of the last error: of the communicator if `comm` is a live handle, else of this thread.
/// The pointer stays valid until this thread's next call of this function or its next error.
pub fn last_error(comm: Handle) -> *const c_char {
    let place = place(comm);
    if place.is_own(comm) {
        last::show(&place.target.last_error())
    } else {
        last::of_thread()
    }
}

/// Whether a handle is a live communicator of this library and process.
pub fn is_live(comm: Handle) -> bool {
    place(comm).is_own(comm)
}

/// Tells the open group of this thread, if there is one, of a call that a skin refused before it came
/// here: the group's end has to fail too.
pub fn refuse_group(error: &Error) {
    crate::comm::group::note_error(error);
}

/// Every environment variable of the library: name (`<VENDOR>` stands for a vendor's key in upper
/// case), default and meaning, in words.
pub fn environment() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    crate::config::VARS
        .iter()
        .map(|v| (v.name, v.default, v.meaning))
}

/// Names among these that look like variables of ours and are none, so that they do nothing, each with the
/// known name that is most like it.
pub fn unknown_variables<'a>(
    names: impl Iterator<Item = &'a str>,
) -> Vec<(&'a str, Option<String>)> {
    crate::config::unknown(names, &crate::load::vendor_names())
}

/// The variables of others that the library reads.
pub fn foreign_variables() -> impl Iterator<Item = &'static str> {
    crate::config::FOREIGN.iter().map(|var| var.name)
}

/// What is wrong with the values of variables, a sentence for each that is not understood.
pub fn values_not_understood() -> &'static [String] {
    crate::config::warnings()
}

/// The tiers that the environment allows, in their order.
pub fn allowed_tiers() -> Vec<&'static str> {
    let order = crate::config::get().tiers.as_deref();
    let order = order.unwrap_or(&crate::config::Tier::DEFAULT_ORDER);
    order.iter().map(|tier| tier.name()).collect()
}

/// What the environment wants the host tier to move data with, as FLAGOSCOMM_HOST_ENGINE says it.
pub fn host_engine() -> &'static str {
    crate::config::get().host_engine.name()
}

/// The load report as text, a line per candidate. Chooses the vendor and opens its libraries if
/// that has not happened yet.
pub fn load_report_text() -> String {
    let _ = crate::load::process_library();
    crate::load::report().as_text()
}

/// The load report as JSON.
pub fn load_report_json() -> String {
    let _ = crate::load::process_library();
    crate::load::report().as_json()
}

/// The vendors of which [`survey`] tells, by key, in the order in which they are detected; behind them
/// FlagCX, and UCX, MPI and UCC, which the host tier uses between machines.
pub fn surveyed() -> impl Iterator<Item = &'static str> {
    crate::load::surveyed()
}

/// What one vendor's libraries are like here, as JSON; `None` for an unknown key. For a process that
/// does nothing else: it opens libraries that the process doesn't use. `stage` is told what is about
/// to be called, as any of it may hang.
pub fn survey(key: &str, stage: &mut dyn FnMut(&str)) -> Option<String> {
    crate::load::survey(key, stage).map(|survey| survey.as_json())
}

/// Splits by colour (negative: not a member, `*out` is 0) and key. `Ok(false)`: in progress.
///
/// # Safety
/// `out` must be valid for writing until the call, and inside a group the outermost end, returns.
pub unsafe fn comm_split(
    comm: Handle,
    color: i32,
    key: i32,
    out: *mut Handle,
    options: Option<&Options>,
) -> Result<bool> {
    // SAFETY: the caller's promise.
    split::comm_split(comm, color, key, unsafe { OutHandle::new(out) }, options)
}

/// Makes a communicator without the excluded ranks. `Ok(false)`: in progress.
///
/// # Safety
/// `out` must be valid for writing until the call returns.
pub unsafe fn comm_shrink(
    comm: Handle,
    exclude: &[i32],
    out: *mut Handle,
    options: Option<&Options>,
    flags: i32,
) -> Result<bool> {
    // SAFETY: the caller's promise.
    split::comm_shrink(
        comm,
        exclude,
        unsafe { OutHandle::new(out) },
        options,
        flags,
    )
}

/// What a communicator runs on.
#[derive(Clone, Debug)]
pub struct CommInfo {
    /// 1 native, 2 flagcx, 3 host.
    pub tier: i32,
    /// Vendor key such as `nvidia`, empty on the host tier without a driver.
    pub vendor: String,
    /// File of the collective library, empty on the host tier.
    pub library_path: String,
    /// Version as the vendor's library encodes it, 0 where there is none.
    pub library_version: i32,
    /// What the host tier moves data with: `shm`, `ucx`, `mpi`, `ucc`, or `shm+ucx` or `shm+mpi` for both in
    /// layers; empty on other tiers.
    pub host_engine: String,
    /// The same for people, with the version and file of a library; empty on other tiers.
    pub host_engine_text: String,
    /// 1 the vendor's streams, 2 our own host streams.
    pub stream_kind: i32,
    /// 1 stream-ordered; 2 complete when the call returns on the NULL stream, stream-ordered on
    /// host streams; 3 ordered after the caller's device stream and complete when the call returns.
    pub completion: i32,
}

/// Where a pointer points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// 0 memory the driver does not know (ordinary host memory), 1 pinned host, 2 device, 3 managed.
    pub kind: i32,
    /// Owning device, -1 for none.
    pub device: i32,
}

/// A function of another library as it is declared here: library, name, types of the arguments and
/// of the result.
pub type Declaration = (&'static str, String, Vec<&'static str>, &'static str);

/// Every function of a vendor's libraries that is looked up, for the check against C declarations.
pub fn declarations() -> Vec<Declaration> {
    let all = crate::device::declarations().into_iter();
    all.chain(crate::vendor::declarations())
        .chain(crate::host::net::ucx::declarations())
        .chain(crate::host::net::ucc::declarations())
        .map(|d| (d.library, d.name, d.arguments, d.result))
        .collect()
}

/// A struct of another library as it is laid out here: library, name in C, size, whether the
/// library's must be as large (else it must not be larger), and offsets of fields by their names in C.
pub type Layout = (
    &'static str,
    &'static str,
    usize,
    bool,
    Vec<(&'static str, usize)>,
);

/// Every struct of a vendor's libraries that is passed to them, for the check against C declarations.
pub fn layouts() -> Vec<Layout> {
    let all = crate::device::layouts().into_iter();
    all.chain(crate::vendor::layouts())
        .chain(crate::host::net::ucx::layouts())
        .chain(crate::host::net::ucc::layouts())
        .map(|l| (l.library, l.name, l.size, l.exact, l.fields))
        .collect()
}
