//! Collectives. Each is one call of the engine inside the boundary.

use crate::boundary::handle;
use crate::skin::{Checked, entry, operation, raw_stream};
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// AllReduce. In place if the buffers are the same.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    op: flagcxRedOp_t,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    let checked = Checked {
        dtype: datatype,
        op,
    };
    // SAFETY: this function's contract.
    unsafe {
        operation("flagcxAllReduce", comm, stream, checked, |raw| {
            internal::all_reduce(sendbuff, recvbuff, count, datatype, op, handle(comm), raw)
        })
    }
}

/// Reduce. `recvbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    op: flagcxRedOp_t,
    root: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    let checked = Checked {
        dtype: datatype,
        op,
    };
    // SAFETY: this function's contract.
    unsafe {
        operation("flagcxReduce", comm, stream, checked, |raw| {
            internal::reduce(
                sendbuff,
                recvbuff,
                count,
                datatype,
                op,
                root,
                handle(comm),
                raw,
            )
        })
    }
}

/// Broadcast. `sendbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    root: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxBroadcast",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| internal::broadcast(sendbuff, recvbuff, count, datatype, root, handle(comm), raw),
        )
    }
}

/// Gather. `recvbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    root: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxGather",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| internal::gather(sendbuff, recvbuff, count, datatype, root, handle(comm), raw),
        )
    }
}

/// Scatter. `sendbuff` may be NULL where it is not used.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    root: c_int,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxScatter",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| internal::scatter(sendbuff, recvbuff, count, datatype, root, handle(comm), raw),
        )
    }
}

/// ReduceScatter.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: flagcxDataType_t,
    op: flagcxRedOp_t,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    let checked = Checked {
        dtype: datatype,
        op,
    };
    // SAFETY: this function's contract.
    unsafe {
        operation("flagcxReduceScatter", comm, stream, checked, |raw| {
            internal::reduce_scatter(
                sendbuff,
                recvbuff,
                recvcount,
                datatype,
                op,
                handle(comm),
                raw,
            )
        })
    }
}

/// AllGather.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: flagcxDataType_t,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxAllGather",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| internal::all_gather(sendbuff, recvbuff, sendcount, datatype, handle(comm), raw),
        )
    }
}

/// AlltoAll. Not in place: FlagCX, whose header allows that, gives undefined data then; this is an error.
///
/// # Safety
/// Buffers as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagcxDataType_t,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxAlltoAll",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| internal::all_to_all(sendbuff, recvbuff, count, datatype, handle(comm), raw),
        )
    }
}

/// AlltoAllv. Counts and displacements are in elements and are read during the call.
///
/// # Safety
/// Buffers and arrays as in FlagCX; a stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxAlltoAllv(
    sendbuff: *const c_void,
    sendcounts: *mut usize,
    sdispls: *mut usize,
    recvbuff: *mut c_void,
    recvcounts: *mut usize,
    rdispls: *mut usize,
    datatype: flagcxDataType_t,
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    unsafe {
        operation(
            "flagcxAlltoAllv",
            comm,
            stream,
            Checked::dtype(datatype),
            |raw| {
                internal::all_to_allv(
                    sendbuff,
                    sendcounts,
                    sdispls,
                    recvbuff,
                    recvcounts,
                    rdispls,
                    datatype,
                    handle(comm),
                    raw,
                )
            },
        )
    }
}

/// Waits, host included, until every rank is here.
///
/// # Safety
/// A stream that is not NULL must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagcxBarrier(
    comm: flagcxComm_t,
    stream: flagcxStream_t,
) -> flagcxResult_t {
    // SAFETY: this function's contract.
    let result = unsafe {
        operation("flagcxBarrier", comm, stream, Checked::dtype(0), |raw| {
            internal::barrier(handle(comm), raw)
        })
    };
    if result != flagcxSuccess {
        return result;
    }
    // FlagCX's programs rely on the host having waited too.
    entry("flagcxBarrier", comm, || {
        // SAFETY: this function's contract.
        internal::stream_synchronize(unsafe { raw_stream(stream) }?)
    })
}
