//! Communicators for use inside device kernels. FlagCX's Python wrapper refuses a library that lacks these
//! names, so they are here; what they make is tied to FlagCX's own kernels and has no equal.

use crate::boundary::Out;
use crate::flagcx_abi::skin::{entry, live};
use crate::types::*;
use engine::{Error, Result};
use std::ffi::c_void;
use std::ptr::null_mut;

fn refused(name: &str) -> Result<()> {
    Err(Error::not_supported(format!(
        "{name}: device communicators belong to FlagCX's own kernels, which this library does not have"
    )))
}

/// Always refused.
///
/// # Safety
/// `devComm` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevCommCreate(
    comm: flagcxComm_t,
    _reqs: *const c_void,
    devComm: *mut flagcxDevComm_t,
) -> flagcxResult_t {
    entry("flagcxDevCommCreate", comm, || {
        // SAFETY: this function's contract.
        unsafe { Out::new(devComm, "devComm", null_mut()) }?;
        live(comm)?;
        refused("flagcxDevCommCreate")
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevCommDestroy(
    comm: flagcxComm_t,
    _devComm: flagcxDevComm_t,
) -> flagcxResult_t {
    entry("flagcxDevCommDestroy", comm, || {
        live(comm)?;
        refused("flagcxDevCommDestroy")
    })
}

/// Always refused.
///
/// # Safety
/// `devMem` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevMemCreate(
    comm: flagcxComm_t,
    _buff: *mut c_void,
    _size: usize,
    _win: flagcxWindow_t,
    devMem: *mut flagcxDevMem_t,
) -> flagcxResult_t {
    entry("flagcxDevMemCreate", comm, || {
        // SAFETY: this function's contract.
        unsafe { Out::new(devMem, "devMem", null_mut()) }?;
        live(comm)?;
        refused("flagcxDevMemCreate")
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevMemDestroy(
    comm: flagcxComm_t,
    _devMem: flagcxDevMem_t,
) -> flagcxResult_t {
    entry("flagcxDevMemDestroy", comm, || {
        live(comm)?;
        refused("flagcxDevMemDestroy")
    })
}

/// Always refused.
///
/// # Safety
/// `devPtr` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevCommGetDevicePtr(
    _devComm: flagcxDevComm_t,
    devPtr: *mut *mut c_void,
) -> flagcxResult_t {
    entry("flagcxDevCommGetDevicePtr", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe { Out::new(devPtr, "devPtr", null_mut()) }?;
        refused("flagcxDevCommGetDevicePtr")
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevCommFreeDevicePtr(_devComm: flagcxDevComm_t) -> flagcxResult_t {
    entry("flagcxDevCommFreeDevicePtr", null_mut(), || {
        refused("flagcxDevCommFreeDevicePtr")
    })
}

/// Always refused.
///
/// # Safety
/// `devPtr` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevMemGetDevicePtr(
    _devMem: flagcxDevMem_t,
    devPtr: *mut *mut c_void,
) -> flagcxResult_t {
    entry("flagcxDevMemGetDevicePtr", null_mut(), || {
        // SAFETY: this function's contract.
        unsafe { Out::new(devPtr, "devPtr", null_mut()) }?;
        refused("flagcxDevMemGetDevicePtr")
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxDevMemFreeDevicePtr(_devMem: flagcxDevMem_t) -> flagcxResult_t {
    entry("flagcxDevMemFreeDevicePtr", null_mut(), || {
        refused("flagcxDevMemFreeDevicePtr")
    })
}
