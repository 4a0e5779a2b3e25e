/* Minimal declarations of the ABI of Enflame's ECCL 3.1.0. Alltoall and AlltoAllv are not in its header; exported only with
 * -DFAKE_ECCL_ALLTOALL. */
#ifndef FAKE_ABI_ECCL_H
#define FAKE_ABI_ECCL_H
#include "tops.h"

typedef struct fk_comm *ecclComm_t;
typedef struct { char internal[128]; } ecclUniqueId;

typedef enum {
    ecclSuccess, ecclUnhandledTopsError, ecclSystemError, ecclInternalError, ecclInvalidArgument, ecclInvalidUsage,
    ecclRemoteError, ecclInProgress, ecclNumResults
} ecclResult_t;
typedef enum {
    ecclInt8, ecclUint8, ecclInt32, ecclUint32, ecclInt64, ecclUint64, ecclFloat16, ecclFloat32, ecclFloat64,
    ecclBfloat16,
    ecclNumTypes
} ecclDataType_t;
typedef enum { ecclSum, ecclProd, ecclMax, ecclMin, ecclAvg, ecclNumOps, ecclMaxRedOp = 0x7fffffff } ecclRedOp_t;
typedef enum { ecclScalarDevice, ecclScalarHostImmediate } ecclScalarResidence_t;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R ecclResult_t
#define B const void *, void *, size_t, ecclDataType_t
#define T ecclComm_t, topsStream_t
R ecclGetVersion(int *);
R ecclGetUniqueId(ecclUniqueId *);
R ecclCommInitRank(ecclComm_t *, int, ecclUniqueId, int);
R ecclCommInitAll(ecclComm_t *, int, const int *);
R ecclCommDestroy(ecclComm_t);
R ecclCommAbort(ecclComm_t);
R ecclCommGetAsyncError(ecclComm_t, ecclResult_t *);
const char *ecclGetErrorString(ecclResult_t);
const char *ecclGetLastError(ecclComm_t);
R ecclCommCount(const ecclComm_t, int *);
R ecclCommDevice(const ecclComm_t, int *);
R ecclCommUserRank(const ecclComm_t, int *);
R ecclRedOpCreatePreMulSum(ecclRedOp_t *, void *, ecclDataType_t, ecclScalarResidence_t, ecclComm_t);
R ecclRedOpDestroy(ecclRedOp_t, ecclComm_t);
R ecclReduce(B, ecclRedOp_t, int, T);
R ecclBroadcast(B, int, T);
R ecclAllReduce(B, ecclRedOp_t, T);
R ecclReduceScatter(B, ecclRedOp_t, T);
R ecclAllGather(B, T);
R ecclGather(B, int, T);
R ecclScatter(B, int, T);
R ecclSend(const void *, size_t, ecclDataType_t, int, T);
R ecclRecv(void *, size_t, ecclDataType_t, int, T);
R ecclGroupStart(void);
R ecclGroupEnd(void);
R ecclAlltoall(const void *, size_t, ecclDataType_t, void *, size_t, ecclDataType_t, T);
R ecclAlltoAllv(void *, size_t *, size_t *, ecclDataType_t, void *, size_t *, size_t *, ecclDataType_t, T);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
