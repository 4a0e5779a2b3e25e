/* The names of nccl.c under another prefix. A flavour includes its declarations, says
 *   FK_PREFIX            the prefix
 *   FK_DEVICE_GETTER     what follows it in the name of the function that gives a communicator's device
 *   FK_UNHANDLED         and in the name of result 1
 *   FK_NO_CONFIG, FK_NO_WINDOWS, FK_NO_REDOPS   which types its declarations lack
 * and then includes this file. Functions that it does not declare are compiled, but hidden. */
#ifndef FK_CCL_NAMES_H
#define FK_CCL_NAMES_H
#include <stddef.h>
#include <stdint.h>
#undef PUBLIC
#define PUBLIC /* the declarations say what is exported */
#define FK_PASTE2(a, b) a##b
#define FK_PASTE(a, b) FK_PASTE2(a, b)
#define FK_N(name) FK_PASTE(FK_PREFIX, name)

#define ncclComm_t FK_N(Comm_t)
#define ncclWindow_t FK_N(Window_t)
#define ncclUniqueId FK_N(UniqueId)
#define ncclResult_t FK_N(Result_t)
#define ncclDataType_t FK_N(DataType_t)
#define ncclRedOp_t FK_N(RedOp_t)
#define ncclScalarResidence_t FK_N(ScalarResidence_t)
#define ncclConfig_t FK_N(Config_t)
#define ncclSuccess FK_N(Success)
#define ncclSystemError FK_N(SystemError)
#define ncclInternalError FK_N(InternalError)
#define ncclInvalidArgument FK_N(InvalidArgument)
#define ncclInvalidUsage FK_N(InvalidUsage)
#define ncclRemoteError FK_N(RemoteError)
#define ncclInProgress FK_N(InProgress)
#define ncclInt8 FK_N(Int8)
#define ncclUint8 FK_N(Uint8)
#define ncclInt32 FK_N(Int32)
#define ncclUint32 FK_N(Uint32)
#define ncclInt64 FK_N(Int64)
#define ncclUint64 FK_N(Uint64)
#define ncclFloat16 FK_N(Float16)
#define ncclFloat32 FK_N(Float32)
#define ncclFloat64 FK_N(Float64)
#define ncclBfloat16 FK_N(Bfloat16)
#define ncclFloat8e4m3 FK_N(Float8e4m3)
#define ncclFloat8e5m2 FK_N(Float8e5m2)
#define ncclSum FK_N(Sum)
#define ncclProd FK_N(Prod)
#define ncclMax FK_N(Max)
#define ncclMin FK_N(Min)
#define ncclAvg FK_N(Avg)
#define ncclScalarDevice FK_N(ScalarDevice)
#define ncclScalarHostImmediate FK_N(ScalarHostImmediate)
#define ncclGetVersion FK_N(GetVersion)
#define ncclGetUniqueId FK_N(GetUniqueId)
#define ncclCommInitRank FK_N(CommInitRank)
#define ncclCommInitRankConfig FK_N(CommInitRankConfig)
#define ncclCommInitRankMulti FK_N(CommInitRankMulti)
#define ncclCommInitAll FK_N(CommInitAll)
#define ncclCommFinalize FK_N(CommFinalize)
#define ncclCommDestroy FK_N(CommDestroy)
#define ncclCommAbort FK_N(CommAbort)
#define ncclCommSuspend FK_N(CommSuspend)
#define ncclCommResume FK_N(CommResume)
#define ncclCommSplit FK_N(CommSplit)
#define ncclGetErrorString FK_N(GetErrorString)
#define ncclGetLastError FK_N(GetLastError)
#define ncclCommGetAsyncError FK_N(CommGetAsyncError)
#define ncclCommCount FK_N(CommCount)
#define ncclCommUserRank FK_N(CommUserRank)
#define ncclRedOpCreatePreMulSum FK_N(RedOpCreatePreMulSum)
#define ncclRedOpDestroy FK_N(RedOpDestroy)
#define ncclReduce FK_N(Reduce)
#define ncclBcast FK_N(Bcast)
#define ncclBroadcast FK_N(Broadcast)
#define ncclAllReduce FK_N(AllReduce)
#define ncclReduceScatter FK_N(ReduceScatter)
#define ncclAllGather FK_N(AllGather)
#define ncclAllToAll FK_N(AllToAll)
#define ncclAllToAllv FK_N(AllToAllv)
#define ncclAllToAlld FK_N(AllToAlld)
#define ncclAlltoAll FK_N(AlltoAll)
#define ncclAlltoAllv FK_N(AlltoAllv)
#define ncclAlltoall FK_N(Alltoall)
#define ncclGather FK_N(Gather)
#define ncclScatter FK_N(Scatter)
#define ncclSend FK_N(Send)
#define ncclRecv FK_N(Recv)
#define ncclGroupStart FK_N(GroupStart)
#define ncclGroupEnd FK_N(GroupEnd)
#define ncclMemAlloc FK_N(MemAlloc)
#define ncclMemFree FK_N(MemFree)
#define ncclCommRegister FK_N(CommRegister)
#define ncclCommDeregister FK_N(CommDeregister)
#define ncclCommWindowRegister FK_N(CommWindowRegister)
#define ncclCommWindowDeregister FK_N(CommWindowDeregister)
#define ncclUnhandledCudaError FK_N(FK_UNHANDLED)
#define ncclCommCuDevice FK_N(FK_DEVICE_GETTER)

#ifdef FK_NO_CONFIG
typedef struct fk_config ncclConfig_t;
#endif
#ifdef FK_NO_WINDOWS
typedef struct fk_window *ncclWindow_t;
#endif
#ifdef FK_NO_REDOPS
typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;
#endif
#ifndef FK_HAS_SIGNALS
typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;
#endif
/* Only NVIDIA has these. */
#define NCCL_SIM_MAGIC 0x74685283u
typedef struct { size_t size; unsigned magic; unsigned version; float estimatedTime; } ncclSimInfo_t;
typedef struct fk_collconfig ncclCollConfig_t;
typedef struct fk_encryption ncclEncryptionConfig_t;
#endif
