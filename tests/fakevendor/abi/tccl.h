/* Minimal declarations of the ABI of Tsingmicro's TCCL. The library exports every function under an nccl name too. The
 * numbers of types and operators are not known: here FlagCX's, or with -DFAKE_SHIFTED_NUMBERS each 100 more, so that a test can
 * tell whose numbers were used. */
#ifndef FAKE_ABI_TCCL_H
#define FAKE_ABI_TCCL_H
#include <stddef.h>
#include <stdint.h>

typedef struct fk_comm *tcclComm_t;
typedef struct { char internal[128]; } tcclUniqueId;
typedef struct fk_stream *txStream_t;

#ifdef FAKE_SHIFTED_NUMBERS
#define FAKE_TCCL_BASE 100
#else
#define FAKE_TCCL_BASE 0
#endif

typedef enum {
    tcclSuccess, tcclUnhandledDeviceError, tcclSystemError, tcclInternalError, tcclInvalidArgument, tcclInvalidUsage,
    tcclRemoteError, tcclInProgress, tcclUnhandledCCLError, tcclNotSupported
} tcclResult_t;
typedef enum {
    tcclInt8 = FAKE_TCCL_BASE, tcclUint8, tcclInt32, tcclUint32, tcclInt64, tcclUint64, tcclFloat16, tcclFloat32, tcclFloat64,
    tcclBfloat16, tcclFloat8e4m3, tcclFloat8e5m2
} tcclDataType_t;
typedef enum { tcclSum = FAKE_TCCL_BASE, tcclProd, tcclMax, tcclMin, tcclAvg, tcclNoOp } tcclRedOp_t;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
#define R tcclResult_t
#define B const void *, void *, size_t, tcclDataType_t
#define T tcclComm_t, txStream_t
R tcclGetVersion(int *);
R tcclGetUniqueId(tcclUniqueId *);
R tcclCommInitRank(tcclComm_t *, int, tcclUniqueId, int);
R tcclCommFinalize(tcclComm_t);
R tcclCommDestroy(tcclComm_t);
R tcclCommAbort(tcclComm_t);
R tcclCommGetAsyncError(tcclComm_t, tcclResult_t *);
R tcclCommSuspend(tcclComm_t); /* no flags */
R tcclCommResume(tcclComm_t);
const char *tcclGetLastError(tcclComm_t);
R tcclCommCount(const tcclComm_t, int *);
R tcclCommGetDeviceNumber(const tcclComm_t, int *);
R tcclCommUserRank(const tcclComm_t, int *);
R tcclCommRegister(const tcclComm_t, void *, size_t, void **);
R tcclCommDeregister(const tcclComm_t, void *);
R tcclReduce(B, tcclRedOp_t, int, T);
R tcclBroadcast(B, int, T);
R tcclAllReduce(B, tcclRedOp_t, T);
R tcclReduceScatter(B, tcclRedOp_t, T);
R tcclAllGather(B, T);
R tcclGather(B, int, T);
R tcclScatter(B, int, T);
R tcclAlltoAll(B, T);
R tcclAlltoAllv(const void *, const size_t[], const size_t[], void *, const size_t[], const size_t[], tcclDataType_t, T);
R tcclSend(const void *, size_t, tcclDataType_t, int, T);
R tcclRecv(void *, size_t, tcclDataType_t, int, T);
R tcclGroupStart(void);
R tcclGroupEnd(void);
#undef R
#undef B
#undef T
#pragma GCC visibility pop
#endif
