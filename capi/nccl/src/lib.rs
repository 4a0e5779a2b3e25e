//! `libnccl`: the engine under the names of NCCL. So far only what tells the version.
#![allow(non_snake_case, reason = "these are the names of the C API")]

#[path = "../../instance.rs"]
mod instance;

use std::ffi::{CStr, c_char, c_int};

/// ncclInvalidArgument
const INVALID_ARGUMENT: c_int = 4;

/// The version of the NCCL API that this library will have: 2.18.1.
const VERSION: c_int = 21801;

/// Writes the version of the NCCL API that this library has.
///
/// # Safety
/// `version` must be NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not NULL, so valid by this function's contract.
    unsafe { version.write_unaligned(VERSION) };
    0
}

/// A sentence for one of NCCL's result codes; never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    let text: &CStr = match result {
        0 => c"no error",
        1 => c"a call to the accelerator's driver failed",
        2 => c"the operating system refused a request",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"another rank failed or left",
        7 => c"in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
