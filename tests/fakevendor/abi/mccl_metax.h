/* Minimal declarations of the ABI of MetaX's MCCL 2.16.5. MemAlloc to WindowDeregister are those of 2.30.4. */
#ifndef FAKE_ABI_MCCL_METAX_H
#define FAKE_ABI_MCCL_METAX_H
#include "mc.h"

typedef struct fk_comm *mcclComm_t;
typedef struct { char internal[128]; } mcclUniqueId;
typedef struct fk_window *mcclWindow_t;

typedef enum {
    mcclSuccess, mcclUnhandledMacaError, mcclSystemError, mcclInternalError, mcclInvalidArgument, mcclInvalidUsage,
    mcclRemoteError, mcclInProgress, mcclNumResults
} mcclResult_t;
typedef enum {
    mcclInt8, mcclUint8, mcclInt32, mcclUint32, mcclInt64, mcclUint64, mcclFloat16, mcclFloat32, mcclFloat64,
    mcclBfloat16,
    mcclNumTypes
} mcclDataType_t;
typedef enum { mcclSum, mcclProd, mcclMax, mcclMin, mcclAvg, mcclNumOps, mcclMaxRedOp = 0x7fffffff } mcclRedOp_t;
typedef enum { mcclScalarDevice, mcclScalarHostImmediate } mcclScalarResidence_t;

/* Version 21400. */
typedef struct { size_t size; unsigned magic; /* 0xcafebeef */ unsigned version; int blocking; } mcclConfig_t;
_Static_assert(sizeof(mcclConfig_t) == 24, "as in the real header");

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R mcclResult_t
#define B const void *, void *, size_t, mcclDataType_t
#define T mcclComm_t, mcStream_t
R mcclGetVersion(int *);
R mcclGetUniqueId(mcclUniqueId *);
R mcclCommInitRank(mcclComm_t *, int, mcclUniqueId, int);
R mcclCommInitRankConfig(mcclComm_t *, int, mcclUniqueId, int, mcclConfig_t *);
R mcclCommInitRankMulti(mcclComm_t *, int, mcclUniqueId, int, int);
R mcclCommInitAll(mcclComm_t *, int, const int *);
R mcclCommFinalize(mcclComm_t);
R mcclCommDestroy(mcclComm_t);
R mcclCommAbort(mcclComm_t);
R mcclCommGetAsyncError(mcclComm_t, mcclResult_t *);
const char *mcclGetErrorString(mcclResult_t);
const char *mcclGetLastError(mcclComm_t);
R mcclCommCount(const mcclComm_t, int *);
R mcclCommMcDevice(const mcclComm_t, int *);
R mcclCommUserRank(const mcclComm_t, int *);
R mcclRedOpCreatePreMulSum(mcclRedOp_t *, void *, mcclDataType_t, mcclScalarResidence_t, mcclComm_t);
R mcclRedOpDestroy(mcclRedOp_t, mcclComm_t);
R mcclReduce(B, mcclRedOp_t, int, T);
R mcclBroadcast(B, int, T);
R mcclAllReduce(B, mcclRedOp_t, T);
R mcclReduceScatter(B, mcclRedOp_t, T);
R mcclAllGather(B, T);
R mcclBcast(void *, size_t, mcclDataType_t, int, T);
R mcclGather(B, int, T);
R mcclScatter(B, int, T);
R mcclAllToAll(B, T);
R mcclAllToAllv(const void *, const size_t[], const size_t[], void *, const size_t[], const size_t[], mcclDataType_t, T);
R mcclAllToAlld(const void *[], const size_t[], void *[], const size_t[], mcclDataType_t, T);
R mcclSend(const void *, size_t, mcclDataType_t, int, T);
R mcclRecv(void *, size_t, mcclDataType_t, int, T);
R mcclGroupStart(void);
R mcclGroupEnd(void);
R mcclMemAlloc(void **, size_t);
R mcclMemFree(void *);
R mcclCommRegister(const mcclComm_t, void *, size_t, void **);
R mcclCommDeregister(const mcclComm_t, void *);
R mcclCommWindowRegister(mcclComm_t, void *, size_t, mcclWindow_t *, int);
R mcclCommWindowDeregister(mcclComm_t, mcclWindow_t);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
