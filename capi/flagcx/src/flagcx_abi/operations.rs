//! The operations, once for all libraries that have FlagCX's ABI.

/// Hands every operation to a macro: its names in FlagCX's API and in an adaptor, which of its arguments have
/// a smaller range than in the engine, and the engine's function with the arguments before communicator and stream.
macro_rules! operations {
    ($each:ident) => {
        $each! {
            /// AllReduce. In place if the buffers are the same.
            flagcxAllReduce allReduce, Checked { dtype: datatype, op },
            all_reduce(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t,
                op: flagcxRedOp_t
            )
        }
        $each! {
            /// Reduce. `recvbuff` may be NULL where it is not used.
            flagcxReduce reduce, Checked { dtype: datatype, op },
            reduce(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t,
                op: flagcxRedOp_t, root: c_int
            )
        }
        $each! {
            /// Broadcast. `sendbuff` may be NULL where it is not used.
            flagcxBroadcast broadcast, Checked::dtype(datatype),
            broadcast(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t,
                root: c_int
            )
        }
        $each! {
            /// Gather. `recvbuff` may be NULL where it is not used.
            flagcxGather gather, Checked::dtype(datatype),
            gather(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t,
                root: c_int
            )
        }
        $each! {
            /// Scatter. `sendbuff` may be NULL where it is not used.
            flagcxScatter scatter, Checked::dtype(datatype),
            scatter(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t,
                root: c_int
            )
        }
        $each! {
            /// ReduceScatter.
            flagcxReduceScatter reduceScatter, Checked { dtype: datatype, op },
            reduce_scatter(
                sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: flagcxDataType_t,
                op: flagcxRedOp_t
            )
        }
        $each! {
            /// AllGather.
            flagcxAllGather allGather, Checked::dtype(datatype),
            all_gather(
                sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: flagcxDataType_t
            )
        }
        $each! {
            /// AlltoAll. Not in place: FlagCX, whose header allows that, gives undefined data then.
            flagcxAlltoAll alltoAll, Checked::dtype(datatype),
            all_to_all(
                sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t
            )
        }
        $each! {
            /// AlltoAllv. Counts and displacements are in elements and are read during the call.
            flagcxAlltoAllv alltoAllv, Checked::dtype(datatype),
            all_to_allv(
                sendbuff: *const c_void, sendcounts: *mut usize, sdispls: *mut usize, recvbuff: *mut c_void,
                recvcounts: *mut usize, rdispls: *mut usize, datatype: flagcxDataType_t
            )
        }
        $each! {
            /// Send.
            flagcxSend send, Checked::dtype(datatype),
            send(
                sendbuff: *const c_void, count: usize, datatype: flagcxDataType_t, peer: c_int
            )
        }
        $each! {
            /// Recv.
            flagcxRecv recv, Checked::dtype(datatype),
            recv(
                recvbuff: *mut c_void, count: usize, datatype: flagcxDataType_t, peer: c_int
            )
        }
    };
}
pub(crate) use operations;
