/* Stand-in of the CUDA runtime (libcudart.so.13, or .12 with -DFAKE_CUDART_MAJOR=12), and of the runtimes of its shape:
 * -DFAKE_RUNTIME names a header with names, types and differences. The state lives in the driver stand-in (FAKE_MACHINE),
 * which is opened at the first call; without it every call returns cudaErrorInsufficientDriver. */
#define _GNU_SOURCE
#ifndef FAKE_CUDART_MAJOR
#define FAKE_CUDART_MAJOR 13
#endif
#include "core.h"
#include "knobs.h"
#include <dlfcn.h>
#ifdef FAKE_RUNTIME
#include FAKE_RUNTIME
#endif

#ifndef PUBLIC
#define PUBLIC __attribute__((visibility("default")))
#endif
/* The library that holds the state of the machine. */
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libcuda.so.1"
#endif

/* What a runtime may say; the defaults are CUDA's. */
#ifndef FK_RUNTIME_NAME
#define FK_RUNTIME_NAME "cuda"
_Static_assert(sizeof(cudaPointerAttributes) == (FAKE_CUDART_MAJOR >= 13 ? 88 : 24), "as in the real header");
#endif
#ifndef FK_RUNTIME_VERSION
#define FK_RUNTIME_VERSION (FAKE_CUDART_MAJOR * 1000)
#endif
#ifndef FK_NOT_READY
#define FK_NOT_READY cudaErrorNotReady
#endif
#ifndef FK_TYPE_FIELD
#define FK_TYPE_FIELD type
#endif
#ifndef FK_MEMORY_TYPE
#define FK_MEMORY_TYPE(type) (type)
#endif
#ifndef FK_UNKNOWN_POINTER
#define FK_UNKNOWN_POINTER cudaSuccess /* what asking for the attributes of any other pointer returns */
#endif
#ifndef FK_SCOPED
#define FK_SCOPED 0 /* streams, events and memory may be used only while their device is current */
#endif

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

/* A stream or event of another device than the current one: refused if the runtime is scoped. */
static inline int on_stream(cudaStream_t s)
{
    int d = -1;
    return FK_SCOPED && (uintptr_t)s > 2 && !core->stream_device(s, -1, &d) && d != core->bind() ? cudaErrorInvalidResourceHandle : 0;
}
static inline int on_event(cudaEvent_t e)
{
    int d = -1;
    return FK_SCOPED && !core->event_device(e, &d) && d != core->bind() ? cudaErrorInvalidResourceHandle : 0;
}
/* Memory of another device: the call does nothing and says nothing. */
static inline bool foreign(const void *p)
{
    struct fk_memory m;
    return FK_SCOPED && core->lookup(p, &m) && m.type == cudaMemoryTypeDevice && m.device != core->bind();
}
/* Copies from one device to another are refused. */
static inline bool across(const void *d, const void *s)
{
    struct fk_memory a, b;
    return FK_SCOPED && core->lookup(d, &a) && core->lookup(s, &b) && a.type == cudaMemoryTypeDevice && b.type == cudaMemoryTypeDevice &&
           a.device != b.device;
}
static inline int copy(void *d, const void *s, size_t n, int kind, cudaStream_t st, bool sync)
{
    return across(d, s) ? cudaErrorInvalidValue : foreign(d) || foreign(s) ? 0 : core->memcpy(d, s, n, kind, st, sync);
}

/* Two levels, so that another runtime's names are replaced before they become text. */
#define ENTER(fn) ENTER_(fn)
#define LEAVE(...) LEAVE_(__VA_ARGS__)
#define ENTER_(fn) \
    static struct fk_site site = {.name = #fn}; \
    int res = fk_enter(&site, NULL, 0); \
    if (!res) \
        res = !core ? cudaErrorInsufficientDriver : core_state; \
    if (!res && core->in_host_func()) \
        res = cudaErrorNotPermitted
#define LEAVE_(fn, ...) \
    if (res == cudaErrorNotReady) \
        res = FK_NOT_READY; \
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
    static struct fk_site site = {.name = FK_RUNTIME_NAME "RuntimeGetVersion"};
    int res = fk_enter(&site, NULL, 0);
    STEP(v ? 0 : cudaErrorInvalidValue);
    if (!res)
        *v = FK_RUNTIME_VERSION;
    LEAVE(cudaRuntimeGetVersion, "%p", P(v));
}

PUBLIC cudaError_t cudaDriverGetVersion(int *v)
{
    static struct fk_site site = {.name = FK_RUNTIME_NAME "DriverGetVersion"};
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
CALL(cudaStreamDestroy, (cudaStream_t s), on_stream(s) ?: core->stream_destroy(s), "%p", P(s))
CALL(cudaStreamSynchronize, (cudaStream_t s), on_stream(s) ?: core->stream_sync(s), "%p", P(s))
CALL(cudaStreamQuery, (cudaStream_t s), on_stream(s) ?: core->stream_query(s), "%p", P(s))
CALL(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned f),
     f > 1 ? cudaErrorInvalidValue : on_stream(s) ?: core->stream_wait(s, e),
     "%p, %p, %u", P(s), P(e), f)
CALL(cudaStreamGetDevice, (cudaStream_t s, int *d), d ? core->stream_device(s, -1, d) : cudaErrorInvalidValue, "%p", P(s))
CALL(cudaStreamGetFlags, (cudaStream_t s, unsigned *f), core->stream_flags(s, f), "%p", P(s))
CALL(cudaEventCreate, (cudaEvent_t * e), core->event_create(e, 0), "%p", P(e ? *e : NULL))
CALL(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned f), core->event_create(e, f), "%p, %u", P(e ? *e : NULL), f)
CALL(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), on_stream(s) ?: on_event(e) ?: core->event_record(e, s), "%p, %p", P(e), P(s))
CALL(cudaEventRecordWithFlags, (cudaEvent_t e, cudaStream_t s, unsigned f),
     f > 1 ? cudaErrorInvalidValue : on_stream(s) ?: on_event(e) ?: core->event_record(e, s), "%p, %p, %u", P(e), P(s), f)
CALL(cudaEventQuery, (cudaEvent_t e), on_event(e) ?: core->event_query(e, false), "%p", P(e))
CALL(cudaEventSynchronize, (cudaEvent_t e), on_event(e) ?: core->event_query(e, true), "%p", P(e))
CALL(cudaEventDestroy, (cudaEvent_t e), on_event(e) ?: core->event_destroy(e), "%p", P(e))
CALL(cudaEventElapsedTime, (float *ms, cudaEvent_t a, cudaEvent_t b), core->event_elapsed(ms, a, b), "%p, %p", P(a), P(b))
CALL(cudaMalloc, (void **p, size_t n), core->mem_alloc(p, n, cudaMemoryTypeDevice, true), "%p, %zu", p ? *p : NULL, n)
CALL(cudaMallocManaged, (void **p, size_t n, unsigned f),
     f != 1 && f != 2 ? cudaErrorInvalidValue : core->mem_alloc(p, n, cudaMemoryTypeManaged, true), "%p, %zu, %u", p ? *p : NULL, n, f)
CALL(cudaFree, (void *p), foreign(p) ? 0 : p ? core->mem_free(p, cudaMemoryTypeDevice, true) : (core->bind(), 0), "%p", p)
#ifdef FK_MALLOC_ASYNC_FLAGS
CALL(cudaMallocAsync, (void **p, size_t n, cudaStream_t s, unsigned f),
     f ? cudaErrorInvalidValue : on_stream(s) ?: core->mem_alloc_async(p, n, s), "%p, %zu, %p, %u", p ? *p : NULL, n, P(s), f)
#else
CALL(cudaMallocAsync, (void **p, size_t n, cudaStream_t s), core->mem_alloc_async(p, n, s), "%p, %zu, %p", p ? *p : NULL, n, P(s))
#endif
CALL(cudaFreeAsync, (void *p, cudaStream_t s), on_stream(s) ?: (foreign(p) ? 0 : core->mem_free_async(p, s)), "%p, %p", p, P(s))
CALL(cudaHostAlloc, (void **p, size_t n, unsigned f), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu, %u", p ? *p : NULL, n, f)
CALL(cudaMallocHost, (void **p, size_t n), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %zu", p ? *p : NULL, n)
CALL(cudaFreeHost, (void *p), core->mem_free(p, cudaMemoryTypeHost, true), "%p", p)
CALL(cudaHostRegister, (void *p, size_t n, unsigned f), core->host_register(p, n), "%p, %zu, %u", p, n, f)
CALL(cudaHostUnregister, (void *p), core->host_unregister(p), "%p", p)
CALL(cudaMemcpy, (void *d, const void *s, size_t n, int k), copy(d, s, n, k, NULL, true), "%p, %p, %zu, %d", d, s, n, k)
CALL(cudaMemcpyAsync, (void *d, const void *s, size_t n, int k, cudaStream_t st), on_stream(st) ?: copy(d, s, n, k, st, false),
     "%p, %p, %zu, %d, %p", d, s, n, k, P(st))
CALL(cudaMemset, (void *d, int b, size_t n), foreign(d) ? 0 : core->memset(d, b, n, NULL, true), "%p, %d, %zu", d, b, n)
CALL(cudaMemsetAsync, (void *d, int b, size_t n, cudaStream_t st),
     on_stream(st) ?: (foreign(d) ? 0 : core->memset(d, b, n, st, false)), "%p, %d, %zu, %p", d, b, n, P(st))
CALL(cudaMemGetInfo, (size_t * a, size_t *t), (core->mem_info(a, t), 0), "%s", "")
CALL(cudaDeviceEnablePeerAccess, (int d, unsigned f), f ? cudaErrorInvalidValue : core->peer_enable(d), "%d, %u", d, f)
CALL(cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t fn, void *arg), on_stream(s) ?: core->host_func(s, fn, arg), "%p, %p", P(s), arg)
CALL(cudaStreamBeginCapture, (cudaStream_t s, int mode), core->capture_begin(s, mode), "%p, %d", P(s), mode)
CALL(cudaStreamEndCapture, (cudaStream_t s, cudaGraph_t *g), core->capture_end(s, g), "%p", P(s))
CALL(cudaStreamIsCapturing, (cudaStream_t s, int *st), core->capture_status(s, st), "%p", P(s))
CALL(cudaThreadExchangeStreamCaptureMode, (int *mode), core->capture_exchange(mode), "%d", mode ? *mode : -1)
#ifdef FK_GRAPH_INSTANTIATE_LOG
CALL(cudaGraphInstantiate, (cudaGraphExec_t * e, cudaGraph_t g, hipGraphNode_t *node, char *text, size_t n), core->graph_copy(e, g),
     "%p, %p, %p, %zu", P(g), P(node), P(text), n)
#else
CALL(cudaGraphInstantiate, (cudaGraphExec_t * e, cudaGraph_t g, unsigned long long f), core->graph_copy(e, g), "%p, %llu", P(g), f)
#endif
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
            a->FK_TYPE_FIELD = FK_MEMORY_TYPE(m.type);
            a->device = m.device;
            a->devicePointer = (void *)(uintptr_t)p;
            a->hostPointer = m.type == cudaMemoryTypeDevice ? NULL : (void *)(uintptr_t)p;
#ifdef FK_MANAGED_FIELD
            a->isManaged = m.type == cudaMemoryTypeManaged;
#endif
        } else {
            a->hostPointer = (void *)(uintptr_t)p;
            res = FK_UNKNOWN_POINTER;
        }
    }
    LEAVE(cudaPointerGetAttributes, "%p", p);
}

PUBLIC cudaError_t cudaGetLastError(void)
{
    static struct fk_site site = {.name = FK_RUNTIME_NAME "GetLastError"};
    int res = fk_enter(&site, NULL, 0);
    STEP(t_last);
    t_last = 0;
    fk_log(site.name, res, "%s", "");
    return res;
}

PUBLIC cudaError_t cudaPeekAtLastError(void)
{
    static struct fk_site site = {.name = FK_RUNTIME_NAME "PeekAtLastError"};
    int res = fk_enter(&site, NULL, 0);
    STEP(t_last);
    fk_log(site.name, res, "%s", "");
    return res;
}

/* The machine's number of what this runtime returned, or one that it does not know. */
static int machine_code(int code)
{
    return code == FK_NOT_READY ? cudaErrorNotReady : code == cudaErrorNotReady ? -1 : code;
}

PUBLIC const char *cudaGetErrorString(cudaError_t code)
{
    pthread_once(&core_once, open_core);
    return core ? core->error_string(machine_code(code)) : code == cudaErrorInsufficientDriver
        ? "CUDA driver version is insufficient for CUDA runtime version" : "unknown error";
}

PUBLIC const char *cudaGetErrorName(cudaError_t code)
{
    static _Atomic(char *) names[1024];
    pthread_once(&core_once, open_core);
    const char *name = core ? core->error_name(machine_code(code))
                     : code == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaErrorUnknown";
    if (code < 0 || code >= 1024 || strncmp(name, "cuda", 4))
        return name;
    if (!names[code]) {
        char *mine = malloc(strlen(name) + sizeof FK_RUNTIME_NAME), *none = NULL;
        strcpy(mine, FK_RUNTIME_NAME);
        strcat(mine, name + 4);
        if (!atomic_compare_exchange_strong(&names[code], &none, mine))
            free(mine);
    }
    return names[code];
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

PUBLIC cudaError_t cudaDeviceGetByPCIBusId(int *d, const char *id)
{
    ENTER(cudaDeviceGetByPCIBusId);
    STEP(d && id ? 0 : cudaErrorInvalidValue);
    if (!res) {
        res = cudaErrorInvalidValue;
        for (int i = 0; i < core->count(); i++) {
            char name[32];
            core->pci_bus_id(name, sizeof name, i);
            if (!strcmp(name, id)) {
                *d = i;
                res = 0;
            }
        }
    }
    LEAVE(cudaDeviceGetByPCIBusId, "%s", id ? id : "");
}

PUBLIC cudaError_t cudaDeviceGetAttribute(int *v, int attr, int d)
{
    ENTER(cudaDeviceGetAttribute);
    STEP(v ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(d));
    STEP(core->attribute(v, attr, d));
    LEAVE(cudaDeviceGetAttribute, "%d, %d", attr, d);
}

#ifdef FK_LINK_TYPE
PUBLIC hipError_t hipExtGetLinkTypeAndHopCount(int a, int b, uint32_t *type, uint32_t *hops)
{
    ENTER(hipExtGetLinkTypeAndHopCount);
    STEP(type && hops && a != b ? 0 : cudaErrorInvalidValue);
    STEP(DEVICE_OK(a));
    STEP(DEVICE_OK(b));
    if (!res) {
        *type = FK_LINK_TYPE;
        *hops = 1;
    }
    LEAVE(hipExtGetLinkTypeAndHopCount, "%d, %d", a, b);
}
#endif

#ifdef FK_COPY_PEER
PUBLIC musaError_t musaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, musaStream_t st)
{
    ENTER(musaMemcpyPeerAsync);
    STEP(DEVICE_OK(dd));
    STEP(DEVICE_OK(sd));
    STEP(core->memcpy(d, s, n, cudaMemcpyDeviceToDevice, st, false));
    LEAVE(musaMemcpyPeerAsync, "%p, %d, %p, %d, %zu, %p", d, dd, s, sd, n, P(st));
}
#endif

/* A mark for tests that ask whose file was opened. */
#ifdef FAKE_VENDOR
__attribute__((visibility("default"))) const char *fake_vendor_name(void);
const char *fake_vendor_name(void) { return FAKE_VENDOR; }
#endif
