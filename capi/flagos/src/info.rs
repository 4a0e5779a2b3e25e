//! What the library says about itself: version, errors, vendor, log, load report.

use crate::boundary::{Out, SizedOut, entry, handle, text_out, value};
use crate::types::*;
use crate::{flagcx_abi, plugin};
use engine::{DataType, internal};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// Version of this library as one number, as FLAGOS_COMM_VERSION_CODE is that of the header:
/// major * 10000 + minor * 100 + patch. Not the vendor's; see flagosCommGetInfo for that.
///
/// @param version  receives the number; 0 on failure. Not NULL.
///
/// Threads: any. Touches neither a driver nor a vendor's library.
///
/// @return flagosSuccess; flagosInvalidArgument (version is NULL); flagosInternalError.
///
/// Semantics: NCCL's ncclGetVersion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetVersion(version: *mut c_int) -> flagosResult_t {
    entry("flagosGetVersion", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(version, "version", 0) }?;
        out.set(internal::version_code());
        Ok(())
    })
}

/// What a result code means, as a sentence. See flagosGetLastError for what happened.
///
/// @param result  any number.
///
/// Threads: any.
///
/// @return a text that lives for ever, never NULL, also for numbers that are no result.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetErrorString(result: flagosResult_t) -> *const c_char {
    value("flagosGetErrorString", c"internal error".as_ptr(), || {
        internal::error_string(result).as_ptr()
    })
}

/// The text of the last error: of a communicator, or of the calling thread if comm is NULL or no live
/// communicator (the errors of calls that have no communicator, or whose communicator is gone). It
/// names the vendor's code and words, library, communicator, operation and a hint, as far as
/// there are any. A call that succeeds does not clear it.
///
/// @param comm  the communicator, or NULL. Never followed.
///
/// Threads: any.
///
/// @return a text, empty if there was no error, never NULL, valid until the calling thread's next call
/// of this function.
///
/// Semantics: NCCL's ncclGetLastError, with a text per communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetLastError(comm: flagosComm_t) -> *const c_char {
    value("flagosGetLastError", c"internal error".as_ptr(), || {
        internal::last_error(handle(comm))
    })
}

/// Size of one element.
///
/// @param datatype  any number.
///
/// Threads: any.
///
/// @return bytes; 0 for a number that is no data type.
///
/// Semantics: FlagCX's getFlagcxDataTypeSize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosDataTypeSize(datatype: flagosDataType_t) -> usize {
    value("flagosDataTypeSize", 0, || {
        DataType::from_raw(datatype).map_or(0, DataType::size)
    })
}

/// Key of the vendor whose driver is in use, such as "nvidia"; "host" on a machine without one. May
/// load the driver.
///
/// @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
/// @param size    bytes of buffer.
/// @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
///                buffer is not.
///
/// Threads: any.
///
/// @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed; a
/// vendor that the environment names and nobody knows); flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetVendor(
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> flagosResult_t {
    entry("flagosGetVendor", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe { text_out(buffer, size, needed, || internal::vendor().map(Into::into)) }
    })
}

/// The load report: which libraries were considered, a line for each, and why each was taken or not.
/// Loads nothing itself.
///
/// @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
/// @param size    bytes of buffer.
/// @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
///                buffer is not.
///
/// Threads: any.
///
/// @return flagosSuccess, also when it was cut; flagosInvalidArgument (a NULL that is not allowed);
/// flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetLoadReport(
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> flagosResult_t {
    entry("flagosGetLoadReport", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe { text_out(buffer, size, needed, || Ok(internal::load_report_text())) }
    })
}

/// flagosGetLoadReport as JSON. A text that was cut is no JSON: ask for needed first.
///
/// @param buffer  receives the text, cut to fit and always terminated. NULL only with size 0.
/// @param size    bytes of buffer.
/// @param needed  receives the bytes of the whole text with its zero; 0 on failure. May be NULL if
///                buffer is not.
///
/// Threads: any.
///
/// @return as flagosGetLoadReport.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetLoadReportJson(
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> flagosResult_t {
    entry("flagosGetLoadReportJson", null_mut(), || {
        // SAFETY: the header's contract.
        unsafe { text_out(buffer, size, needed, || Ok(internal::load_report_json())) }
    })
}

/// What FlagCX has done through this library's adaptor plugins, in this process. A plugin that FlagCX
/// refuses is told to nobody, and FlagCX goes on with its own functions: then these numbers stay 0.
///
/// @param counters  in: its size (FLAGOS_PLUGIN_COUNTERS_INITIALIZER); out: the numbers, all zero
///                  behind size on failure. Not NULL.
///
/// Threads: any. Operations that other threads are starting may be missing.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL, a wrong size); flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetPluginCounters(
    counters: *mut flagosPluginCounters_t,
) -> flagosResult_t {
    entry("flagosGetPluginCounters", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe {
            SizedOut::new(
                counters,
                "counters",
                "FLAGOS_PLUGIN_COUNTERS_INITIALIZER",
                size_of::<flagosPluginCounters_t>(),
            )
        }?;
        let answer = flagosPluginCounters_t {
            size: out.size(),
            communicators: plugin::communicators().load(Ordering::Relaxed),
            operations: internal::plugin_operations(),
            deviceCalls: flagcx_abi::device::calls().load(Ordering::Relaxed),
        };
        out.set(&answer);
        Ok(())
    })
}

/// Sends the log to a function of yours instead of stderr.
///
/// @param callback  the function; NULL restores the default.
/// @param user      handed to every call of it. May be NULL.
///
/// Threads: any. Lines that other threads are writing may still reach the old function for a moment.
///
/// @return flagosSuccess; flagosInternalError.
///
/// Semantics: this library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosSetLogCallback(
    callback: flagosLogCallback_t,
    user: *mut c_void,
) -> flagosResult_t {
    entry("flagosSetLogCallback", null_mut(), || {
        internal::set_log_callback(callback, user);
        Ok(())
    })
}
