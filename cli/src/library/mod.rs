//! The library under test behind one interface: the engine linked into this tool, or any
//! `libflagos_comm.so` by its C functions.

mod dynamic;
mod linked;

pub use dynamic::Dynamic;
pub use linked::{Linked, sum};

use crate::perf::operation::{Layout, Operation};
use flagos_comm::{CommInfo, DataType, Result};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// What a communicator is made with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Tiers to try, comma-separated; `None` leaves it to the environment and the default.
    pub tiers: Option<String>,
    /// Limit of init and of one collective.
    pub timeout: Duration,
    /// Device to bind to.
    pub device: Option<i32>,
}

/// What one call does; the rest of [`Call`] has the meaning that the C function gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// A row of the table, but not `sendrecv`.
    Collective(Operation),
    /// Send to the peer in `root`.
    Send,
    /// Receive from the peer in `root`.
    Recv,
}

/// One call of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Which function.
    pub function: Function,
    /// Send buffer.
    pub send: *const c_void,
    /// Receive buffer.
    pub recv: *mut c_void,
    /// Count as the function takes it; not used by AlltoAllv.
    pub count: usize,
    /// Element type.
    pub dtype: DataType,
    /// Number of the reduction operator.
    pub redop: i32,
    /// Root or peer.
    pub root: usize,
    /// Send and receive side of AlltoAllv.
    pub layouts: Option<(&'a Layout, &'a Layout)>,
    /// Stream.
    pub stream: *mut c_void,
}

/// A library.
pub trait Library: Send + Sync {
    /// What it is, for the header of the table.
    fn origin(&self) -> String;
    /// major * 10000 + minor * 100 + patch.
    fn version_code(&self) -> i32;
    /// A new unique id.
    fn unique_id(&self) -> Result<[u8; 256]>;
    /// Joins a communicator.
    fn init_rank(&self, ranks: usize, id: &[u8; 256], rank: usize, setup: &Setup) -> Made;
    /// Makes every rank of a communicator in this thread.
    fn init_all(&self, ranks: usize, devices: Option<&[i32]>, setup: &Setup) -> MadeAll;
    /// Number of devices, 0 without a driver.
    fn device_count(&self) -> Result<i32>;
    /// Makes a device current on this thread.
    fn set_device(&self, device: i32) -> Result<()>;
    /// A new stream.
    fn stream_create(&self) -> Result<*mut c_void>;
    /// Frees it.
    fn stream_destroy(&self, stream: *mut c_void) -> Result<()>;
    /// Waits until everything on it is done.
    fn stream_synchronize(&self, stream: *mut c_void) -> Result<()>;
    /// Memory that the tier transfers best.
    fn mem_alloc(&self, bytes: usize) -> Result<*mut c_void>;
    /// Frees it.
    fn mem_free(&self, pointer: *mut c_void) -> Result<()>;
    /// Copies on a stream, directions by the pointers.
    ///
    /// # Safety
    /// Both sides must be valid for `bytes` until the stream has passed the copy.
    unsafe fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<()>;
    /// Opens a group on this thread.
    fn group_start(&self) -> Result<()>;
    /// Closes it and launches what it holds.
    fn group_end(&self) -> Result<()>;
}

/// A communicator that was made, or why not.
pub type Made = Result<Box<dyn Comm>>;
/// All ranks of one, or why not.
pub type MadeAll = Result<Vec<Box<dyn Comm>>>;

/// One rank of a communicator.
pub trait Comm {
    /// What it runs on.
    fn info(&self) -> Result<CommInfo>;
    /// Runs one operation.
    ///
    /// # Safety
    /// The buffers must be valid for what the C header says about the function until the stream
    /// has passed the operation.
    unsafe fn call(&self, call: &Call<'_>) -> Result<()>;
    /// An operator that multiplies by the scalar (one element of `dtype`) before the sum.
    fn pre_mul_sum(&self, scalar: &[u8; 8], dtype: DataType) -> Result<i32>;
    /// Frees it.
    fn redop_destroy(&self, redop: i32) -> Result<()>;
    /// Frees the communicator in order.
    fn destroy(self: Box<Self>) -> Result<()>;
}

/// The library at `path`, or the linked engine.
///
/// # Errors
/// If the file can't be opened or lacks a function.
pub fn open(path: Option<&std::path::Path>) -> Result<Arc<dyn Library>> {
    Ok(match path {
        Some(path) => Arc::new(Dynamic::open(path)?),
        None => Arc::new(Linked),
    })
}

/// A version code as people write it.
pub fn version_text(code: i32) -> String {
    format!("{}.{}.{}", code / 10000, code / 100 % 100, code % 100)
}
