//! Drivers over functions of ours: what is particular to a row, without a library.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::functions::{Common, PointerAttributes, Runtime, Spare, Tables};
use super::rows::{DriverRow, ROWS};
use super::{
    CopyKind, Driver, GALAXYHIP, HIP, MACA, MUSA, PointerOwner, TANG, TOPS, declarations, event_of,
    stream_of,
};
use crate::load::numbers::Numbers;
use crate::{Code, Result, load};

/// A driver with these functions.
pub(crate) fn driver(row: &'static DriverRow, numbers: &str, tables: Tables) -> Driver {
    let text = Some(numbers).filter(|text| !text.is_empty());
    let numbers = Numbers::of_text("x", text, row.overridable).unwrap();
    // Any library will do: it is only there for its name.
    let lib = load::open::loaded(OsStr::new("libc.so.6")).expect("libc is loaded");
    Driver::of_tables(row, &numbers, &lib, tables).unwrap()
}

pub(super) fn handle(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

thread_local! {
    /// The device that is current.
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
    /// Every call that a fake has seen, with the device that was current.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What the next calls return.
    static RESULT: Cell<c_int> = const { Cell::new(0) };
    static NEXT: Cell<usize> = const { Cell::new(0x1000) };
    static VERSION: Cell<c_int> = const { Cell::new(0) };
    static KIND: Cell<c_int> = const { Cell::new(0) };
}

fn seen(call: &str) -> c_int {
    LOG.with_borrow_mut(|log| log.push(format!("{call} on {}", CURRENT.get())));
    RESULT.get()
}

/// The calls since the last question.
pub(crate) fn log() -> Vec<String> {
    LOG.take()
}

/// Gives a new handle.
unsafe fn give(to: *mut *mut c_void) {
    NEXT.set(NEXT.get() + 0x100);
    // SAFETY: the place that the driver gave.
    unsafe { *to = handle(NEXT.get()) };
}

unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    // SAFETY: the place that the driver gave.
    unsafe { *device = CURRENT.get() };
    0
}

unsafe extern "C" fn set_device(device: c_int) -> c_int {
    CURRENT.set(device);
    0
}

unsafe extern "C" fn create(to: *mut *mut c_void, flags: c_uint) -> c_int {
    // SAFETY: the place that the driver gave.
    unsafe { give(to) };
    seen(&format!("create {flags}"))
}

unsafe extern "C" fn malloc(to: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the place that the driver gave.
    unsafe { give(to) };
    seen(&format!("malloc {bytes}"))
}

unsafe extern "C" fn host_alloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    // SAFETY: the place that the driver gave.
    unsafe { give(to) };
    seen(&format!("host_alloc {bytes} {flags}"))
}

unsafe extern "C" fn stream_query(_stream: *mut c_void) -> c_int {
    seen("stream_query")
}

unsafe extern "C" fn stream_synchronize(_stream: *mut c_void) -> c_int {
    seen("stream_synchronize")
}

unsafe extern "C" fn event_query(_event: *mut c_void) -> c_int {
    seen("event_query")
}

unsafe extern "C" fn event_synchronize(_event: *mut c_void) -> c_int {
    seen("event_synchronize")
}

unsafe extern "C" fn destroy(_handle: *mut c_void) -> c_int {
    seen("destroy")
}

unsafe extern "C" fn record(_event: *mut c_void, _stream: *mut c_void) -> c_int {
    seen("record")
}

unsafe extern "C" fn record_flags(event: *mut c_void, stream: *mut c_void, flags: c_uint) -> c_int {
    seen(&format!(
        "record {} {} {flags}",
        event.addr(),
        stream.addr()
    ))
}

unsafe extern "C" fn device_synchronize() -> c_int {
    seen("device_synchronize")
}

unsafe extern "C" fn memcpy(
    _to: *mut c_void,
    _from: *const c_void,
    bytes: usize,
    kind: c_int,
    _stream: *mut c_void,
) -> c_int {
    seen(&format!("memcpy {bytes} {kind}"))
}

unsafe extern "C" fn memset(
    _to: *mut c_void,
    byte: c_int,
    bytes: usize,
    _stream: *mut c_void,
) -> c_int {
    seen(&format!("memset {byte} {bytes}"))
}

unsafe extern "C" fn version(to: *mut c_int) -> c_int {
    // SAFETY: the place that the driver gave.
    unsafe { *to = VERSION.get() };
    0
}

unsafe extern "C" fn attributes(to: *mut PointerAttributes, _pointer: *const c_void) -> c_int {
    // SAFETY: the place that the driver gave.
    let to = unsafe { &mut *to };
    (to.kind, to.device) = (KIND.get(), 3);
    RESULT.get()
}

unsafe extern "C" fn last_error() -> c_int {
    seen("last_error")
}

fn name_of(code: c_int) -> &'static CStr {
    match code {
        34 => c"musaErrorNotReady",
        33 => c"musaErrorNotReadyYet",
        _ => c"musaErrorSomething",
    }
}

unsafe extern "C" fn error_name(code: c_int) -> *const c_char {
    match code {
        7 => ptr::null(),
        code => name_of(code).as_ptr(),
    }
}

unsafe extern "C" fn no_name(_code: c_int) -> *const c_char {
    c"unrecognized".as_ptr()
}

/// A runtime of which every call succeeds and nothing touches memory.
pub(crate) fn tables() -> Tables {
    Tables {
        common: Common {
            get_device: Some(get_device),
            stream_create: Some(create),
            stream_destroy: Some(destroy),
            stream_query: Some(stream_query),
            stream_synchronize: Some(stream_synchronize),
            event_create: Some(create),
            event_destroy: Some(destroy),
            event_record: Some(record),
            event_query: Some(event_query),
            event_synchronize: Some(event_synchronize),
            malloc: Some(malloc),
            free: Some(destroy),
            host_alloc: Some(host_alloc),
            free_host: Some(destroy),
            memset_async: Some(memset),
            ..Common::default()
        },
        runtime: Runtime {
            set_device: Some(set_device),
            memcpy_async: Some(memcpy),
            pointer_attributes: Some(attributes),
            version: Some(version),
            device_synchronize: Some(device_synchronize),
            ..Runtime::default()
        },
        spare: Spare::default(),
    }
}

/// The same, without the function that tells whose memory a pointer is.
pub(crate) fn without_owners() -> Tables {
    let mut tables = tables();
    tables.runtime.pointer_attributes = None;
    tables
}

#[test]
fn not_ready_is_found_by_its_name() {
    let mut fakes = tables();
    fakes.spare.error_name = Some(error_name);
    fakes.runtime.get_last_error = Some(last_error);
    let musa = driver(&MUSA, "", fakes);
    RESULT.set(34);
    assert!(!musa.stream_query(stream_of(handle(1))).unwrap());
    assert!(!musa.event_query(event_of(handle(1))).unwrap());
    // Taken away, so that a check of the program's doesn't find it.
    let query = [
        "stream_query on 0",
        "last_error on 0",
        "event_query on 0",
        "last_error on 0",
    ];
    assert_eq!(log(), query);
    RESULT.set(600);
    let error = musa.stream_query(stream_of(handle(1))).unwrap_err();
    assert_eq!(error.code(), Code::UnhandledDeviceError);
}

#[test]
fn without_a_name_queries_are_refused_unless_the_user_knows() {
    for fakes in [
        None,
        Some(no_name as unsafe extern "C" fn(c_int) -> *const c_char),
    ] {
        let mut all = tables();
        all.spare.error_name = fakes;
        let musa = driver(&MUSA, "", all);
        let error = musa.stream_query(stream_of(handle(1))).unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        let words = ["musaStreamQuery", "FLAGOSCOMM_X_NUMBERS=not_ready="];
        assert!(words.iter().all(|w| error.text().contains(w)), "{error}");
        let error = musa.event_query(event_of(handle(1))).unwrap_err();
        assert!(error.text().contains("musaEventQuery"), "{error}");
        assert!(log().is_empty());
        let musa = driver(&MUSA, "not_ready=77, stream_non_blocking=5", all);
        RESULT.set(77);
        assert!(!musa.stream_query(stream_of(handle(1))).unwrap());
        RESULT.set(0);
        musa.stream_create().unwrap();
        assert_eq!(log(), ["stream_query on 0", "create 5 on 0"]);
    }
}

#[test]
fn pinned_memory_of_runtimes_with_two_arguments() {
    let mut fakes = tables();
    fakes.common.host_alloc = None;
    fakes.spare.malloc_host = Some(malloc);
    driver(&MACA, "", fakes).malloc_host(64).unwrap();
    assert_eq!(log(), ["malloc 64 on 0"]);
    fakes.spare.malloc_host = None;
    let error = driver(&MACA, "", fakes).malloc_host(64).unwrap_err();
    assert!(error.text().contains("mcMallocHost"), "{error}");
}

#[test]
fn unknown_answers_about_pointers_are_not_read() {
    let maca = driver(&MACA, "", tables());
    let error = maca.pointer_owner(handle(1)).unwrap_err();
    assert_eq!(error.code(), Code::NotSupported);
    // MUSA's number for an unknown address isn't told.
    let musa = driver(&MUSA, "", tables());
    RESULT.set(1);
    let error = musa.pointer_owner(handle(1)).unwrap_err();
    assert_eq!(error.code(), Code::NotSupported);
    RESULT.set(0);
    KIND.set(2);
    assert_eq!(
        musa.pointer_owner(handle(1)).unwrap(),
        PointerOwner::Device(3)
    );
}

#[test]
fn kinds_of_memory_by_the_version_of_hip() {
    use PointerOwner::{Device, HostPinned, Managed, Unregistered};
    let owner = |row, version, kind| -> Result<PointerOwner> {
        VERSION.set(version);
        KIND.set(kind);
        driver(row, "", tables()).pointer_owner(handle(1))
    };
    for row in [&HIP, &GALAXYHIP] {
        for (version, kind, expected) in [
            (50_422_804, 0, HostPinned),
            (50_422_804, 1, Device(3)),
            (50_422_804, 3, Managed(3)),
            (60_443_484, 0, Unregistered),
            (60_443_484, 1, HostPinned),
            (60_443_484, 2, Device(3)),
            (70_000_000, 3, Managed(3)),
        ] {
            let found = owner(row, version, kind).unwrap();
            assert_eq!(found, expected, "{version} {kind}");
        }
        // Without a version nothing is read.
        assert_eq!(owner(row, 0, 1).unwrap_err().code(), Code::NotSupported);
        RESULT.set(1);
        assert_eq!(owner(row, 60_443_484, 2).unwrap(), Unregistered);
        RESULT.set(0);
        let error = owner(row, 60_443_484, 77).unwrap_err();
        assert_eq!(error.code(), Code::UnhandledDeviceError);
    }
}

/// Nothing of the driver's can tell, so the kernel does: from host to host.
#[test]
fn a_runtime_without_default_copies_is_told_the_direction() {
    let mut fakes = tables();
    fakes.runtime.pointer_attributes = None;
    let tang = driver(&TANG, "", fakes);
    let (from, mut to) = ([7u8; 4], [0u8; 4]);
    // SAFETY: live locals of so many bytes.
    unsafe {
        let (to, from) = (to.as_mut_ptr().cast(), from.as_ptr().cast());
        tang.memcpy_async(to, from, 4, CopyKind::Default, stream_of(handle(9)))
    }
    .unwrap();
    assert_eq!(to, from);
}

#[test]
fn events_that_are_recorded_with_flags() {
    let mut fakes = tables();
    fakes.common.event_record = None;
    fakes.spare.event_record_flags = Some(record_flags);
    let tang = driver(&TANG, "", fakes);
    tang.event_record(event_of(handle(8)), stream_of(handle(9)))
        .unwrap();
    assert_eq!(log(), ["record 8 9 0 on 0"]);
    fakes.spare.event_record_flags = None;
    let error = driver(&TANG, "", fakes).event_record(event_of(handle(8)), stream_of(handle(9)));
    assert!(
        error
            .unwrap_err()
            .text()
            .contains("tangEventRecordWithFlags")
    );
}

#[test]
fn things_of_a_device_scoped_runtime_are_used_on_their_device() {
    let tops = driver(&TOPS, "", tables());
    CURRENT.set(1);
    let stream = tops.stream_create().unwrap();
    let event = tops.event_create(false).unwrap();
    let memory = tops.malloc(64).unwrap();
    let host = tops.malloc_host(64).unwrap();
    assert_eq!(
        log(),
        [
            "create 1 on 1",
            "create 2 on 1",
            "malloc 64 on 1",
            "host_alloc 64 0 on 1"
        ]
    );
    CURRENT.set(0);
    let foreign = stream_of(handle(0x77));
    tops.stream_synchronize(stream.handle()).unwrap();
    tops.stream_synchronize(foreign).unwrap();
    tops.event_record(event.handle(), stream.handle()).unwrap();
    let inside = memory.wrapping_byte_add(63);
    let behind = memory.wrapping_byte_add(64);
    KIND.set(1);
    assert_eq!(tops.pointer_owner(inside).unwrap(), PointerOwner::Device(1));
    assert_eq!(
        tops.pointer_owner(behind).unwrap(),
        PointerOwner::HostPinned
    );
    // SAFETY: the fakes touch no memory.
    unsafe {
        tops.memcpy_async(inside, handle(1), 1, CopyKind::HostToDevice, foreign)
            .unwrap();
        tops.memcpy_async(handle(1), inside, 1, CopyKind::DeviceToHost, foreign)
            .unwrap();
        tops.memcpy_async(behind, handle(1), 1, CopyKind::DeviceToDevice, foreign)
            .unwrap();
        tops.memset_async(behind, 5, 6, stream.handle()).unwrap();
    }
    assert_eq!(
        log(),
        [
            "stream_synchronize on 1",
            "stream_synchronize on 0",
            "record on 1",
            "memcpy 1 1 on 1",
            "memcpy 1 2 on 1",
            "memcpy 1 3 on 0",
            "memset 5 6 on 1",
        ]
    );
    assert_eq!(CURRENT.get(), 0);

    // The caller's device comes back when the call fails, and the thing stays known.
    RESULT.set(999);
    assert!(tops.stream_synchronize(stream.handle()).is_err());
    // SAFETY: the fake touches no memory.
    unsafe {
        assert!(tops.free(memory).is_err());
    }
    assert_eq!(CURRENT.get(), 0);
    RESULT.set(0);
    // SAFETY: as above.
    unsafe {
        tops.free(memory).unwrap();
        tops.free(memory).unwrap();
        tops.free_host(host).unwrap();
    }
    let event = event.into_raw();
    tops.event_destroy(super::OwnedEvent::from_handle(event_of(event)))
        .unwrap();
    tops.event_synchronize(event_of(event)).unwrap();
    tops.stream_destroy(stream).unwrap();
    assert_eq!(
        log(),
        [
            "stream_synchronize on 1",
            "destroy on 1",
            "destroy on 1",
            // Freed already, so it may be anybody's.
            "destroy on 0",
            "destroy on 1",
            "destroy on 1",
            "event_synchronize on 0",
            "device_synchronize on 0",
            "destroy on 1",
        ]
    );
    assert_eq!(CURRENT.get(), 0);
}

#[test]
fn completion_that_needs_a_synchronisation() {
    let tops = driver(&TOPS, "", tables());
    CURRENT.set(1);
    let stream = tops.stream_create().unwrap();
    let event = tops.event_create(false).unwrap();
    CURRENT.set(0);
    log();
    RESULT.set(600);
    assert!(!tops.stream_query(stream.handle()).unwrap());
    assert!(!tops.event_query(event.handle()).unwrap());
    assert_eq!(log(), ["stream_query on 1", "event_query on 1"]);
    RESULT.set(0);
    assert!(tops.stream_query(stream.handle()).unwrap());
    assert_eq!(log(), ["stream_query on 1", "stream_synchronize on 1"]);
    // Not recorded by us: the device.
    assert!(tops.event_query(event.handle()).unwrap());
    tops.event_record(event.handle(), stream_of(handle(0x77)))
        .unwrap();
    tops.event_synchronize(event.handle()).unwrap();
    tops.event_record(event.handle(), stream.handle()).unwrap();
    tops.event_synchronize(event.handle()).unwrap();
    assert!(tops.event_query(event.handle()).unwrap());
    assert_eq!(
        log(),
        [
            "event_query on 1",
            "device_synchronize on 1",
            "record on 1",
            "event_synchronize on 1",
            "device_synchronize on 1",
            "record on 1",
            "event_synchronize on 1",
            "stream_synchronize on 1",
            "event_query on 1",
            "stream_synchronize on 1",
        ]
    );
}

#[test]
fn rows_without_scope_make_no_further_calls() {
    let hip = driver(&HIP, "", tables());
    CURRENT.set(1);
    let stream = hip.stream_create().unwrap();
    CURRENT.set(0);
    assert!(hip.stream_query(stream.handle()).unwrap());
    assert_eq!(log(), ["create 1 on 1", "stream_query on 0"]);
}

#[test]
fn every_function_is_declared_once() {
    let list = declarations();
    for (at, one) in list.iter().enumerate() {
        let twice = list[..at]
            .iter()
            .any(|d| (d.library, &d.name) == (one.library, &one.name));
        assert!(!twice, "{} {}", one.library, one.name);
    }
    let find = |library: &str, name: &str| {
        let found = list.iter().find(|d| d.library == library && d.name == name);
        found.map(|d| (d.arguments.join(" | "), d.result))
    };
    for (library, name, arguments) in [
        ("cuda", "cudaHostAlloc", "*mut *mut c_void | usize | c_uint"),
        ("cuda driver", "cuMemAlloc_v2", "*mut *mut c_void | usize"),
        ("cuda driver", "cuInit", "c_uint"),
        ("hip", "hipHostMalloc", "*mut *mut c_void | usize | c_uint"),
        ("maca", "mcMallocHost", "*mut *mut c_void | usize"),
        (
            "tang",
            "tangEventRecordWithFlags",
            "*mut c_void | *mut c_void | c_uint",
        ),
        ("acl", "aclrtStreamQuery", "*mut c_void | *mut c_int"),
        (
            "cnrt",
            "cnrtQueueWaitNotifier",
            "*mut c_void | *mut c_void | c_uint",
        ),
        ("tx", "txMalloc", "*mut *mut c_void | u64"),
        ("tops", "topsDeviceSynchronize", ""),
    ] {
        let found = find(library, name);
        assert_eq!(found, Some((arguments.to_string(), "c_int")), "{name}");
    }
    for (library, name) in [
        ("maca", "mcStreamIsCapturing"),
        ("maca", "mcHostAlloc"),
        ("cuda", "cudaMallocHost"),
        ("tang", "tangEventRecord"),
    ] {
        assert_eq!(find(library, name), None, "{name}");
    }
    // What an error names is what is called.
    for row in ROWS.iter().filter(|row| row.odd.is_some()) {
        for (_, name) in row.renames {
            assert!(find(row.library, name).is_some(), "{name}");
        }
        for suffix in ["GetDevice", "SetDevice", "GetDeviceCount"] {
            let name = format!("{}{suffix}", row.prefix);
            assert!(find(row.library, &name).is_some(), "{name}");
        }
    }
}
