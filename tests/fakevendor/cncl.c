/* Stand-in of CNCL (libcncl.so, Cambricon). Devices come from a list, a clique id serves once per process, and the
 * communicators of a clique end together. */
#define _GNU_SOURCE
#include "abi/cncl.h"
#include "odd_ccl.h"

static int translate(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess: case ncclInProgress: return CNCL_RET_SUCCESS;
    case ncclUnhandledCudaError: return CNCL_RET_ERR_MLU_RUNTIME;
    case ncclSystemError: return CNCL_RET_ERR_SYS_SOCKET;
    case ncclInvalidArgument: case ncclInvalidUsage: return CNCL_RET_ERR_ARGUMENTS;
    case ncclRemoteError: return CNCL_RET_ASYNC_ERROR;
    default: return CNCL_RET_ERR_INTERNAL;
    }
}

/* There is no double and no average. */
static const struct element types[] = {
    {cnclHalf, ncclFloat16, 1}, {cnclBfloat16, ncclBfloat16, 1}, {cnclFloat, ncclFloat32, 1}, {cnclInt8, ncclInt8, 1},
    {cnclInt16, ncclUint8, 2}, {cnclInt32, ncclInt32, 1}, {cnclInt64, ncclInt64, 1}, {cnclUint8, ncclUint8, 1},
    {cnclUint16, ncclUint8, 2}, {cnclUint32, ncclUint32, 1}, {cnclUint64, ncclUint64, 1},
};
static const struct element *element_of(cnclDataType_t t) { return find_element(types, sizeof types / sizeof *types, (int)t); }
_Static_assert((int)cnclSum == ncclSum && (int)cnclProd == ncclProd && (int)cnclMax == ncclMax && (int)cnclMin == ncclMin,
               "the same numbers");

static int good_comm(const void *c)
{
    return !c ? CNCL_RET_ERR_NULL_POINTER : valid((struct fk_comm *)c) ? 0 : CNCL_RET_ERR_ARGUMENTS;
}
static int good_type(cnclDataType_t t, bool reduces)
{
    const struct element *x = element_of(t);
    return !x || (reduces && x->times > 1) ? CNCL_RET_ERR_UNSUPPORTED : 0;
}
static int good_op(cnclReduceOp_t op) { return (unsigned)op <= cnclMin ? 0 : CNCL_RET_ERR_UNSUPPORTED; }

EXPORT cnclResult_t cnclGetLibVersion(int *major, int *minor, int *patch)
{
    ENTER(cnclGetLibVersion);
    STEP(major && minor && patch ? 0 : CNCL_RET_ERR_NULL_POINTER);
    if (!res) {
        *major = 1;
        *minor = 25;
        *patch = 0;
    }
    LEAVE(cnclGetLibVersion, cnclResult_t, "%s", "");
}

/* ---- communicators ---- */

static uint64_t hash(const char *data)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (int i = 0; i < 128; i++)
        h = (h ^ (unsigned char)data[i]) * 0x100000001b3ull;
    return h;
}

EXPORT cnclResult_t cnclGetCliqueId(cnclCliqueId_t id)
{
    ENTER(cnclGetCliqueId);
    char name[33] = "";
    STEP(id ? 0 : CNCL_RET_ERR_NULL_POINTER);
    if (!res) {
        random_name(name);
        ENGINE(start_root(name));
    }
    if (!res) {
        ncclUniqueId unique;
        id_make(&unique, name);
        memcpy(id->data, unique.internal, 128);
        id->hash = hash(id->data);
    }
    LEAVE(cnclGetCliqueId, cnclResult_t, "id=%.8s", name);
}

/* Remembers the cliques that this process has joined; false if it has this one. */
static bool first_use(const char *name)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static struct used { char name[33]; struct used *next; } *list;
    bool first = true;
    pthread_mutex_lock(&mu);
    for (struct used *u = list; u; u = u->next)
        first &= strcmp(u->name, name) != 0;
    if (first) {
        struct used *u = calloc(1, sizeof *u);
        memcpy(u->name, name, 33);
        u->next = list;
        list = u;
    }
    pthread_mutex_unlock(&mu);
    return first;
}

EXPORT cnclResult_t cnclInitComms(cnclComm_t *comms, int num_comm, const int *dev_list, const int *rank_list, int nrank,
                                  const cnclCliqueId_t id)
{
    /* One at a time: whoever takes two cliques in another order than the others waits for ever. */
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    ENTER(cnclInitComms);
    char name[33] = "";
    ncclUniqueId unique;
    STEP(comms && dev_list && rank_list && id ? 0 : CNCL_RET_ERR_NULL_POINTER);
    STEP(num_comm > 0 && nrank >= num_comm ? 0 : CNCL_RET_ERR_ARGUMENTS);
    ENGINE(have_devices());
    for (int i = 0; !res && i < num_comm; i++)
        if (dev_list[i] < 0 || dev_list[i] >= core->count() || rank_list[i] < 0 || rank_list[i] >= nrank)
            res = CNCL_RET_ERR_ARGUMENTS;
    if (!res) {
        memcpy(unique.internal, id->data, 128);
        if (id->hash != hash(id->data) || !id_name(&unique, name))
            res = CNCL_RET_ERR_ARGUMENTS;
    }
    STEP(group.depth ? CNCL_RET_ERR_UNSUPPORTED : 0);
    STEP(first_use(name) ? 0 : CNCL_RET_ERR_REINIT);
    if (!res) {
        int before = core->peek_device();
        ncclResult_t r = ncclSuccess;
        pthread_mutex_lock(&mu);
        together();
        for (int i = 0; i < num_comm && !r; i++) {
            core->poke_device(dev_list[i]);
            r = init_rank((struct fk_comm **)&comms[i], nrank, &unique, rank_list[i], NULL);
        }
        core->poke_device(before);
        res = translate(go(r));
        pthread_mutex_unlock(&mu);
    }
    LEAVE(cnclInitComms, cnclResult_t, "%d, dev=%d.., rank=%d.., %d, id=%.8s", num_comm, dev_list ? *dev_list : -1,
          rank_list ? *rank_list : -1, nrank, name);
}

/* Tells all peers, then waits for all of them, so that nobody ends before the others. */
static int end_together(cnclComm_t *list, int n)
{
    int before = core->peek_device();
    for (int i = 0; i < n; i++) {
        struct fk_comm *c = (struct fk_comm *)list[i];
        core->poke_device(c->device);
        drain(c);
        for (int p = 0; p < c->nranks; p++)
            if (c->fds[p] >= 0)
                write_all(c->fds[p], "bye", 3, &c->abort);
    }
    for (int i = 0; i < n; i++) {
        struct fk_comm *c = (struct fk_comm *)list[i];
        char bye[3];
        for (int p = 0; p < c->nranks; p++)
            if (c->fds[p] >= 0)
                read_all(c->fds[p], bye, 3, &c->abort); /* one that died has ended too */
    }
    for (int i = 0; i < n; i++)
        comm_close((struct fk_comm *)list[i]);
    core->poke_device(before);
    return 0;
}

EXPORT cnclResult_t cnclDestroyComms(cnclComm_t *comms, int n)
{
    ENTER(cnclDestroyComms);
    STEP(comms ? 0 : CNCL_RET_ERR_NULL_POINTER);
    STEP(n > 0 ? 0 : CNCL_RET_ERR_ARGUMENTS);
    for (int i = 0; !res && i < n; i++)
        res = good_comm(comms[i]);
    STEP(end_together(comms, n));
    LEAVE(cnclDestroyComms, cnclResult_t, "comm=%p.., %d", P(comms && n > 0 ? comms[0] : NULL), n);
}

EXPORT cnclResult_t cnclFreeComm(cnclComm_t c)
{
    ENTER_COMM(cnclFreeComm, c);
    STEP(good_comm(c));
    STEP(end_together(&c, 1));
    LEAVE(cnclFreeComm, cnclResult_t, "comm=%p", P(c));
}

EXPORT cnclResult_t cnclAbortComm(cnclComm_t c)
{
    ENTER(cnclAbortComm);
    STEP(good_comm(c));
    if (!res)
        abort_comm((struct fk_comm *)c);
    LEAVE(cnclAbortComm, cnclResult_t, "comm=%p", P(c));
}

EXPORT cnclResult_t cnclSetCommConfig(cnclComm_t c, const struct cnclCommConfig *config)
{
    ENTER_COMM(cnclSetCommConfig, c);
    STEP(good_comm(c));
    STEP(config ? 0 : CNCL_RET_ERR_NULL_POINTER);
    STEP(config->priority == 0 || config->priority == 0x10 || config->priority == 0x11 ? 0 : CNCL_RET_ERR_ARGUMENTS);
    LEAVE(cnclSetCommConfig, cnclResult_t, "comm=%p, priority=%#x", P(c), config ? (unsigned)config->priority : 0);
}

/* The answer comes first. */
#define GETTER(fn, value) \
    EXPORT cnclResult_t fn(int *out, const cnclComm_t comm) \
    { \
        ENTER_COMM(fn, comm); \
        struct fk_comm *c = (struct fk_comm *)comm; \
        STEP(out ? good_comm(c) : CNCL_RET_ERR_NULL_POINTER); \
        if (!res) \
            *out = value; \
        LEAVE(fn, cnclResult_t, "comm=%p", P(comm)); \
    }
GETTER(cnclGetCommCount, c->nranks)
GETTER(cnclGetCommRank, c->rank)
GETTER(cnclGetCommDevice, c->device)

/* The state is what is returned. */
EXPORT cnclResult_t cnclGetCommAsyncError(const cnclComm_t comm)
{
    ENTER_COMM(cnclGetCommAsyncError, comm);
    STEP(good_comm(comm));
    if (!res) {
        const char *e = getenv("FAKE_ASYNC_ERROR");
        struct fk_comm *c = (struct fk_comm *)comm;
        res = c->state ? CNCL_RET_ASYNC_ERROR : e ? (int)strtol(e, NULL, 0) : 0;
    }
    LEAVE(cnclGetCommAsyncError, cnclResult_t, "comm=%p", P(comm));
}

EXPORT const char *cnclGetErrorStr(cnclResult_t code)
{
    switch ((int)code) {
    case CNCL_RET_SUCCESS: return "success";
    case CNCL_RET_ERR_UNSUPPORTED: return "not supported";
    case CNCL_RET_ERR_NULL_POINTER: return "a pointer is null";
    case CNCL_RET_ERR_REINIT: return "initialized twice";
    case CNCL_RET_ERR_MLU_RUNTIME: return "a call of the runtime failed";
    case CNCL_RET_ERR_SYS_SOCKET: return "a socket failed";
    case CNCL_RET_ASYNC_IN_PROGRESS: return "in progress";
    case CNCL_RET_ASYNC_ERROR: return "asynchronous error";
    case CNCL_RET_ERR_ARGUMENTS: return "an argument is not valid";
    default: return "unknown error";
    }
}

/* ---- operations ---- */

static int put(enum kind kind, const void *s, void *r, size_t n, cnclDataType_t dt, int op, int peer, cnclComm_t c, cnrtQueue_t q)
{
    const struct element *t = element_of(dt);
    return translate(note(submit(kind, s, r, n * t->times, t->dt, op, peer, (struct fk_comm *)c, (cudaStream_t)q)));
}

#define COLL(fn, params, reduces, kind, s, r, n, op, peer, ...) \
    EXPORT cnclResult_t fn params \
    { \
        ENTER_COMM(fn, c); \
        STEP(good_comm(c)); \
        STEP(good_type(t, reduces)); \
        STEP(good_op((cnclReduceOp_t)(op))); \
        STEP(put(kind, s, r, n, t, (int)(op), peer, (cnclComm_t)c, q)); \
        if (res) \
            note(ncclInvalidArgument); \
        LEAVE(fn, cnclResult_t, __VA_ARGS__, P(c), P(q)); \
    }
#define BUFFERS const void *s, void *r, size_t n, cnclDataType_t t
#define TAIL cnclComm_t c, cnrtQueue_t q
#define END ", comm=%p, queue=%p"

COLL(cnclAllReduce, (BUFFERS, cnclReduceOp_t op, TAIL), true, ALLREDUCE, s, r, n, op, 0, "%p, %p, %zu, %#x, op=%d" END, s, r, n,
     (unsigned)t, (int)op)
COLL(cnclReduceScatter, (BUFFERS, cnclReduceOp_t op, TAIL), true, REDUCESCATTER, s, r, n, op, 0, "%p, %p, %zu, %#x, op=%d" END, s, r, n,
     (unsigned)t, (int)op)
COLL(cnclReduce, (BUFFERS, cnclReduceOp_t op, int root, TAIL), true, REDUCE, s, r, n, op, root, "%p, %p, %zu, %#x, op=%d, root=%d" END,
     s, r, n, (unsigned)t, (int)op, root)
COLL(cnclBroadcast, (BUFFERS, int root, TAIL), false, BROADCAST, s, r, n, 0, root, "%p, %p, %zu, %#x, root=%d" END, s, r, n, (unsigned)t,
     root)
COLL(cnclBcast, (void *r, size_t n, cnclDataType_t t, int root, TAIL), false, BROADCAST, r, r, n, 0, root, "%p, %zu, %#x, root=%d" END,
     r, n, (unsigned)t, root)
COLL(cnclAllGather, (BUFFERS, TAIL), false, ALLGATHER, s, r, n, 0, 0, "%p, %p, %zu, %#x" END, s, r, n, (unsigned)t)
COLL(cnclAlltoAll, (BUFFERS, TAIL), false, ALLTOALL, s, r, n, 0, 0, "%p, %p, %zu, %#x" END, s, r, n, (unsigned)t)
COLL(cnclSend, (void *b, const size_t n, cnclDataType_t t, const int peer, const cnclComm_t c, cnrtQueue_t q), false, SEND, b, NULL, n,
     0, peer, "%p, %zu, %#x, peer=%d" END, b, n, (unsigned)t, peer)
COLL(cnclRecv, (void *b, const size_t n, cnclDataType_t t, const int peer, const cnclComm_t c, cnrtQueue_t q), false, RECV, NULL, b, n,
     0, peer, "%p, %zu, %#x, peer=%d" END, b, n, (unsigned)t, peer)

/* A buffer, a count and a type for each rank and direction. */
EXPORT cnclResult_t cnclAlltoAllv(const void **s, uint32_t *sc, cnclDataType_t *st, void **r, uint32_t *rc, cnclDataType_t *rt,
                                  cnclComm_t comm, cnrtQueue_t q)
{
    ENTER_COMM(cnclAlltoAllv, comm);
    struct fk_comm *c = (struct fk_comm *)comm;
    char text[640] = "";
    size_t used = 0;
    STEP(good_comm(c));
    STEP(s && sc && st && r && rc && rt ? 0 : CNCL_RET_ERR_NULL_POINTER);
    for (int i = 0; !res && i < c->nranks; i++) {
        res = good_type(st[i], false);
        STEP(good_type(rt[i], false));
        for (int k = 0; k < c->nranks; k++)
            STEP(s[i] == r[k] && sc[i] && rc[k] ? CNCL_RET_ERR_ARGUMENTS : 0); /* not in place */
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s{%p, %u, %#x, %p, %u, %#x}", i ? " " : "", s[i], sc[i],
                                     (unsigned)st[i], r[i], rc[i], (unsigned)rt[i]);
    }
    if (!res) {
        together();
        for (int i = 0; i < c->nranks; i++) {
            STEP(put(SEND, s[i], NULL, sc[i], st[i], 0, i, comm, q));
            STEP(put(RECV, NULL, r[i], rc[i], rt[i], 0, i, comm, q));
        }
        int end = translate(group_end(false));
        STEP(end);
    }
    LEAVE(cnclAlltoAllv, cnclResult_t, "%s" END, text, P(comm), P(q));
}

EXPORT cnclResult_t cnclGroupStart(void)
{
    ENTER(cnclGroupStart);
    if (!res)
        together();
    LEAVE(cnclGroupStart, cnclResult_t, "%s", "");
}

EXPORT cnclResult_t cnclGroupEnd(void)
{
    ENTER(cnclGroupEnd);
    if (res)
        note(ncclInternalError);
    int r = translate(group_end(false));
    STEP(r);
    LEAVE(cnclGroupEnd, cnclResult_t, "%s", "");
}
