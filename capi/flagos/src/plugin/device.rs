//! `flagcxDeviceAdaptorPlugin_v1`: devices, streams, events and memory for FlagCX. Most of it are the functions of
//! `libflagcx.so`'s device table. What FlagCX needs of an adaptor for its own transport between accelerators of
//! different vendors is not supported, in words.

use super::Table;
use crate::boundary::{Out, not_null, null, write_text};
use crate::flagcx_abi::device::*;
use crate::flagcx_abi::types::*;
use engine::{Error, Result, internal};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

type R = flagcxResult_t;
type Stream = flagcxStream_t;
type Event = flagcxEvent_t;

/// Which device it is; FlagCX's struct.
#[repr(C)]
pub struct flagcxDevProps {
    name: [c_char; 256],
    pciBusId: c_int,
    pciDeviceId: c_int,
    pciDomainId: c_int,
}

/// A function of FlagCX's that launches a kernel.
type Launch = Option<unsafe extern "C" fn(Stream, *mut c_void)>;
type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// FlagCX's table. What is an `Option` it does without.
#[repr(C)]
pub struct flagcxDeviceAdaptor_v1 {
    name: [u8; 32],
    deviceSynchronize: unsafe extern "C" fn() -> R,
    deviceMemcpy: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        usize,
        flagcxMemcpyType_t,
        Stream,
        *mut c_void,
    ) -> R,
    deviceMemset: unsafe extern "C" fn(*mut c_void, c_int, usize, flagcxMemType_t, Stream) -> R,
    deviceMalloc: unsafe extern "C" fn(*mut *mut c_void, usize, flagcxMemType_t, Stream) -> R,
    deviceFree: unsafe extern "C" fn(*mut c_void, flagcxMemType_t, Stream) -> R,
    setDevice: unsafe extern "C" fn(c_int) -> R,
    getDevice: unsafe extern "C" fn(*mut c_int) -> R,
    getDeviceCount: unsafe extern "C" fn(*mut c_int) -> R,
    getVendor: unsafe extern "C" fn(*mut c_char) -> R,
    hostGetDevicePointer: unsafe extern "C" fn(*mut *mut c_void, *mut c_void) -> R,
    memHandleInit: unsafe extern "C" fn(c_int, *mut *mut c_void) -> R,
    memHandleDestroy: unsafe extern "C" fn(c_int, *mut c_void) -> R,
    gdrMemAlloc: unsafe extern "C" fn(*mut *mut c_void, usize, *mut c_void) -> R,
    gdrMemFree: unsafe extern "C" fn(*mut c_void, *mut c_void) -> R,
    hostShareMemAlloc: unsafe extern "C" fn(*mut *mut c_void, usize, *mut c_void) -> R,
    hostShareMemFree: unsafe extern "C" fn(*mut c_void, *mut c_void) -> R,
    gdrPtrMmap: Option<unsafe extern "C" fn(*mut *mut c_void, *mut c_void, usize) -> R>,
    gdrPtrMunmap: Option<unsafe extern "C" fn(*mut c_void, usize) -> R>,
    streamCreate: unsafe extern "C" fn(*mut Stream) -> R,
    streamDestroy: unsafe extern "C" fn(Stream) -> R,
    streamCopy: unsafe extern "C" fn(*mut Stream, *mut c_void) -> R,
    streamFree: unsafe extern "C" fn(Stream) -> R,
    streamSynchronize: unsafe extern "C" fn(Stream) -> R,
    streamQuery: unsafe extern "C" fn(Stream) -> R,
    streamWaitEvent: unsafe extern "C" fn(Stream, Event) -> R,
    streamWaitValue64: unsafe extern "C" fn(Stream, *mut c_void, u64, c_int) -> R,
    streamWriteValue64: unsafe extern "C" fn(Stream, *mut c_void, u64, c_int) -> R,
    eventCreate: unsafe extern "C" fn(*mut Event, flagcxEventType_t) -> R,
    eventDestroy: unsafe extern "C" fn(Event) -> R,
    eventRecord: unsafe extern "C" fn(Event, Stream) -> R,
    eventSynchronize: unsafe extern "C" fn(Event) -> R,
    eventQuery: unsafe extern "C" fn(Event) -> R,
    eventElapsedTime: unsafe extern "C" fn(*mut f32, Event, Event) -> R,
    ipcMemHandleCreate: unsafe extern "C" fn(*mut flagcxIpcMemHandle_t, *mut usize) -> R,
    ipcMemHandleGet: unsafe extern "C" fn(flagcxIpcMemHandle_t, *mut c_void) -> R,
    ipcMemHandleOpen: unsafe extern "C" fn(flagcxIpcMemHandle_t, *mut *mut c_void) -> R,
    ipcMemHandleClose: unsafe extern "C" fn(*mut c_void) -> R,
    ipcMemHandleFree: unsafe extern "C" fn(flagcxIpcMemHandle_t) -> R,
    launchKernel: unsafe extern "C" fn(
        *mut c_void,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        *mut *mut c_void,
        usize,
        *mut c_void,
        *mut c_void,
    ) -> R,
    copyArgsInit: unsafe extern "C" fn(*mut *mut c_void) -> R,
    copyArgsFree: unsafe extern "C" fn(*mut c_void) -> R,
    launchDeviceFunc: unsafe extern "C" fn(Stream, Launch, *mut c_void) -> R,
    getDeviceProperties: unsafe extern "C" fn(*mut flagcxDevProps, c_int) -> R,
    getDevicePciBusId: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> R,
    getDeviceByPciBusId: unsafe extern "C" fn(*mut c_int, *const c_char) -> R,
    launchHostFunc: unsafe extern "C" fn(Stream, HostFunction, *mut c_void) -> R,
    dmaSupport: unsafe extern "C" fn(*mut bool) -> R,
    getHandleForAddressRange:
        unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_ulonglong) -> R,
}
const _: () = assert!(size_of::<flagcxDeviceAdaptor_v1>() == 32 + 48 * size_of::<usize>());

const fn name(text: &str) -> [u8; 32] {
    let mut name = [0; 32];
    let mut at = 0;
    while at < text.len() {
        name[at] = text.as_bytes()[at];
        at += 1;
    }
    assert!(name[31] == 0);
    name
}

/// What FlagCX looks up. Some versions of FlagCX free memory in the order of a stream if the name is CUDA, and wait for the
/// stream with others; freeing waits here.
#[unsafe(no_mangle)]
pub static flagcxDeviceAdaptorPlugin_v1: Table<flagcxDeviceAdaptor_v1> =
    Table(flagcxDeviceAdaptor_v1 {
        name: name("FLAGOS"),
        deviceSynchronize,
        deviceMemcpy: copy,
        deviceMemset,
        deviceMalloc,
        deviceFree,
        setDevice,
        getDevice,
        getDeviceCount,
        getVendor,
        hostGetDevicePointer,
        memHandleInit,
        memHandleDestroy,
        gdrMemAlloc,
        gdrMemFree,
        hostShareMemAlloc,
        hostShareMemFree,
        // FlagCX takes another way if they are not there.
        gdrPtrMmap: None,
        gdrPtrMunmap: None,
        streamCreate,
        streamDestroy,
        streamCopy,
        streamFree,
        streamSynchronize,
        streamQuery,
        streamWaitEvent,
        streamWaitValue64,
        streamWriteValue64,
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
        launchKernel,
        copyArgsInit,
        copyArgsFree,
        launchDeviceFunc,
        getDeviceProperties,
        getDevicePciBusId,
        getDeviceByPciBusId,
        launchHostFunc,
        dmaSupport,
        getHandleForAddressRange,
    });

/// The last argument is of FlagCX's own kernels, which are not launched here.
unsafe extern "C" fn copy(
    dst: *mut c_void,
    src: *mut c_void,
    size: usize,
    kind: flagcxMemcpyType_t,
    stream: Stream,
    _args: *mut c_void,
) -> R {
    // SAFETY: FlagCX's promise, passed on.
    unsafe { deviceMemcpy(dst, src, size, kind, stream) }
}

fn not_supported(what: &str) -> Error {
    Error::not_supported(format!(
        "{what}: FlagCX needs this between accelerators of different vendors, and then with its own device adaptor; \
         leave FLAGCX_DEVICE_ADAPTOR_PLUGIN unset for that"
    ))
}

unsafe extern "C" fn memHandleInit(_device: c_int, memHandle: *mut *mut c_void) -> R {
    entry("memHandleInit", || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(memHandle, "memHandle", null_mut()) }?;
        Err(not_supported("memory handles"))
    })
}

/// There is none to destroy.
unsafe extern "C" fn memHandleDestroy(_device: c_int, memHandle: *mut c_void) -> R {
    entry("memHandleDestroy", || match memHandle.is_null() {
        true => Ok(()),
        false => Err(not_supported("memory handles")),
    })
}

/// The device's memory. A network card that shall read it registers it by itself.
unsafe extern "C" fn gdrMemAlloc(ptr: *mut *mut c_void, size: usize, _memHandle: *mut c_void) -> R {
    entry("gdrMemAlloc", || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        out.set(internal::device_alloc(size, false)?);
        Ok(())
    })
}

unsafe extern "C" fn gdrMemFree(ptr: *mut c_void, _memHandle: *mut c_void) -> R {
    entry("gdrMemFree", || internal::mem_free(ptr))
}

unsafe extern "C" fn hostShareMemAlloc(
    ptr: *mut *mut c_void,
    _size: usize,
    _memHandle: *mut c_void,
) -> R {
    entry("hostShareMemAlloc", || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(ptr, "ptr", null_mut()) }?;
        Err(not_supported("memory that host and device share"))
    })
}

/// There is none to free.
unsafe extern "C" fn hostShareMemFree(ptr: *mut c_void, _memHandle: *mut c_void) -> R {
    entry("hostShareMemFree", || match ptr.is_null() {
        true => Ok(()),
        false => Err(not_supported("memory that host and device share")),
    })
}

unsafe extern "C" fn streamWaitValue64(_: Stream, _: *mut c_void, _: u64, _: c_int) -> R {
    entry("streamWaitValue64", || {
        Err(not_supported("a stream that waits for a value"))
    })
}

unsafe extern "C" fn streamWriteValue64(_: Stream, _: *mut c_void, _: u64, _: c_int) -> R {
    entry("streamWriteValue64", || {
        Err(not_supported("a stream that writes a value"))
    })
}

unsafe extern "C" fn launchKernel(
    _func: *mut c_void,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _args: *mut *mut c_void,
    _share_mem: usize,
    _stream: *mut c_void,
    _memHandle: *mut c_void,
) -> R {
    entry("launchKernel", || Err(not_supported("kernels of FlagCX")))
}

unsafe extern "C" fn copyArgsInit(args: *mut *mut c_void) -> R {
    entry("copyArgsInit", || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(args, "args", null_mut()) }?;
        Err(not_supported("kernels of FlagCX"))
    })
}

/// There are none to free.
unsafe extern "C" fn copyArgsFree(args: *mut c_void) -> R {
    entry("copyArgsFree", || match args.is_null() {
        true => Ok(()),
        false => Err(not_supported("kernels of FlagCX")),
    })
}

unsafe extern "C" fn launchDeviceFunc(_: Stream, _: Launch, _: *mut c_void) -> R {
    entry("launchDeviceFunc", || {
        Err(not_supported("kernels of FlagCX"))
    })
}

unsafe extern "C" fn launchHostFunc(_: Stream, _: HostFunction, _: *mut c_void) -> R {
    entry("launchHostFunc", || {
        Err(not_supported("a function of the host on a stream"))
    })
}

/// Domain, bus, device and function of an address such as "0000:3b:00.0", whatever the width of its parts.
fn parse(address: &str) -> Option<[u32; 4]> {
    let mut parts = [0; 4];
    let mut rest = address.trim().split([':', '.']);
    for part in &mut parts {
        *part = u32::from_str_radix(rest.next()?, 16).ok()?;
    }
    rest.next().is_none().then_some(parts)
}

fn address(device: c_int) -> Result<[u32; 4]> {
    let text = internal::device_pci_bus_id(device)?;
    parse(&text).ok_or_else(|| {
        Error::not_supported(format!(
            "the driver says \"{text}\" of device {device}, which is no address on a PCI bus"
        ))
    })
}

/// The name is the vendor's: that of the model is not asked for.
unsafe extern "C" fn getDeviceProperties(props: *mut flagcxDevProps, device: c_int) -> R {
    entry("getDeviceProperties", || {
        let empty = flagcxDevProps {
            name: [0; 256],
            pciBusId: 0,
            pciDeviceId: 0,
            pciDomainId: 0,
        };
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(props, "props", empty) }?;
        let [domain, bus, slot, _] = address(device)?;
        let mut found = flagcxDevProps {
            name: [0; 256],
            pciBusId: bus as c_int,
            pciDeviceId: slot as c_int,
            pciDomainId: domain as c_int,
        };
        let name = flagcx_name(internal::vendor()?);
        // SAFETY: as long as is said.
        unsafe { write_text(found.name.as_mut_ptr(), found.name.len(), &name) };
        out.set(found);
        Ok(())
    })
}

unsafe extern "C" fn getDevicePciBusId(pciBusId: *mut c_char, len: c_int, device: c_int) -> R {
    entry("getDevicePciBusId", || {
        not_null(pciBusId, "pciBusId")?;
        let size = usize::try_from(len).ok().filter(|size| *size > 0);
        let size = size.ok_or_else(|| Error::invalid_argument(format!("len is {len}, no size")))?;
        // SAFETY: FlagCX's promise: it has at least one byte.
        unsafe { pciBusId.write(0) };
        let text = internal::device_pci_bus_id(device)?;
        if text.len() >= size {
            return Err(Error::invalid_argument(format!(
                "len is {size}, but the address of device {device} takes {}",
                text.len() + 1
            )));
        }
        // SAFETY: as above, of all its bytes.
        unsafe { write_text(pciBusId, size, &text) };
        Ok(())
    })
}

/// The longest address that is looked at.
const ADDRESS_BYTES: usize = 64;

unsafe extern "C" fn getDeviceByPciBusId(device: *mut c_int, pciBusId: *const c_char) -> R {
    entry("getDeviceByPciBusId", || {
        // SAFETY: FlagCX's promise.
        let out = unsafe { Out::new(device, "dev", 0) }?;
        if pciBusId.is_null() {
            return Err(null("pciBusId"));
        }
        // SAFETY: FlagCX's promise: reads no further than the terminating zero.
        let bytes: Vec<u8> = (0..ADDRESS_BYTES)
            .map_while(|at| match unsafe { pciBusId.cast::<u8>().add(at).read() } {
                0 => None,
                byte => Some(byte),
            })
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        let wanted = parse(&text).ok_or_else(|| {
            Error::invalid_argument(format!("\"{text}\" is no address on a PCI bus"))
        })?;
        for index in 0..internal::device_count()? {
            if address(index)? == wanted {
                out.set(index);
                return Ok(());
            }
        }
        Err(Error::invalid_argument(format!(
            "none of this process' devices is at \"{text}\""
        )))
    })
}

/// Says no: what is exported for a network card is of FlagCX's own transport.
unsafe extern "C" fn dmaSupport(dmaBufferSupport: *mut bool) -> R {
    entry("dmaSupport", || {
        // SAFETY: FlagCX's promise.
        unsafe { Out::new(dmaBufferSupport, "dmaBufferSupport", false) }?;
        Ok(())
    })
}

unsafe extern "C" fn getHandleForAddressRange(
    _handle: *mut c_void,
    _buffer: *mut c_void,
    _size: usize,
    _flags: c_ulonglong,
) -> R {
    entry("getHandleForAddressRange", || {
        Err(not_supported("memory for a network card"))
    })
}
