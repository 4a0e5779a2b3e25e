/* Minimal declarations of the ABI of Moore Threads' MCCL. What follows "optional" is not in every version, and its shape is
 * taken over from NCCL; exported only with -DFAKE_MUSA_NEW. The layout of the configuration is not known. */
#ifndef FAKE_ABI_MCCL_MUSA_H
#define FAKE_ABI_MCCL_MUSA_H
#include "musa.h"

typedef struct fk_comm *mcclComm_t;
typedef struct { char internal[128]; } mcclUniqueId;
typedef struct fk_window *mcclWindow_t;
typedef struct fk_mccl_config mcclConfig_t;

typedef enum {
    mcclSuccess, mcclUnhandledMusaError, mcclSystemError, mcclInternalError, mcclInvalidArgument, mcclInvalidUsage,
    mcclRemoteError, mcclInProgress
} mcclResult_t;
typedef enum {
    mcclInt8, mcclUint8, mcclInt32, mcclUint32, mcclInt64, mcclUint64, mcclFloat16, mcclFloat32, mcclFloat64,
    mcclBfloat16,
    mcclNumTypes
} mcclDataType_t;
typedef enum { mcclSum, mcclProd, mcclMax, mcclMin, mcclAvg, mcclNumOps, mcclMaxRedOp = 0x7fffffff } mcclRedOp_t;
typedef enum { mcclScalarDevice, mcclScalarHostImmediate } mcclScalarResidence_t;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R mcclResult_t
#define B const void *, void *, size_t, mcclDataType_t
#define T mcclComm_t, musaStream_t
R mcclGetVersion(int *);
R mcclGetUniqueId(mcclUniqueId *);
R mcclCommInitRank(mcclComm_t *, int, mcclUniqueId, int);
R mcclCommDestroy(mcclComm_t);
R mcclCommAbort(mcclComm_t);
R mcclCommGetAsyncError(mcclComm_t, mcclResult_t *);
const char *mcclGetErrorString(mcclResult_t);
R mcclCommCount(const mcclComm_t, int *);
R mcclCommMuDevice(const mcclComm_t, int *);
R mcclCommUserRank(const mcclComm_t, int *);
R mcclRedOpCreatePreMulSum(mcclRedOp_t *, void *, mcclDataType_t, mcclScalarResidence_t, mcclComm_t);
R mcclRedOpDestroy(mcclRedOp_t, mcclComm_t);
R mcclReduce(B, mcclRedOp_t, int, T);
R mcclBroadcast(B, int, T);
R mcclAllReduce(B, mcclRedOp_t, T);
R mcclReduceScatter(B, mcclRedOp_t, T);
R mcclAllGather(B, T);
R mcclBcast(void *, size_t, mcclDataType_t, int, T);
R mcclSend(const void *, size_t, mcclDataType_t, int, T);
R mcclRecv(void *, size_t, mcclDataType_t, int, T);
R mcclGroupStart(void);
R mcclGroupEnd(void);
/* optional */
const char *mcclGetLastError(mcclComm_t);
R mcclCommFinalize(mcclComm_t);
R mcclCommInitRankConfig(mcclComm_t *, int, mcclUniqueId, int, mcclConfig_t *);
R mcclCommSplit(mcclComm_t, int, int, mcclComm_t *, mcclConfig_t *);
R mcclCommRegister(const mcclComm_t, void *, size_t, void **);
R mcclCommDeregister(const mcclComm_t, void *);
R mcclCommWindowRegister(mcclComm_t, void *, size_t, mcclWindow_t *, int);
R mcclCommWindowDeregister(mcclComm_t, mcclWindow_t);
R mcclAllToAllv(const void *, const size_t[], const size_t[], void *, const size_t[], const size_t[], mcclDataType_t, T);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
