//! What the library says about itself and about errors.

use crate::boundary::{Out, handle, value};
use crate::flagcx_abi::skin::{entry, words};
use crate::types::*;
use engine::{DataType, internal};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// The version that FlagCX 0.13 gives, whatever the version of its header: 1.0.0.
const VERSION: c_int = 10000;

/// Writes the version of the FlagCX API that this library has.
///
/// # Safety
/// `version` must be NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetVersion(version: *mut c_int) -> flagcxResult_t {
    entry("flagcxGetVersion", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(version, "version", 0) }?;
        out.set(VERSION);
        Ok(())
    })
}

/// A sentence for one of FlagCX's result codes; never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetErrorString(result: flagcxResult_t) -> *const c_char {
    value("flagcxGetErrorString", c"internal error".as_ptr(), || {
        words(result).as_ptr()
    })
}

/// Text of the last error: of a live communicator, else of the calling thread. Never NULL.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGetLastError(comm: flagcxComm_t) -> *const c_char {
    value("flagcxGetLastError", c"internal error".as_ptr(), || {
        internal::last_error(handle(comm))
    })
}

/// Bytes of an element; 0 for a number that is no data type of FlagCX.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getFlagcxDataTypeSize(dtype: flagcxDataType_t) -> usize {
    value("getFlagcxDataTypeSize", 0, || {
        if dtype as u32 >= flagcxNumTypes {
            return 0;
        }
        DataType::from_raw(dtype).map_or(0, DataType::size)
    })
}
