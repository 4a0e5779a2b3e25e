//! Cambricon's CNRT: queues and notifiers instead of streams and events, and other orders.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::adapter::{ABSENT, Odd, Resolved, signed};
use super::functions::{Common, PointerAttributes, Runtime, Spare, Tables, functions};

functions! {
    /// CNRT's own functions.
    Cnrt {
        set_device "cnrtSetDevice" (c_int) -> c_int;
        get_device "cnrtGetDevice" (*mut c_int) -> c_int;
        get_device_count "cnrtGetDeviceCount" (*mut c_uint) -> c_int;
        pci_bus_id "cnrtDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> c_int;
        queue_create "cnrtQueueCreate" (*mut *mut c_void) -> c_int;
        queue_destroy "cnrtQueueDestroy" (*mut c_void) -> c_int;
        queue_query "cnrtQueueQuery" (*mut c_void) -> c_int;
        queue_sync "cnrtQueueSync" (*mut c_void) -> c_int;
        queue_wait_notifier "cnrtQueueWaitNotifier" (*mut c_void, *mut c_void, c_uint) -> c_int;
        notifier_create "cnrtNotifierCreateWithFlags" (*mut *mut c_void, c_uint) -> c_int;
        notifier_destroy "cnrtNotifierDestroy" (*mut c_void) -> c_int;
        place_notifier "cnrtPlaceNotifier" (*mut c_void, *mut c_void) -> c_int;
        query_notifier "cnrtQueryNotifier" (*mut c_void) -> c_int;
        wait_notifier "cnrtWaitNotifier" (*mut c_void) -> c_int;
        notifier_elapsed "cnrtNotifierElapsedTime" (*mut c_void, *mut c_void, *mut f32) -> c_int;
        malloc "cnrtMalloc" (*mut *mut c_void, usize) -> c_int;
        free "cnrtFree" (*mut c_void) -> c_int;
        malloc_host "cnrtHostMalloc" (*mut *mut c_void, usize) -> c_int;
        free_host "cnrtFreeHost" (*mut c_void) -> c_int;
        memcpy_async "cnrtMemcpyAsync_V2"
            (*mut c_void, *mut c_void, usize, *mut c_void, c_int) -> c_int;
        memset_async "cnrtMemsetAsync" (*mut c_void, c_int, usize, *mut c_void) -> c_int;
        pointer_attributes "cnrtPointerGetAttributes"
            (*mut PointerAttributes, *const c_void) -> c_int;
        get_last_error "cnrtGetLastError" () -> c_int;
        error_string "cnrtGetErrorStr" (c_int) -> *const c_char;
    }
}

/// CNRT.
pub(super) static ODD: Odd = Odd {
    resolve: |resolver| tables(Cnrt::resolve(&|name| Some(name.to_string()), resolver)),
    declarations: || Cnrt::declarations("cnrt", &|name| Some(name.to_string())),
};

static FUNCTIONS: Resolved<Cnrt> = Resolved::new();

/// Adapts CNRT. What CNRT lacks, the tables lack.
fn tables(cnrt: Cnrt) -> Tables {
    FUNCTIONS.set(cnrt);
    Tables {
        common: Common {
            get_device: cnrt.get_device,
            get_device_count: cnrt.get_device_count.map(|_| get_device_count as _),
            pci_bus_id: cnrt.pci_bus_id,
            stream_create: cnrt.queue_create.map(|_| stream_create as _),
            stream_destroy: cnrt.queue_destroy,
            stream_query: cnrt.queue_query,
            stream_synchronize: cnrt.queue_sync,
            stream_wait_event: cnrt.queue_wait_notifier.map(|_| stream_wait_event as _),
            event_create: cnrt.notifier_create,
            event_destroy: cnrt.notifier_destroy,
            event_record: cnrt.place_notifier,
            event_query: cnrt.query_notifier,
            event_synchronize: cnrt.wait_notifier,
            event_elapsed: cnrt.notifier_elapsed.map(|_| event_elapsed as _),
            malloc: cnrt.malloc,
            free: cnrt.free,
            free_host: cnrt.free_host,
            memset_async: cnrt.memset_async,
            ..Common::default()
        },
        runtime: Runtime {
            set_device: cnrt.set_device,
            memcpy_async: cnrt.memcpy_async.map(|_| memcpy_async as _),
            pointer_attributes: cnrt.pointer_attributes,
            get_last_error: cnrt.get_last_error,
            error_string: cnrt.error_string,
            ..Runtime::default()
        },
        spare: Spare {
            malloc_host: cnrt.malloc_host,
            ..Spare::default()
        },
    }
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> c_int {
    let Some(ask) = FUNCTIONS.function(|cnrt| cnrt.get_device_count) else {
        return ABSENT;
    };
    let mut answer = 0;
    // SAFETY: the number goes to a live local.
    let code = unsafe { ask(&mut answer) };
    // SAFETY: the caller's place for the number, which is live for the call.
    signed(code, answer, unsafe { &mut *count })
}

unsafe extern "C" fn stream_create(queue: *mut *mut c_void, _flags: c_uint) -> c_int {
    match FUNCTIONS.function(|cnrt| cnrt.queue_create) {
        // SAFETY: the caller's place for the handle; a queue has no flags.
        Some(create) => unsafe { create(queue) },
        None => ABSENT,
    }
}

unsafe extern "C" fn stream_wait_event(
    queue: *mut c_void,
    notifier: *mut c_void,
    flags: c_uint,
) -> c_int {
    match FUNCTIONS.function(|cnrt| cnrt.queue_wait_notifier) {
        // SAFETY: the caller's live queue and live notifier, which CNRT takes first.
        Some(wait) => unsafe { wait(notifier, queue, flags) },
        None => ABSENT,
    }
}

unsafe extern "C" fn event_elapsed(
    milliseconds: *mut f32,
    start: *mut c_void,
    end: *mut c_void,
) -> c_int {
    match FUNCTIONS.function(|cnrt| cnrt.notifier_elapsed) {
        // SAFETY: the caller's live notifiers and place for the number, which CNRT takes last.
        Some(elapsed) => unsafe { elapsed(start, end, milliseconds) },
        None => ABSENT,
    }
}

unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    direction: c_int,
    queue: *mut c_void,
) -> c_int {
    match FUNCTIONS.function(|cnrt| cnrt.memcpy_async) {
        // SAFETY: the caller's promise about both ranges and the queue. CNRT reads through the
        // second pointer although it isn't declared const.
        Some(copy) => unsafe { copy(to, from.cast_mut(), bytes, queue, direction) },
        None => ABSENT,
    }
}
