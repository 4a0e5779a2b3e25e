//! Huawei's ACL runtime: contexts, unsigned counts, statuses beside results, sizes given twice.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::adapter::{ABSENT, NOT_READY, Odd, Resolved, UNKNOWN_STATUS, signed};
use super::functions::{Common, PointerAttributes, Runtime, Spare, Tables, functions};
use crate::load::symbols::Layout;

/// `aclrtPtrAttributes`: 28 bytes today, given room to grow.
#[repr(C, align(8))]
pub(super) struct AclPointer {
    device: c_uint,
    kind: c_int,
    rest: [u64; 15],
}

pub(super) fn pointer_layout() -> Layout {
    Layout {
        library: "acl",
        name: "aclrtPtrAttributes",
        size: size_of::<AclPointer>(),
        exact: false,
        fields: vec![
            ("location", offset_of!(AclPointer, device)),
            // Below it are two numbers: the device's and the kind.
            ("pageSize", offset_of!(AclPointer, rest)),
        ],
    }
}

functions! {
    /// ACL's own functions.
    Acl {
        init "aclInit" (*const c_char) -> c_int;
        set_device "aclrtSetDevice" (c_int) -> c_int;
        get_device "aclrtGetDevice" (*mut c_int) -> c_int;
        get_device_count "aclrtGetDeviceCount" (*mut c_uint) -> c_int;
        context_get "aclrtGetCurrentContext" (*mut *mut c_void) -> c_int;
        context_set "aclrtSetCurrentContext" (*mut c_void) -> c_int;
        stream_create "aclrtCreateStream" (*mut *mut c_void) -> c_int;
        stream_destroy "aclrtDestroyStream" (*mut c_void) -> c_int;
        stream_synchronize "aclrtSynchronizeStream" (*mut c_void) -> c_int;
        stream_query "aclrtStreamQuery" (*mut c_void, *mut c_int) -> c_int;
        stream_wait_event "aclrtStreamWaitEvent" (*mut c_void, *mut c_void) -> c_int;
        event_create_ex "aclrtCreateEventExWithFlag" (*mut *mut c_void, c_uint) -> c_int;
        event_create "aclrtCreateEventWithFlag" (*mut *mut c_void, c_uint) -> c_int;
        event_destroy "aclrtDestroyEvent" (*mut c_void) -> c_int;
        event_record "aclrtRecordEvent" (*mut c_void, *mut c_void) -> c_int;
        event_synchronize "aclrtSynchronizeEvent" (*mut c_void) -> c_int;
        event_query "aclrtQueryEventStatus" (*mut c_void, *mut c_int) -> c_int;
        event_elapsed "aclrtEventElapsedTime" (*mut f32, *mut c_void, *mut c_void) -> c_int;
        malloc "aclrtMalloc" (*mut *mut c_void, usize, c_int) -> c_int;
        free "aclrtFree" (*mut c_void) -> c_int;
        malloc_host "aclrtMallocHost" (*mut *mut c_void, usize) -> c_int;
        free_host "aclrtFreeHost" (*mut c_void) -> c_int;
        memcpy_async "aclrtMemcpyAsync"
            (*mut c_void, usize, *const c_void, usize, c_int, *mut c_void) -> c_int;
        memset_async "aclrtMemsetAsync" (*mut c_void, usize, c_int, usize, *mut c_void) -> c_int;
        pointer_attributes "aclrtPointerGetAttributes" (*const c_void, *mut AclPointer) -> c_int;
        peek_last_error "aclrtPeekAtLastError" (c_int) -> c_int;
        get_last_error "aclrtGetLastError" (c_int) -> c_int;
        device_synchronize "aclrtSynchronizeDevice" () -> c_int;
    }
}

/// ACL.
pub(super) static ODD: Odd = Odd {
    resolve: |resolver| tables(Acl::resolve(&|name| Some(name.to_string()), resolver)),
    declarations: || Acl::declarations("acl", &|name| Some(name.to_string())),
};

static FUNCTIONS: Resolved<Acl> = Resolved::new();
/// Whether ACL has been initialised through us. Asking twice does no harm.
static READY: AtomicBool = AtomicBool::new(false);

/// The result of initialising what the program has initialised.
const REPEATED_INIT: c_int = 100_002;
/// Statuses of `aclrtStreamQuery`.
const STREAM_COMPLETE: c_int = 0;
const STREAM_NOT_READY: c_int = 1;
/// Statuses of `aclrtQueryEventStatus`: the other way round.
const EVENT_NOT_READY: c_int = 0;
const EVENT_COMPLETE: c_int = 1;
/// `ACL_MEM_MALLOC_HUGE_FIRST`.
const HUGE_PAGES_FIRST: c_int = 0;
/// The level of the calling thread's last error.
const OF_THREAD: c_int = 0;

/// Adapts ACL. What ACL lacks, the tables lack.
fn tables(acl: Acl) -> Tables {
    FUNCTIONS.set(acl);
    READY.store(false, Ordering::Release);
    Tables {
        common: Common {
            get_device: acl.get_device,
            get_device_count: acl.get_device_count.map(|_| get_device_count as _),
            stream_create: acl.stream_create.map(|_| stream_create as _),
            stream_destroy: acl.stream_destroy,
            stream_query: acl.stream_query.map(|_| stream_query as _),
            stream_synchronize: acl.stream_synchronize,
            stream_wait_event: acl.stream_wait_event.map(|_| stream_wait_event as _),
            // Events of the first kind need no reset before they are recorded again and don't use
            // up the device's few.
            event_create: acl.event_create_ex.or(acl.event_create),
            event_destroy: acl.event_destroy,
            event_record: acl.event_record,
            event_query: acl.event_query.map(|_| event_query as _),
            event_synchronize: acl.event_synchronize,
            event_elapsed: acl.event_elapsed,
            malloc: acl.malloc.map(|_| malloc as _),
            free: acl.free,
            free_host: acl.free_host,
            memset_async: acl.memset_async.map(|_| memset_async as _),
            ..Common::default()
        },
        runtime: Runtime {
            set_device: acl.set_device.map(|_| set_device as _),
            memcpy_async: acl.memcpy_async.map(|_| memcpy_async as _),
            pointer_attributes: acl.pointer_attributes.map(|_| pointer_attributes as _),
            get_last_error: acl.get_last_error.map(|_| get_last_error as _),
            peek_last_error: acl.peek_last_error.map(|_| peek_last_error as _),
            device_synchronize: acl.device_synchronize,
            ..Runtime::default()
        },
        spare: Spare {
            malloc_host: acl.malloc_host,
            context_get: acl.context_get,
            context_set: acl.context_set,
            ..Spare::default()
        },
    }
}

/// Initialises ACL, once for the process. Nothing of ours ever ends it: the program may use it too.
fn init() -> c_int {
    if READY.load(Ordering::Acquire) {
        return 0;
    }
    if let Some(init) = FUNCTIONS.function(|acl| acl.init) {
        // SAFETY: NULL means no configuration file; may be called after the program's own call.
        let code = unsafe { init(ptr::null()) };
        if code != 0 && code != REPEATED_INIT {
            return code;
        }
    }
    READY.store(true, Ordering::Release);
    0
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> c_int {
    let code = init();
    if code != 0 {
        return code;
    }
    let Some(ask) = FUNCTIONS.function(|acl| acl.get_device_count) else {
        return ABSENT;
    };
    let mut answer = 0;
    // SAFETY: the number goes to a live local.
    let code = unsafe { ask(&mut answer) };
    // SAFETY: the caller's place for the number, which is live for the call.
    signed(code, answer, unsafe { &mut *count })
}

unsafe extern "C" fn set_device(device: c_int) -> c_int {
    let code = init();
    if code != 0 {
        return code;
    }
    match FUNCTIONS.function(|acl| acl.set_device) {
        // SAFETY: takes a number, which ACL checks.
        Some(set) => unsafe { set(device) },
        None => ABSENT,
    }
}

unsafe extern "C" fn stream_create(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    match FUNCTIONS.function(|acl| acl.stream_create) {
        // SAFETY: the caller's place for the handle. ACL has no default stream that a flag could
        // be about.
        Some(create) => unsafe { create(stream) },
        None => ABSENT,
    }
}

unsafe extern "C" fn stream_query(stream: *mut c_void) -> c_int {
    let Some(ask) = FUNCTIONS.function(|acl| acl.stream_query) else {
        return ABSENT;
    };
    let mut status = -1;
    // SAFETY: the caller's live stream; the status goes to a live local.
    match (unsafe { ask(stream, &mut status) }, status) {
        (0, STREAM_COMPLETE) => 0,
        (0, STREAM_NOT_READY) => NOT_READY,
        (0, _) => UNKNOWN_STATUS,
        (code, _) => code,
    }
}

unsafe extern "C" fn stream_wait_event(
    stream: *mut c_void,
    event: *mut c_void,
    _flags: c_uint,
) -> c_int {
    match FUNCTIONS.function(|acl| acl.stream_wait_event) {
        // SAFETY: the caller's live stream and live event; the only flags we pass are 0.
        Some(wait) => unsafe { wait(stream, event) },
        None => ABSENT,
    }
}

unsafe extern "C" fn event_query(event: *mut c_void) -> c_int {
    let Some(ask) = FUNCTIONS.function(|acl| acl.event_query) else {
        return ABSENT;
    };
    let mut status = -1;
    // SAFETY: the caller's live event; the status goes to a live local.
    match (unsafe { ask(event, &mut status) }, status) {
        (0, EVENT_COMPLETE) => 0,
        (0, EVENT_NOT_READY) => NOT_READY,
        (0, _) => UNKNOWN_STATUS,
        (code, _) => code,
    }
}

unsafe extern "C" fn malloc(memory: *mut *mut c_void, bytes: usize) -> c_int {
    match FUNCTIONS.function(|acl| acl.malloc) {
        // SAFETY: the caller's place for the address.
        Some(malloc) => unsafe { malloc(memory, bytes, HUGE_PAGES_FIRST) },
        None => ABSENT,
    }
}

unsafe extern "C" fn memset_async(
    to: *mut c_void,
    byte: c_int,
    bytes: usize,
    stream: *mut c_void,
) -> c_int {
    match FUNCTIONS.function(|acl| acl.memset_async) {
        // SAFETY: the caller's promise about the range and the stream; the range's size is also
        // the most that may be written.
        Some(set) => unsafe { set(to, bytes, byte, bytes, stream) },
        None => ABSENT,
    }
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> c_int {
    match FUNCTIONS.function(|acl| acl.memcpy_async) {
        // SAFETY: as for `memset_async`, for both ranges.
        Some(copy) => unsafe { copy(to, bytes, from, bytes, kind, stream) },
        None => ABSENT,
    }
}

unsafe extern "C" fn pointer_attributes(
    attributes: *mut PointerAttributes,
    pointer: *const c_void,
) -> c_int {
    let Some(ask) = FUNCTIONS.function(|acl| acl.pointer_attributes) else {
        return ABSENT;
    };
    let mut answer = AclPointer {
        device: 0,
        kind: -1,
        rest: [0; 15],
    };
    // SAFETY: ACL only looks the address up; the answer goes to a live local that is larger than
    // its struct.
    let code = unsafe { ask(pointer, &mut answer) };
    let _ = answer.rest;
    // SAFETY: the caller's struct, which is live for the call.
    let attributes = unsafe { &mut *attributes };
    attributes.kind = answer.kind;
    signed(code, answer.device, &mut attributes.device)
}

unsafe extern "C" fn get_last_error() -> c_int {
    match FUNCTIONS.function(|acl| acl.get_last_error) {
        // SAFETY: takes a number; resets this thread's last error.
        Some(get) => unsafe { get(OF_THREAD) },
        None => ABSENT,
    }
}

unsafe extern "C" fn peek_last_error() -> c_int {
    match FUNCTIONS.function(|acl| acl.peek_last_error) {
        // SAFETY: takes a number and changes nothing.
        Some(peek) => unsafe { peek(OF_THREAD) },
        None => ABSENT,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::Code;
    use crate::device::tests::{driver, handle};
    use crate::device::{ACL, CopyKind, Driver, Guard, PointerOwner, event_of, stream_of};

    thread_local! {
        /// The context that is current: a device's own is its index and 100, another has 200 more.
        static CONTEXT: Cell<usize> = const { Cell::new(0) };
        static STATUS: Cell<c_int> = const { Cell::new(0) };
        static RESULT: Cell<c_int> = const { Cell::new(0) };
        static INIT: Cell<c_int> = const { Cell::new(0) };
        static LAST: Cell<c_int> = const { Cell::new(0) };
        static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    const NO_CONTEXT: c_int = 107_002;

    fn note(call: String) {
        LOG.with_borrow_mut(|log| log.push(call));
    }

    unsafe extern "C" fn fake_init(file: *const c_char) -> c_int {
        assert!(file.is_null());
        INIT.get()
    }

    unsafe extern "C" fn fake_set_device(device: c_int) -> c_int {
        CONTEXT.set(100 + device as usize);
        0
    }

    unsafe extern "C" fn fake_get_device(device: *mut c_int) -> c_int {
        match CONTEXT.get() {
            0 => {
                LAST.set(NO_CONTEXT);
                NO_CONTEXT
            }
            context => {
                // SAFETY: the place that the driver gave.
                unsafe { *device = (context % 100) as c_int };
                0
            }
        }
    }

    unsafe extern "C" fn fake_get_device_count(count: *mut c_uint) -> c_int {
        // SAFETY: the place that the adapter gave.
        unsafe { *count = 8 };
        RESULT.get()
    }

    unsafe extern "C" fn fake_context_get(context: *mut *mut c_void) -> c_int {
        if CONTEXT.get() == 0 {
            LAST.set(NO_CONTEXT);
            return NO_CONTEXT;
        }
        // SAFETY: the place that the driver gave.
        unsafe { *context = handle(CONTEXT.get()) };
        0
    }

    unsafe extern "C" fn fake_context_set(context: *mut c_void) -> c_int {
        assert!(!context.is_null(), "none is no context");
        CONTEXT.set(context.addr());
        0
    }

    unsafe extern "C" fn fake_stream_create(stream: *mut *mut c_void) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *stream = handle(0x50) };
        0
    }

    unsafe extern "C" fn fake_status(_handle: *mut c_void, status: *mut c_int) -> c_int {
        // SAFETY: the place that the adapter gave.
        unsafe { *status = STATUS.get() };
        RESULT.get()
    }

    unsafe extern "C" fn fake_two(first: *mut c_void, second: *mut c_void) -> c_int {
        note(format!("{:#x} {:#x}", first.addr(), second.addr()));
        0
    }

    unsafe extern "C" fn fake_event_create(event: *mut *mut c_void, flags: c_uint) -> c_int {
        note(format!("event {flags}"));
        // SAFETY: the place that the driver gave.
        unsafe { *event = handle(0x60) };
        0
    }

    unsafe extern "C" fn fake_malloc(to: *mut *mut c_void, bytes: usize, policy: c_int) -> c_int {
        note(format!("malloc {bytes} {policy}"));
        // SAFETY: the place that the driver gave.
        unsafe { *to = handle(0x70) };
        0
    }

    unsafe extern "C" fn fake_memcpy(
        to: *mut c_void,
        most: usize,
        from: *const c_void,
        bytes: usize,
        kind: c_int,
        stream: *mut c_void,
    ) -> c_int {
        let (to, from, stream) = (to.addr(), from.addr(), stream.addr());
        note(format!(
            "copy {to:#x} {most} {from:#x} {bytes} {kind} {stream:#x}"
        ));
        0
    }

    unsafe extern "C" fn fake_memset(
        to: *mut c_void,
        most: usize,
        byte: c_int,
        bytes: usize,
        stream: *mut c_void,
    ) -> c_int {
        let (to, stream) = (to.addr(), stream.addr());
        note(format!("set {to:#x} {most} {byte} {bytes} {stream:#x}"));
        0
    }

    unsafe extern "C" fn fake_attributes(_pointer: *const c_void, to: *mut AclPointer) -> c_int {
        // SAFETY: the place that the adapter gave.
        let to = unsafe { &mut *to };
        (to.device, to.kind) = (5, STATUS.get());
        RESULT.get()
    }

    unsafe extern "C" fn fake_peek(level: c_int) -> c_int {
        assert_eq!(level, 0);
        LAST.get()
    }

    unsafe extern "C" fn fake_get(level: c_int) -> c_int {
        assert_eq!(level, 0);
        LAST.replace(0)
    }

    fn fakes() -> Acl {
        Acl {
            init: Some(fake_init),
            set_device: Some(fake_set_device),
            get_device: Some(fake_get_device),
            get_device_count: Some(fake_get_device_count),
            context_get: Some(fake_context_get),
            context_set: Some(fake_context_set),
            stream_create: Some(fake_stream_create),
            stream_query: Some(fake_status),
            stream_wait_event: Some(fake_two),
            event_create_ex: Some(fake_event_create),
            event_record: Some(fake_two),
            event_query: Some(fake_status),
            malloc: Some(fake_malloc),
            memcpy_async: Some(fake_memcpy),
            memset_async: Some(fake_memset),
            pointer_attributes: Some(fake_attributes),
            peek_last_error: Some(fake_peek),
            get_last_error: Some(fake_get),
            ..Acl::default()
        }
    }

    fn acl() -> Driver {
        driver(&ACL, "", tables(fakes()))
    }

    #[test]
    fn no_context_is_unbound_and_never_device_0() {
        let acl = acl();
        let error = acl.current().unwrap_err();
        assert_eq!(error.code(), Code::UnboundDevice);
        assert!(error.text().contains("107002"), "{error}");
        assert!(error.text().contains("aclrtGetDevice"), "{error}");
        assert_eq!(LAST.get(), 0, "what our question left behind is taken away");
        // ACL has no way back to none.
        Guard::with(&acl, 3, || {
            assert_eq!(acl.current().unwrap(), 3);
            Ok(())
        })
        .unwrap();
        assert_eq!(acl.current().unwrap(), 3);
    }

    #[test]
    fn the_very_context_comes_back() {
        let acl = acl();
        CONTEXT.set(301);
        Guard::with(&acl, 2, || {
            assert_eq!(CONTEXT.get(), 102);
            Ok(())
        })
        .unwrap();
        assert_eq!(CONTEXT.get(), 301);
        Guard::with(&acl, 1, || {
            assert_eq!(CONTEXT.get(), 301, "a context of the device is current");
            Ok(())
        })
        .unwrap();
        assert_eq!(CONTEXT.get(), 301);
    }

    #[test]
    fn an_initialised_acl_is_fine() {
        let acl = acl();
        INIT.set(REPEATED_INIT);
        assert_eq!(acl.count().unwrap(), 8);
        RESULT.set(107_000);
        let error = acl.count().unwrap_err();
        assert!(
            error
                .text()
                .contains("aclrtGetDeviceCount failed with 107000"),
            "{error}"
        );
    }

    #[test]
    fn statuses_of_streams_and_events_are_each_other_s_opposite() {
        let acl = acl();
        let (stream, event) = (stream_of(handle(1)), event_of(handle(2)));
        STATUS.set(0);
        assert!(acl.stream_query(stream).unwrap());
        assert!(!acl.event_query(event).unwrap());
        STATUS.set(1);
        assert!(!acl.stream_query(stream).unwrap());
        assert!(acl.event_query(event).unwrap());
        STATUS.set(2);
        let error = acl.stream_query(stream).unwrap_err();
        assert!(error.text().contains("isn't known"), "{error}");
        assert!(acl.event_query(event).is_err());
        RESULT.set(507_000);
        let error = acl.event_query(event).unwrap_err();
        assert!(
            error
                .text()
                .contains("aclrtQueryEventStatus failed with 507000"),
            "{error}"
        );
    }

    #[test]
    fn arguments_are_in_acl_s_order() {
        let acl = acl();
        let (stream, event) = (stream_of(handle(0x1)), event_of(handle(0x2)));
        assert_eq!(acl.stream_create().unwrap().into_raw().addr(), 0x50);
        acl.stream_wait_event(stream, event).unwrap();
        acl.event_record(event, stream).unwrap();
        acl.event_create(false).unwrap();
        acl.event_create(true).unwrap();
        acl.malloc(9).unwrap();
        // SAFETY: the fakes touch no memory.
        unsafe {
            acl.memcpy_async(handle(3), handle(4), 7, CopyKind::DeviceToHost, stream)
                .unwrap();
            acl.memset_async(handle(3), 8, 7, stream).unwrap();
        }
        let calls = [
            "0x1 0x2",
            "0x2 0x1",
            "event 1",
            "event 8",
            "malloc 9 0",
            "copy 0x3 7 0x4 7 2 0x1",
            "set 0x3 7 8 7 0x1",
        ];
        assert_eq!(LOG.take(), calls);
        let other = driver(&ACL, "event_no_timing=3", tables(fakes()));
        other.event_create(false).unwrap();
        assert_eq!(LOG.take(), ["event 3"]);
    }

    #[test]
    fn null_is_no_stream() {
        let acl = acl();
        let null = stream_of(ptr::null_mut());
        let event = event_of(handle(2));
        let results = [
            acl.stream_query(null).map(|_| ()),
            acl.stream_synchronize(null),
            acl.stream_wait_event(null, event),
            acl.event_record(event, null),
            // SAFETY: the fake touches no memory.
            unsafe { acl.memcpy_async(handle(3), handle(4), 7, CopyKind::Default, null) },
            // SAFETY: as above.
            unsafe { acl.memset_async(handle(3), 8, 7, null) },
        ];
        for (at, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            if at == 1 {
                // The fakes have no function for it.
                assert_eq!(error.code(), Code::NotSupported);
                continue;
            }
            assert_eq!(error.code(), Code::InvalidArgument, "{at}");
            assert!(error.text().contains("no default stream"), "{error}");
        }
        assert!(LOG.take().is_empty());
        assert!(!acl.is_capturing(null).unwrap());
    }

    #[test]
    fn owners_of_pointers() {
        let acl = acl();
        for (kind, owner) in [
            (0, PointerOwner::HostPinned),
            (1, PointerOwner::Device(5)),
            (2, PointerOwner::Unregistered),
        ] {
            STATUS.set(kind);
            assert_eq!(acl.pointer_owner(handle(1)).unwrap(), owner);
        }
        RESULT.set(107_000);
        let error = acl.pointer_owner(handle(1)).unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        // Older versions have no such function.
        let older = Acl {
            pointer_attributes: None,
            ..fakes()
        };
        let error = driver(&ACL, "", tables(older)).pointer_owner(handle(1));
        let error = error.unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(
            error.text().contains("aclrtPointerGetAttributes"),
            "{error}"
        );
    }

    #[test]
    fn identity_without_a_bus_id() {
        let acl = acl();
        let identities = [0, 1].map(|device| acl.uuid(device).unwrap());
        assert_ne!(identities[0], identities[1]);
        assert_eq!(acl.uuid(0).unwrap(), identities[0]);
        assert_eq!(acl.pci_bus_id(0).unwrap_err().code(), Code::NotSupported);
    }

    #[test]
    fn sizes() {
        assert!(size_of::<AclPointer>() == 128 && std::mem::offset_of!(AclPointer, kind) == 4);
    }
}
