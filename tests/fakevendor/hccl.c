/* Stand-in of HCCL (Ascend): libhccl.so as it is up to 8.3, with everything in it. With -DFAKE_HCOMM it is libhcomm.so as it is
 * from 8.5 on: communicators and groups only (the operations are hccl_ops.c). */
#define _GNU_SOURCE
#define FAKE_SENDS_WAIT
#include "hccl_split.h"
#include "odd_ccl.h"

#ifdef FAKE_HCOMM
#define OP __attribute__((visibility("hidden")))
#else
#define OP EXPORT
#endif

static int translate(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess: case ncclInProgress: return HCCL_SUCCESS;
    case ncclUnhandledCudaError: return HCCL_E_RUNTIME;
    case ncclSystemError: return HCCL_E_TCP_CONNECT;
    case ncclInvalidArgument: case ncclInvalidUsage: return HCCL_E_PARA;
    case ncclRemoteError: return HCCL_E_REMOTE;
    case ncclTimeout: return HCCL_E_TIMEOUT;
    default: return HCCL_E_INTERNAL;
    }
}

static const struct element types[] = {
    {HCCL_DATA_TYPE_INT8, ncclInt8, 1}, {HCCL_DATA_TYPE_INT16, ncclUint8, 2}, {HCCL_DATA_TYPE_INT32, ncclInt32, 1},
    {HCCL_DATA_TYPE_FP16, ncclFloat16, 1}, {HCCL_DATA_TYPE_FP32, ncclFloat32, 1}, {HCCL_DATA_TYPE_INT64, ncclInt64, 1},
    {HCCL_DATA_TYPE_UINT64, ncclUint64, 1}, {HCCL_DATA_TYPE_UINT8, ncclUint8, 1}, {HCCL_DATA_TYPE_UINT16, ncclUint8, 2},
    {HCCL_DATA_TYPE_UINT32, ncclUint32, 1}, {HCCL_DATA_TYPE_FP64, ncclFloat64, 1}, {HCCL_DATA_TYPE_BFP16, ncclBfloat16, 1},
#ifdef FAKE_HCOMM /* from 8.5 on */
    {HCCL_DATA_TYPE_FP8E4M3, ncclUint8, 1}, {HCCL_DATA_TYPE_FP8E5M2, ncclUint8, 1},
#endif
};
static const struct element *element_of(HcclDataType t) { return find_element(types, sizeof types / sizeof *types, (int)t); }

/* What A2 and A3 reduce. (They reduce INT16 too, but not this stand-in.) */
static int reducible(HcclDataType t, HcclReduceOp op)
{
    switch ((int)t) {
    case HCCL_DATA_TYPE_INT8: case HCCL_DATA_TYPE_INT32: case HCCL_DATA_TYPE_INT64: case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_FP32:
        return (unsigned)op <= HCCL_REDUCE_MIN ? 0 : HCCL_E_NOT_SUPPORT;
    case HCCL_DATA_TYPE_BFP16:
        return (unsigned)op <= HCCL_REDUCE_MIN && op != HCCL_REDUCE_PROD ? 0 : HCCL_E_NOT_SUPPORT;
    default:
        return HCCL_E_NOT_SUPPORT;
    }
}

/* HCCL's operators are the engine's; see the assertion. */
_Static_assert((int)HCCL_REDUCE_SUM == ncclSum && (int)HCCL_REDUCE_PROD == ncclProd && (int)HCCL_REDUCE_MAX == ncclMax &&
               (int)HCCL_REDUCE_MIN == ncclMin, "the same numbers");

static int bound(void)
{
    return have_devices() || core->peek_device() < 0 ? HCCL_E_RUNTIME : 0;
}

static int good_comm(HcclComm c) { return !c ? HCCL_E_PTR : valid(c) ? 0 : HCCL_E_PARA; }

/* What every operation checks first. */
static int good_call(HcclComm c, aclrtStream st)
{
    int r = st ? good_comm(c) : HCCL_E_PTR;
    return r ? r : bound();
}

static int good_buffer(const void *p, uint64_t n, HcclDataType dt)
{
    const struct element *t = element_of(dt);
    if (!t)
        return HCCL_E_NOT_SUPPORT;
    if (!p && n)
        return HCCL_E_PTR;
    return (uintptr_t)p % (sizes[t->dt] * t->times) ? HCCL_E_PARA : 0;
}

/* ---- groups ---- */

enum { P2P = 1, COLLECTIVE = 2, BATCH = 4 };

/* A group holds sends and receives or collectives, not both, and no batches. */
static int good_in_group(int what)
{
    static _Thread_local int seen;
    if (!group.depth) {
        seen = 0;
        return 0;
    }
    if (!group.n)
        seen = 0;
    seen |= what;
    return what == BATCH || seen == (P2P | COLLECTIVE) ? HCCL_E_NOT_SUPPORT : 0;
}

EXPORT HcclResult HcclGroupStart(void)
{
    ENTER(HcclGroupStart);
    if (!res)
        together();
    LEAVE(HcclGroupStart, HcclResult, "%s", "");
}

EXPORT HcclResult HcclGroupEnd(void)
{
    ENTER(HcclGroupEnd);
    if (res)
        note(ncclInternalError);
    int r = translate(group_end(false));
    STEP(r);
    LEAVE(HcclGroupEnd, HcclResult, "%s", "");
}

/* ---- communicators ---- */

static const char ROOT_MAGIC[8] = "FKHCCLRI";

/* All bytes say something: the name in every one of them, and a sum at the end. */
static void root_fill(char *out, const char *name)
{
    uint32_t sum = 2166136261u;
    memcpy(out, ROOT_MAGIC, 8);
    memcpy(out + 8, name, 32);
    for (int i = 40; i < HCCL_ROOT_INFO_BYTES - 4; i++)
        out[i] = (char)(name[i % 32] ^ (i * 37 + (i >> 8) * 101));
    for (int i = 0; i < HCCL_ROOT_INFO_BYTES - 4; i++)
        sum = (sum ^ (unsigned char)out[i]) * 16777619u;
    memcpy(out + HCCL_ROOT_INFO_BYTES - 4, &sum, 4);
}

EXPORT HcclResult HcclGetRootInfo(HcclRootInfo *info)
{
    ENTER(HcclGetRootInfo);
    char name[33] = "";
    STEP(info ? bound() : HCCL_E_PTR);
    if (!res) {
        random_name(name);
        ENGINE(start_root(name));
    }
    if (!res)
        root_fill(info->internal, name);
    LEAVE(HcclGetRootInfo, HcclResult, "info=%.8s", name);
}

/* The vendor gives up by itself. */
static long patience(void)
{
    const char *ms = getenv("FAKE_INIT_TIMEOUT"), *s = getenv("HCCL_CONNECT_TIMEOUT");
    return ms && *ms ? atol(ms) : s && *s ? 1000 * atol(s) : 120000;
}

static ncclResult_t make_comm(struct fk_comm **out, uint32_t n, const char *name, uint32_t rank)
{
    /* One that does not block is waited for here, so that the waiting can end. */
    const ncclConfig_t config = {.size = 24, .magic = NCCL_CONFIG_MAGIC, .version = 21400, .blocking = 0};
    struct fk_comm *c = NULL;
    ncclUniqueId id;
    struct timespec t0, t;
    id_make(&id, name);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    ncclResult_t r = init_rank(&c, (int)n, &id, (int)rank, &config);
    if (r != ncclInProgress)
        return r;
    bool late = false;
    while (c->state == ncclInProgress && !late) {
        fk_msleep(1);
        clock_gettime(CLOCK_MONOTONIC, &t);
        late = (t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 > patience();
    }
    if (late)
        comm_stop(c);
    pthread_mutex_lock(&c->mu);
    while (c->helpers)
        pthread_cond_wait(&c->cv, &c->mu);
    pthread_mutex_unlock(&c->mu);
    r = late ? ncclTimeout : (ncclResult_t)c->state;
    if (r) {
        comm_close(c);
        return r;
    }
    c->blocking = true;
    *out = c;
    return ncclSuccess;
}

/* One initialisation at a time per device. */
static bool claim(int device, bool want)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static bool busy[64];
    pthread_mutex_lock(&mu);
    bool was = busy[device];
    busy[device] = want;
    pthread_mutex_unlock(&mu);
    return !was;
}

EXPORT HcclResult HcclCommInitRootInfo(uint32_t n, const HcclRootInfo *info, uint32_t rank, HcclComm *comm)
{
    ENTER(HcclCommInitRootInfo);
    char name[33] = "", *want;
    STEP(info && comm ? 0 : HCCL_E_PTR);
    STEP(n && n <= INT_MAX && rank < n ? 0 : HCCL_E_PARA);
    STEP(bound());
    STEP(group.depth ? HCCL_E_NOT_SUPPORT : 0);
    if (!res) {
        memcpy(name, info->internal + 8, 32);
        want = malloc(HCCL_ROOT_INFO_BYTES);
        root_fill(want, name);
        res = memcmp(want, info->internal, HCCL_ROOT_INFO_BYTES) ? HCCL_E_PARA : 0;
        free(want);
        if (res)
            name[0] = 0;
    }
    if (!res) {
        int device = core->peek_device();
        if (!claim(device, true))
            res = HCCL_E_UNAVAIL;
        else {
            struct fk_comm *c = NULL;
            res = translate(make_comm(&c, n, name, rank));
            claim(device, false);
            *comm = c;
        }
    }
    LEAVE(HcclCommInitRootInfo, HcclResult, "%u, info=%.8s, %u, comm=%p", n, name, rank, res ? NULL : *comm);
}

EXPORT HcclResult HcclCommDestroy(HcclComm c)
{
    ENTER_COMM(HcclCommDestroy, c);
    STEP(good_comm(c));
    STEP(bound());
    if (!res)
        end_comm(c);
    LEAVE(HcclCommDestroy, HcclResult, "comm=%p", c);
}

#define GETTER(fn, value) \
    EXPORT HcclResult fn(HcclComm comm, uint32_t *out) \
    { \
        ENTER_COMM(fn, comm); \
        struct fk_comm *c = comm; \
        STEP(out ? good_comm(c) : HCCL_E_PTR); \
        if (!res) \
            *out = (uint32_t)value; \
        LEAVE(fn, HcclResult, "comm=%p", comm); \
    }
GETTER(HcclGetRankSize, c->nranks)
GETTER(HcclGetRankId, c->rank)

EXPORT HcclResult HcclGetCommName(HcclComm comm, char *name)
{
    ENTER_COMM(HcclGetCommName, comm);
    struct fk_comm *c = comm;
    STEP(name ? good_comm(c) : HCCL_E_PTR);
    if (!res)
        snprintf(name, 128, "%s", c->secret);
    LEAVE(HcclGetCommName, HcclResult, "comm=%p", comm);
}

EXPORT HcclResult HcclBarrier(HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclBarrier, c);
    STEP(good_call(c, st));
    ENGINE(push_barrier(c, st));
    LEAVE(HcclBarrier, HcclResult, "comm=%p, stream=%p", c, st);
}

/* Tells only of errors of the network's cards, which ranks on one machine do not use. */
EXPORT HcclResult HcclGetCommAsyncError(HcclComm c, HcclResult *out)
{
    ENTER_COMM(HcclGetCommAsyncError, c);
    STEP(out ? good_comm(c) : HCCL_E_PTR);
    if (!res) {
        const char *e = getenv("FAKE_ASYNC_ERROR");
        *out = (HcclResult)(e ? atoi(e) : 0);
    }
    LEAVE(HcclGetCommAsyncError, HcclResult, "comm=%p, %d", c, res ? -1 : (int)*out);
}

EXPORT const char *HcclGetErrorString(HcclResult code)
{
    switch ((int)code) {
    case HCCL_SUCCESS: return "no error";
    case HCCL_E_PARA: return "parameter error";
    case HCCL_E_PTR: return "empty pointer";
    case HCCL_E_INTERNAL: return "internal error";
    case HCCL_E_NOT_SUPPORT: return "feature not supported";
    case HCCL_E_UNAVAIL: return "resource not available";
    case HCCL_E_TIMEOUT: return "timeout";
    case HCCL_E_TCP_CONNECT: return "tcp connection failed";
    case HCCL_E_RUNTIME: return "runtime api call failed";
    case HCCL_E_REMOTE: return "remote error";
    default: return "unknown error";
    }
}

/* ---- operations ---- */

/* Hands an operation to the engine. */
static int put(enum kind kind, const void *s, void *r, uint64_t n, HcclDataType dt, int op, uint32_t peer, HcclComm c, aclrtStream st)
{
    const struct element *t = element_of(dt);
    int res = good_in_group(kind >= SEND ? P2P : COLLECTIVE);
    STEP(peer > INT_MAX ? HCCL_E_PARA : 0);
    if (res) {
        note(ncclInvalidUsage);
        return res;
    }
    return translate(note(submit(kind, s, r, n * t->times, t->dt, op, (int)peer, c, st)));
}

#define ROOT(c) (((struct fk_comm *)(c))->rank)
#define LL unsigned long long

OP HcclResult HcclAllReduce(void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclAllReduce, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, n, t));
    STEP(good_buffer(r, n, t));
    STEP(reducible(t, op));
    STEP(put(ALLREDUCE, s, r, n, t, (int)op, 0, c, st));
    LEAVE(HcclAllReduce, HcclResult, "%p, %p, %llu, %d, op=%d, comm=%p, stream=%p", s, r, (LL)n, (int)t, (int)op, c, st);
}

OP HcclResult HcclReduce(void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, uint32_t root, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclReduce, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, n, t));
    STEP(good_buffer(r, (uint32_t)ROOT(c) == root ? n : 0, t));
    STEP(reducible(t, op));
    STEP(put(REDUCE, s, r, n, t, (int)op, root, c, st));
    LEAVE(HcclReduce, HcclResult, "%p, %p, %llu, %d, op=%d, root=%u, comm=%p, stream=%p", s, r, (LL)n, (int)t, (int)op, root, c, st);
}

OP HcclResult HcclReduceScatter(void *s, void *r, uint64_t n, HcclDataType t, HcclReduceOp op, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclReduceScatter, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, n, t));
    STEP(good_buffer(r, n, t));
    STEP(reducible(t, op));
    STEP(put(REDUCESCATTER, s, r, n, t, (int)op, 0, c, st));
    LEAVE(HcclReduceScatter, HcclResult, "%p, %p, %llu, %d, op=%d, comm=%p, stream=%p", s, r, (LL)n, (int)t, (int)op, c, st);
}

/* Each rank's part is a reduction of its own. */
OP HcclResult HcclReduceScatterV(void *s, const void *sc, const void *sd, void *r, uint64_t n, HcclDataType t, HcclReduceOp op,
                                 HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclReduceScatterV, c);
    STEP(good_call(c, st));
    STEP(sc && sd ? good_buffer(s, 1, t) : HCCL_E_PTR);
    STEP(good_buffer(r, n, t));
    STEP(reducible(t, op));
    STEP(((const uint64_t *)sc)[ROOT(c)] == n ? 0 : HCCL_E_PARA);
    if (!res) {
        const uint64_t *counts = sc, *displs = sd;
        size_t es = sizes[element_of(t)->dt];
        together();
        for (int i = 0; i < ((struct fk_comm *)c)->nranks; i++)
            STEP(put(REDUCE, (char *)s + displs[i] * es, r, counts[i], t, (int)op, (uint32_t)i, c, st));
        int end = translate(group_end(false));
        STEP(end);
    }
    LEAVE(HcclReduceScatterV, HcclResult, "%p, %s, %s, %p, %llu, %d, op=%d, comm=%p, stream=%p", s, LIST(sc, c), LIST(sd, c), r,
          (LL)n, (int)t, (int)op, c, st);
}

OP HcclResult HcclBroadcast(void *b, uint64_t n, HcclDataType t, uint32_t root, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclBroadcast, c);
    STEP(good_call(c, st));
    STEP(good_buffer(b, n, t));
    STEP(put(BROADCAST, b, b, n, t, 0, root, c, st));
    LEAVE(HcclBroadcast, HcclResult, "%p, %llu, %d, root=%u, comm=%p, stream=%p", b, (LL)n, (int)t, root, c, st);
}

OP HcclResult HcclScatter(void *s, void *r, uint64_t n, HcclDataType t, uint32_t root, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclScatter, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, (uint32_t)ROOT(c) == root ? n : 0, t));
    STEP(good_buffer(r, n, t));
    STEP(put(SCATTER, s, r, n, t, 0, root, c, st));
    LEAVE(HcclScatter, HcclResult, "%p, %p, %llu, %d, root=%u, comm=%p, stream=%p", s, r, (LL)n, (int)t, root, c, st);
}

OP HcclResult HcclAllGather(void *s, void *r, uint64_t n, HcclDataType t, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclAllGather, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, n, t));
    STEP(good_buffer(r, n, t));
    STEP(put(ALLGATHER, s, r, n, t, 0, 0, c, st));
    LEAVE(HcclAllGather, HcclResult, "%p, %p, %llu, %d, comm=%p, stream=%p", s, r, (LL)n, (int)t, c, st);
}

/* Arrays of a host's 64-bit numbers are what the engine takes. */
_Static_assert(sizeof(uint64_t) == sizeof(size_t), "a machine with 64 bits");

OP HcclResult HcclAllGatherV(void *s, uint64_t n, void *r, const void *rc, const void *rd, HcclDataType t, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclAllGatherV, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, n, t));
    STEP(rc && rd ? good_buffer(r, 1, t) : HCCL_E_PTR);
    STEP(((const uint64_t *)rc)[ROOT(c)] == n ? 0 : HCCL_E_PARA);
    STEP(good_in_group(COLLECTIVE));
    if (!res) {
        int ranks = ((struct fk_comm *)c)->nranks;
        size_t *counts = calloc(2 * (size_t)ranks, sizeof *counts);
        for (int i = 0; i < ranks; i++)
            counts[i] = n;
        struct blocks out = {s, counts, counts + ranks}, in = {r, rc, rd};
        res = translate(exchange_blocks(c, out, in, element_of(t), false, st));
        free(counts);
    }
    LEAVE(HcclAllGatherV, HcclResult, "%p, %llu, %p, %s, %s, %d, comm=%p, stream=%p", s, (LL)n, r, LIST(rc, c), LIST(rd, c), (int)t,
          c, st);
}

OP HcclResult HcclSend(void *b, uint64_t n, HcclDataType t, uint32_t peer, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclSend, c);
    STEP(good_call(c, st));
    STEP(good_buffer(b, n, t));
    STEP(put(SEND, b, NULL, n, t, 0, peer, c, st));
    LEAVE(HcclSend, HcclResult, "%p, %llu, %d, peer=%u, comm=%p, stream=%p", b, (LL)n, (int)t, peer, c, st);
}

OP HcclResult HcclRecv(void *b, uint64_t n, HcclDataType t, uint32_t peer, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclRecv, c);
    STEP(good_call(c, st));
    STEP(good_buffer(b, n, t));
    STEP(put(RECV, NULL, b, n, t, 0, peer, c, st));
    LEAVE(HcclRecv, HcclResult, "%p, %llu, %d, peer=%u, comm=%p, stream=%p", b, (LL)n, (int)t, peer, c, st);
}

OP HcclResult HcclAlltoAll(const void *s, uint64_t sn, HcclDataType stype, const void *r, uint64_t rn, HcclDataType rtype, HcclComm c,
                           aclrtStream st)
{
    ENTER_COMM(HcclAlltoAll, c);
    STEP(good_call(c, st));
    STEP(good_buffer(s, sn, stype));
    STEP(good_buffer(r, rn, rtype));
    STEP(sn == rn && stype == rtype ? 0 : HCCL_E_PARA);
    STEP(put(ALLTOALL, s, (void *)r, sn, stype, 0, 0, c, st));
    LEAVE(HcclAlltoAll, HcclResult, "%p, %llu, %d, %p, %llu, %d, comm=%p, stream=%p", s, (LL)sn, (int)stype, r, (LL)rn, (int)rtype, c,
          st);
}

OP HcclResult HcclAlltoAllV(const void *s, const void *sc, const void *sd, HcclDataType stype, const void *r, const void *rc,
                            const void *rd, HcclDataType rtype, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclAlltoAllV, c);
    STEP(good_call(c, st));
    STEP(sc && sd && rc && rd ? 0 : HCCL_E_PTR);
    STEP(good_buffer(s, 0, stype));
    STEP(good_buffer(r, 0, rtype));
    STEP(stype == rtype ? 0 : HCCL_E_PARA);
    STEP(good_in_group(COLLECTIVE));
    ENGINE(exchange_blocks(c, (struct blocks){s, sc, sd}, (struct blocks){r, rc, rd}, element_of(stype), false, st));
    LEAVE(HcclAlltoAllV, HcclResult, "%p, %s, %s, %d, %p, %s, %s, %d, comm=%p, stream=%p", s, LIST(sc, c), LIST(sd, c), (int)stype, r,
          LIST(rc, c), LIST(rd, c), (int)rtype, c, st);
}

OP HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t n, HcclComm c, aclrtStream st)
{
    ENTER_COMM(HcclBatchSendRecv, c);
    char text[640] = "";
    size_t used = 0;
    STEP(good_call(c, st));
    STEP(items && n ? 0 : HCCL_E_PTR);
    STEP(good_in_group(BATCH));
    for (uint32_t i = 0; items && i < n; i++) {
        const HcclSendRecvItem *x = &items[i];
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s{%s %p, %llu, %d, peer=%u}", i ? " " : "",
                                     x->sendRecvType == HCCL_SEND ? "send" : "recv", x->buf, (LL)x->count, (int)x->dataType,
                                     x->remoteRank);
        STEP((unsigned)x->sendRecvType <= HCCL_RECV ? good_buffer(x->buf, x->count, x->dataType) : HCCL_E_PARA);
    }
    if (!res) {
        together();
        for (uint32_t i = 0; i < n; i++) {
            HcclSendRecvItem *x = &items[i];
            bool out = x->sendRecvType == HCCL_SEND;
            const struct element *t = element_of(x->dataType);
            STEP(translate(note(submit(out ? SEND : RECV, out ? x->buf : NULL, out ? NULL : x->buf, x->count * t->times, t->dt, 0,
                                       x->remoteRank > INT_MAX ? -1 : (int)x->remoteRank, c, st))));
        }
        int end = translate(group_end(false));
        STEP(end);
    }
    LEAVE(HcclBatchSendRecv, HcclResult, "%u, %s, comm=%p, stream=%p", n, text, c, st);
}

#ifdef FAKE_HCOMM
EXPORT const struct hccl_ops *fake_hccl_ops(void)
{
    static const struct hccl_ops ops = {
#define X(fn, params, args) .fn = fn,
        HCCL_OPS(X)
#undef X
    };
    return &ops;
}
#endif
