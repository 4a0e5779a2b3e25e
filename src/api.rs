//! The Rust API over the engine.

use crate::comm::options::Options;
use crate::error::{Code, Error, Result};
use crate::internal;
use crate::types::{DataType, RedOp, UNIQUE_ID_BYTES};
use crate::words::counted;
use std::ffi::c_void;

/// Names one communicator to be. Made by one process, given to all ranks by any means.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId([u8; UNIQUE_ID_BYTES]);

impl UniqueId {
    /// Makes an id and serves its rendezvous from this process until the communicator is made or
    /// the init deadline passes. Touches neither a driver nor a vendor's library.
    ///
    /// # Errors
    /// `SystemError` if no socket can be opened.
    pub fn new() -> Result<UniqueId> {
        internal::get_unique_id().map(UniqueId)
    }

    /// The bytes to send to the other ranks.
    pub fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }

    /// The id that another process made. The bytes are checked when they are used.
    pub fn from_bytes(bytes: [u8; UNIQUE_ID_BYTES]) -> UniqueId {
        UniqueId(bytes)
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The id carries the secret that admits a rank; it does not belong in a log.
        f.write_str("UniqueId(..)")
    }
}

/// A stream: the vendor's handle, or one of [`Stream::create`]. [`Stream::DEFAULT`] is the
/// vendor's default stream; on the host tier without a driver it makes calls blocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Stream(pub *mut c_void);

impl Stream {
    /// The default stream.
    pub const DEFAULT: Stream = Stream(std::ptr::null_mut());

    /// A new stream.
    ///
    /// # Errors
    /// `UnhandledDeviceError` with the driver's words.
    pub fn create() -> Result<Stream> {
        internal::stream_create().map(Stream)
    }

    /// Waits until everything on the stream is done.
    ///
    /// # Errors
    /// `UnhandledDeviceError`; on host streams the first error of an operation on it.
    pub fn synchronize(self) -> Result<()> {
        internal::stream_synchronize(self.0)
    }

    /// Frees the stream.
    ///
    /// # Errors
    /// `InvalidArgument` if it is no live stream.
    pub fn destroy(self) -> Result<()> {
        internal::stream_destroy(self.0)
    }
}

/// What a reduction reduces with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// One of the library's own operators.
    Builtin(RedOp),
    /// An operator of [`Communicator::create_pre_mul_sum`].
    Custom(i32),
}

impl From<RedOp> for Op {
    fn from(op: RedOp) -> Op {
        Op::Builtin(op)
    }
}

impl Op {
    fn raw(self) -> i32 {
        match self {
            Op::Builtin(op) => op as i32,
            Op::Custom(raw) => raw,
        }
    }
}

pub use internal::{Agreement, CommInfo};

/// One rank of a communicator. Dropping it aborts; [`Communicator::destroy`] frees it in order.
#[derive(Debug)]
pub struct Communicator {
    handle: internal::Handle,
}

fn check(comm: internal::Handle, code: i32) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(last_error(comm, code))
    }
}

#[cold]
fn last_error(comm: internal::Handle, code: i32) -> Error {
    // SAFETY: the engine returns a NUL-terminated text that stays valid until this thread asks again.
    let text = unsafe { std::ffi::CStr::from_ptr(internal::last_error(comm)) };
    Error::new(
        Code::from_raw(code).unwrap_or(Code::InternalError),
        text.to_string_lossy().into_owned(),
    )
}

/// The raw buffers of an AlltoAllv and how they are cut, in elements.
#[derive(Clone, Copy, Debug)]
pub struct VectorLayout<'a> {
    /// Elements for each rank.
    pub counts: &'a [usize],
    /// Where each rank's elements start.
    pub displs: &'a [usize],
}

macro_rules! collective {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) => |$comm:ident| $call:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The buffers must be valid for the sizes given until the operation is complete on `stream`,
        /// and nobody else may write them (or read what is written) meanwhile.
        ///
        /// # Errors
        /// See the C header: every code that the C function of this name returns, with its text.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<()> {
            let $comm = self.handle;
            // SAFETY: the caller's promise is the one that the engine asks for.
            check($comm, unsafe { $call })
        }
    };
}

impl Communicator {
    /// Joins the communicator named by `id` as `rank` of `nranks`; returns when all have joined.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidUsage` (the ranks disagree), `Timeout` (names the missing ranks),
    /// `RemoteError`, and what a vendor's library reports, each the same on all ranks.
    pub fn init_rank(nranks: usize, id: &UniqueId, rank: usize, options: &Options) -> Result<Self> {
        let mut handle = 0;
        let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
        // SAFETY: `handle` outlives the call; this thread has no open group of the Rust API.
        unsafe {
            internal::comm_init_rank(&mut handle, int(nranks), &[id.0], int(rank), options)?;
        }
        Ok(Communicator { handle })
    }

    /// Makes `devices.len()` ranks in this process, rank i on `devices[i]`.
    ///
    /// # Errors
    /// As [`Communicator::init_rank`].
    pub fn init_all(devices: &[i32], options: &Options) -> Result<Vec<Self>> {
        let mut handles = vec![0; devices.len()];
        let count = i32::try_from(devices.len()).unwrap_or(i32::MAX);
        // SAFETY: the vector has room for one handle per device.
        unsafe {
            internal::comm_init_all(handles.as_mut_ptr(), count, Some(devices), options)?;
        }
        Ok(handles
            .into_iter()
            .map(|handle| Communicator { handle })
            .collect())
    }

    /// Makes `n` ranks in this process on the host tier's terms: no device list.
    ///
    /// # Errors
    /// As [`Communicator::init_rank`].
    pub fn init_local(n: usize, options: &Options) -> Result<Vec<Self>> {
        let mut handles = vec![0; n];
        let count = i32::try_from(n).unwrap_or(i32::MAX);
        // SAFETY: the vector has room for `n` handles.
        unsafe {
            internal::comm_init_all(handles.as_mut_ptr(), count, None, options)?;
        }
        Ok(handles
            .into_iter()
            .map(|handle| Communicator { handle })
            .collect())
    }

    /// Splits by colour (`None`: not a member) and key.
    ///
    /// # Errors
    /// As [`Communicator::init_rank`].
    pub fn split(&self, color: Option<i32>, key: i32) -> Result<Option<Self>> {
        let mut handle = 0;
        // SAFETY: `handle` outlives the call.
        unsafe {
            internal::comm_split(self.handle, color.unwrap_or(-1), key, &mut handle, None)?;
        }
        Ok((handle != 0).then_some(Communicator { handle }))
    }

    /// Tells every rank's level and reason to all, who get the same answer. Every rank must call it.
    ///
    /// # Errors
    /// `InvalidUsage` (a group is open, another collective call is under way, or the ranks make different
    /// calls), `Timeout` (names the missing ranks), `RemoteError` (a rank has died or left), `Aborted`,
    /// and what the communicator has failed with before.
    pub fn agree(&self, level: i32, reason: &str) -> Result<Agreement> {
        internal::comm_agree(self.handle, level, reason)
    }

    /// Frees the rank in order. Local and bounded by the destroy deadline.
    ///
    /// # Errors
    /// What the vendor reports, or `Timeout`; the communicator is gone in any case.
    pub fn destroy(self) -> Result<()> {
        let handle = self.handle;
        std::mem::forget(self);
        internal::comm_destroy(handle)
    }

    /// Flushes the communicator; every rank must call it. One that does not block returns at once, and
    /// [`Communicator::async_error`] tells when it is over.
    ///
    /// # Errors
    /// `Timeout`, `RemoteError`, and what the vendor reports.
    pub fn finalize(&self) -> Result<()> {
        internal::comm_finalize(self.handle).map(drop)
    }

    /// Ends every wait of this rank, from any thread, and tells the others.
    ///
    /// # Errors
    /// What the vendor's abort reports.
    pub fn abort(self) -> Result<()> {
        let handle = self.handle;
        std::mem::forget(self);
        internal::comm_abort(handle)
    }

    /// The asynchronous state: `Ok` when all is well.
    ///
    /// # Errors
    /// The error that the communicator is in, or `InProgress`.
    pub fn async_error(&self) -> Result<()> {
        check(self.handle, internal::comm_async_error(self.handle)?)
    }

    /// Number of ranks.
    ///
    /// # Errors
    /// `InvalidArgument` after destroy, `InvalidUsage` after fork.
    pub fn count(&self) -> Result<usize> {
        internal::comm_count(self.handle).map(|n| n as usize)
    }

    /// Rank of the caller.
    ///
    /// # Errors
    /// As [`Communicator::count`].
    pub fn rank(&self) -> Result<usize> {
        internal::comm_user_rank(self.handle).map(|n| n as usize)
    }

    /// What the communicator runs on.
    ///
    /// # Errors
    /// As [`Communicator::count`].
    pub fn info(&self) -> Result<CommInfo> {
        internal::comm_info(self.handle)
    }

    /// The value of the C handle, for code that mixes both APIs.
    pub fn as_raw(&self) -> usize {
        self.handle
    }

    /// An operator that multiplies this rank's contribution by `scalar` before the sum.
    ///
    /// # Safety
    /// `scalar` must point to one element of `dtype` on the host; it is copied.
    ///
    /// # Errors
    /// `NotSupported` where the tier has no such operator.
    pub unsafe fn create_pre_mul_sum(&self, scalar: *const c_void, dtype: DataType) -> Result<Op> {
        // SAFETY: the caller's promise; residence 1 says that the scalar is on the host.
        unsafe { internal::redop_create_pre_mul_sum(self.handle, scalar, dtype as i32, 1) }
            .map(Op::Custom)
    }

    collective!(
        /// Reduces `count` elements of every rank to every rank. In place if `send == recv`.
        all_reduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: Op, stream: Stream)
        => |comm| internal::all_reduce(send, recv, count, dtype as i32, op.raw(), comm, stream.0));
    collective!(
        /// Copies `count` elements of the root to every rank. `send` is read on the root only.
        broadcast(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: usize, stream: Stream)
        => |comm| internal::broadcast(send, recv, count, dtype as i32, root as i32, comm, stream.0));
    collective!(
        /// Reduces `count` elements of every rank to the root. `recv` is written on the root only.
        reduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: Op, root: usize, stream: Stream)
        => |comm| internal::reduce(send, recv, count, dtype as i32, op.raw(), root as i32, comm, stream.0));
    collective!(
        /// Concatenates `count` elements of every rank; `recv` holds `nranks * count`.
        all_gather(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, stream: Stream)
        => |comm| internal::all_gather(send, recv, count, dtype as i32, comm, stream.0));
    collective!(
        /// Reduces `nranks * count` elements; each rank keeps its block of `count`.
        reduce_scatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, op: Op, stream: Stream)
        => |comm| internal::reduce_scatter(send, recv, count, dtype as i32, op.raw(), comm, stream.0));
    collective!(
        /// Concatenates `count` elements of every rank on the root.
        gather(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: usize, stream: Stream)
        => |comm| internal::gather(send, recv, count, dtype as i32, root as i32, comm, stream.0));
    collective!(
        /// Gives each rank its block of `count` elements of the root's buffer.
        scatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, root: usize, stream: Stream)
        => |comm| internal::scatter(send, recv, count, dtype as i32, root as i32, comm, stream.0));
    collective!(
        /// Sends `count` elements to every rank and receives as many from every rank.
        all_to_all(send: *const c_void, recv: *mut c_void, count: usize, dtype: DataType, stream: Stream)
        => |comm| internal::all_to_all(send, recv, count, dtype as i32, comm, stream.0));
    collective!(
        /// Sends to `peer`. On the host tier a receive of another count or data type is `InvalidUsage` on both sides;
        /// on the receiver alone if the message is complete before it is received: on several machines one of at most
        /// 8 KiB; where ranks share memory one of at most 128 KiB that is sent outside a group, or alone in its group,
        /// while a message waits that its sender has not received.
        send(send: *const c_void, count: usize, dtype: DataType, peer: usize, stream: Stream)
        => |comm| internal::send(send, count, dtype as i32, peer as i32, comm, stream.0));
    collective!(
        /// Receives from `peer`.
        recv(recv: *mut c_void, count: usize, dtype: DataType, peer: usize, stream: Stream)
        => |comm| internal::recv(recv, count, dtype as i32, peer as i32, comm, stream.0));

    /// Sends to every rank a block of its own size.
    ///
    /// # Safety
    /// As [`Communicator::all_to_all`], with the sizes of the two layouts.
    ///
    /// # Errors
    /// `InvalidArgument` if a layout has not one entry per rank.
    pub unsafe fn all_to_allv(
        &self,
        send: *const c_void,
        send_layout: VectorLayout<'_>,
        recv: *mut c_void,
        recv_layout: VectorLayout<'_>,
        dtype: DataType,
        stream: Stream,
    ) -> Result<()> {
        let n = self.count()?;
        for slice in [
            send_layout.counts,
            send_layout.displs,
            recv_layout.counts,
            recv_layout.displs,
        ] {
            if slice.len() != n {
                return Err(Error::invalid_argument(format!(
                    "AlltoAllv layout has {} entries but the communicator has {}",
                    slice.len(),
                    counted(n as u64, "rank")
                )));
            }
        }
        // SAFETY: the layouts have one entry per rank; the buffers are the caller's promise.
        check(self.handle, unsafe {
            internal::all_to_allv(
                send,
                send_layout.counts.as_ptr(),
                send_layout.displs.as_ptr(),
                recv,
                recv_layout.counts.as_ptr(),
                recv_layout.displs.as_ptr(),
                dtype as i32,
                self.handle,
                stream.0,
            )
        })
    }

    /// Completes on no rank before every rank has entered: on a vendor's tier on the stream, on the
    /// host tier before the call returns (NULL stream) or on the stream.
    ///
    /// # Errors
    /// As the other operations; `InvalidUsage` inside a group.
    pub fn barrier(&self, stream: Stream) -> Result<()> {
        // SAFETY: a barrier has no buffers.
        check(self.handle, unsafe {
            internal::barrier(self.handle, stream.0)
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let _ = internal::comm_abort(self.handle);
    }
}

/// Runs `calls` inside a group: its operations are launched together at the end.
///
/// # Errors
/// The first error of a call inside, or of the launch.
pub fn group<R>(calls: impl FnOnce() -> Result<R>) -> Result<R> {
    internal::group_start()?;
    let result = calls();
    let end = internal::group_end();
    let value = result?;
    end?;
    Ok(value)
}
