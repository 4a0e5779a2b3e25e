/* Stand-in of the tx runtime (libhpgr.so, Tsingmicro). Streams and events have no flags; a NULL stream is the default one. */
#define _GNU_SOURCE
#include "abi/tx.h"
#include "odd_runtime.h"

static int translate(int code)
{
    switch (code) {
    case cudaSuccess: return TX_SUCCESS;
    case cudaErrorInvalidValue: case cudaErrorInvalidMemcpyDirection: return TX_ERROR_INVALID_VALUE;
    case cudaErrorMemoryAllocation: return TX_ERROR_OUT_OF_MEMORY;
    case cudaErrorNotReady: return TX_ERROR_NOT_READY;
    case cudaErrorNoDevice: case cudaErrorInvalidDevice: return TX_ERROR_INVALID_DEVICE;
    case cudaErrorInvalidResourceHandle: return TX_ERROR_INVALID_HANDLE;
    default: return TX_ERROR_UNKNOWN;
    }
}

static int good(int ok) { return ok ? 0 : TX_ERROR_INVALID_VALUE; }
static int bound(void) { return core->bind() < 0; }

#define CALL(fn, params, check, expr, ...) \
    EXPORT txError_t fn params \
    { \
        ENTER(fn); \
        STEP(bound()); \
        STEP(check); \
        MACHINE(expr); \
        LEAVE(fn, txError_t, __VA_ARGS__); \
    }

EXPORT txError_t txGetDevice(uint32_t *device)
{
    ENTER(txGetDevice);
    STEP(good(device != NULL));
    if (!res)
        *device = core->peek_device() < 0 ? 0 : (uint32_t)core->peek_device();
    LEAVE(txGetDevice, txError_t, "%d", res ? -1 : (int)*device);
}

EXPORT txError_t txSetDevice(uint32_t device)
{
    ENTER(txSetDevice);
    STEP(device < (uint32_t)core->count() ? 0 : TX_ERROR_INVALID_DEVICE);
    if (!res)
        core->poke_device((int)device);
    LEAVE(txSetDevice, txError_t, "%u", device);
}

EXPORT txError_t txGetDeviceCount(uint32_t *count)
{
    ENTER(txGetDeviceCount);
    STEP(good(count != NULL));
    if (!res)
        *count = (uint32_t)core->count();
    LEAVE(txGetDeviceCount, txError_t, "%d", res ? -1 : (int)*count);
}

CALL(txDeviceSynchronize, (void), 0, core->device_sync(), "%s", "")
CALL(txStreamCreate, (txStream_t * s), good(s != NULL), core->stream_create((cudaStream_t *)s, cudaStreamNonBlocking), "%p",
     s && !res ? *s : NULL)
CALL(txStreamDestroy, (txStream_t s), 0, core->stream_destroy(s), "%p", s)
CALL(txStreamSynchronize, (txStream_t s), 0, core->stream_sync(s), "%p", s)
CALL(txStreamQuery, (txStream_t s), 0, core->stream_query(s), "%p", s)
CALL(txStreamWaitEvent, (txStream_t s, txEvent_t e), 0, core->stream_wait(s, e), "%p, %p", s, e)
CALL(txEventCreate, (txEvent_t * e), good(e != NULL), core->event_create((cudaEvent_t *)e, 0), "%p", e && !res ? *e : NULL)
CALL(txEventDestroy, (txEvent_t e), 0, core->event_destroy(e), "%p", e)
CALL(txEventRecord, (txEvent_t e, txStream_t s), 0, core->event_record(e, s), "%p, %p", e, s)
CALL(txEventSynchronize, (txEvent_t e), 0, core->event_query(e, true), "%p", e)
CALL(txEventQuery, (txEvent_t e), 0, core->event_query(e, false), "%p", e)
CALL(txEventElapsedTime, (float *ms, txEvent_t a, txEvent_t b), 0, core->event_elapsed(ms, a, b), "%p, %p", a, b)
CALL(txMalloc, (void **p, uint64_t n), good(p && n), core->mem_alloc(p, n, cudaMemoryTypeDevice, true), "%p, %llu",
     p && !res ? *p : NULL, (unsigned long long)n)
CALL(txMallocHost, (void **p, uint64_t n), good(p && n), core->mem_alloc(p, n, cudaMemoryTypeHost, true), "%p, %llu",
     p && !res ? *p : NULL, (unsigned long long)n)
CALL(txFree, (void *p), 0, core->mem_free(p, cudaMemoryTypeDevice, true), "%p", p)
CALL(txFreeHost, (void *p), 0, core->mem_free(p, cudaMemoryTypeHost, true), "%p", p)
CALL(txMemcpy, (void *d, const void *s, uint64_t n, txMemcpyKind kind), good((unsigned)kind <= txMemcpyDeviceToDevice),
     copy_now(d, s, n, (int)kind), "%p, %p, %llu, %d", d, s, (unsigned long long)n, (int)kind)
CALL(txMemcpyAsync, (void *d, const void *s, uint64_t n, txMemcpyKind kind, txStream_t st),
     good((unsigned)kind <= txMemcpyDeviceToDevice), core->memcpy(d, s, n, (int)kind, st, false), "%p, %p, %llu, %d, %p", d, s,
     (unsigned long long)n, (int)kind, st)
CALL(txMemset, (void *p, int v, uint64_t n), 0, set_now(p, v, n), "%p, %d, %llu", p, v, (unsigned long long)n)
CALL(txMemsetAsync, (void *p, int v, uint64_t n, txStream_t s), 0, core->memset(p, v, n, s, false), "%p, %d, %llu, %p", p, v,
     (unsigned long long)n, s)
CALL(txLaunchHostFunc, (txStream_t s, txHostFn_t fn, void *arg), good(fn != NULL), core->host_func(s, fn, arg), "%p, %p", s, arg)

EXPORT const char *txGetErrorString(txError_t code)
{
    switch (code) {
    case TX_SUCCESS: return "no error";
    case TX_ERROR_INVALID_VALUE: return "a value is not valid";
    case TX_ERROR_NOT_READY: return "the work is not over yet";
    case TX_ERROR_OUT_OF_MEMORY: return "no memory is left";
    case TX_ERROR_INVALID_DEVICE: return "there is no such device";
    case TX_ERROR_INVALID_HANDLE: return "a handle is not valid";
    default: return "unknown error";
    }
}

EXPORT txError_t txGetDeviceByPCIBusId(uint32_t *device, const char *bus_id)
{
    ENTER(txGetDeviceByPCIBusId);
    STEP(good(device && bus_id));
    STEP(bound());
    bool found = false;
    for (int d = 0; !res && !found && d < core->count(); d++) {
        char name[32];
        core->pci_bus_id(name, sizeof name, d);
        if (!strcmp(name, bus_id)) {
            *device = (uint32_t)d;
            found = true;
        }
    }
    STEP(found ? 0 : TX_ERROR_INVALID_DEVICE);
    LEAVE(txGetDeviceByPCIBusId, txError_t, "%s", bus_id ? bus_id : "NULL");
}
