//! Point to point. Each is one call of the engine inside the boundary.

use crate::boundary::{handle, operation};
use crate::types::*;
use engine::internal;
use std::ffi::{c_int, c_void};

/// Sends count elements to a peer, which must call flagosRecv with the same count and datatype.
/// Messages between two ranks keep their order.
///
/// Two ranks that exchange data must put both calls into a group, else each may wait for the other.
/// To send to itself a rank puts flagosSend and flagosRecv into one group; alone it is
/// flagosInvalidUsage.
///
/// On the host tier flagosRecv is flagosInvalidUsage if it expects another count or datatype than was sent.
/// So is flagosSend, unless the message is complete before it is received: on several machines one of at
/// most 8 KiB; where ranks share memory one of at most 128 KiB that is sent outside a group, or alone in
/// its group, while a message waits that its sender has not received. Then the receiver alone learns.
///
/// Buffers: count elements. sendbuff may be NULL only if count is 0.
///
/// @param sendbuff  the data.
/// @param count     number of elements.
/// @param datatype  the same on both sides.
/// @param peer      rank of the receiver in comm.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: flagosDataType_t,
    peer: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosSend", comm, || {
        // SAFETY: the header's contract.
        unsafe { internal::send(sendbuff, count, datatype, peer, handle(comm), stream.cast()) }
    })
}

/// Receives count elements of a peer, which must call flagosSend with the same count and datatype.
/// See flagosSend for groups, for a rank that sends to itself, and for who learns of a message that was
/// not expected.
///
/// Buffers: count elements. recvbuff may be NULL only if count is 0.
///
/// @param recvbuff  receives the data.
/// @param count     number of elements.
/// @param datatype  the same on both sides.
/// @param peer      rank of the sender in comm.
/// @param comm      the communicator.
/// @param stream    see "Streams" above.
///
/// Threads: one operation at a time on comm; flagosCommAbort excepted.
///
/// @return the results under "Operations" above.
///
/// Semantics: NCCL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagosRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: flagosDataType_t,
    peer: c_int,
    comm: flagosComm_t,
    stream: flagosStream_t,
) -> flagosResult_t {
    operation("flagosRecv", comm, || {
        // SAFETY: the header's contract.
        unsafe { internal::recv(recvbuff, count, datatype, peer, handle(comm), stream.cast()) }
    })
}
