//! What all functions with FlagCX's ABI share: its result codes, its streams, and what it accepts.

use super::handles::STALE;
use super::types::*;
use crate::boundary::{self, handle};

use engine::{Code, Error, Result, internal};
use std::ffi::{CStr, c_void};

/// FlagCX's code for one of ours: its set ends at 9. There is no default, so that a new code of ours
/// has to be given a place here.
const fn of_code(code: Code) -> flagcxResult_t {
    match code {
        Code::UnhandledDeviceError => flagcxUnhandledDeviceError,
        Code::SystemError => flagcxSystemError,
        Code::InternalError => flagcxInternalError,
        Code::InvalidArgument => flagcxInvalidArgument,
        Code::InvalidUsage => flagcxInvalidUsage,
        Code::RemoteError => flagcxRemoteError,
        // The call was taken and goes on in the background, which is what success means on a stream.
        // Callers of FlagCX throw on anything but 0.
        Code::InProgress => flagcxSuccess,
        Code::UnhandledCclError => flagcxUnhandledCCLError,
        Code::NotSupported => flagcxNotSupported,
        // Somebody did not come.
        Code::Timeout => flagcxRemoteError,
        // The caller, or another rank, has ended the communicator.
        Code::Aborted => flagcxInvalidUsage,
        Code::UnboundDevice => flagcxUnhandledDeviceError,
    }
}

/// FlagCX's code for a result of the engine.
pub(crate) fn result(ours: i32) -> flagcxResult_t {
    match Code::from_raw(ours) {
        Some(code) => of_code(code),
        None if ours == 0 => flagcxSuccess,
        None => flagcxInternalError,
    }
}

/// As [`result`], for the functions that ask how far something is.
pub(crate) fn state(ours: i32) -> flagcxResult_t {
    if ours == boundary::IN_PROGRESS {
        return flagcxInProgress;
    }
    result(ours)
}

/// An entry that is not an operation.
#[inline(always)]
pub(crate) fn entry(
    name: &'static str,
    comm: flagcxComm_t,
    body: impl FnOnce() -> Result<()>,
) -> flagcxResult_t {
    result(boundary::entry(name, comm, body))
}

/// As [`entry`], for an init or the end of a group.
#[inline(always)]
pub(crate) fn entry_with_state(
    name: &'static str,
    comm: flagcxComm_t,
    body: impl FnOnce() -> Result<bool>,
) -> flagcxResult_t {
    result(boundary::entry_with_state(name, comm, body))
}

/// As [`entry`], for a question whose answer may be "not yet".
#[inline(always)]
pub(crate) fn question(name: &'static str, body: impl FnOnce() -> Result<bool>) -> flagcxResult_t {
    state(boundary::entry_with_state(name, std::ptr::null_mut(), body))
}

/// What of an operation's arguments has a smaller range here than in the engine.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    pub dtype: flagcxDataType_t,
    pub op: flagcxRedOp_t,
}

impl Checked {
    /// An operation without an operator.
    #[inline(always)]
    pub(crate) fn dtype(dtype: flagcxDataType_t) -> Checked {
        Checked { dtype, op: 0 }
    }

    #[inline(always)]
    fn fine(self) -> bool {
        (self.dtype as u32) < flagcxNumTypes && (self.op as u32) < flagcxNumRedOps
    }
}

/// An operation: the stream is looked into now, as callers free the wrapper right after the call, also
/// inside a group.
///
/// # Safety
/// A stream that is not NULL must point to a pointer.
#[inline(always)]
pub(crate) unsafe fn checked_operation(
    name: &'static str,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
    checked: Checked,
    refused: impl FnOnce() -> flagcxResult_t,
    call: impl FnOnce(*mut c_void) -> i32,
) -> flagcxResult_t {
    boundary::operation(name, comm, move || {
        if checked.fine() && !stream.is_null() {
            // SAFETY: not NULL, so valid by this function's contract.
            let raw = unsafe { (&raw const (*stream).base).read_unaligned() };
            if raw.addr() != STALE {
                return match call(raw) {
                    0 => flagcxSuccess,
                    other => result(other),
                };
            }
        }
        refused()
    })
}

/// An operation as an entry's whole body: its arguments other than communicator and stream in their
/// order, the range-checked ones of them, and the engine's function.
///
/// What is refused leaves the entry by a jump with the very same arguments, so that those that are fine stay in
/// their registers: that saves up to five instructions.
macro_rules! operation {
    ($name:expr, $checked:expr, $engine:ident($($arg:ident: $ty:ty),*), $comm:ident, $stream:ident) => {{
        #[cold]
        #[inline(never)]
        extern "C" fn refused(
            $($arg: $ty,)*
            $comm: flagcxComm_t,
            $stream: flagcxStream_t,
        ) -> flagcxResult_t {
            // Else the compiler takes the arguments that are not looked at out of the list.
            std::hint::black_box(($($arg,)*));
            $crate::flagcx_abi::skin::refused($name, $comm, $stream, $checked)
        }
        // SAFETY: the contract of the function whose body this is.
        unsafe {
            $crate::flagcx_abi::skin::checked_operation(
                $name,
                $comm,
                $stream,
                $checked,
                move || refused($($arg,)* $comm, $stream),
                move |raw| engine::internal::$engine($($arg,)* $crate::boundary::handle($comm), raw),
            )
        }
    }};
}
pub(crate) use operation;

/// Refuses an operation that the engine is not to see.
#[cold]
#[inline(never)]
pub(crate) fn refused(
    name: &'static str,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
    checked: Checked,
) -> flagcxResult_t {
    entry(name, comm, || {
        let Checked { dtype, op } = checked;
        let error = if dtype as u32 >= flagcxNumTypes {
            Error::invalid_argument(format!(
                "{dtype} is no data type of FlagCX (0 to {} are)",
                flagcxNumTypes - 1
            ))
        } else if op as u32 >= flagcxNumRedOps {
            Error::invalid_argument(format!(
                "{op} is no reduction operator of FlagCX (0 to {} are)",
                flagcxNumRedOps - 1
            ))
        } else if stream.is_null() {
            Error::invalid_argument(
                "stream is NULL: a flagcxStream_t is needed, of the device handle's streamCreate or \
                 streamCopy (which takes the vendor's default stream too)",
            )
        } else {
            stale_stream(stream)
        };
        internal::refuse_group(&error);
        Err(error)
    })
}

fn stale_stream(stream: flagcxStream_t) -> Error {
    Error::invalid_argument(format!(
        "{stream:p} is a stream that was destroyed or freed"
    ))
}

/// The vendor's stream in a wrapper, whoever made that. NULL is the default stream.
///
/// # Safety
/// A stream that is not NULL must point to a pointer.
pub(crate) unsafe fn raw_stream(stream: flagcxStream_t) -> Result<*mut c_void> {
    if stream.is_null() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: not NULL, so valid by this function's contract.
    let raw = unsafe { (&raw const (*stream).base).read_unaligned() };
    if raw.addr() == STALE {
        return Err(stale_stream(stream));
    }
    Ok(raw)
}

/// All meaning of an id is here. Callers that have room for NCCL's id only copy no more, and what is
/// behind it is whatever was there.
const MEANING: usize = 128;

/// The id that a caller passes.
///
/// # Safety
/// An id that is not NULL must have these bytes.
pub(crate) unsafe fn read_id(id: *const flagcxUniqueId) -> Result<[u8; FLAGCX_UNIQUE_ID_BYTES]> {
    if id.is_null() {
        return Err(boundary::null("commId"));
    }
    let mut whole = [0; FLAGCX_UNIQUE_ID_BYTES];
    // SAFETY: not NULL, so valid by this function's contract; bytes have no alignment.
    let meaning = unsafe { id.cast::<[u8; MEANING]>().read() };
    whole[..MEANING].copy_from_slice(&meaning);
    Ok(whole)
}

/// The native library's FLAGOS_SUSPEND_MEM, the only kind that there is.
pub(crate) const SUSPEND_MEMORY: i32 = 1;

/// A sentence for one of FlagCX's result codes.
pub(crate) fn words(result: flagcxResult_t) -> &'static CStr {
    match result {
        flagcxSuccess => c"no error",
        flagcxUnhandledDeviceError => c"a call to the accelerator's driver failed",
        flagcxSystemError => c"the operating system refused a request",
        flagcxInternalError => c"internal error",
        flagcxInvalidArgument => c"invalid argument",
        flagcxInvalidUsage => c"invalid usage",
        flagcxRemoteError => c"another rank failed, left, or did not come in time",
        flagcxInProgress => c"in progress",
        flagcxUnhandledCCLError => c"the vendor's collective library failed",
        flagcxNotSupported => c"not supported",
        _ => c"unknown result code",
    }
}

/// Refuses a handle that is no live communicator.
pub(crate) fn live(comm: flagcxComm_t) -> Result<()> {
    internal::comm_count(handle(comm)).map(drop)
}
