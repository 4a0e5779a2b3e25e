/* Declarations of the tables of functions by which FlagCX 0.13 takes adaptors from other libraries. */
#ifndef FAKE_ABI_FLAGCX_ADAPTOR_H
#define FAKE_ABI_FLAGCX_ADAPTOR_H
#include "flagcx.h"
#include <stdbool.h>

typedef struct flagcxInnerComm *flagcxInnerComm_t;
typedef struct flagcxInnerWindow *flagcxInnerWindow_t;
struct bootstrapState;

/* FlagCX before its change #550 gives 256 bytes. */
#define FLAGCX_INNER_UNIQUE_ID_BYTES 4120
typedef struct { char internal[FLAGCX_INNER_UNIQUE_ID_BYTES]; } flagcxInnerUniqueId;
typedef flagcxInnerUniqueId *flagcxInnerUniqueId_t;

#define R flagcxResult_t
#define BUFFERS const void *send, void *recv, size_t n, flagcxDataType_t type
#define BEHIND flagcxInnerComm_t comm, flagcxStream_t stream

struct flagcxCCLAdaptor_v1 {
    const char *name;
    R (*getVersion)(int *version);
    R (*getUniqueId)(flagcxInnerUniqueId_t *id);
    const char *(*getErrorString)(R result);
    const char *(*getLastError)(flagcxInnerComm_t comm);
    R (*getStagedBuffer)(const flagcxInnerComm_t comm, void **buffer, size_t size, int is_recv);
    R (*commInitRank)(flagcxInnerComm_t *comm, int nranks, flagcxInnerUniqueId *id, int rank,
                      struct bootstrapState *bootstrap);
    R (*commFinalize)(flagcxInnerComm_t comm);
    R (*commDestroy)(flagcxInnerComm_t comm);
    R (*commAbort)(flagcxInnerComm_t comm);
    R (*commResume)(flagcxInnerComm_t comm);
    R (*commSuspend)(flagcxInnerComm_t comm);
    R (*commCount)(const flagcxInnerComm_t comm, int *count);
    R (*commGetDeviceNumber)(const flagcxInnerComm_t comm, int *device);
    R (*commUserRank)(const flagcxInnerComm_t comm, int *rank);
    R (*commGetAsyncError)(flagcxInnerComm_t comm, R *error);
    R (*memAlloc)(void **ptr, size_t size);
    R (*memFree)(void *ptr);
    R (*commRegister)(const flagcxInnerComm_t comm, void *buffer, size_t size, void **handle);
    R (*commDeregister)(const flagcxInnerComm_t comm, void *handle);
    R (*commWindowRegister)(flagcxInnerComm_t comm, void *buffer, size_t size, flagcxInnerWindow_t *win, int flags);
    R (*commWindowDeregister)(flagcxInnerComm_t comm, flagcxInnerWindow_t win);
    R (*reduce)(BUFFERS, flagcxRedOp_t op, int root, BEHIND);
    R (*gather)(BUFFERS, int root, BEHIND);
    R (*scatter)(BUFFERS, int root, BEHIND);
    R (*broadcast)(BUFFERS, int root, BEHIND);
    R (*allReduce)(BUFFERS, flagcxRedOp_t op, BEHIND);
    R (*reduceScatter)(BUFFERS, flagcxRedOp_t op, BEHIND);
    R (*allGather)(BUFFERS, BEHIND);
    R (*alltoAll)(BUFFERS, BEHIND);
    R (*alltoAllv)(const void *send, size_t *send_counts, size_t *send_displs, void *recv, size_t *recv_counts,
                   size_t *recv_displs, flagcxDataType_t type, BEHIND);
    R (*send)(const void *send, size_t n, flagcxDataType_t type, int peer, BEHIND);
    R (*recv)(void *recv, size_t n, flagcxDataType_t type, int peer, BEHIND);
    R (*groupStart)(void);
    R (*groupEnd)(void);
};

struct flagcxDevProps {
    char name[256];
    int pciBusId;
    int pciDeviceId;
    int pciDomainId;
};
typedef void (*flagcxLaunchFunc_t)(flagcxStream_t stream, void *args);

struct flagcxDeviceAdaptor_v1 {
    char name[32];
    R (*deviceSynchronize)(void);
    R (*deviceMemcpy)(void *dst, void *src, size_t size, flagcxMemcpyType_t type, flagcxStream_t stream, void *args);
    R (*deviceMemset)(void *ptr, int value, size_t size, flagcxMemType_t type, flagcxStream_t stream);
    R (*deviceMalloc)(void **ptr, size_t size, flagcxMemType_t type, flagcxStream_t stream);
    R (*deviceFree)(void *ptr, flagcxMemType_t type, flagcxStream_t stream);
    R (*setDevice)(int device);
    R (*getDevice)(int *device);
    R (*getDeviceCount)(int *count);
    R (*getVendor)(char *vendor);
    R (*hostGetDevicePointer)(void **device, void *host); /* may be NULL */
    R (*memHandleInit)(int device, void **handle);        /* this to gdrPtrMunmap may be NULL, but the next two */
    R (*memHandleDestroy)(int device, void *handle);
    R (*gdrMemAlloc)(void **ptr, size_t size, void *handle);
    R (*gdrMemFree)(void *ptr, void *handle);
    R (*hostShareMemAlloc)(void **ptr, size_t size, void *handle);
    R (*hostShareMemFree)(void *ptr, void *handle);
    R (*gdrPtrMmap)(void **cpu, void *device, size_t size);
    R (*gdrPtrMunmap)(void *cpu, size_t size);
    R (*streamCreate)(flagcxStream_t *stream);
    R (*streamDestroy)(flagcxStream_t stream);
    R (*streamCopy)(flagcxStream_t *copy, void *stream);
    R (*streamFree)(flagcxStream_t stream);
    R (*streamSynchronize)(flagcxStream_t stream);
    R (*streamQuery)(flagcxStream_t stream);
    R (*streamWaitEvent)(flagcxStream_t stream, flagcxEvent_t event);
    R (*streamWaitValue64)(flagcxStream_t stream, void *address, uint64_t value, int flags);
    R (*streamWriteValue64)(flagcxStream_t stream, void *address, uint64_t value, int flags);
    R (*eventCreate)(flagcxEvent_t *event, flagcxEventType_t type);
    R (*eventDestroy)(flagcxEvent_t event);
    R (*eventRecord)(flagcxEvent_t event, flagcxStream_t stream);
    R (*eventSynchronize)(flagcxEvent_t event);
    R (*eventQuery)(flagcxEvent_t event);
    R (*eventElapsedTime)(float *ms, flagcxEvent_t start, flagcxEvent_t end);
    R (*ipcMemHandleCreate)(flagcxIpcMemHandle_t *handle, size_t *size);
    R (*ipcMemHandleGet)(flagcxIpcMemHandle_t handle, void *ptr);
    R (*ipcMemHandleOpen)(flagcxIpcMemHandle_t handle, void **ptr);
    R (*ipcMemHandleClose)(void *ptr);
    R (*ipcMemHandleFree)(flagcxIpcMemHandle_t handle);
    R (*launchKernel)(void *function, unsigned block_x, unsigned block_y, unsigned block_z, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, void **args, size_t shared, void *stream, void *handle); /* may be NULL */
    R (*copyArgsInit)(void **args);                                                             /* may be NULL */
    R (*copyArgsFree)(void *args);                                                              /* may be NULL */
    R (*launchDeviceFunc)(flagcxStream_t stream, flagcxLaunchFunc_t function, void *args);      /* may be NULL */
    R (*getDeviceProperties)(struct flagcxDevProps *props, int device);                         /* may be NULL */
    R (*getDevicePciBusId)(char *id, int size, int device);                                     /* may be NULL */
    R (*getDeviceByPciBusId)(int *device, const char *id);                                      /* may be NULL */
    R (*launchHostFunc)(flagcxStream_t stream, void (*function)(void *), void *args);
    R (*dmaSupport)(bool *supported);                                                           /* may be NULL */
    R (*getHandleForAddressRange)(void *handle, void *buffer, size_t size, unsigned long long flags); /* may be NULL */
};
#undef R
#undef BUFFERS
#undef BEHIND

#define AT(table, field, offset) _Static_assert(offsetof(struct table, field) == (offset), "as in the real header")
_Static_assert(sizeof(struct flagcxCCLAdaptor_v1) == 280, "as in the real header");
AT(flagcxCCLAdaptor_v1, getVersion, 8);
AT(flagcxCCLAdaptor_v1, commInitRank, 48);
AT(flagcxCCLAdaptor_v1, memAlloc, 128);
AT(flagcxCCLAdaptor_v1, reduce, 176);
AT(flagcxCCLAdaptor_v1, send, 248);
AT(flagcxCCLAdaptor_v1, groupEnd, 272);
_Static_assert(sizeof(struct flagcxDeviceAdaptor_v1) == 416, "as in the real header");
AT(flagcxDeviceAdaptor_v1, deviceSynchronize, 32);
AT(flagcxDeviceAdaptor_v1, memHandleInit, 112);
AT(flagcxDeviceAdaptor_v1, streamCreate, 176);
AT(flagcxDeviceAdaptor_v1, eventCreate, 248);
AT(flagcxDeviceAdaptor_v1, ipcMemHandleCreate, 296);
AT(flagcxDeviceAdaptor_v1, launchKernel, 336);
AT(flagcxDeviceAdaptor_v1, launchHostFunc, 392);
AT(flagcxDeviceAdaptor_v1, getHandleForAddressRange, 408);
#undef AT
#endif
