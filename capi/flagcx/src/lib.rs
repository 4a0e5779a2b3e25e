//! `libflagcx`: the engine under the names of FlagCX. So far only what tells the version.
#![allow(non_snake_case, reason = "these are the names of the C API")]

#[path = "../../instance.rs"]
mod instance;

use std::ffi::{CStr, c_char, c_int};

/// flagcxInvalidArgument
const INVALID_ARGUMENT: c_int = 4;

/// The version that FlagCX 0.13 gives, whatever the version of its header: 1.0.0.
const VERSION: c_int = 10000;

/// Writes the version of the FlagCX API that this library has.
///
/// # Safety
/// `version` must be NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetVersion(version: *mut c_int) -> c_int {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not NULL, so valid by this function's contract.
    unsafe { version.write_unaligned(VERSION) };
    0
}

/// A sentence for one of FlagCX's result codes; never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetErrorString(result: c_int) -> *const c_char {
    let text: &CStr = match result {
        0 => c"no error",
        1 => c"a call to the accelerator's driver failed",
        2 => c"the operating system refused a request",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"another rank failed or left",
        7 => c"in progress",
        8 => c"the vendor's collective library failed",
        9 => c"not supported",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
