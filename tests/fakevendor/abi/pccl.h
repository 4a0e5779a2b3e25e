/* Minimal declarations of the ABI of Sunrise's PCCL. */
#ifndef FAKE_ABI_PCCL_H
#define FAKE_ABI_PCCL_H
#include "tang.h"

typedef struct fk_comm *pcclComm_t;
typedef struct { char internal[128]; } pcclUniqueId;

typedef enum {
    pcclSuccess, pcclUnhandledTangError, pcclSystemError, pcclInternalError, pcclInvalidArgument, pcclInvalidUsage,
    pcclRemoteError, pcclInProgress, pcclInvalidDeviceIndex
} pcclResult_t;
typedef enum {
    pcclInt8, pcclUint8, pcclInt32, pcclUint32, pcclInt64, pcclUint64, pcclFloat16, pcclFloat32, pcclBfloat16, /* no 64-bit float */
    pcclNumTypes
} pcclDataType_t;
typedef enum { pcclSum, pcclProd, pcclMax, pcclMin, pcclAvg, pcclNull } pcclRedOp_t;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R pcclResult_t
#define B const void *, void *, size_t, pcclDataType_t
#define T pcclComm_t, tangStream_t
R pcclGetVersion(int *);
R pcclGetUniqueId(pcclUniqueId *);
R pcclCommInitRank(pcclComm_t *, int, pcclUniqueId, int);
R pcclCommInitAll(pcclComm_t *, int, const int *);
R pcclCommDestroy(pcclComm_t);
R pcclCommAbort(pcclComm_t);
R pcclCommGetAsyncError(pcclComm_t, pcclResult_t *);
const char *pcclGetErrorString(pcclResult_t);
const char *pcclGetLastError(pcclComm_t);
R pcclCommCount(const pcclComm_t, int *);
R pcclCommCuDevice(const pcclComm_t, int *);
R pcclCommUserRank(const pcclComm_t, int *);
R pcclReduce(B, pcclRedOp_t, int, T);
R pcclBroadcast(B, int, T);
R pcclAllReduce(B, pcclRedOp_t, T);
R pcclReduceScatter(B, pcclRedOp_t, T);
R pcclAllGather(B, T);
R pcclSend(const void *, size_t, pcclDataType_t, int, T);
R pcclRecv(void *, size_t, pcclDataType_t, int, T);
R pcclGroupStart(void);
R pcclGroupEnd(void);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
