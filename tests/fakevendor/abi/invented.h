/* The libraries of a vendor that does not exist: NCCL's shape and CUDA's, with other names. They show that such a vendor is
 * one row and needs no code (src/load/invented.rs). */
#ifndef FAKE_ABI_INVENTED_H
#define FAKE_ABI_INVENTED_H
#include <stddef.h>
#include <stdint.h>

enum { zrtSuccess = 0, zrtErrorNotReady = 600 };

typedef int zrtError_t;
typedef struct fk_stream *zrtStream_t;
typedef struct fk_event *zrtEvent_t;
typedef struct { int type; int device; void *devicePointer; void *hostPointer; } zrtPointerAttributes;

typedef struct fk_comm *zcclComm_t;
typedef struct { char internal[128]; } zcclUniqueId;
typedef enum {
    zcclSuccess, zcclUnhandledZrtError, zcclSystemError, zcclInternalError, zcclInvalidArgument, zcclInvalidUsage,
    zcclRemoteError, zcclInProgress
} zcclResult_t;
typedef enum {
    zcclInt8, zcclUint8, zcclInt32, zcclUint32, zcclInt64, zcclUint64, zcclFloat16, zcclFloat32, zcclFloat64, zcclBfloat16,
    zcclNumTypes
} zcclDataType_t;
typedef enum { zcclSum, zcclProd, zcclMax, zcclMin, zcclAvg, zcclNumOps, zcclMaxRedOp = 0x7fffffff } zcclRedOp_t;

/* What is declared here is what the libraries export. */
#pragma GCC visibility push(default)
zrtError_t zrtGetDevice(int *);
zrtError_t zrtSetDevice(int);
zrtError_t zrtGetDeviceCount(int *);
zrtError_t zrtStreamCreateWithFlags(zrtStream_t *, unsigned);
zrtError_t zrtStreamDestroy(zrtStream_t);
zrtError_t zrtStreamSynchronize(zrtStream_t);
zrtError_t zrtStreamQuery(zrtStream_t);
zrtError_t zrtStreamWaitEvent(zrtStream_t, zrtEvent_t, unsigned);
zrtError_t zrtEventCreateWithFlags(zrtEvent_t *, unsigned);
zrtError_t zrtEventRecord(zrtEvent_t, zrtStream_t);
zrtError_t zrtEventQuery(zrtEvent_t);
zrtError_t zrtEventSynchronize(zrtEvent_t);
zrtError_t zrtEventDestroy(zrtEvent_t);
zrtError_t zrtMalloc(void **, size_t);
zrtError_t zrtFree(void *);
zrtError_t zrtHostAlloc(void **, size_t, unsigned);
zrtError_t zrtFreeHost(void *);
zrtError_t zrtMemcpyAsync(void *, const void *, size_t, int, zrtStream_t);
zrtError_t zrtMemsetAsync(void *, int, size_t, zrtStream_t);
zrtError_t zrtPointerGetAttributes(zrtPointerAttributes *, const void *);
zrtError_t zrtGetLastError(void);
zrtError_t zrtPeekAtLastError(void);
const char *zrtGetErrorString(zrtError_t);
zrtError_t zrtDeviceGetPCIBusId(char *, int, int);

#define R zcclResult_t
#define B const void *, void *, size_t, zcclDataType_t
#define T zcclComm_t, zrtStream_t
R zcclGetVersion(int *);
R zcclGetUniqueId(zcclUniqueId *);
R zcclCommInitRank(zcclComm_t *, int, zcclUniqueId, int);
R zcclCommDestroy(zcclComm_t);
R zcclCommAbort(zcclComm_t);
R zcclCommGetAsyncError(zcclComm_t, zcclResult_t *);
const char *zcclGetErrorString(zcclResult_t);
R zcclCommCount(const zcclComm_t, int *);
R zcclCommCuDevice(const zcclComm_t, int *);
R zcclCommUserRank(const zcclComm_t, int *);
R zcclReduce(B, zcclRedOp_t, int, T);
R zcclBroadcast(B, int, T);
R zcclAllReduce(B, zcclRedOp_t, T);
R zcclReduceScatter(B, zcclRedOp_t, T);
R zcclAllGather(B, T);
R zcclSend(const void *, size_t, zcclDataType_t, int, T);
R zcclRecv(void *, size_t, zcclDataType_t, int, T);
R zcclGroupStart(void);
R zcclGroupEnd(void);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
