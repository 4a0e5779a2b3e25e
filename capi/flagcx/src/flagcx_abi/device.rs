//! FlagCX's device functions. The driver answers where there is one; on a machine without, the host is
//! the one device, its streams are the engine's host streams and its memory is the host's.

use super::handles::{EVENTS, STREAMS};
use super::skin::{self, raw_stream};
use super::types::*;
use crate::boundary::{Out, not_null};
use engine::internal::{self, PerProcess};
use engine::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls of device functions so far, in this process.
pub(crate) fn calls() -> &'static AtomicU64 {
    static CALLS: PerProcess<AtomicU64> = PerProcess::new();
    CALLS.get_or_init(AtomicU64::default)
}

/// An entry of a device function that is counted.
pub(crate) fn entry(name: &'static str, body: impl FnOnce() -> Result<()>) -> flagcxResult_t {
    calls().fetch_add(1, Ordering::Relaxed);
    skin::entry(name, null_mut(), body)
}

fn question(name: &'static str, body: impl FnOnce() -> Result<bool>) -> flagcxResult_t {
    calls().fetch_add(1, Ordering::Relaxed);
    skin::question(name, body)
}

fn without_driver() -> Result<bool> {
    Ok(internal::vendor()? == "host")
}

pub(crate) unsafe extern "C" fn deviceSynchronize() -> flagcxResult_t {
    entry("deviceSynchronize", internal::device_synchronize)
}

/// What was put on the default stream for a caller without a stream is to be done on return.
fn finish(stream: flagcxStream_t) -> Result<()> {
    match stream.is_null() {
        true => internal::stream_synchronize(null_mut()),
        false => Ok(()),
    }
}

pub(crate) unsafe extern "C" fn deviceMemcpy(
    dst: *mut c_void,
    src: *mut c_void,
    size: usize,
    kind: flagcxMemcpyType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMemcpy", || {
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

pub(crate) unsafe extern "C" fn deviceMemset(
    ptr: *mut c_void,
    value: c_int,
    size: usize,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMemset", || {
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

pub(crate) unsafe extern "C" fn deviceMalloc(
    ptr: *mut *mut c_void,
    size: usize,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceMalloc", || {
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

pub(crate) unsafe extern "C" fn deviceFree(
    ptr: *mut c_void,
    kind: flagcxMemType_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("deviceFree", || {
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

pub(crate) unsafe extern "C" fn setDevice(device: c_int) -> flagcxResult_t {
    entry("setDevice", || {
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

pub(crate) unsafe extern "C" fn getDevice(device: *mut c_int) -> flagcxResult_t {
    entry("getDevice", || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(device, "device", 0) }?;
        if !without_driver()? {
            out.set(internal::get_device()?);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn getDeviceCount(count: *mut c_int) -> flagcxResult_t {
    entry("getDeviceCount", || {
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
pub(crate) fn flagcx_name(key: &str) -> String {
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

pub(crate) unsafe extern "C" fn getVendor(vendor: *mut c_char) -> flagcxResult_t {
    entry("getVendor", || {
        not_null(vendor, "vendor")?;
        let name = flagcx_name(internal::vendor()?);
        // Only what is needed is written: FlagCX fills 127 bytes on some vendors, over the end.
        // SAFETY: the caller has room for a vendor's name.
        unsafe { crate::boundary::write_text(vendor, VENDOR_BYTES, &name) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn hostGetDevicePointer(
    device: *mut *mut c_void,
    host: *mut c_void,
) -> flagcxResult_t {
    entry("hostGetDevicePointer", || {
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

pub(crate) unsafe extern "C" fn streamCreate(stream: *mut flagcxStream_t) -> flagcxResult_t {
    entry("streamCreate", || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(stream, "stream", null_mut()) }?;
        out.set(STREAMS.wrap(internal::stream_create()?));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn streamDestroy(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamDestroy", || {
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

pub(crate) unsafe extern "C" fn streamCopy(
    newStream: *mut flagcxStream_t,
    oldStream: *mut c_void,
) -> flagcxResult_t {
    entry("streamCopy", || {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(newStream, "newStream", null_mut()) }?;
        out.set(STREAMS.wrap(oldStream));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn streamFree(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamFree", || {
        if stream.is_null() {
            return Ok(());
        }
        STREAMS.take_back(stream).map(drop)
    })
}

pub(crate) unsafe extern "C" fn streamSynchronize(stream: flagcxStream_t) -> flagcxResult_t {
    entry("streamSynchronize", || {
        if stream.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        internal::stream_synchronize(unsafe { raw_stream(stream) }?)
    })
}

pub(crate) unsafe extern "C" fn streamQuery(stream: flagcxStream_t) -> flagcxResult_t {
    question("streamQuery", || {
        if stream.is_null() {
            return Ok(true);
        }
        // SAFETY: the caller's promise.
        internal::stream_query(unsafe { raw_stream(stream) }?)
    })
}

pub(crate) unsafe extern "C" fn streamWaitEvent(
    stream: flagcxStream_t,
    event: flagcxEvent_t,
) -> flagcxResult_t {
    entry("streamWaitEvent", || {
        if stream.is_null() || event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        internal::stream_wait_event(raw, EVENTS.look(event)?)
    })
}

pub(crate) unsafe extern "C" fn eventCreate(
    event: *mut flagcxEvent_t,
    kind: flagcxEventType_t,
) -> flagcxResult_t {
    entry("eventCreate", || {
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

pub(crate) unsafe extern "C" fn eventDestroy(event: flagcxEvent_t) -> flagcxResult_t {
    entry("eventDestroy", || {
        if event.is_null() {
            return Ok(());
        }
        internal::event_destroy(EVENTS.take_back(event)?)
    })
}

pub(crate) unsafe extern "C" fn eventRecord(
    event: flagcxEvent_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("eventRecord", || {
        if event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { raw_stream(stream) }?;
        internal::event_record(EVENTS.look(event)?, raw)
    })
}

pub(crate) unsafe extern "C" fn eventSynchronize(event: flagcxEvent_t) -> flagcxResult_t {
    entry("eventSynchronize", || {
        if event.is_null() {
            return Ok(());
        }
        internal::event_synchronize(EVENTS.look(event)?)
    })
}

pub(crate) unsafe extern "C" fn eventQuery(event: flagcxEvent_t) -> flagcxResult_t {
    question("eventQuery", || {
        if event.is_null() {
            return Ok(true);
        }
        internal::event_query(EVENTS.look(event)?)
    })
}

pub(crate) unsafe extern "C" fn eventElapsedTime(
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

pub(crate) unsafe extern "C" fn ipcMemHandleCreate(
    handle: *mut flagcxIpcMemHandle_t,
    size: *mut usize,
) -> flagcxResult_t {
    entry("ipcMemHandleCreate", || {
        // SAFETY: the caller's promise.
        unsafe { Out::new(handle, "handle", null_mut()) }?;
        if !size.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Out::new(size, "size", 0) }?;
        }
        Err(no_ipc())
    })
}

pub(crate) unsafe extern "C" fn ipcMemHandleGet(
    _handle: flagcxIpcMemHandle_t,
    _memory: *mut c_void,
) -> flagcxResult_t {
    entry("ipcMemHandleGet", || Err(no_ipc()))
}

pub(crate) unsafe extern "C" fn ipcMemHandleOpen(
    _handle: flagcxIpcMemHandle_t,
    memory: *mut *mut c_void,
) -> flagcxResult_t {
    entry("ipcMemHandleOpen", || {
        // SAFETY: the caller's promise.
        unsafe { Out::new(memory, "devPtr", null_mut()) }?;
        Err(no_ipc())
    })
}

pub(crate) unsafe extern "C" fn ipcMemHandleClose(_memory: *mut c_void) -> flagcxResult_t {
    entry("ipcMemHandleClose", || Err(no_ipc()))
}

pub(crate) unsafe extern "C" fn ipcMemHandleFree(handle: flagcxIpcMemHandle_t) -> flagcxResult_t {
    entry("ipcMemHandleFree", || {
        // There is none to free, but programs free what they have.
        match handle.is_null() {
            true => Ok(()),
            false => Err(no_ipc()),
        }
    })
}
