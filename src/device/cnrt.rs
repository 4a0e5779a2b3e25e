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
        device_synchronize "cnrtSyncDevice" () -> c_int;
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
            device_synchronize: cnrt.device_synchronize,
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::device::tests::{driver, handle};
    use crate::device::{CNRT, CopyKind, Driver, PointerOwner, event_of, stream_of};

    thread_local! {
        static RESULT: Cell<c_int> = const { Cell::new(0) };
        static KIND: Cell<c_int> = const { Cell::new(0) };
        static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(call: String) -> c_int {
        LOG.with_borrow_mut(|log| log.push(call));
        RESULT.get()
    }

    unsafe extern "C" fn fake_get_device_count(count: *mut c_uint) -> c_int {
        // SAFETY: the place that the adapter gave.
        unsafe { *count = 16 };
        RESULT.get()
    }

    unsafe extern "C" fn fake_queue_create(queue: *mut *mut c_void) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *queue = handle(0x50) };
        note("queue".to_string())
    }

    unsafe extern "C" fn fake_notifier_create(to: *mut *mut c_void, flags: c_uint) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *to = handle(0x60) };
        note(format!("notifier {flags}"))
    }

    unsafe extern "C" fn fake_one(_handle: *mut c_void) -> c_int {
        RESULT.get()
    }

    unsafe extern "C" fn fake_wait(
        first: *mut c_void,
        second: *mut c_void,
        flags: c_uint,
    ) -> c_int {
        note(format!(
            "wait {:#x} {:#x} {flags}",
            first.addr(),
            second.addr()
        ))
    }

    unsafe extern "C" fn fake_elapsed(
        first: *mut c_void,
        second: *mut c_void,
        milliseconds: *mut f32,
    ) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *milliseconds = 2.5 };
        note(format!("elapsed {:#x} {:#x}", first.addr(), second.addr()))
    }

    unsafe extern "C" fn fake_memcpy(
        to: *mut c_void,
        from: *mut c_void,
        bytes: usize,
        queue: *mut c_void,
        direction: c_int,
    ) -> c_int {
        let (to, from, queue) = (to.addr(), from.addr(), queue.addr());
        note(format!(
            "copy {to:#x} {from:#x} {bytes} {queue:#x} {direction}"
        ))
    }

    unsafe extern "C" fn fake_attributes(
        to: *mut PointerAttributes,
        _pointer: *const c_void,
    ) -> c_int {
        // SAFETY: the place that the driver gave.
        let to = unsafe { &mut *to };
        (to.kind, to.device) = (KIND.get(), 4);
        RESULT.get()
    }

    unsafe extern "C" fn fake_last_error() -> c_int {
        note("last error".to_string())
    }

    fn cnrt(numbers: &str) -> Driver {
        let tables = tables(Cnrt {
            get_device_count: Some(fake_get_device_count),
            queue_create: Some(fake_queue_create),
            queue_query: Some(fake_one),
            queue_wait_notifier: Some(fake_wait),
            notifier_create: Some(fake_notifier_create),
            query_notifier: Some(fake_one),
            notifier_elapsed: Some(fake_elapsed),
            memcpy_async: Some(fake_memcpy),
            pointer_attributes: Some(fake_attributes),
            get_last_error: Some(fake_last_error),
            ..Cnrt::default()
        });
        driver(&CNRT, numbers, tables)
    }

    #[test]
    fn arguments_are_in_cnrt_s_order() {
        let cnrt = cnrt("");
        let (queue, notifier) = (stream_of(handle(1)), event_of(handle(2)));
        assert_eq!(cnrt.stream_create().unwrap().into_raw().addr(), 0x50);
        cnrt.event_create(false).unwrap();
        cnrt.event_create(true).unwrap();
        cnrt.stream_wait_event(queue, notifier).unwrap();
        let milliseconds = cnrt.event_elapsed_ms(notifier, event_of(handle(3)));
        assert_eq!(milliseconds.unwrap(), 2.5);
        for kind in [
            CopyKind::HostToDevice,
            CopyKind::DeviceToHost,
            CopyKind::DeviceToDevice,
        ] {
            // SAFETY: the fake touches no memory.
            unsafe { cnrt.memcpy_async(handle(3), handle(4), 7, kind, queue) }.unwrap();
        }
        let calls = [
            "queue",
            "notifier 4",
            "notifier 0",
            "wait 0x2 0x1 0",
            "elapsed 0x2 0x3",
            "copy 0x3 0x4 7 0x1 0",
            "copy 0x3 0x4 7 0x1 2",
            "copy 0x3 0x4 7 0x1 1",
        ];
        assert_eq!(LOG.take(), calls);
    }

    #[test]
    fn not_ready_and_busy_are_not_yet_and_are_taken_away() {
        let cnrt = cnrt("");
        for code in [1, 632_014] {
            RESULT.set(code);
            assert!(!cnrt.stream_query(stream_of(handle(1))).unwrap());
            assert!(!cnrt.event_query(event_of(handle(2))).unwrap());
            assert_eq!(LOG.take(), ["last error", "last error"]);
        }
        RESULT.set(0);
        assert!(cnrt.event_query(event_of(handle(2))).unwrap());
        assert!(LOG.take().is_empty());
        RESULT.set(100_006);
        let error = cnrt.event_query(event_of(handle(2))).unwrap_err();
        assert!(
            error
                .text()
                .contains("cnrtQueryNotifier failed with 100006"),
            "{error}"
        );
    }

    #[test]
    fn a_direction_that_nobody_has_described_is_found_out() {
        let copy = |numbers: &str| {
            let cnrt = cnrt(numbers);
            // SAFETY: the fake touches no memory.
            unsafe {
                cnrt.memcpy_async(
                    handle(3),
                    handle(4),
                    7,
                    CopyKind::Default,
                    stream_of(handle(1)),
                )
            }
        };
        // Both addresses are a device's.
        KIND.set(2);
        copy("").unwrap();
        assert_eq!(LOG.take(), ["copy 0x3 0x4 7 0x1 1"]);
        copy("copy_default=5").unwrap();
        assert_eq!(LOG.take(), ["copy 0x3 0x4 7 0x1 5"]);
    }

    #[test]
    fn counts_and_owners() {
        let cnrt = cnrt("");
        assert_eq!(cnrt.count().unwrap(), 16);
        for (kind, owner) in [
            (0, PointerOwner::Unregistered),
            (1, PointerOwner::HostPinned),
            (2, PointerOwner::Device(4)),
        ] {
            KIND.set(kind);
            assert_eq!(cnrt.pointer_owner(handle(1)).unwrap(), owner);
        }
        RESULT.set(100_004);
        assert_eq!(cnrt.count().unwrap(), 0);
        assert_eq!(LOG.take(), ["last error"]);
    }
}
