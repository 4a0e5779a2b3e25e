//! What the library says about itself and about errors.

use crate::boundary::{Out, handle, value};
use crate::skin::entry;
use crate::types::*;
use engine::internal;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

/// The version of NCCL whose functions are here: 2.28.9.
const VERSION: c_int = 22809;

/// Writes the version whose functions a program can use: that of this library, or of the NCCL below it if
/// that is older.
///
/// # Safety
/// `version` must be NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    entry("ncclGetVersion", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(version, "version", 0) }?;
        let below = internal::nccl_version().unwrap_or(VERSION);
        out.set(VERSION.min(below));
        Ok(())
    })
}

/// A sentence for one of NCCL's result codes; never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    value("ncclGetErrorString", c"internal error".as_ptr(), || {
        let text: &CStr = match result {
            ncclSuccess => c"no error",
            ncclUnhandledCudaError => c"a call to the accelerator's driver failed",
            ncclSystemError => c"the operating system refused a request",
            ncclInternalError => c"internal error",
            ncclInvalidArgument => c"invalid argument",
            ncclInvalidUsage => c"invalid usage, or not supported",
            ncclRemoteError => c"another rank failed, left, or did not come in time",
            ncclInProgress => c"in progress",
            _ => c"unknown result code",
        };
        text.as_ptr()
    })
}

/// Text of the last error: of a live communicator, else of the calling thread. Never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    value("ncclGetLastError", c"internal error".as_ptr(), || {
        internal::last_error(handle(comm))
    })
}

/// Does nothing: this library reads its settings once, and NCCL gives this function up.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInit() {}

/// Does nothing; NCCL exports it by accident.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInitInternal() {}
