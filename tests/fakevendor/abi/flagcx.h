/* Declarations of FlagCX's C ABI, 0.13: all 52 functions. */
#ifndef FAKE_ABI_FLAGCX_H
#define FAKE_ABI_FLAGCX_H
#include <stddef.h>
#include <stdint.h>

typedef enum {
    flagcxSuccess, flagcxUnhandledDeviceError, flagcxSystemError, flagcxInternalError, flagcxInvalidArgument,
    flagcxInvalidUsage, flagcxRemoteError, flagcxInProgress, flagcxUnhandledCCLError, flagcxNotSupported, flagcxNumResults
} flagcxResult_t;
typedef enum {
    flagcxInt8, flagcxUint8, flagcxInt32, flagcxUint32, flagcxInt64, flagcxUint64, flagcxFloat16, flagcxFloat32,
    flagcxFloat64, flagcxBfloat16, flagcxNumTypes, flagcxChar = 0, flagcxInt = 2, flagcxHalf = 6, flagcxFloat = 7,
    flagcxDouble = 8
} flagcxDataType_t;
typedef enum {
    flagcxSum, flagcxProd, flagcxMax, flagcxMin, flagcxAvg, flagcxNumRedOps, flagcxRedNoOp = 5, flagcxMaxRedOp = 0x7fffffff
} flagcxRedOp_t;
typedef enum { flagcxMemcpyHostToDevice, flagcxMemcpyDeviceToHost, flagcxMemcpyDeviceToDevice } flagcxMemcpyType_t;
typedef enum { flagcxMemHost, flagcxMemDevice, flagcxMemManaged } flagcxMemType_t;
typedef enum { flagcxEventDefault, flagcxEventDisableTiming } flagcxEventType_t;
typedef enum { flagcxMemCCL, flagcxMemSHMEM } flagcxMemAllocator_t;

#define FLAGCX_UNIQUE_ID_BYTES 256
typedef struct { char internal[FLAGCX_UNIQUE_ID_BYTES]; } flagcxUniqueId;
typedef flagcxUniqueId *flagcxUniqueId_t;
typedef struct flagcxComm *flagcxComm_t;
typedef struct flagcxStream *flagcxStream_t; /* its first field is the vendor's stream */
typedef struct flagcxEvent *flagcxEvent_t;
typedef struct flagcxIpcMemHandle *flagcxIpcMemHandle_t;
typedef struct flagcxWindow *flagcxWindow_t;
typedef struct { flagcxStream_t stream; flagcxEvent_t event; void **argList; } flagcxFuncArgs;
typedef struct { uint64_t opCnt; int peer; } flagcxWaitSignalDesc_t;

#define R flagcxResult_t
struct flagcxDeviceHandle {
    R (*deviceSynchronize)(void);
    R (*deviceMemcpy)(void *, void *, size_t, flagcxMemcpyType_t, flagcxStream_t);
    R (*deviceMemset)(void *, int, size_t, flagcxMemType_t, flagcxStream_t);
    R (*deviceMalloc)(void **, size_t, flagcxMemType_t, flagcxStream_t);
    R (*deviceFree)(void *, flagcxMemType_t, flagcxStream_t);
    R (*setDevice)(int);
    R (*getDevice)(int *);
    R (*getDeviceCount)(int *);
    R (*getVendor)(char *);
    R (*hostGetDevicePointer)(void **, void *);
    R (*streamCreate)(flagcxStream_t *);
    R (*streamDestroy)(flagcxStream_t);
    R (*streamCopy)(flagcxStream_t *, void *);
    R (*streamFree)(flagcxStream_t);
    R (*streamSynchronize)(flagcxStream_t);
    R (*streamQuery)(flagcxStream_t);
    R (*streamWaitEvent)(flagcxStream_t, flagcxEvent_t);
    R (*eventCreate)(flagcxEvent_t *, flagcxEventType_t);
    R (*eventDestroy)(flagcxEvent_t);
    R (*eventRecord)(flagcxEvent_t, flagcxStream_t);
    R (*eventSynchronize)(flagcxEvent_t);
    R (*eventQuery)(flagcxEvent_t);
    R (*eventElapsedTime)(float *, flagcxEvent_t, flagcxEvent_t);
    R (*ipcMemHandleCreate)(flagcxIpcMemHandle_t *, size_t *);
    R (*ipcMemHandleGet)(flagcxIpcMemHandle_t, void *);
    R (*ipcMemHandleOpen)(flagcxIpcMemHandle_t, void **);
    R (*ipcMemHandleClose)(void *);
    R (*ipcMemHandleFree)(flagcxIpcMemHandle_t);
};
typedef struct flagcxDeviceHandle *flagcxDeviceHandle_t;
_Static_assert(sizeof(struct flagcxDeviceHandle) == 224, "as in the real header");
_Static_assert(offsetof(struct flagcxDeviceHandle, streamCreate) == 80, "as in the real header");
_Static_assert(offsetof(struct flagcxDeviceHandle, ipcMemHandleCreate) == 184, "as in the real header");
struct flagcxHandlerGroup { flagcxUniqueId_t uniqueId; flagcxComm_t comm; flagcxDeviceHandle_t devHandle; };
typedef struct flagcxHandlerGroup *flagcxHandlerGroup_t;

size_t getFlagcxDataTypeSize(flagcxDataType_t type);
R flagcxDeviceHandleInit(flagcxDeviceHandle_t *handle);
R flagcxDeviceHandleFree(flagcxDeviceHandle_t handle);
R flagcxHandleInit(flagcxHandlerGroup_t *group);
R flagcxHandleFree(flagcxHandlerGroup_t group);
R flagcxMemAlloc(void **ptr, size_t size, flagcxMemAllocator_t allocator);
R flagcxMemFree(void *ptr, flagcxMemAllocator_t allocator);
R flagcxCommRegister(const flagcxComm_t comm, void *buf, size_t size, void **handle, flagcxMemAllocator_t allocator);
R flagcxCommDeregister(const flagcxComm_t comm, void *handle, flagcxMemAllocator_t allocator);
R flagcxCommWindowRegister(flagcxComm_t comm, void *buf, size_t size, flagcxWindow_t *win, int flags,
                           flagcxMemAllocator_t allocator);
R flagcxCommWindowDeregister(flagcxComm_t comm, flagcxWindow_t win, flagcxMemAllocator_t allocator);
R flagcxOneSideRegister(flagcxComm_t comm, void *buf, size_t size);
R flagcxOneSideSignalRegister(const flagcxComm_t comm, void *buf, size_t size, int ptr_type);
R flagcxOneSideStagingRegister(const flagcxComm_t comm, void *buf, size_t size);
R flagcxOneSideStagingDeregister(const flagcxComm_t comm);
R flagcxIsHomoComm(flagcxComm_t comm, int *is_homo);
R flagcxGetVersion(int *version);
R flagcxGetUniqueId(flagcxUniqueId_t id);
R flagcxCommInitRank(flagcxComm_t *comm, int nranks, flagcxUniqueId_t id, int rank);
R flagcxCommFinalize(flagcxComm_t comm);
R flagcxCommDestroy(flagcxComm_t comm);
R flagcxCommAbort(flagcxComm_t comm);
R flagcxCommResume(flagcxComm_t comm);
R flagcxCommSuspend(flagcxComm_t comm);
const char *flagcxGetErrorString(flagcxResult_t code);
const char *flagcxGetLastError(flagcxComm_t comm);
R flagcxCommGetAsyncError(flagcxComm_t comm, flagcxResult_t *error);
R flagcxCommCount(const flagcxComm_t comm, int *count);
R flagcxCommGetDeviceNumber(const flagcxComm_t comm, int *device);
R flagcxCommUserRank(const flagcxComm_t comm, int *rank);
R flagcxBarrier(flagcxComm_t comm, flagcxStream_t stream);
R flagcxReduce(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxRedOp_t op, int root, flagcxComm_t comm,
               flagcxStream_t stream);
R flagcxGather(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
               flagcxStream_t stream);
R flagcxScatter(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
                flagcxStream_t stream);
R flagcxBroadcast(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
                  flagcxStream_t stream);
R flagcxAllReduce(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxRedOp_t op, flagcxComm_t comm,
                  flagcxStream_t stream);
R flagcxReduceScatter(const void *send, void *recv, size_t recv_count, flagcxDataType_t type, flagcxRedOp_t op,
                      flagcxComm_t comm, flagcxStream_t stream);
R flagcxAllGather(const void *send, void *recv, size_t send_count, flagcxDataType_t type, flagcxComm_t comm,
                  flagcxStream_t stream);
R flagcxAlltoAll(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxComm_t comm, flagcxStream_t stream);
R flagcxAlltoAllv(const void *send, size_t *send_counts, size_t *send_displs, void *recv, size_t *recv_counts,
                  size_t *recv_displs, flagcxDataType_t type, flagcxComm_t comm, flagcxStream_t stream);
R flagcxSend(const void *send, size_t n, flagcxDataType_t type, int peer, flagcxComm_t comm, flagcxStream_t stream);
R flagcxRecv(void *recv, size_t n, flagcxDataType_t type, int peer, flagcxComm_t comm, flagcxStream_t stream);
R flagcxGet(flagcxComm_t comm, int peer, size_t src_offset, size_t dst_offset, size_t size, int src_mr, int dst_mr);
R flagcxPut(flagcxComm_t comm, int peer, size_t src_offset, size_t dst_offset, size_t size, int src_mr, int dst_mr);
R flagcxBatchPut(flagcxComm_t comm, int peer, const size_t *src_offsets, const size_t *dst_offsets, const size_t *sizes,
                 const int *src_mrs, const int *dst_mrs, size_t count);
R flagcxPutSignal(const void *local, size_t n, flagcxDataType_t type, int peer, flagcxWindow_t win, size_t offset,
                  unsigned int flags, flagcxComm_t comm, flagcxStream_t stream);
R flagcxSignal(int peer, unsigned int flags, flagcxComm_t comm, flagcxStream_t stream);
R flagcxWaitSignal(int n, const flagcxWaitSignalDesc_t *descs, flagcxComm_t comm, flagcxStream_t stream);
R flagcxReadCounter(flagcxComm_t comm, uint64_t *count);
R flagcxWaitCounter(flagcxComm_t comm, uint64_t target);
R flagcxGroupStart(flagcxComm_t comm);
R flagcxGroupEnd(flagcxComm_t comm);
#undef R
#endif
