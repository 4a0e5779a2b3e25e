/* Minimal declarations of the MACA runtime ABI (MetaX). The real number of mcErrorNotReady is not known: here it is one that
 * nobody would guess, so that it must be asked for by name. */
#ifndef FAKE_ABI_MC_H
#define FAKE_ABI_MC_H
#include <stddef.h>
#include <stdint.h>

enum { mcSuccess = 0, mcErrorNotReady = 617 };
enum { mcMemcpyHostToHost, mcMemcpyHostToDevice, mcMemcpyDeviceToHost, mcMemcpyDeviceToDevice, mcMemcpyDefault };
enum { mcStreamNonBlocking = 1, mcEventDisableTiming = 2 };

typedef int mcError_t;
typedef struct fk_stream *mcStream_t;
typedef struct fk_event *mcEvent_t;
typedef void (*mcHostFn_t)(void *);
/* Layout not known; exported only with -DFAKE_POINTER_ATTRIBUTES. */
typedef struct { int type; int device; void *devicePointer; void *hostPointer; } mcPointerAttribute_t;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
mcError_t mcGetDevice(int *);
mcError_t mcSetDevice(int);
mcError_t mcGetDeviceCount(int *);
mcError_t mcDeviceSynchronize(void);
mcError_t mcStreamCreateWithFlags(mcStream_t *, unsigned);
mcError_t mcStreamDestroy(mcStream_t);
mcError_t mcStreamSynchronize(mcStream_t);
mcError_t mcStreamQuery(mcStream_t);
mcError_t mcStreamWaitEvent(mcStream_t, mcEvent_t, unsigned);
mcError_t mcEventCreateWithFlags(mcEvent_t *, unsigned);
mcError_t mcEventRecord(mcEvent_t, mcStream_t);
mcError_t mcEventRecordWithFlags(mcEvent_t, mcStream_t, unsigned);
mcError_t mcEventQuery(mcEvent_t);
mcError_t mcEventSynchronize(mcEvent_t);
mcError_t mcEventDestroy(mcEvent_t);
mcError_t mcEventElapsedTime(float *, mcEvent_t, mcEvent_t);
mcError_t mcMalloc(void **, size_t);
mcError_t mcFree(void *);
mcError_t mcMallocAsync(void **, size_t, mcStream_t);
mcError_t mcFreeAsync(void *, mcStream_t);
mcError_t mcMallocHost(void **, size_t);
mcError_t mcFreeHost(void *);
mcError_t mcMemcpy(void *, const void *, size_t, int);
mcError_t mcMemcpyAsync(void *, const void *, size_t, int, mcStream_t);
mcError_t mcMemset(void *, int, size_t);
mcError_t mcMemsetAsync(void *, int, size_t, mcStream_t);
mcError_t mcPointerGetAttributes(mcPointerAttribute_t *, const void *);
mcError_t mcGetLastError(void);
mcError_t mcPeekAtLastError(void);
const char *mcGetErrorString(mcError_t);
const char *mcGetErrorName(mcError_t);
mcError_t mcDeviceCanAccessPeer(int *, int, int);
mcError_t mcDeviceGetPCIBusId(char *, int, int);
mcError_t mcDeviceGetByPCIBusId(int *, const char *);
mcError_t mcLaunchHostFunc(mcStream_t, mcHostFn_t, void *);
#pragma GCC visibility pop
#endif
