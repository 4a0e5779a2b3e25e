//! The functions of drivers that are called, by the names and with the signatures of CUDA's.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

use crate::load::symbols::Layout;

/// A runtime's answer about a pointer: type and device first, then fields that differ by version.
#[repr(C, align(8))]
pub(super) struct PointerAttributes {
    pub(super) kind: c_int,
    pub(super) device: c_int,
    pub(super) rest: [u64; 31],
}

/// A runtime's answer about a pointer: the names of the struct and of its first field.
pub(super) fn pointer_layout(
    library: &'static str,
    name: &'static str,
    kind: &'static str,
) -> Layout {
    Layout {
        library,
        name,
        size: size_of::<PointerAttributes>(),
        exact: false,
        fields: vec![
            (kind, offset_of!(PointerAttributes, kind)),
            ("device", offset_of!(PointerAttributes, device)),
        ],
    }
}

/// A table of functions of one library. `resolve` finds them: each has the name that the closure
/// makes of its suffix, and is left out if that is none. `declarations` says what is called how.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident {
        $($field:ident $suffix:literal ($($arg:ty),* $(,)?) -> $ret:ty;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        pub(super) struct $name {
            $(pub(super) $field: Option<unsafe extern "C" fn($($arg),*) -> $ret>,)*
        }

        impl $name {
            pub(super) fn resolve(
                name: &dyn Fn(&str) -> Option<String>,
                resolver: &mut $crate::load::symbols::Resolver<'_>,
            ) -> $name {
                $name {
                    $($field: name($suffix).and_then(|name| resolver.find(&name)).map(|address| {
                        // SAFETY: the address is that of the driver's function with this name,
                        // whose C signature is the one given.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($arg),*) -> $ret,
                            >(std::ptr::NonNull::as_ptr(address))
                        }
                    }),)*
                }
            }

            pub(super) fn declarations(
                library: &'static str,
                name: &dyn Fn(&str) -> Option<String>,
            ) -> Vec<$crate::load::symbols::Declaration> {
                let mut list = Vec::new();
                $(if let Some(name) = name($suffix) {
                    list.push($crate::load::symbols::Declaration {
                        library,
                        name,
                        arguments: vec![$(stringify!($arg)),*],
                        result: stringify!($ret),
                    });
                })*
                list
            }
        }
    };
}
pub(super) use functions;

functions! {
    /// Functions that a runtime of CUDA's shape and the driver below it both have, with the same
    /// arguments.
    Common {
        get_device "GetDevice" (*mut c_int) -> c_int;
        get_device_count "GetDeviceCount" (*mut c_int) -> c_int;
        pci_bus_id "DeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> c_int;
        stream_create "StreamCreateWithFlags" (*mut *mut c_void, c_uint) -> c_int;
        stream_destroy "StreamDestroy" (*mut c_void) -> c_int;
        stream_query "StreamQuery" (*mut c_void) -> c_int;
        stream_synchronize "StreamSynchronize" (*mut c_void) -> c_int;
        stream_wait_event "StreamWaitEvent" (*mut c_void, *mut c_void, c_uint) -> c_int;
        stream_is_capturing "StreamIsCapturing" (*mut c_void, *mut c_int) -> c_int;
        event_create "EventCreateWithFlags" (*mut *mut c_void, c_uint) -> c_int;
        event_destroy "EventDestroy" (*mut c_void) -> c_int;
        event_record "EventRecord" (*mut c_void, *mut c_void) -> c_int;
        event_query "EventQuery" (*mut c_void) -> c_int;
        event_synchronize "EventSynchronize" (*mut c_void) -> c_int;
        event_elapsed "EventElapsedTime" (*mut f32, *mut c_void, *mut c_void) -> c_int;
        malloc "Malloc" (*mut *mut c_void, usize) -> c_int;
        free "Free" (*mut c_void) -> c_int;
        host_alloc "HostAlloc" (*mut *mut c_void, usize, c_uint) -> c_int;
        free_host "FreeHost" (*mut c_void) -> c_int;
        memset_async "MemsetAsync" (*mut c_void, c_int, usize, *mut c_void) -> c_int;
        exchange_capture_mode "ThreadExchangeStreamCaptureMode" (*mut c_int) -> c_int;
    }
}

functions! {
    /// Functions of a runtime only.
    Runtime {
        set_device "SetDevice" (c_int) -> c_int;
        memcpy_async "MemcpyAsync" (*mut c_void, *const c_void, usize, c_int, *mut c_void) -> c_int;
        pointer_attributes "PointerGetAttributes" (*mut PointerAttributes, *const c_void) -> c_int;
        get_last_error "GetLastError" () -> c_int;
        peek_last_error "PeekAtLastError" () -> c_int;
        error_string "GetErrorString" (c_int) -> *const c_char;
        version "RuntimeGetVersion" (*mut c_int) -> c_int;
        device_synchronize "DeviceSynchronize" () -> c_int;
    }
}

functions! {
    /// Functions of a runtime that are looked up only where the row asks for them.
    Spare {
        malloc_host "MallocHost" (*mut *mut c_void, usize) -> c_int;
        event_record_flags "EventRecordWithFlags" (*mut c_void, *mut c_void, c_uint) -> c_int;
        error_name "GetErrorName" (c_int) -> *const c_char;
        context_get "GetCurrentContext" (*mut *mut c_void) -> c_int;
        context_set "SetCurrentContext" (*mut c_void) -> c_int;
        stream_create_priority "StreamCreateWithPriority" (*mut *mut c_void, c_uint, c_int) -> c_int;
        host_register "HostRegister" (*mut c_void, usize, c_uint) -> c_int;
        host_unregister "HostUnregister" (*mut c_void) -> c_int;
    }
}

functions! {
    /// Functions of the driver below a runtime only.
    Below {
        init "Init" (c_uint) -> c_int;
        device_get "DeviceGet" (*mut c_int, c_int) -> c_int;
        uuid_v2 "DeviceGetUuid_v2" (*mut [u8; 16], c_int) -> c_int;
        uuid "DeviceGetUuid" (*mut [u8; 16], c_int) -> c_int;
        context_device "CtxGetDevice" (*mut c_int) -> c_int;
        context_get "CtxGetCurrent" (*mut *mut c_void) -> c_int;
        context_set "CtxSetCurrent" (*mut c_void) -> c_int;
        primary_context "DevicePrimaryCtxRetain" (*mut *mut c_void, c_int) -> c_int;
        memcpy_async "MemcpyAsync" (*mut c_void, *const c_void, usize, *mut c_void) -> c_int;
        pointer_attribute "PointerGetAttribute" (*mut c_void, c_int, *const c_void) -> c_int;
        error_string "GetErrorString" (c_int, *mut *const c_char) -> c_int;
        version "DriverGetVersion" (*mut c_int) -> c_int;
    }
}

functions! {
    /// Functions of the driver below a runtime that are looked up only where its row asks for them.
    SpareBelow {
        wait_value "StreamWaitValue32_v2" (*mut c_void, *mut c_void, u32, c_uint) -> c_int;
        write_value "StreamWriteValue32_v2" (*mut c_void, *mut c_void, u32, c_uint) -> c_int;
    }
}

/// The functions of a runtime, its own or adapters in front of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tables {
    pub(super) common: Common,
    pub(super) runtime: Runtime,
    pub(super) spare: Spare,
}
