/* Minimal declarations of the Tang runtime ABI (Sunrise), as in its public header. */
#ifndef FAKE_ABI_TANG_H
#define FAKE_ABI_TANG_H
#include <stddef.h>
#include <stdint.h>

enum { tangSuccess = 0, tangErrorNotReady = 600 };
enum { tangMemcpyHostToHost, tangMemcpyHostToDevice, tangMemcpyDeviceToHost, tangMemcpyDeviceToDevice, tangMemcpyDefault };
enum { tangStreamNonBlocking = 1, tangEventDisableTiming = 2 };

typedef int tangError_t;
typedef struct fk_stream *tangStream_t;
typedef struct fk_event *tangEvent_t;
typedef void (*tangHostFn_t)(void *);
typedef struct { int type; int device; void *devicePointer; void *hostPointer; } tangPointerAttributes;

/* What is declared here is what the library exports. */
#pragma GCC visibility push(default)
tangError_t tangGetDevice(int *);
tangError_t tangSetDevice(int);
tangError_t tangGetDeviceCount(int *);
tangError_t tangDeviceSynchronize(void);
tangError_t tangStreamCreateWithFlags(tangStream_t *, unsigned);
tangError_t tangStreamDestroy(tangStream_t);
tangError_t tangStreamSynchronize(tangStream_t);
tangError_t tangStreamQuery(tangStream_t);
tangError_t tangStreamIsCapturing(tangStream_t, int *);
tangError_t tangThreadExchangeStreamCaptureMode(int *);
tangError_t tangStreamWaitEvent(tangStream_t, tangEvent_t, unsigned);
tangError_t tangEventCreateWithFlags(tangEvent_t *, unsigned);
tangError_t tangEventRecord(tangEvent_t, tangStream_t);
tangError_t tangEventRecordWithFlags(tangEvent_t, tangStream_t, unsigned);
tangError_t tangEventQuery(tangEvent_t);
tangError_t tangEventSynchronize(tangEvent_t);
tangError_t tangEventDestroy(tangEvent_t);
tangError_t tangEventElapsedTime(float *, tangEvent_t, tangEvent_t);
tangError_t tangMalloc(void **, size_t);
tangError_t tangFree(void *);
tangError_t tangMallocAsync(void **, size_t, tangStream_t);
tangError_t tangFreeAsync(void *, tangStream_t);
tangError_t tangMallocHost(void **, size_t);
tangError_t tangHostAlloc(void **, size_t, unsigned);
tangError_t tangFreeHost(void *);
tangError_t tangMemcpy(void *, const void *, size_t, int);
tangError_t tangMemcpyAsync(void *, const void *, size_t, int, tangStream_t);
tangError_t tangMemset(void *, int, size_t);
tangError_t tangMemsetAsync(void *, int, size_t, tangStream_t);
tangError_t tangPointerGetAttributes(tangPointerAttributes *, const void *);
tangError_t tangGetLastError(void);
tangError_t tangPeekAtLastError(void);
const char *tangGetErrorString(tangError_t);
const char *tangGetErrorName(tangError_t);
tangError_t tangDeviceCanAccessPeer(int *, int, int);
tangError_t tangDeviceGetPCIBusId(char *, int, int);
tangError_t tangLaunchHostFunc(tangStream_t, tangHostFn_t, void *);
#pragma GCC visibility pop
#endif
