//! Point to point. Each is one call of the engine inside the boundary.

use crate::boundary::handle;
use crate::skin::{Checked, operation};
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// Send.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: flagcxDataType_t,
    peer: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    operation!(
        "flagcxSend",
        Checked::dtype(datatype),
        send(
            sendbuff: *const c_void, count: usize, datatype: flagcxDataType_t, peer: c_int
        ),
        comm,
        stream
    )
}

/// Recv.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    peer: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    operation!(
        "flagcxRecv",
        Checked::dtype(datatype),
        recv(
            recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t, peer: c_int
        ),
        comm,
        stream
    )
}
