/* Minimal declarations of CNRT's ABI (Cambricon): only what the stand-in implements. */
#ifndef FAKE_ABI_CNRT_H
#define FAKE_ABI_CNRT_H
#include <stddef.h>
#include <stdint.h>

typedef struct cnrtQueueSt *cnrtQueue_t;
typedef struct cnrtNotifierSt *cnrtNotifier_t;
typedef void (*cnrtHostFn_t)(void *);

/* The 0 is certain. NotReady, Busy and NoDevice are what is said of the real ones, unconfirmed; with FAKE_CNRT_ODD_NUMBERS
 * they are others, which only who has been told them can know: no function tells their names. The rest is the stand-in's own. */
typedef enum {
    cnrtSuccess = 0,
    cnrtErrorArgsInvalid = 517,
    cnrtErrorNoMem = 523,
    cnrtErrorDeviceInvalid = 541,
    cnrtErrorHandleInvalid = 547,
    cnrtErrorUnknown = 563,
#ifdef FAKE_CNRT_ODD_NUMBERS
    cnrtErrorNotReady = 531,
    cnrtErrorBusy = 537,
    cnrtErrorNoDevice = 557
#else
    cnrtErrorNotReady = 1,      /* what cnrtQueueQuery says of a queue at work */
    cnrtErrorBusy = 632014,     /* what cnrtQueryNotifier says of a notifier not reached yet */
    cnrtErrorNoDevice = 100004
#endif
} cnrtRet_t;

/* The numbers are unconfirmed. */
typedef enum {
    cnrtMemcpyHostToDev = 0, cnrtMemcpyDevToDev = 1, cnrtMemcpyDevToHost = 2, cnrtMemcpyHostToHost = 3,
    cnrtMemcpyPeerToPeer = 4, cnrtMemcpyNoDirection = 5
} cnrtMemTransDir_t;

/* Unconfirmed too. */
typedef enum { cnrtMemTypeUnregistered = 0, cnrtMemTypeHost = 1, cnrtMemTypeDevice = 2 } cnrtMemType_t;
typedef struct { cnrtMemType_t type; int device; void *devicePointer; void *hostPointer; } cnrtPointerAttributes_t;

cnrtRet_t cnrtSetDevice(int device);
cnrtRet_t cnrtGetDevice(int *device);
cnrtRet_t cnrtGetDeviceCount(unsigned int *count);
cnrtRet_t cnrtSyncDevice(void);
cnrtRet_t cnrtQueueCreate(cnrtQueue_t *queue);
cnrtRet_t cnrtQueueDestroy(cnrtQueue_t queue);
cnrtRet_t cnrtQueueSync(cnrtQueue_t queue);
cnrtRet_t cnrtQueueQuery(cnrtQueue_t queue);
cnrtRet_t cnrtQueueWaitNotifier(cnrtNotifier_t notifier, cnrtQueue_t queue, unsigned int flag);
cnrtRet_t cnrtNotifierCreateWithFlags(cnrtNotifier_t *notifier, unsigned int flags);
cnrtRet_t cnrtNotifierDestroy(cnrtNotifier_t notifier);
cnrtRet_t cnrtPlaceNotifier(cnrtNotifier_t notifier, cnrtQueue_t queue);
cnrtRet_t cnrtPlaceNotifierWithFlags(cnrtNotifier_t notifier, cnrtQueue_t queue, unsigned int flags);
cnrtRet_t cnrtQueryNotifier(cnrtNotifier_t notifier);
cnrtRet_t cnrtWaitNotifier(cnrtNotifier_t notifier);
cnrtRet_t cnrtNotifierElapsedTime(cnrtNotifier_t start, cnrtNotifier_t end, float *ms);
cnrtRet_t cnrtMalloc(void **ptr, size_t size);
cnrtRet_t cnrtFree(void *ptr);
cnrtRet_t cnrtHostMalloc(void **ptr, size_t size);
cnrtRet_t cnrtFreeHost(void *ptr);
cnrtRet_t cnrtMemcpy(void *dst, void *src, size_t n, cnrtMemTransDir_t dir);
cnrtRet_t cnrtMemcpyAsync_V2(void *dst, void *src, size_t n, cnrtQueue_t queue, cnrtMemTransDir_t dir);
cnrtRet_t cnrtMemsetAsync(void *ptr, int value, size_t n, cnrtQueue_t queue);
cnrtRet_t cnrtPointerGetAttributes(cnrtPointerAttributes_t *attributes, const void *ptr);
cnrtRet_t cnrtGetPeerAccessibility(unsigned int *can, int device, int peer);
cnrtRet_t cnrtGetLastError(void);
const char *cnrtGetErrorStr(cnrtRet_t code);
cnrtRet_t cnrtInvokeHostFunc(cnrtQueue_t queue, cnrtHostFn_t fn, void *arg);
cnrtRet_t cnrtDeviceGetPCIBusId(char *out, int len, int device);
#endif
