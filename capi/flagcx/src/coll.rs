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
    operation!(
        "flagcxAllReduce",
        Checked { dtype: datatype, op },
        all_reduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize,
            datatype: flagcxDataType_t, op: flagcxRedOp_t
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxReduce",
        Checked { dtype: datatype, op },
        reduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize,
            datatype: flagcxDataType_t, op: flagcxRedOp_t, root: c_int
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxBroadcast",
        Checked::dtype(datatype),
        broadcast(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize,
            datatype: flagcxDataType_t, root: c_int
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxGather",
        Checked::dtype(datatype),
        gather(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize,
            datatype: flagcxDataType_t, root: c_int
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxScatter",
        Checked::dtype(datatype),
        scatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize,
            datatype: flagcxDataType_t, root: c_int
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxReduceScatter",
        Checked { dtype: datatype, op },
        reduce_scatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize,
            datatype: flagcxDataType_t, op: flagcxRedOp_t
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxAllGather",
        Checked::dtype(datatype),
        all_gather(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize,
            datatype: flagcxDataType_t
        ),
        comm,
        stream
    )
}

/// AlltoAll. Not in place: FlagCX, whose header allows that, gives undefined data then.
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
    operation!(
        "flagcxAlltoAll",
        Checked::dtype(datatype),
        all_to_all(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t
        ),
        comm,
        stream
    )
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
    operation!(
        "flagcxAlltoAllv",
        Checked::dtype(datatype),
        all_to_allv(
            sendbuff: *const c_void, sendcounts: *mut usize, sdispls: *mut usize,
            recvbuff: *mut c_void, recvcounts: *mut usize, rdispls: *mut usize,
            datatype: flagcxDataType_t
        ),
        comm,
        stream
    )
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
    let result = operation!("flagcxBarrier", Checked::dtype(0), barrier(), comm, stream);
    if result != flagcxSuccess {
        return result;
    }
    // FlagCX's programs rely on the host having waited too.
    entry("flagcxBarrier", comm, || {
        // SAFETY: this function's contract.
        internal::stream_synchronize(unsafe { raw_stream(stream) }?)
    })
}
