/* Minimal declarations of the RCCL ABI (AMD, Hygon): NCCL's names, and some of its own. Which functions a version has
 * is said in tests/testkit (the newest ones here: the spellings AlltoAll, and Shrink to PutSignal). */
#ifndef FAKE_ABI_RCCL_H
#define FAKE_ABI_RCCL_H
#include "hip.h"

typedef struct fk_comm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct fk_window *ncclWindow_t;
typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;

typedef enum {
    ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
    ncclRemoteError, ncclInProgress, ncclTimeout
} ncclResult_t;
typedef enum {
    ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64,
    ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2, ncclNumTypes
} ncclDataType_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;
typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

/* Up to RCCL 2.26 it ends after splitShare; the newest goes on to maxP2pPeers. */
typedef struct {
    size_t size;
    unsigned magic; /* 0xcafebeef */
    unsigned version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
    int graphUsageMode;
    int numRmaCtx;
    int maxP2pPeers;
} ncclConfig_t;
_Static_assert(offsetof(ncclConfig_t, trafficClass) == 44, "layout of 2.18");

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R ncclResult_t
#define B const void *, void *, size_t, ncclDataType_t
#define T ncclComm_t, hipStream_t
R ncclGetVersion(int *);
R ncclGetUniqueId(ncclUniqueId *);
R ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
R ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
R ncclCommInitAll(ncclComm_t *, int, const int *);
R ncclCommFinalize(ncclComm_t);
R ncclCommDestroy(ncclComm_t);
R ncclCommAbort(ncclComm_t);
R ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
R ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
R ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
R ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *);
R ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
R ncclCommRevoke(ncclComm_t, int);
R ncclCommSuspend(ncclComm_t, int);
R ncclCommResume(ncclComm_t);
R ncclCommMemStats(ncclComm_t, int, uint64_t *);
const char *ncclGetErrorString(ncclResult_t);
const char *ncclGetLastError(ncclComm_t);
R ncclCommCount(const ncclComm_t, int *);
R ncclCommCuDevice(const ncclComm_t, int *);
R ncclCommUserRank(const ncclComm_t, int *);
R ncclRedOpCreatePreMulSum(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t);
R ncclRedOpDestroy(ncclRedOp_t, ncclComm_t);
R ncclReduce(B, ncclRedOp_t, int, T);
R ncclBroadcast(B, int, T);
R ncclAllReduce(B, ncclRedOp_t, T);
R ncclReduceScatter(B, ncclRedOp_t, T);
R ncclAllGather(B, T);
R ncclBcast(void *, size_t, ncclDataType_t, int, T);
R ncclGather(B, int, T);
R ncclScatter(B, int, T);
R ncclAllToAll(B, T);
R ncclAllToAllv(const void *, const size_t[], const size_t[], void *, const size_t[], const size_t[], ncclDataType_t, T);
R ncclAlltoAll(B, T);
R ncclAlltoAllv(const void *, const size_t[], const size_t[], void *, const size_t[], const size_t[], ncclDataType_t, T);
R ncclSend(const void *, size_t, ncclDataType_t, int, T);
R ncclRecv(void *, size_t, ncclDataType_t, int, T);
R ncclGroupStart(void);
R ncclGroupEnd(void);
R ncclMemAlloc(void **, size_t);
R ncclMemFree(void *);
R ncclCommRegister(const ncclComm_t, void *, size_t, void **);
R ncclCommDeregister(const ncclComm_t, void *);
R ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int);
R ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
R ncclPutSignal(const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned, T);
R ncclSignal(int, int, int, unsigned, T);
R ncclWaitSignal(int, ncclWaitSignalDesc_t *, T);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
