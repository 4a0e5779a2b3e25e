/* Stand-in of FlagCX 0.13 (libflagcx.so) for communicators of one vendor. It works on raw streams of whichever machine is
 * loaded. What is wrong in FlagCX is wrong here too: what reads address 0 or freed memory there ends the process here. */
#define _GNU_SOURCE
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libfakemachine.so"
#endif
static const char *loaded_machine(void);
static const char *const first_machine = FAKE_MACHINE;
#undef FAKE_MACHINE
#define FAKE_MACHINE loaded_machine()
#include "abi/flagcx.h"
#include "odd_ccl.h"

static const char *loaded_machine(void)
{
    const char *names[] = {first_machine, "libcuda.so.1"};
    for (int i = 0; i < 4; i++) {
        void *h = dlopen(names[i % 2], RTLD_NOW | RTLD_LOCAL | (i < 2 ? RTLD_NOLOAD : 0));
        if (h && dlsym(h, "fake_driver_table"))
            return names[i % 2];
    }
    return first_machine;
}

/* FlagCX casts the results of the libraries that number as NCCL does. */
static int translate(ncclResult_t r) { return r == ncclTimeout ? flagcxUnhandledCCLError : (int)r; }

struct flagcxStream { cudaStream_t base; };
struct flagcxEvent { cudaEvent_t base; };

#define MAGIC_LIVE 0x666c6167u
struct flagcxComm { unsigned magic; bool vendor_gone; struct fk_comm *inner; };
struct registration { void *buf; bool has_comm; };

/* Where FlagCX reads through a null pointer. */
static void read_null(const void *p)
{
    if (!p)
        raise(SIGSEGV);
}

static int good_comm(const struct flagcxComm *c)
{
    if (!c)
        return flagcxInternalError;
    if (c->magic != MAGIC_LIVE || c->vendor_gone) {
        fprintf(stderr, "stand-in of FlagCX: a communicator is used after it was freed\n");
        abort();
    }
    return c->inner ? 0 : flagcxInternalError;
}

static struct fk_comm *inner(const struct flagcxComm *c) { return c && c->magic == MAGIC_LIVE ? c->inner : NULL; }

/* The stream is read at the time of the call, and never later. */
static cudaStream_t raw(flagcxStream_t s)
{
    read_null(s);
    return s->base;
}

/* FlagCX reads these again at every call, in C++. With FAKE_FLAGCX_THROWS=1 what is no number ends the process, as there. */
static void read_switches(void)
{
    static const char *const names[] = {"FLAGCX_USE_HETERO_COMM", "FLAGCX_USE_HOST_COMM"};
    const char *throws = getenv("FAKE_FLAGCX_THROWS");
    for (int i = 0; throws && *throws == '1' && i < 2; i++) {
        const char *v = getenv(names[i]);
        char *end;
        if (v && (errno = 0, (void)strtol(v, &end, 10), end == v || errno)) {
            fprintf(stderr, "terminate called after throwing an instance of 'std::invalid_argument'\n  what():  stoi\n");
            abort();
        }
    }
}

EXPORT size_t getFlagcxDataTypeSize(flagcxDataType_t t)
{
    if ((unsigned)t < flagcxNumTypes)
        return sizes[t];
    fprintf(stderr, "Unknown flagcx data type\n");
    return 0;
}

/* ---- the device handle: what a caller needs for a stream ---- */

static int device_code(int r) { return r == cudaErrorNotReady ? flagcxInProgress : r ? flagcxUnhandledDeviceError : flagcxSuccess; }
static int machine(void) { return have_devices() ? flagcxUnhandledDeviceError : 0; }
#define R flagcxResult_t
#define DEVICE(fn, params, expr) \
    static R fn params \
    { \
        int r = machine(); \
        return (R)(r ? r : device_code(expr)); \
    }
#define BASE(s) ((s) ? (s)->base : NULL)
static int copy_kind(flagcxMemcpyType_t t) { return t == flagcxMemcpyHostToDevice ? 1 : t == flagcxMemcpyDeviceToHost ? 2 : 3; }
static int mem_type(flagcxMemType_t t)
{
    return t == flagcxMemHost ? cudaMemoryTypeHost : t == flagcxMemManaged ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
}
static int set_device(int d) { return d < 0 || d >= core->count() ? cudaErrorInvalidDevice : (core->poke_device(d), 0); }
static int new_stream(flagcxStream_t *s)
{
    *s = calloc(1, sizeof **s);
    return core->stream_create(&(*s)->base, cudaStreamNonBlocking);
}
static int new_event(flagcxEvent_t *e, flagcxEventType_t t)
{
    *e = calloc(1, sizeof **e);
    return core->event_create(&(*e)->base, t == flagcxEventDisableTiming ? cudaEventDisableTiming : 0);
}
static int destroy_stream(flagcxStream_t s)
{
    int r = s ? core->stream_destroy(s->base) : 0;
    free(s);
    return r;
}
static int destroy_event(flagcxEvent_t e)
{
    int r = e ? core->event_destroy(e->base) : 0;
    free(e);
    return r;
}
DEVICE(dev_synchronize, (void), core->device_sync())
DEVICE(dev_memcpy, (void *d, void *s, size_t n, flagcxMemcpyType_t t, flagcxStream_t st),
       core->memcpy(d, s, n, copy_kind(t), BASE(st), !st))
DEVICE(dev_memset, (void *p, int v, size_t n, flagcxMemType_t t, flagcxStream_t st),
       t == flagcxMemHost ? (memset(p, v, n), 0) : core->memset(p, v, n, BASE(st), !st))
DEVICE(dev_malloc, (void **p, size_t n, flagcxMemType_t t, flagcxStream_t st), ((void)st, core->mem_alloc(p, n, mem_type(t), true)))
DEVICE(dev_free, (void *p, flagcxMemType_t t, flagcxStream_t st), ((void)st, core->mem_free(p, mem_type(t), true)))
DEVICE(dev_set, (int d), set_device(d))
DEVICE(dev_get, (int *d), (*d = core->peek_device() < 0 ? 0 : core->peek_device(), 0))
DEVICE(dev_count, (int *n), (*n = core->count(), 0))
DEVICE(dev_stream_create, (flagcxStream_t * s), new_stream(s))
DEVICE(dev_stream_destroy, (flagcxStream_t s), destroy_stream(s))
DEVICE(dev_stream_sync, (flagcxStream_t s), s ? core->stream_sync(s->base) : 0)
DEVICE(dev_stream_query, (flagcxStream_t s), s ? core->stream_query(s->base) : 0)
DEVICE(dev_stream_wait, (flagcxStream_t s, flagcxEvent_t e), s && e ? core->stream_wait(s->base, e->base) : 0)
DEVICE(dev_event_create, (flagcxEvent_t * e, flagcxEventType_t t), new_event(e, t))
DEVICE(dev_event_destroy, (flagcxEvent_t e), destroy_event(e))
DEVICE(dev_event_record, (flagcxEvent_t e, flagcxStream_t s), e ? core->event_record(e->base, BASE(s)) : 0)
DEVICE(dev_event_sync, (flagcxEvent_t e), e ? core->event_query(e->base, true) : 0)
DEVICE(dev_event_query, (flagcxEvent_t e), e ? core->event_query(e->base, false) : 0)
DEVICE(dev_event_elapsed, (float *ms, flagcxEvent_t a, flagcxEvent_t b), core->event_elapsed(ms, a->base, b->base))

static R dev_vendor(char *out)
{
    strcpy(out, "STANDIN");
    return flagcxSuccess;
}
static R dev_pointer(void **d, void *h)
{
    *d = h;
    return flagcxSuccess;
}
static R dev_stream_copy(flagcxStream_t *s, void *base)
{
    *s = calloc(1, sizeof **s);
    (*s)->base = base;
    return flagcxSuccess;
}
static R dev_stream_free(flagcxStream_t s)
{
    free(s);
    return flagcxSuccess;
}
static R ipc_create(flagcxIpcMemHandle_t *h, size_t *n) { return (void)h, (void)n, flagcxNotSupported; }
static R ipc_get(flagcxIpcMemHandle_t h, void *p) { return (void)h, (void)p, flagcxNotSupported; }
static R ipc_open(flagcxIpcMemHandle_t h, void **p) { return (void)h, (void)p, flagcxNotSupported; }
static R ipc_close(void *p) { return (void)p, flagcxNotSupported; }
static R ipc_free(flagcxIpcMemHandle_t h) { return (void)h, flagcxNotSupported; }

static const struct flagcxDeviceHandle table = {
    dev_synchronize, dev_memcpy, dev_memset, dev_malloc, dev_free, dev_set, dev_get, dev_count, dev_vendor, dev_pointer,
    dev_stream_create, dev_stream_destroy, dev_stream_copy, dev_stream_free, dev_stream_sync, dev_stream_query, dev_stream_wait,
    dev_event_create, dev_event_destroy, dev_event_record, dev_event_sync, dev_event_query, dev_event_elapsed,
    ipc_create, ipc_get, ipc_open, ipc_close, ipc_free,
};

EXPORT R flagcxDeviceHandleInit(flagcxDeviceHandle_t *handle)
{
    ENTER(flagcxDeviceHandleInit);
    STEP(handle ? 0 : flagcxInvalidArgument);
    if (!res) {
        *handle = malloc(sizeof **handle);
        memcpy(*handle, &table, sizeof table);
    }
    LEAVE(flagcxDeviceHandleInit, R, "%p", P(handle));
}

EXPORT R flagcxDeviceHandleFree(flagcxDeviceHandle_t handle)
{
    ENTER(flagcxDeviceHandleFree);
    if (!res)
        free(handle);
    LEAVE(flagcxDeviceHandleFree, R, "%p", P(handle));
}

EXPORT R flagcxHandleInit(flagcxHandlerGroup_t *g)
{
    ENTER(flagcxHandleInit);
    read_null(g);
    if (!res) {
        *g = calloc(1, sizeof **g);
        (*g)->devHandle = malloc(sizeof table);
        memcpy((*g)->devHandle, &table, sizeof table);
    }
    LEAVE(flagcxHandleInit, R, "%p", P(g));
}

EXPORT R flagcxHandleFree(flagcxHandlerGroup_t g)
{
    ENTER(flagcxHandleFree);
    if (!res && g) {
        free(g->devHandle);
        free(g);
    }
    LEAVE(flagcxHandleFree, R, "%p", P(g));
}

/* ---- memory ---- */

EXPORT R flagcxMemAlloc(void **p, size_t n, flagcxMemAllocator_t a)
{
    ENTER(flagcxMemAlloc);
    read_switches();
    STEP(p && n ? 0 : flagcxInvalidArgument);
    if (!res && a == flagcxMemSHMEM)
        read_null(NULL);
    ENGINE(have_devices());
    STEP(core->mem_alloc(p, n, cudaMemoryTypeDevice, true) ? flagcxUnhandledDeviceError : 0);
    LEAVE(flagcxMemAlloc, R, "%p, %zu, %d", p && !res ? *p : NULL, n, (int)a);
}

EXPORT R flagcxMemFree(void *p, flagcxMemAllocator_t a)
{
    ENTER(flagcxMemFree);
    if (!res && p) {
        if (a == flagcxMemSHMEM)
            read_null(NULL);
        ENGINE(have_devices());
        STEP(core->mem_free(p, cudaMemoryTypeDevice, true) ? flagcxUnhandledDeviceError : 0);
    }
    LEAVE(flagcxMemFree, R, "%p, %d", p, (int)a);
}

EXPORT R flagcxCommRegister(const flagcxComm_t c, void *buf, size_t n, void **handle, flagcxMemAllocator_t a)
{
    ENTER(flagcxCommRegister);
    struct fk_memory m;
    STEP(buf && n ? 0 : flagcxInvalidArgument);
    if (!res && c)
        res = good_comm(c);
    if (!res && c && a == flagcxMemCCL && (!core->lookup(buf, &m) || m.left < n))
        res = flagcxUnhandledDeviceError;
    if (handle)
        *handle = NULL;
    if (!res && handle) {
        struct registration *r = malloc(sizeof *r);
        *r = (struct registration){buf, c != NULL};
        *handle = r;
    }
    LEAVE(flagcxCommRegister, R, "comm=%p, %p, %zu, %d", P(c), buf, n, (int)a);
}

EXPORT R flagcxCommDeregister(const flagcxComm_t c, void *handle, flagcxMemAllocator_t a)
{
    ENTER(flagcxCommDeregister);
    struct registration *r = handle;
    if (!res && r) {
        STEP(!c && r->has_comm ? flagcxInvalidArgument : 0);
        if (!res)
            free(r);
    }
    LEAVE(flagcxCommDeregister, R, "comm=%p, %p, %d", P(c), handle, (int)a);
}

/* No vendor has windows here: a success without one. */
EXPORT R flagcxCommWindowRegister(flagcxComm_t c, void *buf, size_t n, flagcxWindow_t *win, int flags, flagcxMemAllocator_t a)
{
    ENTER(flagcxCommWindowRegister);
    STEP(win && !*win ? 0 : flagcxInvalidArgument);
    STEP(good_comm(c));
    LEAVE(flagcxCommWindowRegister, R, "comm=%p, %p, %zu, %d, %d", P(c), buf, n, flags, (int)a);
}

EXPORT R flagcxCommWindowDeregister(flagcxComm_t c, flagcxWindow_t win, flagcxMemAllocator_t a)
{
    ENTER(flagcxCommWindowDeregister);
    LEAVE(flagcxCommWindowDeregister, R, "comm=%p, %p, %d", P(c), P(win), (int)a);
}

/* ---- communicators ---- */

EXPORT R flagcxIsHomoComm(flagcxComm_t c, int *is)
{
    ENTER_COMM(flagcxIsHomoComm, inner(c));
    STEP(good_comm(c));
    if (!res) {
        read_null(is);
        *is = 1;
    }
    LEAVE(flagcxIsHomoComm, R, "comm=%p", P(c));
}

EXPORT R flagcxGetVersion(int *v)
{
    ENTER(flagcxGetVersion);
    STEP(v ? 0 : flagcxInvalidArgument);
    if (!res)
        *v = 10000; /* a constant, whatever the version */
    LEAVE(flagcxGetVersion, R, "%d", res ? -1 : *v);
}

/* An address and a number: all that a caller may rely on lies in the first 40 bytes. */
struct address { uint64_t magic; uint16_t family, port; uint32_t ip; };

static void name_of(const struct address *a, char out[33])
{
    snprintf(out, 33, "%016llx%04x%08x0000", (unsigned long long)a->magic, a->port, a->ip);
}

EXPORT R flagcxGetUniqueId(flagcxUniqueId_t id)
{
    ENTER(flagcxGetUniqueId);
    char name[33] = "";
    STEP(id ? 0 : flagcxInvalidArgument);
    if (!res) {
        struct address a = {.family = 2, .ip = 0x0100007f};
        const char *fixed = getenv("FLAGCX_COMM_ID");
        if (fixed && *fixed)
            a.magic = 0x0280028002800280ull; /* and nobody listens, as there */
        else {
            while (getrandom(&a.magic, 8, 0) != 8 || getrandom(&a.port, 2, 0) != 2 || !a.magic) {
            }
            name_of(&a, name);
            ENGINE(start_root(name));
        }
        memset(id, 0, sizeof *id);
        memcpy(id->internal, &a, sizeof a);
    }
    LEAVE(flagcxGetUniqueId, R, "id=%.8s", name);
}

EXPORT R flagcxCommInitRank(flagcxComm_t *out, int n, flagcxUniqueId_t id, int rank)
{
    ENTER(flagcxCommInitRank);
    char name[33] = "";
    read_switches();
    STEP(out && id && n >= 1 && rank >= 0 && rank < n ? 0 : flagcxInvalidArgument);
    if (!res) {
        struct address a;
        ncclUniqueId unique;
        struct flagcxComm *c = *out = calloc(1, sizeof *c); /* stays there when it fails */
        c->magic = MAGIC_LIVE;
        memcpy(&a, id->internal, sizeof a);
        STEP(a.family == 2 ? 0 : flagcxInternalError);
        name_of(&a, name);
        id_make(&unique, name);
        ENGINE(note(init_rank(&c->inner, n, &unique, rank, NULL)));
    }
    LEAVE(flagcxCommInitRank, R, "%d, id=%.8s, %d, comm=%p", n, name, rank, P(res ? NULL : *out));
}

/* The vendor's communicator is freed by these two, and used again by a later Destroy. */
#define ENDING(fn, what) \
    EXPORT R fn(flagcxComm_t c) \
    { \
        ENTER_COMM(fn, inner(c)); \
        struct fk_comm *in = inner(c); \
        STEP(good_comm(c)); \
        if (!res) { \
            what(in); \
            c->vendor_gone = true; \
        } \
        LEAVE(fn, R, "comm=%p", P(c)); \
    }
ENDING(flagcxCommFinalize, end_comm)
ENDING(flagcxCommAbort, abort_comm)

EXPORT R flagcxCommDestroy(flagcxComm_t c)
{
    ENTER_COMM(flagcxCommDestroy, inner(c));
    struct fk_comm *in = inner(c);
    STEP(good_comm(c));
    if (!res) {
        end_comm(in);
        c->magic = 0; /* kept: a second end has to be seen */
    }
    LEAVE(flagcxCommDestroy, R, "comm=%p", P(c));
}

#define REFUSAL(fn) \
    EXPORT R fn(flagcxComm_t c) \
    { \
        ENTER_COMM(fn, inner(c)); \
        STEP(good_comm(c)); \
        STEP(flagcxInvalidUsage); \
        LEAVE(fn, R, "comm=%p", P(c)); \
    }
REFUSAL(flagcxCommResume)
REFUSAL(flagcxCommSuspend)

EXPORT const char *flagcxGetErrorString(flagcxResult_t code)
{
    (void)code;
    return "Not implemented.";
}

EXPORT const char *flagcxGetLastError(flagcxComm_t c)
{
    return c ? last_error : "Undefined: flagcxComm is not fully initialized.";
}

EXPORT R flagcxCommGetAsyncError(flagcxComm_t c, flagcxResult_t *out)
{
    ENTER_COMM(flagcxCommGetAsyncError, inner(c));
    STEP(good_comm(c));
    if (!res) {
        const char *e = getenv("FAKE_ASYNC_ERROR");
        *out = (R)(c->inner->state ? c->inner->state : e ? atoi(e) : 0);
    }
    LEAVE(flagcxCommGetAsyncError, R, "comm=%p, %d", P(c), res ? -1 : (int)*out);
}

#define GETTER(fn, check, value) \
    EXPORT R fn(const flagcxComm_t c, int *out) \
    { \
        ENTER_COMM(fn, inner(c)); \
        check; \
        STEP(good_comm(c)); \
        STEP(out ? 0 : flagcxInvalidArgument); \
        if (!res) \
            *out = c->inner->value; \
        LEAVE(fn, R, "comm=%p", P(c)); \
    }
GETTER(flagcxCommCount, (void)0, nranks)
GETTER(flagcxCommUserRank, (void)0, rank)
GETTER(flagcxCommGetDeviceNumber, read_null(c), device)

/* ---- operations ---- */

EXPORT R flagcxBarrier(flagcxComm_t c, flagcxStream_t stream)
{
    ENTER_COMM(flagcxBarrier, inner(c));
    read_null(c);
    cudaStream_t st = raw(stream);
    if (!res && !good_comm(c)) { /* waits, and tells of no error */
        push_barrier(c->inner, st);
        core->stream_sync(st);
    }
    LEAVE(flagcxBarrier, R, "comm=%p, stream=%p", P(c), P(st));
}

#define COLL(fn, params, kind, s, r, op, peer, ...) \
    EXPORT R fn params \
    { \
        ENTER_COMM(fn, inner(c)); \
        cudaStream_t st = NULL; \
        read_switches(); \
        STEP(good_comm(c)); \
        if (!res) \
            st = raw(stream); \
        ENGINE(note(submit(kind, s, r, n, (ncclDataType_t)t, (int)(op), peer, c->inner, st))); \
        LEAVE(fn, R, __VA_ARGS__, P(c), P(st)); \
    }
#define BUFFERS const void *s, void *r, size_t n, flagcxDataType_t t
#define TAIL flagcxComm_t c, flagcxStream_t stream
#define END ", comm=%p, stream=%p"

COLL(flagcxReduce, (BUFFERS, flagcxRedOp_t op, int root, TAIL), REDUCE, s, r, op, root, "%p, %p, %zu, %d, op=%d, root=%d" END, s, r, n,
     (int)t, (int)op, root)
COLL(flagcxGather, (BUFFERS, int root, TAIL), GATHER, s, r, 0, root, "%p, %p, %zu, %d, root=%d" END, s, r, n, (int)t, root)
COLL(flagcxScatter, (BUFFERS, int root, TAIL), SCATTER, s, r, 0, root, "%p, %p, %zu, %d, root=%d" END, s, r, n, (int)t, root)
COLL(flagcxBroadcast, (BUFFERS, int root, TAIL), BROADCAST, s, r, 0, root, "%p, %p, %zu, %d, root=%d" END, s, r, n, (int)t, root)
COLL(flagcxAllReduce, (BUFFERS, flagcxRedOp_t op, TAIL), ALLREDUCE, s, r, op, 0, "%p, %p, %zu, %d, op=%d" END, s, r, n, (int)t, (int)op)
COLL(flagcxReduceScatter, (BUFFERS, flagcxRedOp_t op, TAIL), REDUCESCATTER, s, r, op, 0, "%p, %p, %zu, %d, op=%d" END, s, r, n, (int)t,
     (int)op)
COLL(flagcxAllGather, (BUFFERS, TAIL), ALLGATHER, s, r, 0, 0, "%p, %p, %zu, %d" END, s, r, n, (int)t)
COLL(flagcxAlltoAll, (BUFFERS, TAIL), ALLTOALL, s, r, 0, 0, "%p, %p, %zu, %d" END, s, r, n, (int)t)
COLL(flagcxSend, (const void *b, size_t n, flagcxDataType_t t, int peer, TAIL), SEND, b, NULL, 0, peer, "%p, %zu, %d, peer=%d" END, b, n,
     (int)t, peer)
COLL(flagcxRecv, (void *b, size_t n, flagcxDataType_t t, int peer, TAIL), RECV, NULL, b, 0, peer, "%p, %zu, %d, peer=%d" END, b, n,
     (int)t, peer)

EXPORT R flagcxAlltoAllv(const void *s, size_t *sc, size_t *sd, void *r, size_t *rc, size_t *rd, flagcxDataType_t t, flagcxComm_t c,
                         flagcxStream_t stream)
{
    ENTER_COMM(flagcxAlltoAllv, inner(c));
    struct fk_comm *in = inner(c);
    cudaStream_t st = NULL;
    read_switches();
    STEP(good_comm(c));
    if (!res)
        st = raw(stream);
    STEP((unsigned)t < flagcxNumTypes ? 0 : flagcxInvalidArgument);
    if (!res) {
        const struct element type = {(int)t, (ncclDataType_t)t, 1};
        res = translate(exchange_blocks(in, (struct blocks){s, sc, sd}, (struct blocks){r, rc, rd}, &type, true, st));
    }
    LEAVE(flagcxAlltoAllv, R, "%p, %s, %s, %p, %s, %s, %d" END, s, LIST(sc, in), LIST(sd, in), r, LIST(rc, in), LIST(rd, in), (int)t,
          P(c), P(st));
}

/* ---- one-sided operations: not for communicators of one vendor ---- */

#define ONE_SIDED(fn, params, code, ...) \
    EXPORT R fn params \
    { \
        ENTER(fn); \
        STEP(code); \
        LEAVE(fn, R, "comm=%p, " __VA_ARGS__); \
    }
static int crash_if_null(const void *c, int code) { return read_null(c), code; }

ONE_SIDED(flagcxOneSideRegister, (flagcxComm_t c, void *b, size_t n), c ? flagcxNotSupported : flagcxInternalError, "%p, %zu",
          P(c), b, n)
ONE_SIDED(flagcxOneSideSignalRegister, (const flagcxComm_t c, void *b, size_t n, int type), crash_if_null(c, 0), "%p, %zu, %d",
          P(c), b, n, type)
ONE_SIDED(flagcxOneSideStagingRegister, (const flagcxComm_t c, void *b, size_t n), crash_if_null(c, 0), "%p, %zu", P(c), b, n)
ONE_SIDED(flagcxOneSideStagingDeregister, (const flagcxComm_t c), flagcxInternalError, "%s", P(c), "")
ONE_SIDED(flagcxGet, (flagcxComm_t c, int peer, size_t so, size_t to, size_t n, int sm, int tm), flagcxInvalidArgument,
          "%d, %zu, %zu, %zu, %d, %d", P(c), peer, so, to, n, sm, tm)
ONE_SIDED(flagcxPut, (flagcxComm_t c, int peer, size_t so, size_t to, size_t n, int sm, int tm), flagcxInvalidArgument,
          "%d, %zu, %zu, %zu, %d, %d", P(c), peer, so, to, n, sm, tm)
ONE_SIDED(flagcxBatchPut, (flagcxComm_t c, int peer, const size_t *so, const size_t *to, const size_t *n, const int *sm, const int *tm,
                           size_t count), flagcxInvalidArgument, "%d, %p, %p, %p, %p, %p, %zu", P(c), peer, P(so), P(to), P(n),
          P(sm), P(tm), count)
ONE_SIDED(flagcxPutSignal, (const void *b, size_t n, flagcxDataType_t t, int peer, flagcxWindow_t win, size_t off, unsigned int flags,
                            flagcxComm_t c, flagcxStream_t stream), flagcxInvalidArgument, "%p, %zu, %d, %d, %p, %zu, %u, %p",
          P(c), b, n, (int)t, peer, P(win), off, flags, P(stream))
ONE_SIDED(flagcxSignal, (int peer, unsigned int flags, flagcxComm_t c, flagcxStream_t stream), flagcxInvalidArgument, "%d, %u, %p",
          P(c), peer, flags, P(stream))
ONE_SIDED(flagcxWaitSignal, (int n, const flagcxWaitSignalDesc_t *d, flagcxComm_t c, flagcxStream_t stream),
          n ? flagcxInvalidArgument : 0, "%d, %p, %p", P(c), n, P(d), P(stream))
ONE_SIDED(flagcxReadCounter, (flagcxComm_t c, uint64_t *count), flagcxInvalidArgument, "%p", P(c), P(count))
ONE_SIDED(flagcxWaitCounter, (flagcxComm_t c, uint64_t target), flagcxInvalidArgument, "%llu", P(c), (unsigned long long)target)

/* ---- groups: the communicator may be NULL ---- */

EXPORT R flagcxGroupStart(flagcxComm_t c)
{
    ENTER(flagcxGroupStart);
    read_switches();
    if (!res)
        together();
    LEAVE(flagcxGroupStart, R, "comm=%p", P(c));
}

EXPORT R flagcxGroupEnd(flagcxComm_t c)
{
    ENTER(flagcxGroupEnd);
    read_switches();
    if (res)
        note(ncclInternalError);
    int r = translate(group_end(false));
    STEP(r);
    LEAVE(flagcxGroupEnd, R, "comm=%p", P(c));
}
