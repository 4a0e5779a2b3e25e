//! One-sided operations. In FlagCX only heterogeneous communicators have them; these are the answers that it
//! gives on a homogeneous one, which all communicators are here, with a text.

use crate::boundary::Out;
use crate::flagcx_abi::skin::{entry, live};
use crate::types::*;
use engine::{Code, Error, Result};
use std::ffi::{c_int, c_uint, c_void};

/// The error of a function that a homogeneous communicator does not have.
fn refused(name: &str, comm: flagcxComm_t, code: Code) -> Result<()> {
    live(comm)?;
    Err(Error::new(
        code,
        format!(
            "{name} needs a heterogeneous communicator of FlagCX. Here all ranks of a communicator use \
             one backend, and FlagCX itself refuses this on such a one; use flagcxSend and flagcxRecv"
        ),
    ))
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxOneSideRegister(
    comm: flagcxComm_t,
    _buff: *mut c_void,
    _size: usize,
) -> flagcxResult_t {
    entry("flagcxOneSideRegister", comm, || {
        refused("flagcxOneSideRegister", comm, Code::NotSupported)
    })
}

/// Does nothing, as in FlagCX.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxOneSideSignalRegister(
    comm: flagcxComm_t,
    _buff: *mut c_void,
    _size: usize,
    _ptrType: c_int,
) -> flagcxResult_t {
    entry("flagcxOneSideSignalRegister", comm, || live(comm))
}

/// Does nothing, as in FlagCX.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxOneSideStagingRegister(
    comm: flagcxComm_t,
    _buff: *mut c_void,
    _size: usize,
) -> flagcxResult_t {
    entry("flagcxOneSideStagingRegister", comm, || live(comm))
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxOneSideStagingDeregister(comm: flagcxComm_t) -> flagcxResult_t {
    entry("flagcxOneSideStagingDeregister", comm, || {
        refused("flagcxOneSideStagingDeregister", comm, Code::InternalError)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGet(
    comm: flagcxComm_t,
    _peer: c_int,
    _srcOffset: usize,
    _dstOffset: usize,
    _size: usize,
    _srcMrIdx: c_int,
    _dstMrIdx: c_int,
) -> flagcxResult_t {
    entry("flagcxGet", comm, || {
        refused("flagcxGet", comm, Code::InvalidArgument)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxPut(
    comm: flagcxComm_t,
    _peer: c_int,
    _srcOffset: usize,
    _dstOffset: usize,
    _size: usize,
    _srcMrIdx: c_int,
    _dstMrIdx: c_int,
) -> flagcxResult_t {
    entry("flagcxPut", comm, || {
        refused("flagcxPut", comm, Code::InvalidArgument)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxBatchPut(
    comm: flagcxComm_t,
    _peer: c_int,
    _srcOffsets: *const usize,
    _dstOffsets: *const usize,
    _sizes: *const usize,
    _srcMrIdxs: *const c_int,
    _dstMrIdxs: *const c_int,
    _count: usize,
) -> flagcxResult_t {
    entry("flagcxBatchPut", comm, || {
        refused("flagcxBatchPut", comm, Code::InvalidArgument)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxPutSignal(
    _localbuff: *const c_void,
    _count: usize,
    _datatype: flagcxDataType_t,
    _peer: c_int,
    _peerWin: flagcxWindow_t,
    _peerWinOffset: usize,
    _flags: c_uint,
    comm: flagcxComm_t,
    _stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("flagcxPutSignal", comm, || {
        refused("flagcxPutSignal", comm, Code::InvalidArgument)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxSignal(
    _peer: c_int,
    _flags: c_uint,
    comm: flagcxComm_t,
    _stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("flagcxSignal", comm, || {
        refused("flagcxSignal", comm, Code::InvalidArgument)
    })
}

/// To wait for nothing succeeds, before anything is looked at.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxWaitSignal(
    nDesc: c_int,
    _descs: *const flagcxWaitSignalDesc_t,
    comm: flagcxComm_t,
    _stream: flagcxStream_t,
) -> flagcxResult_t {
    entry("flagcxWaitSignal", comm, || match nDesc {
        0 => Ok(()),
        _ => refused("flagcxWaitSignal", comm, Code::InvalidArgument),
    })
}

/// Always refused.
///
/// # Safety
/// `count` must be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxReadCounter(comm: flagcxComm_t, count: *mut u64) -> flagcxResult_t {
    entry("flagcxReadCounter", comm, || {
        // SAFETY: this function's contract.
        unsafe { Out::new(count, "count", 0) }?;
        refused("flagcxReadCounter", comm, Code::InvalidArgument)
    })
}

/// Always refused.
///
/// # Safety
/// None is needed: nothing is followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxWaitCounter(comm: flagcxComm_t, _target: u64) -> flagcxResult_t {
    entry("flagcxWaitCounter", comm, || {
        refused("flagcxWaitCounter", comm, Code::InvalidArgument)
    })
}
