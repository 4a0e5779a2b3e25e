//! Tsingmicro's runtime: unsigned devices, and neither flags of streams nor flags of events.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::adapter::{ABSENT, OUT_OF_RANGE, Odd, Resolved, signed};
use super::functions::{Common, Runtime, Spare, Tables, functions};

functions! {
    /// Its own functions.
    Tx {
        set_device "txSetDevice" (c_uint) -> c_int;
        get_device "txGetDevice" (*mut c_uint) -> c_int;
        get_device_count "txGetDeviceCount" (*mut c_uint) -> c_int;
        stream_create "txStreamCreate" (*mut *mut c_void) -> c_int;
        stream_destroy "txStreamDestroy" (*mut c_void) -> c_int;
        stream_query "txStreamQuery" (*mut c_void) -> c_int;
        stream_synchronize "txStreamSynchronize" (*mut c_void) -> c_int;
        stream_wait_event "txStreamWaitEvent" (*mut c_void, *mut c_void) -> c_int;
        event_create "txEventCreate" (*mut *mut c_void) -> c_int;
        event_destroy "txEventDestroy" (*mut c_void) -> c_int;
        event_record "txEventRecord" (*mut c_void, *mut c_void) -> c_int;
        event_query "txEventQuery" (*mut c_void) -> c_int;
        event_synchronize "txEventSynchronize" (*mut c_void) -> c_int;
        event_elapsed "txEventElapsedTime" (*mut f32, *mut c_void, *mut c_void) -> c_int;
        malloc "txMalloc" (*mut *mut c_void, u64) -> c_int;
        free "txFree" (*mut c_void) -> c_int;
        malloc_host "txMallocHost" (*mut *mut c_void, u64) -> c_int;
        free_host "txFreeHost" (*mut c_void) -> c_int;
        memcpy_async "txMemcpyAsync"
            (*mut c_void, *const c_void, u64, c_int, *mut c_void) -> c_int;
        device_synchronize "txDeviceSynchronize" () -> c_int;
        error_string "txGetErrorString" (c_int) -> *const c_char;
    }
}

/// Tsingmicro's runtime.
pub(super) static ODD: Odd = Odd {
    resolve: |resolver| tables(Tx::resolve(&|name| Some(name.to_string()), resolver)),
    declarations: || Tx::declarations("tx", &|name| Some(name.to_string())),
};

static FUNCTIONS: Resolved<Tx> = Resolved::new();

/// Adapts the runtime. What it lacks, the tables lack.
fn tables(tx: Tx) -> Tables {
    FUNCTIONS.set(tx);
    Tables {
        common: Common {
            get_device: tx.get_device.map(|_| get_device as _),
            get_device_count: tx.get_device_count.map(|_| get_device_count as _),
            stream_create: tx.stream_create.map(|_| stream_create as _),
            stream_destroy: tx.stream_destroy,
            stream_query: tx.stream_query,
            stream_synchronize: tx.stream_synchronize,
            stream_wait_event: tx.stream_wait_event.map(|_| stream_wait_event as _),
            event_create: tx.event_create.map(|_| event_create as _),
            event_destroy: tx.event_destroy,
            event_record: tx.event_record,
            event_query: tx.event_query,
            event_synchronize: tx.event_synchronize,
            event_elapsed: tx.event_elapsed,
            malloc: tx.malloc.map(|_| malloc as _),
            free: tx.free,
            free_host: tx.free_host,
            ..Common::default()
        },
        runtime: Runtime {
            set_device: tx.set_device.map(|_| set_device as _),
            memcpy_async: tx.memcpy_async.map(|_| memcpy_async as _),
            error_string: tx.error_string,
            device_synchronize: tx.device_synchronize,
            ..Runtime::default()
        },
        spare: Spare {
            malloc_host: tx.malloc_host.map(|_| malloc_host as _),
            ..Spare::default()
        },
    }
}

unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    let Some(ask) = FUNCTIONS.function(|tx| tx.get_device) else {
        return ABSENT;
    };
    let mut answer = 0;
    // SAFETY: the number goes to a live local.
    let code = unsafe { ask(&mut answer) };
    // SAFETY: the caller's place for the number, which is live for the call.
    signed(code, answer, unsafe { &mut *device })
}

unsafe extern "C" fn get_device_count(count: *mut c_int) -> c_int {
    let Some(ask) = FUNCTIONS.function(|tx| tx.get_device_count) else {
        return ABSENT;
    };
    let mut answer = 0;
    // SAFETY: the number goes to a live local.
    let code = unsafe { ask(&mut answer) };
    // SAFETY: the caller's place for the number, which is live for the call.
    signed(code, answer, unsafe { &mut *count })
}

unsafe extern "C" fn set_device(device: c_int) -> c_int {
    let Ok(device) = c_uint::try_from(device) else {
        return OUT_OF_RANGE;
    };
    match FUNCTIONS.function(|tx| tx.set_device) {
        // SAFETY: takes a number, which the runtime checks.
        Some(set) => unsafe { set(device) },
        None => ABSENT,
    }
}

unsafe extern "C" fn stream_create(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
    match FUNCTIONS.function(|tx| tx.stream_create) {
        // SAFETY: the caller's place for the handle; a stream has no flags.
        Some(create) => unsafe { create(stream) },
        None => ABSENT,
    }
}

unsafe extern "C" fn stream_wait_event(
    stream: *mut c_void,
    event: *mut c_void,
    _flags: c_uint,
) -> c_int {
    match FUNCTIONS.function(|tx| tx.stream_wait_event) {
        // SAFETY: the caller's live stream and live event; the only flags we pass are 0.
        Some(wait) => unsafe { wait(stream, event) },
        None => ABSENT,
    }
}

unsafe extern "C" fn event_create(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    match FUNCTIONS.function(|tx| tx.event_create) {
        // SAFETY: the caller's place for the handle; an event has no flags.
        Some(create) => unsafe { create(event) },
        None => ABSENT,
    }
}

unsafe extern "C" fn malloc(memory: *mut *mut c_void, bytes: usize) -> c_int {
    match FUNCTIONS.function(|tx| tx.malloc) {
        // SAFETY: the caller's place for the address.
        Some(malloc) => unsafe { malloc(memory, bytes as u64) },
        None => ABSENT,
    }
}

unsafe extern "C" fn malloc_host(memory: *mut *mut c_void, bytes: usize) -> c_int {
    match FUNCTIONS.function(|tx| tx.malloc_host) {
        // SAFETY: the caller's place for the address.
        Some(malloc) => unsafe { malloc(memory, bytes as u64) },
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
    match FUNCTIONS.function(|tx| tx.memcpy_async) {
        // SAFETY: the caller's promise about both ranges and the stream.
        Some(copy) => unsafe { copy(to, from, bytes as u64, kind, stream) },
        None => ABSENT,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::Code;
    use crate::device::tests::{driver, handle};
    use crate::device::{CopyKind, Driver, Guard, TX, event_of, stream_of};

    thread_local! {
        static DEVICE: Cell<c_uint> = const { Cell::new(0) };
        static RESULT: Cell<c_int> = const { Cell::new(0) };
        static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(call: String) -> c_int {
        LOG.with_borrow_mut(|log| log.push(call));
        RESULT.get()
    }

    unsafe extern "C" fn fake_set_device(device: c_uint) -> c_int {
        DEVICE.set(device);
        0
    }

    unsafe extern "C" fn fake_get_device(device: *mut c_uint) -> c_int {
        // SAFETY: the place that the adapter gave.
        unsafe { *device = DEVICE.get() };
        RESULT.get()
    }

    unsafe extern "C" fn fake_create(to: *mut *mut c_void) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *to = handle(0x50) };
        note("create".to_string())
    }

    unsafe extern "C" fn fake_one(_handle: *mut c_void) -> c_int {
        note("query".to_string())
    }

    unsafe extern "C" fn fake_wait(first: *mut c_void, second: *mut c_void) -> c_int {
        note(format!("wait {:#x} {:#x}", first.addr(), second.addr()))
    }

    unsafe extern "C" fn fake_malloc(to: *mut *mut c_void, bytes: u64) -> c_int {
        // SAFETY: the place that the driver gave.
        unsafe { *to = handle(0x60) };
        note(format!("malloc {bytes}"))
    }

    unsafe extern "C" fn fake_memcpy(
        to: *mut c_void,
        from: *const c_void,
        bytes: u64,
        kind: c_int,
        stream: *mut c_void,
    ) -> c_int {
        let (to, from, stream) = (to.addr(), from.addr(), stream.addr());
        note(format!("copy {to:#x} {from:#x} {bytes} {kind} {stream:#x}"))
    }

    fn tx(numbers: &str) -> Driver {
        let tables = tables(Tx {
            set_device: Some(fake_set_device),
            get_device: Some(fake_get_device),
            get_device_count: Some(fake_get_device),
            stream_create: Some(fake_create),
            stream_query: Some(fake_one),
            stream_wait_event: Some(fake_wait),
            event_create: Some(fake_create),
            event_query: Some(fake_one),
            malloc: Some(fake_malloc),
            malloc_host: Some(fake_malloc),
            memcpy_async: Some(fake_memcpy),
            ..Tx::default()
        });
        driver(&TX, numbers, tables)
    }

    #[test]
    fn devices_are_unsigned() {
        let tx = tx("");
        tx.set(3).unwrap();
        assert_eq!((tx.current().unwrap(), tx.count().unwrap()), (3, 3));
        let error = tx.set(-1).unwrap_err();
        assert!(error.text().contains("out of range"), "{error}");
        assert_eq!(Guard::with(&tx, 1, || Ok(DEVICE.get())).unwrap(), 1);
        assert_eq!(DEVICE.get(), 3);
        DEVICE.set(u32::MAX);
        assert!(tx.current().is_err(), "never a device of a negative index");
        RESULT.set(5);
        let error = tx.current().unwrap_err();
        assert!(
            error.text().contains("txGetDevice failed with 5"),
            "{error}"
        );
        assert_eq!(error.code(), Code::UnhandledDeviceError);
    }

    #[test]
    fn calls_have_its_arguments() {
        let tx = tx("copy_device_to_host=2");
        let (stream, event) = (stream_of(handle(1)), event_of(handle(2)));
        tx.stream_create().unwrap();
        tx.event_create(true).unwrap();
        tx.stream_wait_event(stream, event).unwrap();
        tx.malloc(8).unwrap();
        tx.malloc_host(9).unwrap();
        // SAFETY: the fake touches no memory.
        let copy = |kind| unsafe { tx.memcpy_async(handle(3), handle(4), 7, kind, stream) };
        copy(CopyKind::DeviceToHost).unwrap();
        let calls = [
            "create",
            "create",
            "wait 0x1 0x2",
            "malloc 8",
            "malloc 9",
            "copy 0x3 0x4 7 2 0x1",
        ];
        assert_eq!(LOG.take(), calls);
        let error = copy(CopyKind::HostToDevice).unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(error.text().contains("copy_host_to_device="), "{error}");
        assert!(LOG.take().is_empty());
    }

    #[test]
    fn queries_need_the_user_s_number() {
        let error = tx("").stream_query(stream_of(handle(1))).unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(
            error.text().contains("FLAGOSCOMM_X_NUMBERS=not_ready="),
            "{error}"
        );
        assert!(LOG.take().is_empty());
        let tx = tx("not_ready=18");
        RESULT.set(18);
        assert!(!tx.stream_query(stream_of(handle(1))).unwrap());
        assert!(!tx.event_query(event_of(handle(1))).unwrap());
        RESULT.set(0);
        assert!(tx.event_query(event_of(handle(1))).unwrap());
    }

    #[test]
    fn what_nobody_has_described_is_said_so() {
        let tx = tx("");
        // SAFETY: no function is called.
        let set = unsafe { tx.memset_async(handle(3), 0, 7, stream_of(handle(1))) };
        let error = set.unwrap_err();
        assert_eq!(error.code(), Code::NotSupported);
        assert!(error.text().contains("cudaMemsetAsync"), "{error}");
        assert_eq!(
            tx.pointer_owner(handle(1)).unwrap_err().code(),
            Code::NotSupported
        );
        assert!(!tx.is_capturing(stream_of(handle(1))).unwrap());
        assert_ne!(tx.uuid(0), tx.uuid(1));
    }
}
