/* Minimal declarations of the HIP runtime ABI (AMD; Hygon has it under another file name). */
#ifndef FAKE_ABI_HIP_H
#define FAKE_ABI_HIP_H
#include <stddef.h>
#include <stdint.h>

enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNotInitialized = 3,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidHandle = 400,
    hipErrorNotReady = 600,
    hipErrorIllegalAddress = 700,
    hipErrorPeerAccessAlreadyEnabled = 704
};
enum { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum { hipStreamNonBlocking = 1, hipEventDisableTiming = 2 };
/* The numbers of memory types up to ROCm 5, and from ROCm 6 on. */
enum { hipMemoryTypeHost5 = 0, hipMemoryTypeDevice5 = 1, hipMemoryTypeArray5 = 2, hipMemoryTypeUnified5 = 3 };
enum { hipMemoryTypeUnregistered = 0, hipMemoryTypeHost = 1, hipMemoryTypeDevice = 2, hipMemoryTypeManaged = 3,
       hipMemoryTypeArray = 10, hipMemoryTypeUnified = 11 };

typedef int hipError_t;
typedef struct fk_stream *hipStream_t;
typedef struct fk_event *hipEvent_t;
typedef void (*hipHostFn_t)(void *);
typedef struct fk_graph *hipGraph_t;
typedef struct fk_graph *hipGraphExec_t;
typedef struct fk_graph_node *hipGraphNode_t;
typedef struct {
    int type; /* called memoryType up to ROCm 5 */
    int device;
    void *devicePointer;
    void *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;
_Static_assert(sizeof(hipPointerAttribute_t) == 32, "as in the real header");

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
hipError_t hipGetDevice(int *);
hipError_t hipSetDevice(int);
hipError_t hipGetDeviceCount(int *);
hipError_t hipDeviceSynchronize(void);
hipError_t hipRuntimeGetVersion(int *);
hipError_t hipDriverGetVersion(int *);
hipError_t hipStreamCreate(hipStream_t *);
hipError_t hipStreamCreateWithPriority(hipStream_t *, unsigned, int);
hipError_t hipStreamGetFlags(hipStream_t, unsigned *);
hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned);
hipError_t hipStreamDestroy(hipStream_t);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
hipError_t hipEventCreateWithFlags(hipEvent_t *, unsigned);
hipError_t hipEventCreate(hipEvent_t *);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipEventQuery(hipEvent_t);
hipError_t hipEventSynchronize(hipEvent_t);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipEventElapsedTime(float *, hipEvent_t, hipEvent_t);
hipError_t hipMalloc(void **, size_t);
hipError_t hipFree(void *);
hipError_t hipMallocAsync(void **, size_t, hipStream_t);
hipError_t hipFreeAsync(void *, hipStream_t);
hipError_t hipHostMalloc(void **, size_t, unsigned);
hipError_t hipHostFree(void *);
hipError_t hipHostRegister(void *, size_t, unsigned);
hipError_t hipHostUnregister(void *);
hipError_t hipHostGetDevicePointer(void **, void *, unsigned);
hipError_t hipMemcpy(void *, const void *, size_t, int);
hipError_t hipMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
hipError_t hipMemset(void *, int, size_t);
hipError_t hipMemsetAsync(void *, int, size_t, hipStream_t);
hipError_t hipMemGetInfo(size_t *, size_t *);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *, const void *);
hipError_t hipGetLastError(void);
hipError_t hipPeekAtLastError(void);
const char *hipGetErrorString(hipError_t);
const char *hipGetErrorName(hipError_t);
hipError_t hipDeviceCanAccessPeer(int *, int, int);
hipError_t hipDeviceEnablePeerAccess(int, unsigned);
hipError_t hipDeviceGetP2PAttribute(int *, int, int, int);
hipError_t hipExtGetLinkTypeAndHopCount(int, int, uint32_t *, uint32_t *);
hipError_t hipDeviceGetPCIBusId(char *, int, int);
hipError_t hipDeviceGetByPCIBusId(int *, const char *);
hipError_t hipLaunchHostFunc(hipStream_t, hipHostFn_t, void *);
hipError_t hipStreamBeginCapture(hipStream_t, int);
hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t *);
hipError_t hipStreamIsCapturing(hipStream_t, int *);
hipError_t hipThreadExchangeStreamCaptureMode(int *);
hipError_t hipGraphInstantiate(hipGraphExec_t *, hipGraph_t, hipGraphNode_t *, char *, size_t);
hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t);
hipError_t hipGraphDestroy(hipGraph_t);
hipError_t hipGraphExecDestroy(hipGraphExec_t);
#pragma GCC visibility pop
#endif
