//! The table of device functions, as programs get it.

use crate::boundary::Out;
use crate::flagcx_abi::device::*;
use crate::flagcx_abi::skin;
use crate::handles::{allocate, is_allocated, release};
use crate::types::*;
use engine::Result;
use std::ptr::null_mut;

/// What every copy of the table holds.
static TABLE: flagcxDeviceHandle = flagcxDeviceHandle {
    deviceSynchronize,
    deviceMemcpy,
    deviceMemset,
    deviceMalloc,
    deviceFree,
    setDevice,
    getDevice,
    getDeviceCount,
    getVendor,
    hostGetDevicePointer,
    streamCreate,
    streamDestroy,
    streamCopy,
    streamFree,
    streamSynchronize,
    streamQuery,
    streamWaitEvent,
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
};

fn new_handle() -> Result<flagcxDeviceHandle_t> {
    let handle: flagcxDeviceHandle_t = allocate()?;
    // SAFETY: just allocated, for this type.
    unsafe { handle.write(TABLE) };
    Ok(handle)
}

/// Gives a copy of the table of device functions. Nothing is loaded or chosen by it, and nothing is
/// unloaded when the last one is freed.
///
/// # Safety
/// `handle` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDeviceHandleInit(
    handle: *mut flagcxDeviceHandle_t,
) -> flagcxResult_t {
    skin::entry("flagcxDeviceHandleInit", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(handle, "devHandle", null_mut()) }?;
        out.set(new_handle()?);
        Ok(())
    })
}

/// Frees it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDeviceHandleFree(handle: flagcxDeviceHandle_t) -> flagcxResult_t {
    skin::entry("flagcxDeviceHandleFree", null_mut(), || {
        if handle.is_null() {
            return Ok(());
        }
        release(handle, "device handle")
    })
}

/// Gives a group of an id and a communicator, both NULL, and a table of device functions.
///
/// # Safety
/// `group` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxHandleInit(group: *mut flagcxHandlerGroup_t) -> flagcxResult_t {
    skin::entry("flagcxHandleInit", null_mut(), || {
        // SAFETY: this function's contract.
        let out = unsafe { Out::new(group, "handler", null_mut()) }?;
        let devHandle = new_handle()?;
        let made: flagcxHandlerGroup_t = allocate().inspect_err(|_| {
            let _ = release(devHandle, "device handle");
        })?;
        // SAFETY: just allocated, for this type.
        unsafe { (*made).devHandle = devHandle };
        out.set(made);
        Ok(())
    })
}

/// Frees the group and its table, not what the caller put into it. NULL is nothing to do.
///
/// # Safety
/// Nobody may be using the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxHandleFree(group: flagcxHandlerGroup_t) -> flagcxResult_t {
    skin::entry("flagcxHandleFree", null_mut(), || {
        if group.is_null() {
            return Ok(());
        }
        if is_allocated(group) {
            // SAFETY: one of ours that is not freed.
            let devHandle = unsafe { (&raw const (*group).devHandle).read() };
            // The caller may have freed it, or put another one there.
            if is_allocated(devHandle) {
                release(devHandle, "device handle")?;
            }
        }
        release(group, "handler group")
    })
}
