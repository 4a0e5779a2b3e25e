/* Stand-in of BKCL (libbkcl.so, Kunlunxin), on streams of the CUDA shim. */
#define _GNU_SOURCE
#include "abi/bkcl.h"
#include "odd_ccl.h"

static int translate(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess: case ncclInProgress: return BKCL_SUCCESS;
    case ncclUnhandledCudaError: return BKCL_RUNTIME_ERROR;
    case ncclSystemError: return BKCL_SYSTEM_ERROR;
    case ncclInvalidArgument: case ncclInvalidUsage: return BKCL_INVALID_ARGUMENT;
    case ncclRemoteError: return BKCL_REMOTE_ERROR;
    default: return BKCL_INTERNAL_ERROR;
    }
}

static const struct element types[] = {
    {BKCL_UINT8, ncclUint8, 1}, {BKCL_INT32, ncclInt32, 1}, {BKCL_INT64, ncclInt64, 1}, {BKCL_FLOAT16, ncclFloat16, 1},
    {BKCL_FLOAT, ncclFloat32, 1}, {BKCL_FLOAT64, ncclFloat64, 1}, {BKCL_BFLOAT16, ncclBfloat16, 1},
};
static const struct element *element_of(BKCLDataType t) { return find_element(types, sizeof types / sizeof *types, (int)t); }

/* The engine's operator, or -1. */
static int op_of(BKCLOp op)
{
    switch ((int)op) {
    case BKCL_ADD: return ncclSum;
    case BKCL_PRODUCT: return ncclProd;
    case BKCL_MAX: return ncclMax;
    case BKCL_MIN: return ncclMin;
    case BKCL_AVG: return ncclAvg;
    default: return -1;
    }
}

static int good_ctx(BKCLContext_t c) { return valid((struct fk_comm *)c) ? 0 : BKCL_INVALID_ARGUMENT; }

/* ---- contexts ---- */

static void id_fill(char *out, const char *name)
{
    ncclUniqueId unique;
    id_make(&unique, name);
    for (int i = 0; i < BKCL_UNIQUE_ID_BYTES; i++)
        out[i] = (char)(unique.internal[i % 128] + i / 128); /* all bytes matter */
}

EXPORT BKCLResult_t bkcl_get_unique_id(BKCLUniqueId *id)
{
    ENTER(bkcl_get_unique_id);
    char name[33] = "";
    STEP(id ? 0 : BKCL_INVALID_ARGUMENT);
    if (!res) {
        random_name(name);
        ENGINE(start_root(name));
    }
    if (!res)
        id_fill(id->internal, name);
    LEAVE(bkcl_get_unique_id, BKCLResult_t, "id=%.8s", name);
}

EXPORT BKCLResult_t bkcl_init_rank(BKCLContext_t *ctx, int rank, int nranks, BKCLUniqueId *id)
{
    ENTER(bkcl_init_rank);
    char name[33] = "";
    ncclUniqueId unique;
    STEP(ctx && id ? 0 : BKCL_INVALID_ARGUMENT);
    if (!res) {
        char want[BKCL_UNIQUE_ID_BYTES];
        memcpy(unique.internal, id->internal, 128);
        if (id_name(&unique, name))
            id_fill(want, name);
        if (!name[0] || memcmp(want, id->internal, sizeof want))
            res = BKCL_INVALID_ARGUMENT;
    }
    ENGINE(note(init_rank((struct fk_comm **)ctx, nranks, &unique, rank, NULL)));
    LEAVE(bkcl_init_rank, BKCLResult_t, "rank=%d, nranks=%d, id=%.8s, ctx=%p", rank, nranks, name, P(ctx && !res ? *ctx : NULL));
}

EXPORT BKCLResult_t bkcl_destroy_context(BKCLContext_t ctx)
{
    ENTER_COMM(bkcl_destroy_context, ctx);
    STEP(good_ctx(ctx));
    if (!res)
        end_comm((struct fk_comm *)ctx);
    LEAVE(bkcl_destroy_context, BKCLResult_t, "ctx=%p", P(ctx));
}

EXPORT BKCLResult_t bkcl_comm_abort(BKCLContext_t ctx)
{
    ENTER(bkcl_comm_abort);
    STEP(good_ctx(ctx));
    if (!res)
        abort_comm((struct fk_comm *)ctx);
    LEAVE(bkcl_comm_abort, BKCLResult_t, "ctx=%p", P(ctx));
}

#define GETTER(fn, value) \
    EXPORT BKCLResult_t fn(BKCLContext_t ctx, int *out) \
    { \
        ENTER_COMM(fn, ctx); \
        struct fk_comm *c = (struct fk_comm *)ctx; \
        STEP(out ? good_ctx(ctx) : BKCL_INVALID_ARGUMENT); \
        if (!res) \
            *out = value; \
        LEAVE(fn, BKCLResult_t, "ctx=%p", P(ctx)); \
    }
GETTER(bkcl_comm_count, c->nranks)
GETTER(bkcl_comm_user_rank, c->rank)

EXPORT BKCLResult_t bkcl_group_start(void)
{
    ENTER(bkcl_group_start);
    if (!res)
        together();
    LEAVE(bkcl_group_start, BKCLResult_t, "%s", "");
}

EXPORT BKCLResult_t bkcl_group_end(void)
{
    ENTER(bkcl_group_end);
    if (res)
        note(ncclInternalError);
    int r = translate(group_end(false));
    STEP(r);
    LEAVE(bkcl_group_end, BKCLResult_t, "%s", "");
}

/* ---- operations ---- */

#define COLL(fn, params, kind, s, r, op, peer, ...) \
    EXPORT BKCLResult_t fn params \
    { \
        ENTER_COMM(fn, c); \
        STEP(good_ctx(c)); \
        STEP(element_of(t) && (op) >= 0 ? 0 : BKCL_INVALID_ARGUMENT); \
        ENGINE(submit(kind, s, r, n, element_of(t)->dt, op, peer, (struct fk_comm *)c, st)); \
        if (res) \
            note(ncclInvalidArgument); \
        LEAVE(fn, BKCLResult_t, "ctx=%p, " __VA_ARGS__, P(st)); \
    }
#define CTX BKCLContext_t c
#define BUFFERS const void *s, void *r, size_t n, BKCLDataType t
#define END ", stream=%p"

COLL(bkcl_all_reduce, (CTX, BUFFERS, BKCLOp op, void *st), ALLREDUCE, s, r, op_of(op), 0, "%p, %p, %zu, %d, op=%d" END, P(c), s, r, n,
     (int)t, (int)op)
COLL(bkcl_reduce_scatter, (CTX, BUFFERS, BKCLOp op, void *st), REDUCESCATTER, s, r, op_of(op), 0, "%p, %p, %zu, %d, op=%d" END, P(c), s,
     r, n, (int)t, (int)op)
COLL(bkcl_reduce, (CTX, BUFFERS, BKCLOp op, int root, void *st), REDUCE, s, r, op_of(op), root, "%p, %p, %zu, %d, op=%d, root=%d" END,
     P(c), s, r, n, (int)t, (int)op, root)
COLL(bkcl_broadcast, (CTX, BUFFERS, int root, void *st), BROADCAST, s, r, 0, root, "%p, %p, %zu, %d, root=%d" END, P(c), s, r, n, (int)t,
     root)
COLL(bkcl_all_gather, (CTX, const void *s, size_t n, void *r, BKCLDataType t, void *st), ALLGATHER, s, r, 0, 0,
     "%p, %zu, %p, %d" END, P(c), s, n, r, (int)t)
COLL(bkcl_all_to_all, (CTX, const void *s, size_t n, void *r, BKCLDataType t, void *st), ALLTOALL, s, r, 0, 0, "%p, %zu, %p, %d" END,
     P(c), s, n, r, (int)t)
COLL(bkcl_send, (CTX, const void *b, size_t n, int peer, BKCLDataType t, void *st), SEND, b, NULL, 0, peer, "%p, %zu, peer=%d, %d" END,
     P(c), b, n, peer, (int)t)
COLL(bkcl_recv, (CTX, void *b, size_t n, int peer, BKCLDataType t, void *st), RECV, NULL, b, 0, peer, "%p, %zu, peer=%d, %d" END, P(c), b,
     n, peer, (int)t)

/* The counts are read when the stream comes to it: they may be written by work before it. */
struct counted {
    fk_task t;
    struct fk_comm *comm;
    ncclDataType_t dt;
    const size_t *sc, *sd, *rc, *rd;
    struct fk_memory send, recv;
    struct plan *plan;
};

static uint64_t counted_prepare(fk_task *t) { return plan_prepare(&((struct counted *)t)->plan->t); }

static void counted_run(fk_task *t, uint64_t ticket)
{
    struct counted *x = (struct counted *)t;
    struct plan *p = x->plan;
    size_t es = sizes[x->dt];
    p->n = 0;
    for (int i = 0; i < x->comm->nranks; i++) {
        if (x->sd[i] > x->send.left / es || x->sc[i] > x->send.left / es - x->sd[i] || x->rd[i] > x->recv.left / es ||
            x->rc[i] > x->recv.left / es - x->rd[i]) {
            fk_log("outside", 0, "rank=%d peer=%d counts=%zu, %zu displs=%zu, %zu", x->comm->rank, i, x->sc[i], x->rc[i], x->sd[i],
                   x->rd[i]);
            stuck(x->comm);
            break;
        }
        p->ops[p->n++] = (struct op){.kind = SEND, .send = x->send.view + x->sd[i] * es, .count = x->sc[i], .dt = x->dt, .peer = i};
        p->ops[p->n++] = (struct op){.kind = RECV, .recv = x->recv.view + x->rd[i] * es, .count = x->rc[i], .dt = x->dt, .peer = i};
    }
    plan_run(&p->t, ticket);
}

static void counted_drop(fk_task *t)
{
    plan_drop(&((struct counted *)t)->plan->t);
    free(t);
}

/* An array of counts on the device, or NULL. */
static const size_t *counts_at(const void *p, struct fk_comm *c)
{
    struct fk_memory m;
    bool ok = core->lookup(p, &m) && m.type == cudaMemoryTypeDevice && m.left >= (size_t)c->nranks * sizeof(size_t);
    return ok ? (const size_t *)(void *)m.view : NULL;
}

static int push_counted(struct fk_comm *c, struct counted x, const void *s, const void *r, void *st)
{
    ncclResult_t ready = check_ready(c);
    int dev;
    if (ready)
        return translate(ready);
    if (group.depth)
        return BKCL_UNSUPPORTED;
    if (!x.sc || !x.sd || !x.rc || !x.rd || !core->lookup(s, &x.send) || !core->lookup(r, &x.recv))
        return BKCL_RUNTIME_ERROR;
    if (core->stream_device(st, c->device, &dev) || dev != c->device)
        return BKCL_RUNTIME_ERROR;
    struct counted *t = malloc(sizeof *t);
    *t = x;
    t->t = (fk_task){.run = counted_run, .prepare = counted_prepare, .drop = counted_drop, .refs = 1};
    t->comm = c;
    t->plan = calloc(1, sizeof *t->plan + 2 * (size_t)c->nranks * sizeof t->plan->ops[0]);
    t->plan->comm = c;
    atomic_fetch_add(&c->refs, 1);
    return core->stream_push(st, c->device, &t->t) ? BKCL_RUNTIME_ERROR : 0;
}

EXPORT BKCLResult_t bkcl_all_to_all_v(BKCLContext_t ctx, const void *s, const size_t *sc, const size_t *sd, BKCLDataType t, void *r,
                                      const size_t *rc, const size_t *rd, BKCLDataType rt, void *st)
{
    ENTER_COMM(bkcl_all_to_all_v, ctx);
    struct fk_comm *c = (struct fk_comm *)ctx;
    STEP(good_ctx(ctx));
    STEP(element_of(t) && t == rt ? 0 : BKCL_INVALID_ARGUMENT);
    if (!res) {
        struct counted x = {.dt = element_of(t)->dt, .sc = counts_at(sc, c), .sd = counts_at(sd, c), .rc = counts_at(rc, c),
                            .rd = counts_at(rd, c)};
        res = push_counted(c, x, s, r, st);
    }
    LEAVE(bkcl_all_to_all_v, BKCLResult_t, "ctx=%p, %p, %p, %p, %d, %p, %p, %p, %d, stream=%p", P(ctx), s, P(sc), P(sd), (int)t, r, P(rc),
          P(rd), (int)rt, st);
}
