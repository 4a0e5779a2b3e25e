/* Minimal declarations of the MUSA runtime ABI (Moore Threads). The real number of musaErrorNotReady is not known: here it
 * is not CUDA's, so that it must be asked for by name. */
#ifndef FAKE_ABI_MUSA_H
#define FAKE_ABI_MUSA_H
#include <stddef.h>
#include <stdint.h>

enum { musaSuccess = 0, musaErrorNotReady = 34 };
enum { musaMemcpyHostToHost, musaMemcpyHostToDevice, musaMemcpyDeviceToHost, musaMemcpyDeviceToDevice, musaMemcpyDefault };
enum { musaMemoryTypeUnregistered, musaMemoryTypeHost, musaMemoryTypeDevice, musaMemoryTypeManaged };
enum { musaStreamNonBlocking = 1, musaEventDisableTiming = 2 };

typedef int musaError_t;
typedef struct fk_stream *musaStream_t;
typedef struct fk_event *musaEvent_t;
typedef void (*musaHostFn_t)(void *);
typedef struct { int type; int device; void *devicePointer; void *hostPointer; } musaPointerAttributes;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
musaError_t musaGetDevice(int *);
musaError_t musaSetDevice(int);
musaError_t musaGetDeviceCount(int *);
musaError_t musaDeviceSynchronize(void);
musaError_t musaStreamCreateWithFlags(musaStream_t *, unsigned);
musaError_t musaStreamDestroy(musaStream_t);
musaError_t musaStreamSynchronize(musaStream_t);
musaError_t musaStreamQuery(musaStream_t);
musaError_t musaStreamWaitEvent(musaStream_t, musaEvent_t, unsigned);
musaError_t musaEventCreateWithFlags(musaEvent_t *, unsigned);
musaError_t musaEventRecord(musaEvent_t, musaStream_t);
musaError_t musaEventRecordWithFlags(musaEvent_t, musaStream_t, unsigned);
musaError_t musaEventQuery(musaEvent_t);
musaError_t musaEventSynchronize(musaEvent_t);
musaError_t musaEventDestroy(musaEvent_t);
musaError_t musaEventElapsedTime(float *, musaEvent_t, musaEvent_t);
musaError_t musaMalloc(void **, size_t);
musaError_t musaFree(void *);
musaError_t musaMallocHost(void **, size_t);
musaError_t musaFreeHost(void *);
musaError_t musaMemcpyAsync(void *, const void *, size_t, int, musaStream_t);
musaError_t musaMemcpy(void *, const void *, size_t, int);
musaError_t musaMemsetAsync(void *, int, size_t, musaStream_t);
musaError_t musaMemcpyPeerAsync(void *, int, const void *, int, size_t, musaStream_t);
musaError_t musaPointerGetAttributes(musaPointerAttributes *, const void *);
musaError_t musaGetLastError(void);
musaError_t musaPeekAtLastError(void);
const char *musaGetErrorString(musaError_t);
const char *musaGetErrorName(musaError_t);
musaError_t musaDeviceCanAccessPeer(int *, int, int);
musaError_t musaDeviceGetPCIBusId(char *, int, int);
musaError_t musaLaunchHostFunc(musaStream_t, musaHostFn_t, void *);
#pragma GCC visibility pop
#endif
