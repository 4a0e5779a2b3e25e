//! FlagCX's C types that its API and its adaptors share. Numbers cross the boundary as 32-bit integers and are
//! checked by who uses them.

use std::ffi::c_void;

/// A result of FlagCX's set.
pub type flagcxResult_t = i32;
pub type flagcxDataType_t = i32;
pub type flagcxRedOp_t = i32;
pub type flagcxMemcpyType_t = i32;
pub type flagcxMemType_t = i32;
pub type flagcxEventType_t = i32;

pub const flagcxSuccess: flagcxResult_t = 0;
pub const flagcxUnhandledDeviceError: flagcxResult_t = 1;
pub const flagcxSystemError: flagcxResult_t = 2;
pub const flagcxInternalError: flagcxResult_t = 3;
pub const flagcxInvalidArgument: flagcxResult_t = 4;
pub const flagcxInvalidUsage: flagcxResult_t = 5;
pub const flagcxRemoteError: flagcxResult_t = 6;
pub const flagcxInProgress: flagcxResult_t = 7;
pub const flagcxUnhandledCCLError: flagcxResult_t = 8;
pub const flagcxNotSupported: flagcxResult_t = 9;

pub const flagcxNumTypes: u32 = 10;
pub const flagcxNumRedOps: u32 = 5;

pub const flagcxMemHost: flagcxMemType_t = 0;
pub const flagcxMemDevice: flagcxMemType_t = 1;
pub const flagcxMemManaged: flagcxMemType_t = 2;

pub const flagcxEventDefault: flagcxEventType_t = 0;
pub const flagcxEventDisableTiming: flagcxEventType_t = 1;

pub const FLAGCX_UNIQUE_ID_BYTES: usize = 256;

#[repr(C)]
pub struct flagcxUniqueId {
    pub internal: [u8; FLAGCX_UNIQUE_ID_BYTES],
}

/// A handle, which nobody follows.
pub type flagcxComm_t = crate::types::flagosComm_t;

/// A stream or an event: FlagCX's struct around the vendor's own handle. Programs read the field.
#[repr(C)]
pub struct Wrapper {
    pub base: *mut c_void,
}
pub type flagcxStream_t = *mut Wrapper;
pub type flagcxEvent_t = *mut Wrapper;

pub type flagcxIpcMemHandle_t = *mut c_void;
