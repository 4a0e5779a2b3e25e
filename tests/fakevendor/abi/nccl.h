/* Minimal declarations of the NCCL ABI: only what the stand-in implements. */
#ifndef FAKE_ABI_NCCL_H
#define FAKE_ABI_NCCL_H
#include "cuda.h"
#include <limits.h>

typedef struct fk_comm *ncclComm_t;
typedef struct fk_window *ncclWindow_t;
typedef struct { char internal[128]; } ncclUniqueId;

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

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_SIM_MAGIC 0x74685283u
#define NCCL_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_ABORT 1

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;               /* 2.14 */
    int cgaClusterSize;         /* 2.17 */
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;             /* 2.18 */
    int trafficClass;           /* 2.26 */
    const char *commName;       /* 2.27 */
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;    /* 2.28 */
    int nvlinkCentricSched;
    int graphUsageMode;         /* 2.29 */
    int numRmaCtx;
    int maxP2pPeers;            /* 2.30 */
    int graphStreamOrdering;
    int launchOrderImplicit;    /* 2.31 */
    int numRmaSig;
    int rmaEagerInit;
    int hostCftMode;
    int nvlsHostMode;           /* 2.32 */
} ncclConfig_t;
_Static_assert(sizeof(ncclConfig_t) == 120, "layout of 2.32");
_Static_assert(offsetof(ncclConfig_t, commName) == 48, "layout of 2.27");
_Static_assert(offsetof(ncclConfig_t, launchOrderImplicit) == 96, "layout of 2.31");

typedef struct { size_t size; unsigned magic; unsigned version; float estimatedTime; } ncclSimInfo_t;
typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;
typedef struct fk_collconfig ncclCollConfig_t;
typedef struct fk_encryption ncclEncryptionConfig_t;

#define R ncclResult_t
#define B const void *, void *, size_t, ncclDataType_t
R ncclGetVersion(int *);
R ncclGetUniqueId(ncclUniqueId *);
R ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
R ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
R ncclCommInitRankScalable(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
R ncclCommInitAll(ncclComm_t *, int, const int *);
R ncclCommFinalize(ncclComm_t);
R ncclCommDestroy(ncclComm_t);
R ncclCommAbort(ncclComm_t);
R ncclCommRevoke(ncclComm_t, int);
R ncclCommSuspend(ncclComm_t, int);
R ncclCommResume(ncclComm_t);
R ncclCommMemStats(ncclComm_t, int, uint64_t *);
R ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
R ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
R ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *);
R ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
const char *ncclGetErrorString(ncclResult_t);
const char *ncclGetLastError(ncclComm_t);
void ncclResetDebugInit(void);
R ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
R ncclCommCount(const ncclComm_t, int *);
R ncclCommCuDevice(const ncclComm_t, int *);
R ncclCommUserRank(const ncclComm_t, int *);
R ncclRedOpCreatePreMulSum(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t);
R ncclRedOpDestroy(ncclRedOp_t, ncclComm_t);
R ncclReduce(B, ncclRedOp_t, int, ncclComm_t, cudaStream_t);
R ncclBcast(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
R ncclBroadcast(B, int, ncclComm_t, cudaStream_t);
R ncclAllReduce(B, ncclRedOp_t, ncclComm_t, cudaStream_t);
R ncclReduceScatter(B, ncclRedOp_t, ncclComm_t, cudaStream_t);
R ncclAllGather(B, ncclComm_t, cudaStream_t);
R ncclAlltoAll(B, ncclComm_t, cudaStream_t);
R ncclGather(B, int, ncclComm_t, cudaStream_t);
R ncclScatter(B, int, ncclComm_t, cudaStream_t);
R ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
R ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
R ncclReduceConfig(B, ncclRedOp_t, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclBroadcastConfig(B, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclAllReduceConfig(B, ncclRedOp_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclReduceScatterConfig(B, ncclRedOp_t, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclAllGatherConfig(B, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclAlltoAllConfig(B, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclGatherConfig(B, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclScatterConfig(B, int, ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
R ncclGroupStart(void);
R ncclGroupEnd(void);
R ncclGroupSimulateEnd(ncclSimInfo_t *);
R ncclMemAlloc(void **, size_t);
R ncclMemFree(void *);
R ncclCommRegister(const ncclComm_t, void *, size_t, void **);
R ncclCommDeregister(const ncclComm_t, void *);
R ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int);
R ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
R ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void **);
R ncclPutSignal(const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned, ncclComm_t, cudaStream_t);
R ncclSignal(int, int, int, unsigned, ncclComm_t, cudaStream_t);
R ncclWaitSignal(int, ncclWaitSignalDesc_t *, ncclComm_t, cudaStream_t);
R ncclSetEncryption(const ncclEncryptionConfig_t *);
#undef R
#undef B
#endif
