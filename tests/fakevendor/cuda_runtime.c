/* Stand-in of the CUDA runtime (libcudart.so.13, or .12 with -DFAKE_CUDART_MAJOR=12). The state lives in the driver
 * stand-in, which is opened at the first call; without it every call returns cudaErrorInsufficientDriver. */
#define _GNU_SOURCE
#ifndef FAKE_CUDART_MAJOR
#define FAKE_CUDART_MAJOR 13
#endif
#include "core.h"
#include "knobs.h"
#include <dlfcn.h>

#ifndef PUBLIC
#define PUBLIC __attribute__((visibility("default")))
#endif
/* The library that holds the state of the machine. */
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libcuda.so.1"
#endif

_Static_assert(sizeof(cudaPointerAttributes) == (FAKE_CUDART_MAJOR >= 13 ? 88 : 24), "as in the real header");

static pthread_once_t core_once = PTHREAD_ONCE_INIT;
static const struct fk_core *core;
static int core_state = cudaErrorInsufficientDriver;
static _Thread_local int t_last;

static void open_core(void)
{
    void *h = dlopen(FAKE_MACHINE, RTLD_NOW | RTLD_LOCAL);
    const struct fk_core *(*table)(void) = NULL;
    if (h)
        *(void **)&table = dlsym(h, "fake_driver_table");
    if (table) {
        core = table();
        core_state = core->init();
    }
}

static void fk_register_site(struct fk_site *s)
{
    pthread_once(&core_once, open_core);
    if (core)
        core->register_site(s);
    else
        atomic_store(&s->known, 1);
}
static int fk_log_device(void) { return core ? core->peek_device() : -1; }
static void fk_check_alive(const char *name)
{
    if (core)
        core->check_alive(name);
}

#define ENTER(fn) \
    static struct fk_site site = {.name = #fn}; \
    int res = fk_enter(&site, NULL, 0); \
    if (!res) \
        res = !core ? cudaErrorInsufficientDriver : core_state; \
    if (!res && core->in_host_func()) \
        res = cudaErrorNotPermitted
#define LEAVE(fn, ...) \
    fk_log(#fn, res, __VA_ARGS__); \
    if (res) \
        t_last = res; \
    return res
#define STEP(x) \
    do { \
        if (!res) \
            res = (x); \
    } while (0)
#define DEVICE_OK(d) ((d) < 0 || (d) >= core->count() ? cudaErrorInvalidDevice : 0)
#define P(x) ((const void *)(x))

PUBLIC cudaError_t cudaGetDevice(int *d)
{
    ENTER(cudaGetDevice);
    STEP(d ? 0 : cudaErrorInvalidValue);
    if (!res) {
        int c = core->peek_device();
        *d = c < 0 ? 0 : c;
    }
    LEAVE(cudaGetDevice, "%d", res ? -1 : *d);
}

PUBLIC cudaError_t cudaSetDevice(int d)
{
    ENTER(cudaSetDevice);
    STEP(DEVICE_OK(d));
    if (!res)
        core->poke_device(d);
    LEAVE(cudaSetDevice, "%d", d);
}

PUBLIC cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER(cudaGetDeviceCount);
    if (n)
        *n = 0;
    STEP(n ? 0 : cudaErrorInvalidValue);
    if (!res)
        *n = core->count();
    LEAVE(cudaGetDeviceCount, "%d", n ? *n : -1);
}

#define CALL(fn, params, expr, ...) \
    PUBLIC cudaError_t fn params \
    { \
        ENTER(fn); \
        STEP(expr); \
        LEAVE(fn, __VA_ARGS__); \
    }

CALL(cudaDeviceSynchronize, (void), core->device_sync(), "%s", "")
CALL(cudaDeviceReset, (void), core->device_sync(), "%s", "")

PUBLIC cudaError_t cudaRuntimeGetVersion(int *v)
{
    static struct fk_site site = {.name = "cudaRuntimeGetVersion"};
    int res = fk_enter(&site, NULL, 0);
    STEP(v ? 0 : cudaErrorInvalidValue);
    if (!res)
        *v = FAKE_CUDART_MAJOR * 1000;
    LEAVE(cudaRuntimeGetVersion, "%p", P(v));
}

PUBLIC cudaError_t cudaDriverGetVersion(int *v)
{
    static struct fk_site site = {.name = "cudaDriverGetVersion"};
    int res = fk_enter(&site, NULL, 0);
    STEP(v ? 0 : cudaErrorInvalidValue);
    if (!res)
        *v = core ? 13000 : 0;
    LEAVE(cudaDriverGetVersion, "%p", P(v));
}

CALL(cudaStreamCreate, (cudaStream_t * s), core->stream_create(s, 0), "%p", P(s ? *s : NULL))
CALL(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned f), core->stream_create(s, f), "%p, %u", P(s ? *s : NULL), f)
CALL(cudaStreamCreateWithPriority, (cudaStream_t * s, unsigned f, int prio), core->stream_create(s, f), "%p, %u, %d",
     P(s ? *s : NULL), f, prio)
CALL(cudaStreamDestroy, (cudaStream_t s), core->stream_destroy(s), "%p", P(s))
CALL(cudaStreamSynchronize, (cudaStream_t s), core->stream_sync(s), "%p", P(s))
CALL(cudaStreamQuery, (cudaStream_t s), core->stream_query(s), "%p", P(s))
CALL(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned f), f > 1 ? cudaErrorInvalidValue : core->stream_wait(s, e),
     "%p, %p, %u", P(s), P(e), f)
CALL(cudaStreamGetDevice, (cudaStream_t s, int *d), d ? core->stream_device(s, -1, d) : cudaErrorInvalidValue, "%p", P(s))
CALL(cudaStreamGetFlags, (cudaStream_t s, unsigned *f), core->stream_flags(s, f), "%p", P(s))
CALL(cudaEventCreate, (cudaEvent_t * e), core->event_create(e, 0), "%p", P(e ? *e : NULL))
CALL(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned f), core->event_create(e, f), "%p, %u", P(e ? *e : NULL), f)
CALL(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), core->event_record(e, s), "%p, %p", P(e), P(s))
CALL(cudaEventQuery, (cudaEvent_t e), core->event_query(e, false), "%p", P(e))
CALL(cudaEventSynchronize, (cudaEvent_t e), core->event_query(e, true), "%p", P(e))
CALL(cudaEventDestroy, (cudaEvent_t e), core->event_destroy(e), "%p", P(e))
CALL(cudaEventElapsedTime, (float *ms, cudaEvent_t a, cudaEvent_t b), core->event_elapsed(ms, a, b), "%p, %p", P(a), P(b))
CALL(cudaMalloc, (void **p, size_t n), core->mem_alloc(p, n, cudaMemoryTypeDevice, true), "%p, %zu", p ? *p : NULL, n)
CALL(cudaMallocManaged, (void **p, size_t n, unsigned f),
     f != 1 && f != 2 ? cudaErrorInvalidValue : core->mem_alloc(p, n, cudaMemoryTypeManaged, true), "%p, %zu, %u", p ? *p : NULL, n, f)
CALL(cudaFree, (void *p), p ? core->mem_free(p, cudaMemoryTypeDevice, true) : (core->bind(), 0), "%p", p)
CALL(cudaMallocAsync, (void **p, size_t n, cudaStream_t s), core->mem_alloc_async(p, n, s), "%p, %zu, %p", p ? *p : NULL, n, P(s))
CALL(cudaFreeAsync, (void *p, cudaStream_t s), core->mem_free_async(p, s), "%p, %p", p, P(s))
CALL(cudaHostAlloc, (void **p, size_t n, unsigned f), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu, %u", p ? *p : NULL, n, f)
CALL(cudaMallocHost, (void **p, size_t n), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu", p ? *p : NULL, n)
CALL(cudaFreeHost, (void *p), core->mem_free(p, cudaMemoryTypeHost, true), "%p", p)
CALL(cudaHostRegister, (void *p, size_t n, unsigned f), core->host_register(p, n), "%p, %zu, %u", p, n, f)
CALL(cudaHostUnregister, (void *p), core->host_unregister(p), "%p", p)
CALL(cudaMemcpy, (void *d, const void *s, size_t n, int k), core->memcpy(d, s, n, k, NULL, true), "%p, %p, %zu, %d", d, s, n, k)
CALL(cudaMemcpyAsync, (void *d, const void *s, size_t n, int k, cudaStream_t st), core->memcpy(d, s, n, k, st, false),
     "%p, %p, %zu, %d, %p", d, s, n, k, P(st))
CALL(cudaMemset, (void *d, int b, size_t n), core->memset(d, b, n, NULL, true), "%p, %d, %zu", d, b, n)
CALL(cudaMemsetAsync, (void *d, int b, size_t n, cudaStream_t st), core->memset(d, b, n, st, false), "%p, %d, %zu, %p", d, b, n, P(st))
CALL(cudaMemGetInfo, (size_t * a, size_t *t), (core->mem_info(a, t), 0), "%s", "")
CALL(cudaDeviceEnablePeerAccess, (int d, unsigned f), f ? cudaErrorInvalidValue : core->peer_enable(d), "%d, %u", d, f)
CALL(cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t fn, void *arg), core->host_func(s, fn, arg), "%p, %p", P(s), arg)
CALL(cudaStreamBeginCapture, (cudaStream_t s, int mode), core->capture_begin(s, mode), "%p, %d", P(s), mode)
CALL(cudaStreamEndCapture, (cudaStream_t s, cudaGraph_t *g), core->capture_end(s, g), "%p", P(s))
CALL(cudaStreamIsCapturing, (cudaStream_t s, int *st), core->capture_status(s, st), "%p", P(s))
CALL(cudaThreadExchangeStreamCaptureMode, (int *mode), core->capture_exchange(mode), "%d", mode ? *mode : -1)
CALL(cudaGraphInstantiate, (cudaGraphExec_t * e, cudaGraph_t g, unsigned long long f), core->graph_copy(e, g), "%p, %llu", P(g), f)
CALL(cudaGraphLaunch, (cudaGraphExec_t e, cudaStream_t s), core->graph_launch(e, s), "%p, %p", P(e), P(s))
CALL(cudaGraphDestroy, (cudaGraph_t g), core->graph_destroy(g), "%p", P(g))
CALL(cudaGraphExecDestroy, (cudaGraphExec_t g), core->graph_destroy(g), "%p", P(g))

PUBLIC cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned f)
{
    ENTER(cudaHostGetDevicePointer);
    struct fk_memory m;
    STEP(d && !f && core->lookup(h, &m) && m.type == cudaMemoryTypeHost ? 0 : cudaErrorInvalidValue);
    if (!res)
        *d = h;
    LEAVE(cudaHostGetDevicePointer, "%p, %u", h, f);
}

PUBLIC cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    ENTER(cudaPointerGetAttributes);
    STEP(a ? 0 : cudaErrorInvalidValue);
    if (!res) {
        struct fk_memory m;
        memset(a, 0, sizeof *a);
        a->device = -2;
        if (core->lookup(p, &m)) {
            a->type = m.type;
            a->device = m.device;
            a->devicePointer = (void *)(uintptr_t)p;
            a->hostPointer = m.type == cudaMemoryTypeDevice ? NULL : (void *)(uintptr_t)p;
        } else
            a->hostPointer = (void *)(uintptr_t)p;
    }
    LEAVE(cudaPointerGetAttributes, "%p", p);
}

PUBLIC cudaError_t cudaGetLastError(void)
{
    static struct fk_site site = {.name = "cudaGetLastError"};
    int res = fk_enter(&site, NULL, 0);
    STEP(t_last);
    t_last = 0;
    fk_log("cudaGetLastError", res, "%s", "");
    return res;
}

PUBLIC cudaError_t cudaPeekAtLastError(void)
{
    static struct fk_site site = {.name = "cudaPeekAtLastError"};
    int res = fk_enter(&site, NULL, 0);
    STEP(t_last);
    fk_log("cudaPeekAtLastError", res, "%s", "");
    return res;
}

PUBLIC const char *cudaGetErrorString(cudaError_t code)
{
    pthread_once(&core_once, open_core);
    return core ? core->error_string(code) : code == cudaErrorInsufficientDriver
        ? "CUDA driver version is insufficient for CUDA runtime version" : "unknown error";
}

PUBLIC const char *cudaGetErrorName(cudaError_t code)
{
    pthread_once(&core_once, open_core);
    return core ? core->error_name(code) : code == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaErrorUnknown";
}

PUBLIC cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int peer)
{
    ENTER(cudaDeviceCanAccessPeer);
    STEP(can ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(d));
    STEP(DEVICE_OK(peer));
    if (!res)
        *can = d != peer;
    LEAVE(cudaDeviceCanAccessPeer, "%d, %d", d, peer);
}

PUBLIC cudaError_t cudaDeviceGetP2PAttribute(int *v, int attr, int d, int peer)
{
    ENTER(cudaDeviceGetP2PAttribute);
    STEP(v && attr >= 1 && attr <= 4 && d != peer ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(d));
    STEP(DEVICE_OK(peer));
    if (!res)
        *v = attr == cudaDevP2PAttrPerformanceRank ? 0 : 1;
    LEAVE(cudaDeviceGetP2PAttribute, "%d, %d, %d", attr, d, peer);
}

PUBLIC cudaError_t cudaDeviceGetPCIBusId(char *out, int len, int d)
{
    ENTER(cudaDeviceGetPCIBusId);
    STEP(out && len > 0 ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(d));
    if (!res)
        core->pci_bus_id(out, len, d);
    LEAVE(cudaDeviceGetPCIBusId, "%d, %d", len, d);
}

PUBLIC cudaError_t cudaDeviceGetAttribute(int *v, int attr, int d)
{
    ENTER(cudaDeviceGetAttribute);
    STEP(v ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(d));
    STEP(core->attribute(v, attr, d));
    LEAVE(cudaDeviceGetAttribute, "%d, %d", attr, d);
}
