//! Point to point. Each is one call of the engine inside the boundary.

use crate::boundary::handle;
use crate::skin::operation;
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// Send.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclSend", comm, || {
        // SAFETY: this function's contract.
        unsafe { internal::send(sendbuff, count, datatype, peer, handle(comm), stream) }
    })
}

/// Recv.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclRecv", comm, || {
        // SAFETY: this function's contract.
        unsafe { internal::recv(recvbuff, count, datatype, peer, handle(comm), stream) }
    })
}
