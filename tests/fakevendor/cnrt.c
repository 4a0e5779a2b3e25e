/* Stand-in of CNRT (libcnrt.so, Cambricon). The current device of a thread is 0 until it sets one. A NULL queue is the
 * default one. */
#define _GNU_SOURCE
#include "abi/cnrt.h"
#include "odd_runtime.h"

static int translate(int code)
{
    switch (code) {
    case cudaSuccess: return cnrtSuccess;
    case cudaErrorInvalidValue: case cudaErrorInvalidMemcpyDirection: return cnrtErrorArgsInvalid;
    case cudaErrorMemoryAllocation: return cnrtErrorNoMem;
    case cudaErrorNotReady: return cnrtErrorNotReady;
    case cudaErrorInvalidDevice: return cnrtErrorDeviceInvalid;
    case cudaErrorInvalidResourceHandle: return cnrtErrorHandleInvalid;
    case cudaErrorNoDevice: return cnrtErrorNoDevice;
    default: return cnrtErrorUnknown;
    }
}

static int bound(void) { return core->bind() < 0; }
static int good(int ok) { return ok ? 0 : cnrtErrorArgsInvalid; }

/* The machine's number for a direction; one that it refuses for those that this stand-in has not. */
static int kind(cnrtMemTransDir_t dir)
{
    static const int kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToHost,
                                cudaMemcpyDeviceToDevice, cudaMemcpyDefault};
    return (unsigned)dir < sizeof kinds / sizeof *kinds ? kinds[dir] : -1;
}

#define CALL(fn, params, check, expr, ...) \
    EXPORT cnrtRet_t fn params \
    { \
        ENTER(fn); \
        STEP(bound()); \
        STEP(check); \
        MACHINE(expr); \
        LEAVE(fn, cnrtRet_t, __VA_ARGS__); \
    }
#define S(q) ((cudaStream_t)(q))
#define E(n) ((cudaEvent_t)(n))

EXPORT cnrtRet_t cnrtSetDevice(int device)
{
    ENTER(cnrtSetDevice);
    STEP(GOOD_DEVICE(device) ? 0 : cnrtErrorDeviceInvalid);
    if (!res)
        core->poke_device(device);
    LEAVE(cnrtSetDevice, cnrtRet_t, "%d", device);
}

EXPORT cnrtRet_t cnrtGetDevice(int *device)
{
    ENTER(cnrtGetDevice);
    STEP(good(device != NULL));
    if (!res)
        *device = core->peek_device() < 0 ? 0 : core->peek_device();
    LEAVE(cnrtGetDevice, cnrtRet_t, "%d", res ? -1 : *device);
}

EXPORT cnrtRet_t cnrtGetDeviceCount(unsigned int *count)
{
    ENTER(cnrtGetDeviceCount);
    STEP(good(count != NULL));
    if (!res)
        *count = (unsigned)core->count();
    LEAVE(cnrtGetDeviceCount, cnrtRet_t, "%d", res ? -1 : (int)*count);
}

CALL(cnrtSyncDevice, (void), 0, core->device_sync(), "%s", "")
CALL(cnrtQueueCreate, (cnrtQueue_t * q), good(q != NULL), core->stream_create((cudaStream_t *)q, cudaStreamNonBlocking), "%p",
     P(q && !res ? *q : NULL))
CALL(cnrtQueueDestroy, (cnrtQueue_t q), 0, core->stream_destroy(S(q)), "%p", P(q))
CALL(cnrtQueueSync, (cnrtQueue_t q), 0, core->stream_sync(S(q)), "%p", P(q))
CALL(cnrtQueueQuery, (cnrtQueue_t q), 0, core->stream_query(S(q)), "%p", P(q))
CALL(cnrtQueueWaitNotifier, (cnrtNotifier_t n, cnrtQueue_t q, unsigned int flag), good(!flag), core->stream_wait(S(q), E(n)),
     "%p, %p, %u", P(n), P(q), flag)
CALL(cnrtNotifierCreateWithFlags, (cnrtNotifier_t * n, unsigned int flags), good(n && flags < 8),
     core->event_create((cudaEvent_t *)n, flags & 6 ? cudaEventDisableTiming : 0), "%p, %u", P(n && !res ? *n : NULL), flags)
CALL(cnrtNotifierDestroy, (cnrtNotifier_t n), 0, core->event_destroy(E(n)), "%p", P(n))
CALL(cnrtPlaceNotifier, (cnrtNotifier_t n, cnrtQueue_t q), 0, core->event_record(E(n), S(q)), "%p, %p", P(n), P(q))
CALL(cnrtPlaceNotifierWithFlags, (cnrtNotifier_t n, cnrtQueue_t q, unsigned int flags), good(!flags),
     core->event_record(E(n), S(q)), "%p, %p, %u", P(n), P(q), flags)
CALL(cnrtWaitNotifier, (cnrtNotifier_t n), 0, core->event_query(E(n), true), "%p", P(n))
CALL(cnrtMalloc, (void **p, size_t n), good(p && n), core->mem_alloc(p, n, cudaMemoryTypeDevice, true), "%p, %zu",
     p && !res ? *p : NULL, n)
CALL(cnrtFree, (void *p), 0, core->mem_free(p, cudaMemoryTypeDevice, true), "%p", p)
CALL(cnrtHostMalloc, (void **p, size_t n), good(p && n), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu",
     p && !res ? *p : NULL, n)
CALL(cnrtFreeHost, (void *p), 0, core->mem_free(p, cudaMemoryTypeHost, true), "%p", p)
CALL(cnrtMemcpy, (void *d, void *s, size_t n, cnrtMemTransDir_t dir), 0, copy_now(d, s, n, kind(dir)), "%p, %p, %zu, %d", d, s, n,
     (int)dir)
CALL(cnrtMemcpyAsync_V2, (void *d, void *s, size_t n, cnrtQueue_t q, cnrtMemTransDir_t dir), 0,
     core->memcpy(d, s, n, kind(dir), S(q), false), "%p, %p, %zu, %p, %d", d, s, n, P(q), (int)dir)
CALL(cnrtMemsetAsync, (void *p, int v, size_t n, cnrtQueue_t q), 0, core->memset(p, v, n, S(q), false), "%p, %d, %zu, %p", p, v, n,
     P(q))
CALL(cnrtInvokeHostFunc, (cnrtQueue_t q, cnrtHostFn_t fn, void *arg), good(fn != NULL), core->host_func(S(q), fn, arg), "%p, %p",
     P(q), arg)

CALL(cnrtNotifierElapsedTime, (cnrtNotifier_t a, cnrtNotifier_t b, float *ms), 0, core->event_elapsed(ms, E(a), E(b)), "%p, %p", P(a),
     P(b))

/* Not reached yet has another number than a queue at work. */
EXPORT cnrtRet_t cnrtQueryNotifier(cnrtNotifier_t n)
{
    ENTER(cnrtQueryNotifier);
    MACHINE(core->event_query(E(n), false));
    if (res == cnrtErrorNotReady)
        res = cnrtErrorBusy;
    LEAVE(cnrtQueryNotifier, cnrtRet_t, "%p", P(n));
}

EXPORT cnrtRet_t cnrtPointerGetAttributes(cnrtPointerAttributes_t *a, const void *p)
{
    ENTER(cnrtPointerGetAttributes);
    struct fk_memory m;
    STEP(good(a != NULL));
    if (!res) {
        memset(a, 0, sizeof *a);
        if (core->lookup(p, &m)) {
            a->type = m.type == cudaMemoryTypeHost ? cnrtMemTypeHost : cnrtMemTypeDevice;
            a->device = m.device;
            a->devicePointer = (void *)p;
        }
    }
    LEAVE(cnrtPointerGetAttributes, cnrtRet_t, "%p", p);
}

EXPORT cnrtRet_t cnrtGetPeerAccessibility(unsigned int *can, int device, int peer)
{
    ENTER(cnrtGetPeerAccessibility);
    STEP(good(can != NULL));
    STEP(GOOD_DEVICE(device) && GOOD_DEVICE(peer) ? 0 : cnrtErrorDeviceInvalid);
    if (!res)
        *can = device != peer;
    LEAVE(cnrtGetPeerAccessibility, cnrtRet_t, "%d, %d", device, peer);
}

EXPORT cnrtRet_t cnrtDeviceGetPCIBusId(char *out, int len, int device)
{
    ENTER(cnrtDeviceGetPCIBusId);
    STEP(good(out && len > 0));
    STEP(GOOD_DEVICE(device) ? 0 : cnrtErrorDeviceInvalid);
    if (!res)
        core->pci_bus_id(out, len, device);
    LEAVE(cnrtDeviceGetPCIBusId, cnrtRet_t, "%d, %d", len, device);
}

EXPORT cnrtRet_t cnrtGetLastError(void)
{
    static struct fk_site site = {.name = "cnrtGetLastError"};
    int res = fk_enter(&site, NULL, 0);
    STEP(t_last);
    t_last = 0;
    fk_log("cnrtGetLastError", res, "%s", "");
    return (cnrtRet_t)res;
}

EXPORT const char *cnrtGetErrorStr(cnrtRet_t code)
{
    switch (code) {
    case cnrtSuccess: return "success";
    case cnrtErrorArgsInvalid: return "an argument is not valid";
    case cnrtErrorNoMem: return "no memory is left";
    case cnrtErrorNotReady: return "the work is not over yet";
    case cnrtErrorBusy: return "the device is busy";
    case cnrtErrorDeviceInvalid: return "there is no such device";
    case cnrtErrorHandleInvalid: return "a handle is not valid";
    case cnrtErrorNoDevice: return "there is no device";
    default: return "unknown error";
    }
}
