//! The table of device functions. The driver answers where there is one; on a machine without, the host is
//! the one device, its streams are the engine's host streams and its memory is the host's.

use crate::boundary::{Out, not_null};
use crate::handles::{EVENTS, STREAMS, allocate, is_allocated, release};
use crate::skin::{entry, question, raw_stream};
use crate::types::*;
use engine::{Error, Result, internal};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// What every copy of the table holds.
static TABLE: flagcxDeviceHandle = flagcxDeviceHandle {
    deviceSynchronize,
    deviceMemcpy,
    deviceMemset,
    deviceMalloc,
    deviceFree,
    setDevice,
    getDevice,
    getDeviceCount,
    getVendor,
    hostGetDevicePointer,
    streamCreate,
    streamDestroy,
    streamCopy,
    streamFree,
    streamSynchronize,
    streamQuery,
    streamWaitEvent,
    eventCreate,
    eventDestroy,
    eventRecord,
    eventSynchronize,
    eventQuery,
    eventElapsedTime,
    ipcMemHandleCreate,
    ipcMemHandleGet,
    ipcMemHandleOpen,
    ipcMemHandleClose,
    ipcMemHandleFree,
};

fn new_handle() -> Result<flagcxDeviceHandle_t> {
    let handle: flagcxDeviceHandle_t = allocate()?;
    // SAFETY: just allocated, for this type.
    unsafe { handle.write(TABLE) };
    Ok(handle)
}

/// Gives a copy of the table of device functions. Nothing is loaded or chosen by it, and nothing is
/// unloaded when the last one is freed.
///
/// # Safety
/// `handle` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDeviceHandleInit(
    handle: *mut flagcxDeviceHandle_t,
) -> flagcxResult_t {
    entry("flagcxDeviceHandleInit", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(handle, "devHandle", null_mut()) }?;
        out.set(new_handle()?);
        Ok(())
    })
}

/// Frees it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDeviceHandleFree(handle: flagcxDeviceHandle_t) -> flagcxResult_t {
    entry("flagcxDeviceHandleFree", null_mut(), || {
        if handle.is_null() {
            return Ok(());
        }
        release(handle, "device handle")
    })
}

/// Gives a group of an id and a communicator, both NULL, and a table of device functions.
///
/// # Safety
/// `group` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxHandleInit(group: *mut flagcxHandlerGroup_t) -> flagcxResult_t {
    entry("flagcxHandleInit", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(group, "handler", null_mut()) }?;
        let devHandle = new_handle()?;
        let made: flagcxHandlerGroup_t = allocate().inspect_err(|_| {
            let _ = release(devHandle, "device handle");
        })?;
        // SAFETY: just allocated, for this type.
        unsafe { (*made).devHandle = devHandle };
        out.set(made);
        Ok(())
    })
}

/// Frees the group and its table, not what the caller put into it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxHandleFree(group: flagcxHandlerGroup_t) -> flagcxResult_t {
    entry("flagcxHandleFree", null_mut(), || {
        if group.is_null() {
            return Ok(());
        }
        if is_allocated(group) {
            // SAFETY: one of ours that is not freed.
            let devHandle = unsafe { (&raw const (*group).devHandle).read() };
            // The caller may have freed it, or put another one there.
            if is_allocated(devHandle) {
                release(devHandle, "device handle")?;
            }
        }
        release(group, "handler group")
    })
}

fn without_driver() -> Result<bool> {
    Ok(internal::vendor()? == "host")
}

unsafe extern "C" fn deviceSynchronize() -> flagcxResult_t {
    entry(
        "deviceSynchronize",
        null_mut(),
        internal::device_synchronize,
    )
}

/// What was put on the default stream for a caller without a stream is to be done on return.
fn finish(stream: flagcxStream_t) -> Result<()> {
    match stream.is_null() {
        true => internal::stream_synchronize(null_mut()),
        false => Ok(()),
    }
}

unsafe extern "C" fn deviceMemcpy(
    dst: *mut c_void,
    src: *mut c_void,
    size: usize,
    kind: flagcxMemcpyType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMemcpy", null_mut(), || {
        if !(0..=2).contains(&kind) {
            return Err(Error::invalid_argument(format!(
                "type is {kind}, no flagcxMemcpyType_t (0 to 2)"
            )));
        }
        if size == 0 {
            return Ok(());
        }
        not_null(dst, "dst")?;
        not_null(src, "src")?;
        // SAFETY: the caller's promise about the stream and the ranges, as FlagCX asks for it.
        unsafe { internal::memcpy_async(dst, src, size, kind, raw_stream(stream)?) }?;
        finish(stream)
    })
}

fn memory_kind(kind: flagcxMemType_t) -> Result<()> {
    match kind {
        flagcxMemHost | flagcxMemDevice | flagcxMemManaged => Ok(()),
        other => Err(Error::invalid_argument(format!(
            "type is {other}, no flagcxMemType_t (0 to 2)"
        ))),
    }
}

unsafe extern "C" fn deviceMemset(
    ptr: *mut c_void,
    value: c_int,
    size: usize,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMemset", null_mut(), || {
        memory_kind(kind)?;
        if size == 0 {
            return Ok(());
        }
        not_null(ptr, "ptr")?;
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        if kind == flagcxMemHost {
            // At once and whatever the stream is doing, as in FlagCX.
            // SAFETY: the caller's promise about the range.
            unsafe { ptr.cast::<u8>().write_bytes(value as u8, size) };
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { internal::memset_async(ptr, value, size, raw) }?;
        finish(stream)
    })
}

unsafe extern "C" fn deviceMalloc(
    ptr: *mut *mut c_void,
    size: usize,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMalloc", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        memory_kind(kind)?;
        // SAFETY: the caller's promise. The memory is there at once, on any stream.
        unsafe { raw_stream(stream) }?;
        if size == 0 {
            return Ok(());
        }
        if kind == flagcxMemManaged && !without_driver()? {
            return Err(Error::not_supported(
                "managed memory is not served here; use flagcxMemDevice or flagcxMemHost",
            ));
        }
        out.set(internal::device_alloc(size, kind == flagcxMemHost)?);
        Ok(())
    })
}

unsafe extern "C" fn deviceFree(
    ptr: *mut c_void,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceFree", null_mut(), || {
        memory_kind(kind)?;
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        if ptr.is_null() {
            return Ok(());
        }
        if !stream.is_null() {
            // What is on the stream may still use it.
            internal::stream_synchronize(raw)?;
        }
        internal::mem_free(ptr)
    })
}

unsafe extern "C" fn setDevice(device: c_int) -> flagcxResult_t {
    entry("setDevice", null_mut(), || {
        if without_driver()? {
            return match device {
                0 => Ok(()),
                other => Err(Error::invalid_argument(format!(
                    "device {other}: without an accelerator's driver there is one device, 0"
                ))),
            };
        }
        internal::set_device(device)
    })
}

unsafe extern "C" fn getDevice(device: *mut c_int) -> flagcxResult_t {
    entry("getDevice", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(device, "device", 0) }?;
        if !without_driver()? {
            out.set(internal::get_device()?);
        }
        Ok(())
    })
}

unsafe extern "C" fn getDeviceCount(count: *mut c_int) -> flagcxResult_t {
    entry("getDeviceCount", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count", 0) }?;
        out.set(if without_driver()? {
            1
        } else {
            internal::device_count()?
        });
        Ok(())
    })
}

/// Bytes of a caller's buffer for the vendor's name. There is no argument for it; programs have 64.
const VENDOR_BYTES: usize = 64;

/// FlagCX's name of a vendor, where it has one.
fn flagcx_name(key: &str) -> String {
    let name = match key {
        "nvidia" => "NVIDIA",
        "ascend" => "ASCEND",
        "cambricon" => "MLU",
        "metax" => "METAX",
        "mthreads" => "MUSA",
        "iluvatar" => "ILUVATAR_COREX",
        "du" | "hygon" => "DU",
        "thead" => "PPU",
        "amd" => "AMD",
        "kunlunxin" => "KUNLUNXIN",
        "tsingmicro" => "TSMICRO",
        "enflame" => "ENFLAME",
        "sunrise" => "SUNRISE",
        other => return other.to_uppercase(),
    };
    name.to_owned()
}

unsafe extern "C" fn getVendor(vendor: *mut c_char) -> flagcxResult_t {
    entry("getVendor", null_mut(), || {
        not_null(vendor, "vendor")?;
        let name = flagcx_name(internal::vendor()?);
        // Only what is needed is written: FlagCX fills 127 bytes on some vendors, over the end.
        // SAFETY: the caller has room for a vendor's name.
        unsafe { crate::boundary::write_text(vendor, VENDOR_BYTES, &name) };
        Ok(())
    })
}

unsafe extern "C" fn hostGetDevicePointer(
    device: *mut *mut c_void,
    host: *mut c_void,
) -> flagcxResult_t {
    entry("hostGetDevicePointer", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(device, "pDevice", null_mut()) }?;
        not_null(host, "pHost")?;
        match internal::vendor()? {
            // One memory for both.
            "host" => {}
            // One address space for both.
            "nvidia" => {
                if internal::pointer_attributes(host)?.kind != 1 {
                    return Err(Error::invalid_argument(format!(
                        "{host:p} is no pinned host memory"
                    )));
                }
            }
            key => {
                return Err(Error::not_supported(format!(
                    "how a device of {key} sees the host's memory is not known here"
                )));
            }
        }
        out.set(host);
        Ok(())
    })
}

unsafe extern "C" fn streamCreate(stream: *mut flagcxStream_t) -> flagcxResult_t {
    entry("streamCreate", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(stream, "stream", null_mut()) }?;
        out.set(STREAMS.wrap(internal::stream_create()?));
        Ok(())
    })
}

unsafe extern "C" fn streamDestroy(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamDestroy", null_mut(), || {
        if stream.is_null() {
            return Ok(());
        }
        let raw = STREAMS.take_back(stream)?;
        if raw.is_null() {
            // A copy of the default stream, which lives on.
            return Ok(());
        }
        internal::stream_destroy(raw)
    })
}

unsafe extern "C" fn streamCopy(
    newStream: *mut flagcxStream_t,
    oldStream: *mut c_void,
) -> flagcxResult_t {
    entry("streamCopy", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(newStream, "newStream", null_mut()) }?;
        out.set(STREAMS.wrap(oldStream));
        Ok(())
    })
}

unsafe extern "C" fn streamFree(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamFree", null_mut(), || {
        if stream.is_null() {
            return Ok(());
        }
        STREAMS.take_back(stream).map(drop)
    })
}

unsafe extern "C" fn streamSynchronize(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamSynchronize", null_mut(), || {
        if stream.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        internal::stream_synchronize(unsafe { raw_stream(stream) }?)
    })
}

unsafe extern "C" fn streamQuery(stream: flagcxStream_t) -> flagcxResult_t {
    question("streamQuery", || {
        if stream.is_null() {
            return Ok(true);
        }
        // SAFETY: the caller's promise.
        internal::stream_query(unsafe { raw_stream(stream) }?)
    })
}

unsafe extern "C" fn streamWaitEvent(
    stream: flagcxStream_t,
    event: flagcxEvent_t,
) -> flagcxResult_t {
    entry("streamWaitEvent", null_mut(), || {
        if stream.is_null() || event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        internal::stream_wait_event(raw, EVENTS.look(event)?)
    })
}

unsafe extern "C" fn eventCreate(
    event: *mut flagcxEvent_t,
    kind: flagcxEventType_t,
) -> flagcxResult_t {
    entry("eventCreate", null_mut(), || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(event, "event", null_mut()) }?;
        let timing = match kind {
            flagcxEventDefault => true,
            flagcxEventDisableTiming => false,
            other => {
                return Err(Error::invalid_argument(format!(
                    "eventType is {other}, no flagcxEventType_t (0 or 1)"
                )));
            }
        };
        out.set(EVENTS.wrap(internal::event_create(timing)?));
        Ok(())
    })
}

unsafe extern "C" fn eventDestroy(event: flagcxEvent_t) -> flagcxResult_t {
    entry("eventDestroy", null_mut(), || {
        if event.is_null() {
            return Ok(());
        }
        internal::event_destroy(EVENTS.take_back(event)?)
    })
}

unsafe extern "C" fn eventRecord(event: flagcxEvent_t, stream: flagcxStream_t) -> flagcxResult_t {
    entry("eventRecord", null_mut(), || {
        if event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        internal::event_record(EVENTS.look(event)?, raw)
    })
}

unsafe extern "C" fn eventSynchronize(event: flagcxEvent_t) -> flagcxResult_t {
    entry("eventSynchronize", null_mut(), || {
        if event.is_null() {
            return Ok(());
        }
        internal::event_synchronize(EVENTS.look(event)?)
    })
}

unsafe extern "C" fn eventQuery(event: flagcxEvent_t) -> flagcxResult_t {
    question("eventQuery", || {
        if event.is_null() {
            return Ok(true);
        }
        internal::event_query(EVENTS.look(event)?)
    })
}

unsafe extern "C" fn eventElapsedTime(
    milliseconds: *mut f32,
    start: flagcxEvent_t,
    end: flagcxEvent_t,
) -> flagcxResult_t {
    question("eventElapsedTime", || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(milliseconds, "ms", 0.0) }?;
        not_null(start, "start")?;
        not_null(end, "end")?;
        out.set(internal::event_elapsed(
            EVENTS.look(start)?,
            EVENTS.look(end)?,
        )?);
        Ok(true)
    })
}

fn no_ipc() -> Error {
    Error::not_supported(
        "memory is not handed to other processes here: the collective library does it by itself",
    )
}

unsafe extern "C" fn ipcMemHandleCreate(
    handle: *mut flagcxIpcMemHandle_t,
    size: *mut usize,
) -> flagcxResult_t {
    entry("ipcMemHandleCreate", null_mut(), || {
        // SAFETY: the caller's promise.
        unsafe { Out::new(handle, "handle", null_mut()) }?;
        if !size.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Out::new(size, "size", 0) }?;
        }
        Err(no_ipc())
    })
}

unsafe extern "C" fn ipcMemHandleGet(
    _handle: flagcxIpcMemHandle_t,
    _memory: *mut c_void,
) -> flagcxResult_t {
    entry("ipcMemHandleGet", null_mut(), || Err(no_ipc()))
}

unsafe extern "C" fn ipcMemHandleOpen(
    _handle: flagcxIpcMemHandle_t,
    memory: *mut *mut c_void,
) -> flagcxResult_t {
    entry("ipcMemHandleOpen", null_mut(), || {
        // SAFETY: the caller's promise.
        unsafe { Out::new(memory, "devPtr", null_mut()) }?;
        Err(no_ipc())
    })
}

unsafe extern "C" fn ipcMemHandleClose(_memory: *mut c_void) -> flagcxResult_t {
    entry("ipcMemHandleClose", null_mut(), || Err(no_ipc()))
}

unsafe extern "C" fn ipcMemHandleFree(handle: flagcxIpcMemHandle_t) -> flagcxResult_t {
    entry("ipcMemHandleFree", null_mut(), || {
        // There is none to free, but programs free what they have.
        match handle.is_null() {
            true => Ok(()),
            false => Err(no_ipc()),
        }
    })
}
