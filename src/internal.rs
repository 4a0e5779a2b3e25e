//! What the C libraries need of the engine beside the Rust API: one function per C function.
//!
//! Not part of the Rust API and not stable. Functions on the path of every operation return the
//! C result code themselves and have recorded the text of an error; the others return a
//! [`Result`], which the caller's boundary turns into a code with [`fail`].

use crate::comm::options::Options;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_void};

/// The value of a C communicator handle. 0 is NULL. Never dereferenced.
pub type Handle = usize;

fn unbuilt<T>() -> Result<T> {
    Err(Error::not_supported("not built"))
}

// ---- errors, version, log, reports

/// Version as one number: major * 10000 + minor * 100 + patch.
pub fn version_code() -> i32 {
    100
}

/// The sentence for a result code; a fixed text for numbers that are not codes.
pub fn error_string(_code: i32) -> &'static CStr {
    c""
}

/// Records an error for this thread, and for the communicator if `comm` is a live handle
/// (0: none), and returns its C result code.
pub fn fail(_comm: Handle, error: Error) -> i32 {
    error.code() as i32
}

/// Text of the last error: of the communicator if `comm` is a live handle, else of this thread.
/// The pointer stays valid until this thread's next call of this function.
pub fn last_error(_comm: Handle) -> *const c_char {
    c"".as_ptr()
}

/// A log callback of the C API: level (1 error … 5 trace), text, user pointer.
pub type LogCallback = unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void);

/// Replaces the log sink; `None` restores the default.
pub fn set_log_callback(_callback: Option<LogCallback>, _user: *mut c_void) {}

/// Installs the C libraries' log sink once; harmless when repeated.
pub fn install_log_sink() {}

/// The load report as text, a line per candidate.
pub fn load_report_text() -> String {
    String::new()
}

/// The load report as JSON.
pub fn load_report_json() -> String {
    String::new()
}

// ---- init

/// Makes a unique id and serves its rendezvous from this process.
pub fn get_unique_id() -> Result<[u8; 256]> {
    unbuilt()
}

/// Joins a communicator. `Ok(false)`: in progress (not blocking). Inside a group `*out` is set at
/// the outermost end.
///
/// # Safety
/// `out` must be valid for writing until the call, and inside a group the outermost end, returns.
pub unsafe fn comm_init_rank(
    _out: *mut Handle,
    _nranks: i32,
    _ids: &[[u8; 256]],
    _rank: i32,
    _options: &Options,
) -> Result<bool> {
    unbuilt()
}

/// Makes all ranks of a communicator in this process, one per device.
///
/// # Safety
/// `out` must be valid for writing `ndev` handles.
pub unsafe fn comm_init_all(
    _out: *mut Handle,
    _ndev: i32,
    _devices: Option<&[i32]>,
    _options: &Options,
) -> Result<()> {
    unbuilt()
}

/// Splits by colour (negative: not a member, `*out` is 0) and key.
///
/// # Safety
/// As [`comm_init_rank`].
pub unsafe fn comm_split(
    _comm: Handle,
    _color: i32,
    _key: i32,
    _out: *mut Handle,
    _options: Option<&Options>,
) -> Result<bool> {
    unbuilt()
}

/// Makes a communicator without the excluded ranks.
///
/// # Safety
/// As [`comm_init_rank`].
pub unsafe fn comm_shrink(
    _comm: Handle,
    _exclude: &[i32],
    _out: *mut Handle,
    _options: Option<&Options>,
    _flags: i32,
) -> Result<bool> {
    unbuilt()
}

/// Flushes the communicator; collective.
pub fn comm_finalize(_comm: Handle) -> Result<()> {
    unbuilt()
}
/// Frees the communicator; local.
pub fn comm_destroy(_comm: Handle) -> Result<()> {
    unbuilt()
}
/// Ends everything on the communicator and frees it.
pub fn comm_abort(_comm: Handle) -> Result<()> {
    unbuilt()
}
/// Ends everything on the communicator but keeps it for shrink and destroy.
pub fn comm_revoke(_comm: Handle, _flags: i32) -> Result<()> {
    unbuilt()
}
/// Releases device resources until resume.
pub fn comm_suspend(_comm: Handle, _flags: i32) -> Result<()> {
    unbuilt()
}
/// Takes them back.
pub fn comm_resume(_comm: Handle) -> Result<()> {
    unbuilt()
}
/// The asynchronous state: 0, InProgress (7) or an error code.
pub fn comm_async_error(_comm: Handle) -> Result<i32> {
    unbuilt()
}
/// Number of ranks.
pub fn comm_count(_comm: Handle) -> Result<i32> {
    unbuilt()
}
/// Rank of the caller.
pub fn comm_user_rank(_comm: Handle) -> Result<i32> {
    unbuilt()
}
/// Device the communicator is bound to, -1 for none.
pub fn comm_device(_comm: Handle) -> Result<i32> {
    unbuilt()
}
/// Name of the communicator.
pub fn comm_name(_comm: Handle) -> Result<String> {
    unbuilt()
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
    /// 1 the vendor's streams, 2 our own host streams.
    pub stream_kind: i32,
    /// 1 stream-ordered, 2 complete when the call returns (NULL stream) or stream-ordered on host streams,
    /// 3 synchronised with the caller's device stream.
    pub completion: i32,
}

/// What the communicator runs on.
pub fn comm_info(_comm: Handle) -> Result<CommInfo> {
    unbuilt()
}

// ---- operations: the C result code, 0 for success

macro_rules! operation {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?)) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Buffers must be valid as the C header says.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($arg: $ty),*) -> i32 { $(let _ = $arg;)* 9 }
    };
}

operation!(/// AllReduce
    all_reduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, op: i32, comm: Handle, stream: *mut c_void));
operation!(/// Broadcast
    broadcast(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, root: i32, comm: Handle, stream: *mut c_void));
operation!(/// Reduce
    reduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, op: i32, root: i32, comm: Handle, stream: *mut c_void));
operation!(/// AllGather
    all_gather(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, comm: Handle, stream: *mut c_void));
operation!(/// ReduceScatter
    reduce_scatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, op: i32, comm: Handle, stream: *mut c_void));
operation!(/// Gather
    gather(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, root: i32, comm: Handle, stream: *mut c_void));
operation!(/// Scatter
    scatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, root: i32, comm: Handle, stream: *mut c_void));
operation!(/// AlltoAll
    all_to_all(send: *const c_void, recv: *mut c_void, count: usize, dtype: i32, comm: Handle, stream: *mut c_void));
operation!(/// AlltoAllv
    all_to_allv(send: *const c_void, send_counts: *const usize, send_displs: *const usize, recv: *mut c_void, recv_counts: *const usize, recv_displs: *const usize, dtype: i32, comm: Handle, stream: *mut c_void));
operation!(/// Send
    send(send: *const c_void, count: usize, dtype: i32, peer: i32, comm: Handle, stream: *mut c_void));
operation!(/// Recv
    recv(recv: *mut c_void, count: usize, dtype: i32, peer: i32, comm: Handle, stream: *mut c_void));
operation!(/// Barrier
    barrier(comm: Handle, stream: *mut c_void));

// ---- groups

/// Opens a group on this thread.
pub fn group_start() -> Result<()> {
    unbuilt()
}
/// Closes it; the outermost end launches everything. `Ok(false)`: in progress.
pub fn group_end() -> Result<bool> {
    unbuilt()
}
/// Estimated time in microseconds of the open group, which is closed without launching.
pub fn group_simulate_end() -> Result<f32> {
    unbuilt()
}

// ---- memory

/// Memory that the tier in use can transfer best.
pub fn mem_alloc(_bytes: usize) -> Result<*mut c_void> {
    unbuilt()
}
/// Frees memory of [`mem_alloc`].
pub fn mem_free(_ptr: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Registers a buffer; local.
pub fn comm_register(_comm: Handle, _ptr: *mut c_void, _bytes: usize) -> Result<*mut c_void> {
    unbuilt()
}
/// Undoes it.
pub fn comm_deregister(_comm: Handle, _registration: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Registers a window; collective.
pub fn comm_window_register(
    _comm: Handle,
    _ptr: *mut c_void,
    _bytes: usize,
    _flags: i32,
) -> Result<*mut c_void> {
    unbuilt()
}
/// Undoes it.
pub fn comm_window_deregister(_comm: Handle, _window: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Makes an operator that multiplies this rank's contribution by `*scalar` and sums.
///
/// # Safety
/// `scalar` must point to one element: on the host if `residence` is 1, on the device if 0.
pub unsafe fn redop_create_pre_mul_sum(
    _comm: Handle,
    _scalar: *const c_void,
    _dtype: i32,
    _residence: i32,
) -> Result<i32> {
    unbuilt()
}
/// Frees it.
pub fn redop_destroy(_comm: Handle, _op: i32) -> Result<()> {
    unbuilt()
}

// ---- device

/// Key of the vendor in use, `host` where there is none.
pub fn vendor() -> Result<&'static str> {
    unbuilt()
}
/// The driver's current device of this thread.
pub fn get_device() -> Result<i32> {
    unbuilt()
}
/// Sets it.
pub fn set_device(_device: i32) -> Result<()> {
    unbuilt()
}
/// Number of devices, 0 without a driver.
pub fn device_count() -> Result<i32> {
    unbuilt()
}
/// A new stream (non-blocking on vendors).
pub fn stream_create() -> Result<*mut c_void> {
    unbuilt()
}
/// Frees it.
pub fn stream_destroy(_stream: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Whether everything on it is done.
pub fn stream_query(_stream: *mut c_void) -> Result<bool> {
    unbuilt()
}
/// Waits until everything on it is done.
pub fn stream_synchronize(_stream: *mut c_void) -> Result<()> {
    unbuilt()
}
/// What is put on the stream from now on waits for the event.
pub fn stream_wait_event(_stream: *mut c_void, _event: *mut c_void) -> Result<()> {
    unbuilt()
}
/// A new event.
pub fn event_create(_timing: bool) -> Result<*mut c_void> {
    unbuilt()
}
/// Frees it.
pub fn event_destroy(_event: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Records it on the stream.
pub fn event_record(_event: *mut c_void, _stream: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Whether it is reached.
pub fn event_query(_event: *mut c_void) -> Result<bool> {
    unbuilt()
}
/// Waits until it is reached.
pub fn event_synchronize(_event: *mut c_void) -> Result<()> {
    unbuilt()
}
/// Milliseconds between two timing events.
pub fn event_elapsed(_start: *mut c_void, _end: *mut c_void) -> Result<f32> {
    unbuilt()
}
/// Copies on a stream. Kinds: 0 host to device, 1 device to host, 2 device to device, 3 decided by the pointers.
///
/// # Safety
/// Both buffers must be valid for `bytes` until the stream has passed the copy.
pub unsafe fn memcpy_async(
    _dst: *mut c_void,
    _src: *const c_void,
    _bytes: usize,
    _kind: i32,
    _stream: *mut c_void,
) -> Result<()> {
    unbuilt()
}
/// Fills with a byte on a stream.
///
/// # Safety
/// As [`memcpy_async`].
pub unsafe fn memset_async(
    _dst: *mut c_void,
    _value: i32,
    _bytes: usize,
    _stream: *mut c_void,
) -> Result<()> {
    unbuilt()
}

/// Where a pointer points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// 0 memory the driver does not know (ordinary host memory), 1 pinned host, 2 device, 3 managed.
    pub kind: i32,
    /// Owning device, -1 for none.
    pub device: i32,
}
/// Asks the driver who owns a pointer.
pub fn pointer_attributes(_ptr: *const c_void) -> Result<PointerInfo> {
    unbuilt()
}
