/* Stand-in of the ACL runtime (libascendcl.so, Ascend). A thread has no device until it sets one, and there is no default
 * stream. */
#define _GNU_SOURCE
#include "abi/acl.h"
#include "odd_runtime.h"

static struct context { int device; } contexts[64];

static int translate(int code)
{
    switch (code) {
    case cudaSuccess: return ACL_SUCCESS;
    case cudaErrorInvalidValue: case cudaErrorInvalidMemcpyDirection: return FAKE_ACL_PARAM;
    case cudaErrorMemoryAllocation: return FAKE_ACL_MEMORY;
    case cudaErrorNoDevice: case cudaErrorInvalidDevice: return FAKE_ACL_DEVICE;
    case cudaErrorInvalidResourceHandle: return FAKE_ACL_STREAM;
    default: return FAKE_ACL_INTERNAL;
    }
}

static int bound(void) { return core->peek_device() < 0 ? FAKE_ACL_NO_CONTEXT : 0; }
/* The smallest numbers are names of default streams to the machine, and no streams here. */
static int real(const void *handle, int otherwise) { return (uintptr_t)handle <= 2 ? otherwise : 0; }

/* Calls that need a context. */
#define CALL(fn, params, checks, expr, ...) \
    EXPORT aclError fn params \
    { \
        ENTER(fn); \
        STEP(bound()); \
        STEP(checks); \
        MACHINE(expr); \
        LEAVE(fn, aclError, __VA_ARGS__); \
    }
#define NEED(x) ((x) ? 0 : FAKE_ACL_PARAM)
#define STREAM(s) real(s, FAKE_ACL_STREAM)
#define EVENT(e) real(e, FAKE_ACL_EVENT)
#define BOTH(a, b) ((a) ? (a) : (b))

EXPORT aclError aclInit(const char *config)
{
    static atomic_int done;
    ENTER(aclInit);
    STEP(atomic_exchange(&done, 1) ? ACL_ERROR_REPEAT_INITIALIZE : 0);
    LEAVE(aclInit, aclError, "%s", config ? config : "NULL");
}

EXPORT aclError aclrtSetDevice(int32_t device)
{
    ENTER(aclrtSetDevice);
    STEP(GOOD_DEVICE(device) ? 0 : FAKE_ACL_DEVICE);
    if (!res)
        core->poke_device(device);
    LEAVE(aclrtSetDevice, aclError, "%d", device);
}

EXPORT aclError aclrtGetDevice(int32_t *device)
{
    ENTER(aclrtGetDevice);
    STEP(NEED(device));
    STEP(bound());
    if (!res)
        *device = core->peek_device();
    LEAVE(aclrtGetDevice, aclError, "%d", res ? -1 : *device);
}

EXPORT aclError aclrtResetDevice(int32_t device)
{
    ENTER(aclrtResetDevice);
    STEP(GOOD_DEVICE(device) ? 0 : FAKE_ACL_DEVICE);
    if (!res && core->peek_device() == device)
        core->poke_device(-1);
    LEAVE(aclrtResetDevice, aclError, "%d", device);
}

EXPORT aclError aclrtGetDeviceCount(uint32_t *count)
{
    ENTER(aclrtGetDeviceCount);
    STEP(NEED(count));
    if (!res)
        *count = (uint32_t)core->count();
    LEAVE(aclrtGetDeviceCount, aclError, "%d", res ? -1 : (int)*count);
}

EXPORT aclError aclrtGetCurrentContext(aclrtContext *context)
{
    ENTER(aclrtGetCurrentContext);
    STEP(NEED(context));
    STEP(bound());
    if (!res) {
        int d = core->peek_device();
        contexts[d].device = d;
        *context = &contexts[d];
    }
    LEAVE(aclrtGetCurrentContext, aclError, "%p", res ? NULL : *context);
}

EXPORT aclError aclrtSetCurrentContext(aclrtContext context)
{
    ENTER(aclrtSetCurrentContext);
    struct context *c = context;
    STEP(c >= contexts && c < contexts + core->count() ? 0 : FAKE_ACL_NO_CONTEXT);
    if (!res)
        core->poke_device(c->device);
    LEAVE(aclrtSetCurrentContext, aclError, "%p", context);
}

CALL(aclrtSynchronizeDevice, (void), 0, core->device_sync(), "%s", "")
CALL(aclrtCreateStream, (aclrtStream * s), NEED(s), core->stream_create((cudaStream_t *)s, cudaStreamNonBlocking), "%p",
     s && !res ? *s : NULL)
CALL(aclrtCreateStreamWithConfig, (aclrtStream * s, uint32_t priority, uint32_t flag), NEED(s && !(flag & ~3u)),
     core->stream_create((cudaStream_t *)s, cudaStreamNonBlocking), "%p, %u, %u", s && !res ? *s : NULL, priority, flag)
CALL(aclrtDestroyStream, (aclrtStream s), STREAM(s), core->stream_destroy(s), "%p", s)
CALL(aclrtSynchronizeStream, (aclrtStream s), STREAM(s), core->stream_sync(s), "%p", s)
CALL(aclrtStreamWaitEvent, (aclrtStream s, aclrtEvent e), BOTH(STREAM(s), EVENT(e)), core->stream_wait(s, e), "%p, %p", s, e)
CALL(aclrtDestroyEvent, (aclrtEvent e), EVENT(e), core->event_destroy(e), "%p", e)
CALL(aclrtRecordEvent, (aclrtEvent e, aclrtStream s), BOTH(EVENT(e), STREAM(s)), core->event_record(e, s), "%p, %p", e, s)
CALL(aclrtSynchronizeEvent, (aclrtEvent e), EVENT(e), core->event_query(e, true), "%p", e)
CALL(aclrtEventElapsedTime, (float *ms, aclrtEvent a, aclrtEvent b), BOTH(EVENT(a), EVENT(b)), core->event_elapsed(ms, a, b),
     "%p, %p", a, b)
CALL(aclrtMalloc, (void **p, size_t n, int policy), NEED(p && n && policy >= 0),
     core->mem_alloc(p, n, cudaMemoryTypeDevice, true), "%p, %zu, %d", p && !res ? *p : NULL, n, policy)
CALL(aclrtFree, (void *p), NEED(p), core->mem_free(p, cudaMemoryTypeDevice, true), "%p", p)
CALL(aclrtMallocHost, (void **p, size_t n), NEED(p && n), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu",
     p && !res ? *p : NULL, n)
CALL(aclrtFreeHost, (void *p), NEED(p), core->mem_free(p, cudaMemoryTypeHost, true), "%p", p)
CALL(aclrtMemcpy, (void *d, size_t max, const void *s, size_t n, int kind), NEED(n <= max), copy_now(d, s, n, kind),
     "%p, %zu, %p, %zu, %d", d, max, s, n, kind)
CALL(aclrtMemcpyAsync, (void *d, size_t max, const void *s, size_t n, int kind, aclrtStream st), BOTH(NEED(n <= max), STREAM(st)),
     core->memcpy(d, s, n, kind, st, false), "%p, %zu, %p, %zu, %d, %p", d, max, s, n, kind, st)
CALL(aclrtMemset, (void *p, size_t max, int32_t v, size_t n), NEED(n <= max), set_now(p, v, n), "%p, %zu, %d, %zu", p, max, v, n)
CALL(aclrtMemsetAsync, (void *p, size_t max, int32_t v, size_t n, aclrtStream s), BOTH(NEED(n <= max), STREAM(s)),
     core->memset(p, v, n, s, false), "%p, %zu, %d, %zu, %p", p, max, v, n, s)
CALL(aclrtDeviceEnablePeerAccess, (int32_t peer, uint32_t flags), NEED(!flags), core->peer_enable(peer), "%d, %u", peer, flags)
CALL(aclrtLaunchCallback, (aclrtCallback fn, void *arg, int block, aclrtStream s), BOTH(NEED(fn && (block == 0 || block == 1)), STREAM(s)),
     core->host_func(s, fn, arg), "%p, %d, %p", arg, block, s)
CALL(aclrtLaunchHostFunc, (aclrtStream s, aclrtCallback fn, void *arg), BOTH(NEED(fn), STREAM(s)), core->host_func(s, fn, arg),
     "%p, %p", s, arg)

EXPORT aclError aclrtSynchronizeStreamWithTimeout(aclrtStream s, int32_t ms)
{
    ENTER(aclrtSynchronizeStreamWithTimeout);
    STEP(bound());
    STEP(STREAM(s));
    for (int32_t left = ms; !res;) {
        int r = core->stream_query(s);
        if (!r)
            break;
        if (r != cudaErrorNotReady)
            res = translate(r);
        else if (ms >= 0 && left-- <= 0)
            res = FAKE_ACL_SYNC_TIMEOUT;
        else
            fk_msleep(1);
    }
    LEAVE(aclrtSynchronizeStreamWithTimeout, aclError, "%p, %d", s, ms);
}

/* Whether something is over; not being so is no error. */
static int over(int r, int *status, int yes, int no)
{
    *status = r == cudaErrorNotReady ? no : yes;
    return r == cudaErrorNotReady ? 0 : translate(r);
}

#define QUESTION(fn, check, expr, yes, no) \
    EXPORT aclError fn(void *h, int *status) \
    { \
        ENTER(fn); \
        STEP(bound()); \
        STEP(BOTH(check, NEED(status))); \
        STEP(over(expr, status, yes, no)); \
        LEAVE(fn, aclError, "%p, %d", h, res ? -1 : *status); \
    }
QUESTION(aclrtStreamQuery, STREAM(h), core->stream_query(h), ACL_STREAM_STATUS_COMPLETE, ACL_STREAM_STATUS_NOT_READY)
QUESTION(aclrtQueryEventStatus, EVENT(h), core->event_query(h, false), ACL_EVENT_RECORDED_STATUS_COMPLETE,
         ACL_EVENT_RECORDED_STATUS_NOT_READY)
QUESTION(aclrtQueryEventWaitStatus, EVENT(h), core->event_query(h, false), ACL_EVENT_WAIT_STATUS_COMPLETE,
         ACL_EVENT_WAIT_STATUS_NOT_READY)

#define CREATE_EVENT(fn, params, flags, ...) \
    CALL(fn, params, NEED(e && (flags) && !((flags) & ~11u)), \
         core->event_create((cudaEvent_t *)e, (flags) & ACL_EVENT_TIME_LINE ? 0 : cudaEventDisableTiming), "%p, %u", \
         e && !res ? *e : NULL, (unsigned)(flags))
CREATE_EVENT(aclrtCreateEvent, (aclrtEvent * e), ACL_EVENT_TIME_LINE)
CREATE_EVENT(aclrtCreateEventWithFlag, (aclrtEvent * e, uint32_t flag), flag)
CREATE_EVENT(aclrtCreateEventExWithFlag, (aclrtEvent * e, uint32_t flag), flag)

EXPORT aclError aclrtResetEvent(aclrtEvent e, aclrtStream s)
{
    ENTER(aclrtResetEvent);
    STEP(bound());
    STEP(BOTH(EVENT(e), STREAM(s)));
    LEAVE(aclrtResetEvent, aclError, "%p, %p", e, s);
}

EXPORT aclError aclrtPointerGetAttributes(const void *p, aclrtPtrAttributes *a)
{
    ENTER(aclrtPointerGetAttributes);
    struct fk_memory m;
    STEP(bound());
    STEP(NEED(a));
    if (!res) {
        memset(a, 0, sizeof *a);
        a->location.type = ACL_MEM_LOCATION_UNREGISTERED;
        if (core->lookup(p, &m)) {
            a->location.id = (uint32_t)m.device;
            a->location.type = m.type == cudaMemoryTypeHost ? ACL_MEM_LOCATION_HOST : ACL_MEM_LOCATION_DEVICE;
            a->pageSize = 4096;
        }
    }
    LEAVE(aclrtPointerGetAttributes, aclError, "%p", p);
}

EXPORT aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    ENTER(aclrtDeviceCanAccessPeer);
    STEP(NEED(can));
    STEP(GOOD_DEVICE(device) && GOOD_DEVICE(peer) ? 0 : FAKE_ACL_DEVICE);
    if (!res)
        *can = device != peer;
    LEAVE(aclrtDeviceCanAccessPeer, aclError, "%d, %d", device, peer);
}

EXPORT aclError aclrtDevicePeerAccessStatus(int32_t device, int32_t peer, int32_t *status)
{
    ENTER(aclrtDevicePeerAccessStatus);
    STEP(NEED(status));
    STEP(GOOD_DEVICE(device) && GOOD_DEVICE(peer) ? 0 : FAKE_ACL_DEVICE);
    if (!res)
        *status = device != peer;
    LEAVE(aclrtDevicePeerAccessStatus, aclError, "%d, %d", device, peer);
}

EXPORT aclError aclrtGetDevicesTopo(uint32_t device, uint32_t other, uint64_t *topo)
{
    ENTER(aclrtGetDevicesTopo);
    STEP(NEED(topo));
    STEP(GOOD_DEVICE((int)device) && GOOD_DEVICE((int)other) ? 0 : FAKE_ACL_DEVICE);
    if (!res)
        *topo = 1; /* HCCS */
    LEAVE(aclrtGetDevicesTopo, aclError, "%u, %u", device, other);
}

#define LAST_ERROR(fn, forget) \
    EXPORT aclError fn(int level) \
    { \
        static struct fk_site site = {.name = #fn}; \
        int res = fk_enter(&site, NULL, 0); \
        STEP(level ? FAKE_ACL_PARAM : t_last); \
        if (forget) \
            t_last = 0; \
        fk_log(#fn, res, "%d", level); \
        return res; \
    }
LAST_ERROR(aclrtPeekAtLastError, false)
LAST_ERROR(aclrtGetLastError, true)
