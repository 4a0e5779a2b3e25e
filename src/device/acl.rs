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
