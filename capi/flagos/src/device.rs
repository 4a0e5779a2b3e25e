//! Devices, streams, events, copies.

use crate::boundary::{Out, SizedOut, entry, entry_with_state, not_null};
use crate::types::*;
use engine::{Error, Result, internal};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Asks the driver which device is current on the calling thread, now. Nothing is cached.
///
/// @param device  receives the index; 0 on failure. Not NULL.
///
/// Threads: any; the answer is the calling thread's.
///
/// @return flagosSuccess; flagosInvalidArgument (device is NULL); flagosUnboundDevice (the driver says
/// that the thread has none); flagosNotSupported (no driver); flagosUnhandledDeviceError,
/// flagosInternalError.
///
/// Semantics: cudaGetDevice's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetDevice(device: *mut c_int) -> flagosResult_t {
    entry("flagosGetDevice", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(device, "device", 0) }?;
        out.set(internal::get_device()?);
        Ok(())
    })
}

/// Makes a device current on the calling thread.
///
/// @param device  the index, 0 to the number of devices less one.
///
/// Threads: any; affects the calling thread.
///
/// @return flagosSuccess; flagosInvalidArgument (no such device); flagosNotSupported (no driver);
/// flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaSetDevice's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosSetDevice(device: c_int) -> flagosResult_t {
    entry("flagosSetDevice", null_mut(), || {
        internal::set_device(device)
    })
}

/// Number of devices that the driver shows this process.
///
/// @param count  receives the number, 0 on a machine without a driver and on failure. Not NULL.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (count is NULL); flagosUnhandledDeviceError,
/// flagosInternalError.
///
/// Semantics: cudaGetDeviceCount's, but no device is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGetDeviceCount(count: *mut c_int) -> flagosResult_t {
    entry("flagosGetDeviceCount", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(count, "count", 0) }?;
        out.set(internal::device_count()?);
        Ok(())
    })
}

/// Makes a stream on the current device (one that does not wait for the vendor's default stream), or
/// a host stream on a machine without a driver.
///
/// @param stream  receives the stream; NULL on failure. Not NULL. Free it with flagosStreamDestroy.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (stream is NULL); flagosUnboundDevice,
/// flagosUnhandledDeviceError, flagosSystemError, flagosNotSupported, flagosInternalError.
///
/// Semantics: cudaStreamCreateWithFlags(cudaStreamNonBlocking)'s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosStreamCreate(stream: *mut flagosStream_t) -> flagosResult_t {
    entry("flagosStreamCreate", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(stream, "stream", null_mut()) }?;
        out.set(internal::stream_create()?.cast());
        Ok(())
    })
}

/// Frees a stream. What is on it is still completed.
///
/// @param stream  the stream. Not NULL: the default stream can't be freed.
///
/// Threads: any; nobody else may use the stream.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL, no live host stream);
/// flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaStreamDestroy's. A vendor's driver follows the handle: one that is not a stream is
/// undefined there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosStreamDestroy(stream: flagosStream_t) -> flagosResult_t {
    entry("flagosStreamDestroy", null_mut(), || {
        not_null(stream, "stream")?;
        internal::stream_destroy(stream.cast())
    })
}

/// Tells whether everything on a stream is done, without waiting.
///
/// @param stream  the stream; NULL is the default stream.
///
/// Threads: any.
///
/// @return flagosSuccess (done); flagosInProgress (not yet); flagosInvalidArgument (no live host
/// stream); flagosUnhandledDeviceError; on a host stream the first error of an operation on it;
/// flagosInternalError.
///
/// Semantics: cudaStreamQuery's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosStreamQuery(stream: flagosStream_t) -> flagosResult_t {
    entry_with_state("flagosStreamQuery", null_mut(), || {
        internal::stream_query(stream.cast())
    })
}

/// Waits until everything on a stream is done.
///
/// @param stream  the stream; NULL is the default stream.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (no live host stream); flagosUnhandledDeviceError; on
/// a host stream the first error of an operation on it; flagosInternalError.
///
/// Semantics: cudaStreamSynchronize's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosStreamSynchronize(stream: flagosStream_t) -> flagosResult_t {
    entry("flagosStreamSynchronize", null_mut(), || {
        internal::stream_synchronize(stream.cast())
    })
}

/// Lets everything that is put on a stream from now on wait for an event. The host does not wait.
///
/// @param stream  the stream; NULL is the default stream.
/// @param event   the event. Not NULL.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (event is NULL, no live host stream or event);
/// flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaStreamWaitEvent's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosStreamWaitEvent(
    stream: flagosStream_t,
    event: flagosEvent_t,
) -> flagosResult_t {
    entry("flagosStreamWaitEvent", null_mut(), || {
        not_null(event, "event")?;
        internal::stream_wait_event(stream.cast(), event.cast())
    })
}

/// Makes an event.
///
/// @param event  receives the event; NULL on failure. Not NULL. Free it with flagosEventDestroy.
/// @param flags  FLAGOS_EVENT_DEFAULT or FLAGOS_EVENT_DISABLE_TIMING.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (event is NULL, unknown flags); flagosUnboundDevice,
/// flagosUnhandledDeviceError, flagosSystemError, flagosNotSupported, flagosInternalError.
///
/// Semantics: cudaEventCreateWithFlags's, FlagCX's flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventCreate(
    event: *mut flagosEvent_t,
    flags: c_int,
) -> flagosResult_t {
    entry("flagosEventCreate", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(event, "event", null_mut()) }?;
        let timing = match flags {
            FLAGOS_EVENT_DEFAULT => true,
            FLAGOS_EVENT_DISABLE_TIMING => false,
            other => {
                return Err(Error::invalid_argument(format!(
                    "flags is {other}, not FLAGOS_EVENT_DEFAULT or FLAGOS_EVENT_DISABLE_TIMING"
                )));
            }
        };
        out.set(internal::event_create(timing)?.cast());
        Ok(())
    })
}

/// Frees an event.
///
/// @param event  the event. Not NULL.
///
/// Threads: any; nobody else may use the event.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL, no live event); flagosUnhandledDeviceError,
/// flagosInternalError.
///
/// Semantics: cudaEventDestroy's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventDestroy(event: flagosEvent_t) -> flagosResult_t {
    entry("flagosEventDestroy", null_mut(), || {
        not_null(event, "event")?;
        internal::event_destroy(event.cast())
    })
}

/// Records an event on a stream: it is reached when everything before it is done.
///
/// @param event   the event. Not NULL.
/// @param stream  the stream; NULL is the default stream.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (event is NULL, no live host stream or event);
/// flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaEventRecord's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventRecord(
    event: flagosEvent_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    entry("flagosEventRecord", null_mut(), || {
        not_null(event, "event")?;
        internal::event_record(event.cast(), stream.cast())
    })
}

/// Tells whether an event is reached, without waiting. An event that was never recorded is.
///
/// @param event  the event. Not NULL.
///
/// Threads: any.
///
/// @return flagosSuccess (reached); flagosInProgress (not yet); flagosInvalidArgument (NULL, no live
/// event); flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaEventQuery's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventQuery(event: flagosEvent_t) -> flagosResult_t {
    entry_with_state("flagosEventQuery", null_mut(), || {
        not_null(event, "event")?;
        internal::event_query(event.cast())
    })
}

/// Waits until an event is reached.
///
/// @param event  the event. Not NULL.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (NULL, no live event); flagosUnhandledDeviceError,
/// flagosInternalError.
///
/// Semantics: cudaEventSynchronize's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventSynchronize(event: flagosEvent_t) -> flagosResult_t {
    entry("flagosEventSynchronize", null_mut(), || {
        not_null(event, "event")?;
        internal::event_synchronize(event.cast())
    })
}

/// Time between two events that are reached, in milliseconds.
///
/// @param milliseconds  receives the time; 0 on failure. Not NULL.
/// @param start         the earlier event. Not NULL. Made with FLAGOS_EVENT_DEFAULT.
/// @param end           the later event. Not NULL. Made with FLAGOS_EVENT_DEFAULT.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInProgress (not reached yet); flagosInvalidArgument (a NULL, no live
/// event, an event without timing); flagosUnhandledDeviceError, flagosInternalError.
///
/// Semantics: cudaEventElapsedTime's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosEventElapsedTime(
    milliseconds: *mut f32,
    start: flagosEvent_t,
    end: flagosEvent_t,
) -> flagosResult_t {
    entry("flagosEventElapsedTime", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe { Out::new(milliseconds, "milliseconds", 0.0) }?;
        not_null(start, "start")?;
        not_null(end, "end")?;
        out.set(internal::event_elapsed(start.cast(), end.cast())?);
        Ok(())
    })
}

/// Refuses NULL for a range that is not empty.
fn range(pointer: *const c_void, parameter: &str, size: usize) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    not_null(pointer, parameter)
}

/// Copies size bytes on a stream. The ranges must not overlap.
///
/// @param dst     the destination. NULL only if size is 0.
/// @param src     the source. NULL only if size is 0.
/// @param size    bytes.
/// @param kind    a flagosMemcpyCode; flagosMemcpyDefault lets the driver look at the pointers.
/// @param stream  the stream; NULL is the default stream (blocking on a machine without a driver).
///
/// Threads: any. Both ranges must stay until the stream has passed the copy.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL that is not allowed, an unknown kind, no live
/// host stream); flagosUnhandledDeviceError, flagosNotSupported, flagosInternalError.
///
/// Semantics: cudaMemcpyAsync's, FlagCX's kinds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    kind: flagosMemcpyType_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    entry("flagosMemcpyAsync", null_mut(), || {
        if !(0..=3).contains(&kind) {
            return Err(Error::invalid_argument(format!(
                "kind is {kind}, not a flagosMemcpyCode"
            )));
        }
        range(dst, "dst", size)?;
        range(src, "src", size)?;
        // SAFETY: the header's contract.
        unsafe { internal::memcpy_async(dst, src, size, kind, stream.cast()) }
    })
}

/// Fills size bytes with a byte on a stream.
///
/// @param ptr     the destination. NULL only if size is 0.
/// @param value   the byte; only its low 8 bits count.
/// @param size    bytes.
/// @param stream  the stream; NULL is the default stream (blocking on a machine without a driver).
///
/// Threads: any. The range must stay until the stream has passed the fill.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL that is not allowed, no live host stream);
/// flagosUnhandledDeviceError, flagosNotSupported, flagosInternalError.
///
/// Semantics: cudaMemsetAsync's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosMemsetAsync(
    ptr: *mut c_void,
    value: c_int,
    size: usize,
    stream: flagosStream_t,
) -> flagosResult_t {
    entry("flagosMemsetAsync", null_mut(), || {
        range(ptr, "ptr", size)?;
        // SAFETY: the header's contract.
        unsafe { internal::memset_async(ptr, value, size, stream.cast()) }
    })
}

/// Asks the driver what a pointer points to. The memory itself is not touched, so any value will do;
/// memory that the driver does not know is flagosMemoryUnregistered, device -1.
///
/// @param attributes  in: its size (FLAGOS_POINTER_ATTRIBUTES_INITIALIZER); out: the answer, all zero
///                    behind size on failure. Not NULL.
/// @param ptr         the pointer. Not NULL.
///
/// Threads: any.
///
/// @return flagosSuccess; flagosInvalidArgument (a NULL, a wrong size); flagosUnhandledDeviceError,
/// flagosInternalError.
///
/// Semantics: cudaPointerGetAttributes's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosPointerGetAttributes(
    attributes: *mut flagosPointerAttributes_t,
    ptr: *const c_void,
) -> flagosResult_t {
    entry("flagosPointerGetAttributes", null_mut(), || {
        // SAFETY: the header's contract.
        let out = unsafe {
            SizedOut::new(
                attributes,
                "attributes",
                "FLAGOS_POINTER_ATTRIBUTES_INITIALIZER",
                size_of::<flagosPointerAttributes_t>(),
            )
        }?;
        not_null(ptr, "ptr")?;
        let found = internal::pointer_attributes(ptr)?;
        let answer = flagosPointerAttributes_t {
            size: out.size(),
            kind: found.kind,
            device: found.device,
        };
        out.set(&answer);
        Ok(())
    })
}
