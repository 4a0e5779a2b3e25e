/* What the CCL stand-ins with a shape of their own share (hccl.c, cncl.c, bkcl.c, flagcx.c). All of nccl.c is taken in: its
 * functions named nccl* are hidden, and its engine is used through its static functions. */
#ifndef FAKE_ODD_CCL_H
#define FAKE_ODD_CCL_H
#ifdef FAKE_BARE
#error "libraries with a shape of their own always do their work"
#endif
#define PUBLIC __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#ifndef FAKE_MACHINE
#define FAKE_MACHINE "libfakemachine.so"
#endif
#include "nccl.c"
#undef ENTER
#undef ENTER_COMM
#undef LEAVE
#undef STEP
#undef COLL
#undef ARGS
#undef TAIL
#undef GETTER

/* Given by each library: its number for one of the engine's. */
static int translate(ncclResult_t r);

#define HUNG 1 /* what a call returns that was made to hang and then aborted, if the library has no better number */
#define ENTER_COMM(fn, c) \
    static struct fk_site site = {.name = #fn}; \
    struct fk_comm *knob_comm = (struct fk_comm *)(c); \
    int res = fk_enter(&site, valid(knob_comm) ? &knob_comm->abort : NULL, HUNG)
#define ENTER(fn) ENTER_COMM(fn, NULL)
#define STEP(x) \
    do { \
        if (!res) \
            res = (int)(x); \
    } while (0)
/* A step that is the engine's. */
#define ENGINE(x) STEP(translate(x))
#define LEAVE(fn, type, ...) \
    fk_log(#fn, res, __VA_ARGS__); \
    return (type)res

/* A type of elements in a library's numbers. The engine has no name for some, which it moves as several elements, and can't reduce. */
struct element { int value; ncclDataType_t dt; unsigned times; };

__attribute__((unused)) static const struct element *find_element(const struct element *table, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].value == value)
            return &table[i];
    return NULL;
}

/* Counts or displacements, for the log. */
struct list { char text[160]; };
__attribute__((unused)) static struct list list(const size_t *a, int n)
{
    struct list l = {"["};
    size_t used = 1;
    for (int i = 0; a && i < n && used < sizeof l.text - 24; i++)
        used += (size_t)snprintf(l.text + used, sizeof l.text - used, i ? " %zu" : "%zu", a[i]);
    l.text[used] = ']';
    return l;
}
#define LIST(a, c) list(valid((struct fk_comm *)(c)) ? (a) : NULL, valid((struct fk_comm *)(c)) ? ((struct fk_comm *)(c))->nranks : 0).text

/* A collective without data, on a stream. */
__attribute__((unused)) static ncclResult_t push_barrier(struct fk_comm *c, cudaStream_t s)
{
    static char scratch;
    struct item item = {c, s, {.kind = ALLREDUCE, .send = &scratch, .recv = &scratch, .count = 1, .dt = ncclInt8, .redop = ncclMax}};
    ncclResult_t r = check_ready(c);
    return r ? r : launch(&item, 1);
}

/* Several operations as one: all in flight at once, none if one of them is refused. */
__attribute__((unused)) static void together(void) { group.depth++; }
__attribute__((unused)) static ncclResult_t go(ncclResult_t r)
{
    note(r);
    ncclResult_t end = group_end(false);
    return r ? r : end;
}

/* One rank's part of an exchange of blocks of different sizes: `at` gives the i-th block's address and count. */
struct blocks { const char *base; const size_t *counts, *displs; };
__attribute__((unused)) static ncclResult_t exchange_blocks(struct fk_comm *c, struct blocks out, struct blocks in, const struct element *t,
                                                     bool skip_empty, cudaStream_t s)
{
    ncclResult_t r = ncclSuccess;
    size_t es = sizes[t->dt] * t->times;
    together();
    for (int i = 0; i < c->nranks; i++) {
        if (!r && (out.counts[i] || !skip_empty))
            r = submit(SEND, out.base + out.displs[i] * es, NULL, out.counts[i] * t->times, t->dt, 0, i, c, s);
        if (!r && (in.counts[i] || !skip_empty))
            r = submit(RECV, NULL, (char *)in.base + in.displs[i] * es, in.counts[i] * t->times, t->dt, 0, i, c, s);
    }
    return go(r);
}

/* Waits for the work of a communicator and closes it, on its device. */
__attribute__((unused)) static void end_comm(struct fk_comm *c)
{
    int before = core->peek_device();
    core->poke_device(c->device);
    drain(c);
    comm_close(c);
    core->poke_device(before);
}

__attribute__((unused)) static void abort_comm(struct fk_comm *c)
{
    int before = core->peek_device();
    core->poke_device(c->device);
    comm_stop(c);
    pthread_mutex_lock(&c->mu);
    while (c->helpers || c->running)
        pthread_cond_wait(&c->cv, &c->mu);
    pthread_mutex_unlock(&c->mu);
    comm_close(c);
    core->poke_device(before);
}
#endif
