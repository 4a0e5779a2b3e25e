/* Minimal declarations of the ACL runtime's ABI (Ascend): only what the stand-in implements. */
#ifndef FAKE_ABI_ACL_H
#define FAKE_ABI_ACL_H
#include <stddef.h>
#include <stdint.h>

typedef int aclError;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;
typedef void (*aclrtCallback)(void *);

/* The first two numbers are the vendor's. The others are the stand-in's own: known is only that they are 107xxx, 207xxx
 * and 507xxx. */
enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_REPEAT_INITIALIZE = 100002,
    FAKE_ACL_PARAM = 107000,
    FAKE_ACL_DEVICE = 107001,
    FAKE_ACL_NO_CONTEXT = 107002,
    FAKE_ACL_STREAM = 107003,
    FAKE_ACL_EVENT = 107004,
    FAKE_ACL_MEMORY = 207001,
    FAKE_ACL_INTERNAL = 507000,
    FAKE_ACL_SYNC_TIMEOUT = 507046
};

enum { ACL_MEM_MALLOC_HUGE_FIRST = 0 };
enum { ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE,
       ACL_MEMCPY_DEFAULT };
enum { ACL_STREAM_FAST_LAUNCH = 1, ACL_STREAM_FAST_SYNC = 2 };
enum { ACL_EVENT_SYNC = 1, ACL_EVENT_CAPTURE_STREAM_PROGRESS = 2, ACL_EVENT_TIME_LINE = 8 };
/* The two questions about an event have opposite answers. */
enum { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1 };
enum { ACL_EVENT_RECORDED_STATUS_NOT_READY = 0, ACL_EVENT_RECORDED_STATUS_COMPLETE = 1 };
enum { ACL_EVENT_WAIT_STATUS_COMPLETE = 0, ACL_EVENT_WAIT_STATUS_NOT_READY = 1 };
enum { ACL_MEM_LOCATION_HOST, ACL_MEM_LOCATION_DEVICE, ACL_MEM_LOCATION_UNREGISTERED };
enum { ACL_RT_THREAD_LEVEL = 0 };

typedef struct {
    struct { uint32_t id; int type; } location;
    uint32_t pageSize;
    uint32_t rsv[4];
} aclrtPtrAttributes;
_Static_assert(sizeof(aclrtPtrAttributes) == 28, "as in the real header");

aclError aclInit(const char *config);
aclError aclrtSetDevice(int32_t device);
aclError aclrtGetDevice(int32_t *device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtGetCurrentContext(aclrtContext *context);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtSynchronizeDevice(void);
aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms);
aclError aclrtStreamQuery(aclrtStream stream, int *status);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtCreateEvent(aclrtEvent *event);
aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtEventElapsedTime(float *ms, aclrtEvent start, aclrtEvent end);
aclError aclrtQueryEventStatus(aclrtEvent event, int *status);
aclError aclrtQueryEventWaitStatus(aclrtEvent event, int *status);
aclError aclrtMalloc(void **ptr, size_t size, int policy);
aclError aclrtFree(void *ptr);
aclError aclrtMallocHost(void **ptr, size_t size);
aclError aclrtFreeHost(void *ptr);
aclError aclrtMemcpy(void *dst, size_t dest_max, const void *src, size_t n, int kind);
aclError aclrtMemcpyAsync(void *dst, size_t dest_max, const void *src, size_t n, int kind, aclrtStream stream);
aclError aclrtMemset(void *ptr, size_t max, int32_t value, size_t n);
aclError aclrtMemsetAsync(void *ptr, size_t max, int32_t value, size_t n, aclrtStream stream);
aclError aclrtPeekAtLastError(int level);
aclError aclrtGetLastError(int level);
aclError aclrtPointerGetAttributes(const void *ptr, aclrtPtrAttributes *attributes);
aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer);
aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags);
aclError aclrtDevicePeerAccessStatus(int32_t device, int32_t peer, int32_t *status);
aclError aclrtGetDevicesTopo(uint32_t device, uint32_t other, uint64_t *topo);
aclError aclrtLaunchCallback(aclrtCallback fn, void *arg, int block, aclrtStream stream);
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtCallback fn, void *arg);
#endif
