/* Minimal declarations of the Tops runtime ABI (Enflame). */
#ifndef FAKE_ABI_TOPS_H
#define FAKE_ABI_TOPS_H
#include <stddef.h>
#include <stdint.h>

enum {
    topsSuccess = 0,
    topsErrorInvalidValue = 1,
    topsErrorInvalidHandle = 400,
    topsErrorNotReady = 600,
    topsErrorPeerAccessAlreadyEnabled = 704,
    topsErrorNotSupported = 801
};
enum { topsMemcpyHostToHost, topsMemcpyHostToDevice, topsMemcpyDeviceToHost, topsMemcpyDeviceToDevice, topsMemcpyDefault };
enum { topsMemoryTypeHost = 1, topsMemoryTypeDevice = 2, topsMemoryTypeScatter = 4, topsMemoryTypeLazy = 8 };

typedef int topsError_t;
typedef struct fk_stream *topsStream_t;
typedef struct fk_event *topsEvent_t;
typedef void (*topsHostFn_t)(void *);
typedef struct {
    int memoryType;
    int device;
    void *devicePointer;
    void *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} topsPointerAttribute_t;
_Static_assert(sizeof(topsPointerAttribute_t) == 32, "as in the real header");

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
topsError_t topsGetDevice(int *);
topsError_t topsSetDevice(int);
topsError_t topsGetDeviceCount(int *);
topsError_t topsDeviceSynchronize(void);
topsError_t topsStreamCreate(topsStream_t *);
topsError_t topsStreamCreateWithFlags(topsStream_t *, unsigned);
topsError_t topsStreamDestroy(topsStream_t);
topsError_t topsStreamSynchronize(topsStream_t);
topsError_t topsStreamQuery(topsStream_t);
topsError_t topsStreamWaitEvent(topsStream_t, topsEvent_t, unsigned);
topsError_t topsEventCreateWithFlags(topsEvent_t *, unsigned);
topsError_t topsEventRecord(topsEvent_t, topsStream_t);
topsError_t topsEventQuery(topsEvent_t);
topsError_t topsEventSynchronize(topsEvent_t);
topsError_t topsEventDestroy(topsEvent_t);
topsError_t topsEventElapsedTime(float *, topsEvent_t, topsEvent_t);
topsError_t topsMalloc(void **, size_t);
topsError_t topsFree(void *);
topsError_t topsMallocAsync(void **, size_t, topsStream_t, unsigned); /* four arguments */
topsError_t topsFreeAsync(void *, topsStream_t);
topsError_t topsHostMalloc(void **, size_t, unsigned);
topsError_t topsHostFree(void *);
topsError_t topsMemcpy(void *, const void *, size_t, int);
topsError_t topsMemcpyAsync(void *, const void *, size_t, int, topsStream_t);
topsError_t topsMemset(void *, int, size_t);
topsError_t topsMemsetAsync(void *, int, size_t, topsStream_t);
topsError_t topsPointerGetAttributes(topsPointerAttribute_t *, const void *);
topsError_t topsGetLastError(void);
topsError_t topsPeekAtLastError(void);
const char *topsGetErrorString(topsError_t);
const char *topsGetErrorName(topsError_t);
topsError_t topsDeviceCanAccessPeer(int *, int, int);
topsError_t topsDeviceGetPCIBusId(char *, int, int);
topsError_t topsLaunchHostFunc(topsStream_t, topsHostFn_t, void *);
#pragma GCC visibility pop
#endif
