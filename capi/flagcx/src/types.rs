//! C types of FlagCX's API.

pub use crate::flagcx_abi::types::*;
use std::ffi::{c_char, c_int, c_void};

/// What a communicator handle points to, which nobody follows.
pub struct flagcxComm {
    _opaque: [u8; 0],
}

/// The names under which the boundary, which is the native library's, knows two of the types.
pub type flagosComm_t = *mut flagcxComm;
pub type flagosResult_t = i32;

pub type flagcxMemAllocator_t = i32;
pub const flagcxMemCCL: flagcxMemAllocator_t = 0;
pub const flagcxMemSHMEM: flagcxMemAllocator_t = 1;

pub type flagcxWindow_t = *mut c_void;
pub type flagcxDevComm_t = *mut c_void;
pub type flagcxDevMem_t = *mut c_void;

#[repr(C)]
pub struct flagcxWaitSignalDesc_t {
    pub opCnt: u64,
    pub peer: c_int,
}

type R = flagcxResult_t;

/// The table of device functions. None is NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flagcxDeviceHandle {
    pub deviceSynchronize: unsafe extern "C" fn() -> R,
    pub deviceMemcpy: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        usize,
        flagcxMemcpyType_t,
        flagcxStream_t,
    ) -> R,
    pub deviceMemset:
        unsafe extern "C" fn(*mut c_void, c_int, usize, flagcxMemType_t, flagcxStream_t) -> R,
    pub deviceMalloc:
        unsafe extern "C" fn(*mut *mut c_void, usize, flagcxMemType_t, flagcxStream_t) -> R,
    pub deviceFree: unsafe extern "C" fn(*mut c_void, flagcxMemType_t, flagcxStream_t) -> R,
    pub setDevice: unsafe extern "C" fn(c_int) -> R,
    pub getDevice: unsafe extern "C" fn(*mut c_int) -> R,
    pub getDeviceCount: unsafe extern "C" fn(*mut c_int) -> R,
    pub getVendor: unsafe extern "C" fn(*mut c_char) -> R,
    pub hostGetDevicePointer: unsafe extern "C" fn(*mut *mut c_void, *mut c_void) -> R,
    pub streamCreate: unsafe extern "C" fn(*mut flagcxStream_t) -> R,
    pub streamDestroy: unsafe extern "C" fn(flagcxStream_t) -> R,
    pub streamCopy: unsafe extern "C" fn(*mut flagcxStream_t, *mut c_void) -> R,
    pub streamFree: unsafe extern "C" fn(flagcxStream_t) -> R,
    pub streamSynchronize: unsafe extern "C" fn(flagcxStream_t) -> R,
    pub streamQuery: unsafe extern "C" fn(flagcxStream_t) -> R,
    pub streamWaitEvent: unsafe extern "C" fn(flagcxStream_t, flagcxEvent_t) -> R,
    pub eventCreate: unsafe extern "C" fn(*mut flagcxEvent_t, flagcxEventType_t) -> R,
    pub eventDestroy: unsafe extern "C" fn(flagcxEvent_t) -> R,
    pub eventRecord: unsafe extern "C" fn(flagcxEvent_t, flagcxStream_t) -> R,
    pub eventSynchronize: unsafe extern "C" fn(flagcxEvent_t) -> R,
    pub eventQuery: unsafe extern "C" fn(flagcxEvent_t) -> R,
    pub eventElapsedTime: unsafe extern "C" fn(*mut f32, flagcxEvent_t, flagcxEvent_t) -> R,
    pub ipcMemHandleCreate: unsafe extern "C" fn(*mut flagcxIpcMemHandle_t, *mut usize) -> R,
    pub ipcMemHandleGet: unsafe extern "C" fn(flagcxIpcMemHandle_t, *mut c_void) -> R,
    pub ipcMemHandleOpen: unsafe extern "C" fn(flagcxIpcMemHandle_t, *mut *mut c_void) -> R,
    pub ipcMemHandleClose: unsafe extern "C" fn(*mut c_void) -> R,
    pub ipcMemHandleFree: unsafe extern "C" fn(flagcxIpcMemHandle_t) -> R,
}
const _: () = assert!(size_of::<flagcxDeviceHandle>() == 28 * size_of::<usize>());
pub type flagcxDeviceHandle_t = *mut flagcxDeviceHandle;

#[repr(C)]
pub struct flagcxHandlerGroup {
    pub uniqueId: *mut flagcxUniqueId,
    pub comm: flagcxComm_t,
    pub devHandle: flagcxDeviceHandle_t,
}
pub type flagcxHandlerGroup_t = *mut flagcxHandlerGroup;
