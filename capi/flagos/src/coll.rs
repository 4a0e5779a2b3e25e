//! Collectives. Each is one call of the engine inside the boundary.

use crate::boundary::{handle, operation};
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// Reduces count elements of every rank's sendbuff and puts the same result into every rank's
/// recvbuff.
///
/// Buffers: count elements each, count * flagosDataTypeSize(datatype) bytes. In place if
/// sendbuff == recvbuff. Either may be NULL only if count is 0.
///
/// @param sendbuff  this rank's contribution.
/// @param recvbuff  receives the result.
/// @param count     number of elements, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param op        the same on all ranks. flagosAvg divides by the number of ranks, truncating for
///                  integers; a NaN on any rank makes flagosMax and flagosMin NaN; integers wrap.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    op: flagosRedOp_t,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosAllReduce", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::all_reduce(
                sendbuff,
                recvbuff,
                count,
                datatype,
                op,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Copies count elements from the root's sendbuff to every rank's recvbuff.
///
/// Buffers: count elements each. sendbuff is used on the root only and may be NULL elsewhere. In
/// place on the root if sendbuff == recvbuff. recvbuff may be NULL only if count is 0.
///
/// @param sendbuff  the data, on the root.
/// @param recvbuff  receives the data.
/// @param count     number of elements, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param root      rank of the source in comm, the same on all ranks.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    root: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosBroadcast", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::broadcast(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Reduces count elements of every rank's sendbuff into the root's recvbuff.
///
/// Buffers: count elements each. recvbuff is used on the root only and may be NULL elsewhere. In
/// place on the root if sendbuff == recvbuff. sendbuff may be NULL only if count is 0.
///
/// @param sendbuff  this rank's contribution.
/// @param recvbuff  receives the result, on the root.
/// @param count     number of elements, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param op        as in flagosAllReduce.
/// @param root      rank of the destination in comm, the same on all ranks.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    op: flagosRedOp_t,
    root: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosReduce", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::reduce(
                sendbuff,
                recvbuff,
                count,
                datatype,
                op,
                root,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Puts every rank's sendcount elements, in the order of the ranks, into every rank's recvbuff.
///
/// Buffers: sendbuff sendcount elements, recvbuff nranks * sendcount. In place if
/// sendbuff == recvbuff + rank * sendcount elements. Either may be NULL only if sendcount is 0.
///
/// @param sendbuff   this rank's block.
/// @param recvbuff   receives all blocks.
/// @param sendcount  number of elements of one block, the same on all ranks.
/// @param datatype   the same on all ranks.
/// @param comm       the communicator.
/// @param stream     see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: flagosDataType_t,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosAllGather", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::all_gather(
                sendbuff,
                recvbuff,
                sendcount,
                datatype,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Reduces every rank's sendbuff and leaves block i of the result in rank i's recvbuff.
///
/// Buffers: sendbuff nranks * recvcount elements, recvbuff recvcount. In place if
/// recvbuff == sendbuff + rank * recvcount elements. Either may be NULL only if recvcount is 0.
///
/// @param sendbuff   this rank's contribution to all blocks.
/// @param recvbuff   receives this rank's block of the result.
/// @param recvcount  number of elements of one block, the same on all ranks.
/// @param datatype   the same on all ranks.
/// @param op         as in flagosAllReduce.
/// @param comm       the communicator.
/// @param stream     see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: flagosDataType_t,
    op: flagosRedOp_t,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosReduceScatter", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::reduce_scatter(
                sendbuff,
                recvbuff,
                recvcount,
                datatype,
                op,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Puts every rank's count elements, in the order of the ranks, into the root's recvbuff.
///
/// Buffers: sendbuff count elements, recvbuff nranks * count. recvbuff is used on the root only and
/// may be NULL elsewhere. In place on the root if sendbuff == recvbuff + root * count elements.
/// sendbuff may be NULL only if count is 0.
///
/// @param sendbuff  this rank's block.
/// @param recvbuff  receives all blocks, on the root.
/// @param count     number of elements of one block, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param root      rank of the destination in comm, the same on all ranks.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: FlagCX's and NCCL's (2.28).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    root: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosGather", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::gather(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Copies block i of the root's sendbuff into rank i's recvbuff.
///
/// Buffers: sendbuff nranks * count elements, recvbuff count. sendbuff is used on the root only and
/// may be NULL elsewhere. In place on the root if recvbuff == sendbuff + root * count elements.
/// recvbuff may be NULL only if count is 0.
///
/// @param sendbuff  all blocks, on the root.
/// @param recvbuff  receives this rank's block.
/// @param count     number of elements of one block, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param root      rank of the source in comm, the same on all ranks.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: FlagCX's and NCCL's (2.28).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    root: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosScatter", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::scatter(
                sendbuff,
                recvbuff,
                count,
                datatype,
                root,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Every rank sends block j of its sendbuff to rank j, which puts it at block i of its recvbuff, i
/// being the sender.
///
/// Buffers: nranks * count elements each. Not in place: the buffers must not overlap. Either may be
/// NULL only if count is 0.
///
/// @param sendbuff  the blocks to send.
/// @param recvbuff  receives the blocks.
/// @param count     number of elements of one block, the same on all ranks.
/// @param datatype  the same on all ranks.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: FlagCX's and NCCL's (2.28).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosAlltoAll", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::all_to_all(
                sendbuff,
                recvbuff,
                count,
                datatype,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Every rank sends sendcounts[j] elements, which start at element sdispls[j] of its sendbuff, to
/// rank j; it receives recvcounts[i] elements of rank i at element rdispls[i] of its recvbuff.
/// sendcounts[j] on rank i must equal recvcounts[i] on rank j.
///
/// Buffers: as long as counts and displacements reach. Not in place: the buffers must not overlap,
/// nor the blocks of recvbuff. Either may be NULL only if all its counts are 0. The four arrays have
/// one entry per rank, lie in host memory, are read during the call only, and may not be NULL.
/// Counts and displacements are in elements, not bytes.
///
/// @param sendbuff    the blocks to send.
/// @param sendcounts  elements to send, for each rank.
/// @param sdispls     where each block starts in sendbuff.
/// @param recvbuff    receives the blocks.
/// @param recvcounts  elements to receive, of each rank.
/// @param rdispls     where each block starts in recvbuff.
/// @param datatype    the same on all ranks.
/// @param comm        the communicator.
/// @param stream      see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: FlagCX's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosAlltoAllv(
    sendbuff: *const c_void,
    sendcounts: *const usize,
    sdispls: *const usize,
    recvbuff: *mut c_void,
    recvcounts: *const usize,
    rdispls: *const usize,
    datatype: flagosDataType_t,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosAlltoAllv", comm, || {
        // SAFETY: the header's contract.
        unsafe {
            internal::all_to_allv(
                sendbuff,
                sendcounts,
                sdispls,
                recvbuff,
                recvcounts,
                rdispls,
                datatype,
                handle(comm),
                stream.cast(),
            )
        }
    })
}

/// Completes on no rank before every rank has called it. Moves no data. On a vendor's tier it is
/// ordered on the stream like any operation: the host does not wait until it synchronises the stream.
///
/// @param comm    the communicator.
/// @param stream  see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted. In a group it is
/// flagosInvalidUsage; on a stream that is being captured flagosNotSupported.
///
/// @return the results under "Operations" above.
///
/// Semantics: ours. FlagCX's flagcxBarrier also synchronises the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosBarrier(
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosBarrier", comm, || {
        // SAFETY: the header's contract.
        unsafe { internal::barrier(handle(comm), stream.cast()) }
    })
}
