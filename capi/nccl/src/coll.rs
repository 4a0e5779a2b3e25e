//! Collectives. Each is one call of the engine inside the boundary.

use crate::boundary::handle;
use crate::skin::operation;
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// AllReduce. In place if the buffers are the same.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclAllReduce", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::all_reduce(
                sendbuff,
                recvbuff,
                count,
                datatype,
                op,
                handle(comm),
                stream,
            )
        }
    })
}

/// Reduce. `recvbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclReduce", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::reduce(
                sendbuff,
                recvbuff,
                count,
                datatype,
                op,
                root,
                handle(comm),
                stream,
            )
        }
    })
}

/// Broadcast. `sendbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclBroadcast", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::broadcast(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream,
            )
        }
    })
}

/// Broadcast in place.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclBcast", comm, || {
        // SAFETY: this function's contract.
        unsafe { internal::broadcast(buff, buff, count, datatype, root, handle(comm), stream) }
    })
}

/// AllGather of `sendcount` elements from each rank.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclAllGather", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::all_gather(
                sendbuff,
                recvbuff,
                sendcount,
                datatype,
                handle(comm),
                stream,
            )
        }
    })
}

/// ReduceScatter of `recvcount` elements to each rank.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclReduceScatter", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::reduce_scatter(
                sendbuff,
                recvbuff,
                recvcount,
                datatype,
                op,
                handle(comm),
                stream,
            )
        }
    })
}

/// AlltoAll of `count` elements between each two ranks. Not in place.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclAlltoAll", comm, || {
        // SAFETY: this function's contract.
        unsafe { internal::all_to_all(sendbuff, recvbuff, count, datatype, handle(comm), stream) }
    })
}

/// Gather. `recvbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclGather", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::gather(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream,
            )
        }
    })
}

/// Scatter. `sendbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    operation("ncclScatter", comm, || {
        // SAFETY: this function's contract.
        unsafe {
            internal::scatter(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream,
            )
        }
    })
}
