//! Questions and work that need no communicator: devices, streams, events, copies. The driver
//! answers where there is one; without one, host streams do.

use crate::device::{CopyKind, Driver, OwnedEvent, OwnedStream, PointerOwner, event_of, stream_of};
use crate::error::{Error, Result};
use crate::host::stream;
use crate::internal::PointerInfo;
use crate::load;
use crate::words::counted;
use std::ffi::c_void;

fn driver() -> Result<Option<&'static Driver>> {
    load::process_driver()
}

fn needed(what: &str) -> Result<&'static Driver> {
    driver()?.ok_or_else(|| {
        let why = load::process_vendor()
            .map(|v| v.how.clone())
            .unwrap_or_default();
        Error::not_supported(format!(
            "{what} needs an accelerator's driver, and there is none: {why}"
        ))
    })
}

/// Key of the vendor in use, `host` where there is none.
pub fn vendor() -> Result<&'static str> {
    let chosen = load::process_vendor()?;
    Ok(match (chosen.vendor, chosen.driver()) {
        (Some(vendor), Some(_)) => vendor.key,
        _ => "host",
    })
}

/// The driver's current device of this thread, asked at this instant.
pub fn get_device() -> Result<i32> {
    needed("flagosGetDevice")?.current()
}

/// Sets it.
pub fn set_device(device: i32) -> Result<()> {
    let driver = needed("flagosSetDevice")?;
    existing(driver, device)?;
    driver.set(device)
}

fn existing(driver: &Driver, device: i32) -> Result<()> {
    let count = driver.count()?;
    if (0..count).contains(&device) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "device {device}: the driver shows this process {}, numbered from 0",
        counted(count as u64, "device")
    )))
}

/// Number of devices, 0 without a driver.
pub fn device_count() -> Result<i32> {
    driver()?.map_or(Ok(0), Driver::count)
}

/// Identity of a device, the same in every process of the machine; `None` if the driver has none.
pub fn device_uuid(device: i32) -> Result<Option<[u8; 16]>> {
    Ok(driver()?.and_then(|driver| driver.uuid(device)))
}

/// A device's address on the PCI bus, such as "0000:3b:00.0", in the driver's words but lower case.
pub fn device_pci_bus_id(device: i32) -> Result<String> {
    let driver = needed("a device's address")?;
    existing(driver, device)?;
    driver.pci_bus_id(device)
}

/// A new stream that does not synchronise with the default stream.
pub fn stream_create() -> Result<*mut c_void> {
    match driver()? {
        Some(driver) => Ok(driver.stream_create()?.into_raw()),
        None => stream::create(),
    }
}

/// Waits until everything on the current device is done; without a driver, everything on the host streams
/// that this thread made or has put work on.
pub fn device_synchronize() -> Result<()> {
    match driver()? {
        Some(driver) => driver.device_synchronize(),
        None => stream::synchronize_all(),
    }
}

fn not_null(handle: *mut c_void, what: &str) -> Result<()> {
    if handle.is_null() {
        return Err(Error::invalid_argument(format!("the {what} is NULL")));
    }
    Ok(())
}

/// Frees it.
pub fn stream_destroy(handle: *mut c_void) -> Result<()> {
    not_null(handle, "stream")?;
    match driver()? {
        Some(driver) => driver.stream_destroy(OwnedStream::from_handle(stream_of(handle))),
        None => stream::destroy(handle),
    }
}

/// Whether everything on it is done.
pub fn stream_query(handle: *mut c_void) -> Result<bool> {
    match driver()? {
        Some(driver) => driver.stream_query(stream_of(handle)),
        None => stream::query(handle),
    }
}

/// Waits until everything on it is done.
pub fn stream_synchronize(handle: *mut c_void) -> Result<()> {
    match driver()? {
        Some(driver) => driver.stream_synchronize(stream_of(handle)),
        None => stream::synchronize(handle),
    }
}

/// What is put on the stream from now on waits for the event.
pub fn stream_wait_event(handle: *mut c_void, event: *mut c_void) -> Result<()> {
    not_null(event, "event")?;
    match driver()? {
        Some(driver) => driver.stream_wait_event(stream_of(handle), event_of(event)),
        None => stream::wait_event(handle, event),
    }
}

/// A new event.
pub fn event_create(timing: bool) -> Result<*mut c_void> {
    match driver()? {
        Some(driver) => Ok(driver.event_create(timing)?.into_raw()),
        None => stream::event_create(timing),
    }
}

/// Frees it.
pub fn event_destroy(event: *mut c_void) -> Result<()> {
    not_null(event, "event")?;
    match driver()? {
        Some(driver) => driver.event_destroy(OwnedEvent::from_handle(event_of(event))),
        None => stream::event_destroy(event),
    }
}

/// Records it on the stream.
pub fn event_record(event: *mut c_void, on: *mut c_void) -> Result<()> {
    not_null(event, "event")?;
    match driver()? {
        Some(driver) => driver.event_record(event_of(event), stream_of(on)),
        None => stream::event_record(event, on),
    }
}

/// Whether it is reached.
pub fn event_query(event: *mut c_void) -> Result<bool> {
    not_null(event, "event")?;
    match driver()? {
        Some(driver) => driver.event_query(event_of(event)),
        None => stream::event_query(event),
    }
}

/// Waits until it is reached.
pub fn event_synchronize(event: *mut c_void) -> Result<()> {
    not_null(event, "event")?;
    match driver()? {
        Some(driver) => driver.event_synchronize(event_of(event)),
        None => stream::event_synchronize(event),
    }
}

/// Milliseconds between two timing events.
pub fn event_elapsed(start: *mut c_void, end: *mut c_void) -> Result<f32> {
    not_null(start, "start event")?;
    not_null(end, "end event")?;
    match driver()? {
        Some(driver) => driver.event_elapsed_ms(event_of(start), event_of(end)),
        None => stream::event_elapsed(start, end),
    }
}

/// Copies on a stream. Kinds: 0 host to device, 1 device to host, 2 device to device, 3 the driver
/// finds out from the addresses.
///
/// # Safety
/// Both buffers must be valid for `bytes` until the stream has passed the copy.
pub unsafe fn memcpy_async(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: i32,
    on: *mut c_void,
) -> Result<()> {
    let kind = match kind {
        0 => CopyKind::HostToDevice,
        1 => CopyKind::DeviceToHost,
        2 => CopyKind::DeviceToDevice,
        3 => CopyKind::Default,
        other => {
            return Err(Error::invalid_argument(format!(
                "{other} is no kind of copy (0 host to device, 1 device to host, 2 device to \
                 device, 3 decided by the addresses)"
            )));
        }
    };
    if bytes > isize::MAX as usize {
        return Err(Error::invalid_argument(format!(
            "{bytes} bytes are more than memory can hold"
        )));
    }
    if bytes > 0 && (dst.is_null() || src.is_null()) {
        return Err(Error::invalid_argument("a buffer of the copy is NULL"));
    }
    match driver()? {
        // SAFETY: the caller's promise.
        Some(driver) => unsafe { driver.memcpy_async(dst, src, bytes, kind, stream_of(on)) },
        None if bytes == 0 => stream::check(on),
        // SAFETY: as above.
        None => unsafe { stream::copy_async(dst, src, bytes, on) },
    }
}

/// Fills with a byte on a stream.
///
/// # Safety
/// The buffer must be valid for `bytes` until the stream has passed the fill.
pub unsafe fn memset_async(
    dst: *mut c_void,
    value: i32,
    bytes: usize,
    on: *mut c_void,
) -> Result<()> {
    if bytes > isize::MAX as usize {
        return Err(Error::invalid_argument(format!(
            "{bytes} bytes are more than memory can hold"
        )));
    }
    if bytes > 0 && dst.is_null() {
        return Err(Error::invalid_argument("the buffer to fill is NULL"));
    }
    match driver()? {
        // SAFETY: the caller's promise.
        Some(driver) => unsafe { driver.memset_async(dst, value as u8, bytes, stream_of(on)) },
        None if bytes == 0 => stream::check(on),
        // SAFETY: as above.
        None => unsafe { stream::fill_async(dst, value as u8, bytes, on) },
    }
}

/// Asks the driver who owns a pointer.
pub fn pointer_attributes(pointer: *const c_void) -> Result<PointerInfo> {
    if pointer.is_null() {
        return Err(Error::invalid_argument("the pointer is NULL"));
    }
    let owner = match driver()? {
        Some(driver) => driver.pointer_owner(pointer)?,
        None => PointerOwner::Unregistered,
    };
    Ok(match owner {
        PointerOwner::Unregistered => PointerInfo {
            kind: 0,
            device: -1,
        },
        PointerOwner::HostPinned => PointerInfo {
            kind: 1,
            device: -1,
        },
        PointerOwner::Device(device) => PointerInfo { kind: 2, device },
        PointerOwner::Managed(device) => PointerInfo { kind: 3, device },
    })
}
