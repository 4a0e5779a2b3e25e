/* The paired comparison of pair.h for every operation that two libraries have in common.
 *
 * What "bytes" are: for all-reduce and broadcast the buffer of each rank, for all-gather and reduce-scatter and
 * all-to-all the largest buffer, the one with a part for each rank (at least one element), for messages the message.
 * The root of a broadcast goes round, so that no rank can run ahead. Latency is half a round trip. A stream
 * is a window of messages that are on the way at once, and an empty answer; its time is that of one message.
 */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <fcntl.h>
#include <sched.h>

#include "pair.h"

/* What a side can do; NULL is what it has not. `part` and `count` are elements. */
typedef struct {
    const char *name;
    void *context;
    void (*all_reduce)(void *context, const float *send, float *recv, size_t count);
    void (*all_gather)(void *context, const float *send, float *recv, size_t part);
    void (*reduce_scatter)(void *context, const float *send, float *recv, size_t part);
    void (*all_to_all)(void *context, const float *send, float *recv, size_t part);
    void (*broadcast)(void *context, float *buffer, size_t count, int root);
    void (*send)(void *context, const float *buffer, size_t count, int peer);
    void (*recv)(void *context, float *buffer, size_t count, int peer);
    /* Messages that lie one after the other in the buffer. */
    void (*send_window)(void *context, const float *buffer, size_t count, int messages, int peer);
    void (*recv_window)(void *context, float *buffer, size_t count, int messages, int peer);
} operations_side;

enum { OPERATIONS_WINDOW = 64 };

/* ---- our side */

typedef struct {
    pair_ours base; /* First: it is what pair_ours_allreduce takes. */
    flagosResult_t (*all_gather)(const void *, void *, size_t, flagosDataType_t, flagosComm_t, flagosStream_t);
    flagosResult_t (*reduce_scatter)(const void *, void *, size_t, flagosDataType_t, flagosRedOp_t, flagosComm_t,
                                     flagosStream_t);
    flagosResult_t (*all_to_all)(const void *, void *, size_t, flagosDataType_t, flagosComm_t, flagosStream_t);
    flagosResult_t (*broadcast)(const void *, void *, size_t, flagosDataType_t, int, flagosComm_t, flagosStream_t);
    flagosResult_t (*send)(const void *, size_t, flagosDataType_t, int, flagosComm_t, flagosStream_t);
    flagosResult_t (*recv)(void *, size_t, flagosDataType_t, int, flagosComm_t, flagosStream_t);
    flagosResult_t (*group_start)(void);
    flagosResult_t (*group_end)(void);
} operations_ours;

#define OPERATIONS_CALL(o, name, call) \
    if ((call) != flagosSuccess) pair_die("flagos" name ": %s", (o)->base.last_error((o)->base.comm))

static inline void operations_ours_all_gather(void *context, const float *send, float *recv, size_t part) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "AllGather", o->all_gather(send, recv, part, flagosFloat32, o->base.comm, NULL));
}

static inline void operations_ours_reduce_scatter(void *context, const float *send, float *recv, size_t part) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "ReduceScatter",
                    o->reduce_scatter(send, recv, part, flagosFloat32, flagosSum, o->base.comm, NULL));
}

static inline void operations_ours_all_to_all(void *context, const float *send, float *recv, size_t part) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "AlltoAll", o->all_to_all(send, recv, part, flagosFloat32, o->base.comm, NULL));
}

static inline void operations_ours_broadcast(void *context, float *buffer, size_t count, int root) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "Broadcast", o->broadcast(buffer, buffer, count, flagosFloat32, root, o->base.comm, NULL));
}

static inline void operations_ours_send(void *context, const float *buffer, size_t count, int peer) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "Send", o->send(buffer, count, flagosFloat32, peer, o->base.comm, NULL));
}

static inline void operations_ours_recv(void *context, float *buffer, size_t count, int peer) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "Recv", o->recv(buffer, count, flagosFloat32, peer, o->base.comm, NULL));
}

static inline void operations_ours_send_window(void *context, const float *buffer, size_t count, int messages,
                                               int peer) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "GroupStart", o->group_start());
    for (int i = 0; i < messages; i++) operations_ours_send(context, buffer + (size_t)i * count, count, peer);
    OPERATIONS_CALL(o, "GroupEnd", o->group_end());
}

static inline void operations_ours_recv_window(void *context, float *buffer, size_t count, int messages, int peer) {
    operations_ours *o = (operations_ours *)context;
    OPERATIONS_CALL(o, "GroupStart", o->group_start());
    for (int i = 0; i < messages; i++) operations_ours_recv(context, buffer + (size_t)i * count, count, peer);
    OPERATIONS_CALL(o, "GroupEnd", o->group_end());
}

/* Ours, whose communicator is made already. */
static inline operations_side operations_load(const pair_library *library, operations_ours *o) {
    void *symbol;
    o->base = library->ours;
#define OPERATIONS_LOAD(field, name)                  \
    symbol = pair_symbol(library->library, name); \
    memcpy(&o->field, &symbol, sizeof symbol)
    OPERATIONS_LOAD(all_gather, "flagosAllGather");
    OPERATIONS_LOAD(reduce_scatter, "flagosReduceScatter");
    OPERATIONS_LOAD(all_to_all, "flagosAlltoAll");
    OPERATIONS_LOAD(broadcast, "flagosBroadcast");
    OPERATIONS_LOAD(send, "flagosSend");
    OPERATIONS_LOAD(recv, "flagosRecv");
    OPERATIONS_LOAD(group_start, "flagosGroupStart");
    OPERATIONS_LOAD(group_end, "flagosGroupEnd");
#undef OPERATIONS_LOAD
    operations_side side;
    memset(&side, 0, sizeof side);
    side.name = "flagos-comm";
    side.context = o;
    side.all_reduce = pair_ours_allreduce;
    side.all_gather = operations_ours_all_gather;
    side.reduce_scatter = operations_ours_reduce_scatter;
    side.all_to_all = operations_ours_all_to_all;
    side.broadcast = operations_ours_broadcast;
    side.send = operations_ours_send;
    side.recv = operations_ours_recv;
    side.send_window = operations_ours_send_window;
    side.recv_window = operations_ours_recv_window;
    return side;
}

/* ---- one operation of one side */

typedef struct {
    const operations_side *side;
    float *send, *recv;
    size_t count; /* Elements of the call: of a part, of the buffer or of a message. */
    int window, rank, nranks;
} operations_work;

static inline double operations_all_reduce(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const double start = pair_now();
    for (int i = 0; i < calls; i++) w->side->all_reduce(w->side->context, w->send, w->recv, w->count);
    return (pair_now() - start) / calls;
}

static inline double operations_all_gather(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const double start = pair_now();
    for (int i = 0; i < calls; i++) w->side->all_gather(w->side->context, w->send, w->recv, w->count);
    return (pair_now() - start) / calls;
}

static inline double operations_reduce_scatter(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const double start = pair_now();
    for (int i = 0; i < calls; i++) w->side->reduce_scatter(w->side->context, w->send, w->recv, w->count);
    return (pair_now() - start) / calls;
}

static inline double operations_all_to_all(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const double start = pair_now();
    for (int i = 0; i < calls; i++) w->side->all_to_all(w->side->context, w->send, w->recv, w->count);
    return (pair_now() - start) / calls;
}

static inline double operations_broadcast(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const double start = pair_now();
    for (int i = 0, root = 0; i < calls; i++) {
        w->side->broadcast(w->side->context, w->recv, w->count, root);
        if (++root == w->nranks) root = 0;
    }
    return (pair_now() - start) / calls;
}

/* Ranks talk in pairs; the last of an odd number has nobody and does nothing. */
static inline int operations_partner(const operations_work *w) {
    const int partner = w->rank ^ 1;
    return partner < w->nranks ? partner : -1;
}

static inline double operations_latency(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const int partner = operations_partner(w), rounds = (calls + 1) / 2;
    void *context = w->side->context;
    if (partner < 0) return 0;
    const double start = pair_now();
    for (int i = 0; i < rounds; i++) {
        if (w->rank < partner) w->side->send(context, w->send, w->count, partner);
        w->side->recv(context, w->recv, w->count, partner);
        if (w->rank > partner) w->side->send(context, w->send, w->count, partner);
    }
    return (pair_now() - start) / (2 * rounds);
}

static inline double operations_stream(void *work, int calls) {
    const operations_work *w = (const operations_work *)work;
    const int partner = operations_partner(w), rounds = calls < w->window ? 1 : calls / w->window;
    void *context = w->side->context;
    if (partner < 0) return 0;
    const double start = pair_now();
    for (int i = 0; i < rounds; i++) {
        float answer = 0;
        if (w->rank < partner) {
            w->side->send_window(context, w->send, w->count, w->window, partner);
            w->side->recv(context, &answer, 1, partner);
        } else {
            w->side->recv_window(context, w->recv, w->count, w->window, partner);
            w->side->send(context, &answer, 1, partner);
        }
    }
    return (pair_now() - start) / ((double)rounds * w->window);
}

/* The side's own meeting: what it has buffered may need its other rank, which is not to be left for the other side. */
static inline void operations_settle(void *work) {
    const operations_work *w = (const operations_work *)work;
    float send[2] = {0, 0}, recv[2];
    w->side->all_reduce(w->side->context, send, recv, 2);
}

typedef struct {
    const char *name;
    double (*loop)(void *work, int calls);
    /* How many parts the two buffers have: one, or one for each rank. */
    int send_parts, recv_parts;
} operations_kind;

static inline int operations_kinds(const operations_kind **kinds) {
    static const operations_kind all[] = {
        {"all-reduce", operations_all_reduce, 0, 0},   {"all-gather", operations_all_gather, 0, 1},
        {"reduce-scatter", operations_reduce_scatter, 1, 0}, {"all-to-all", operations_all_to_all, 1, 1},
        {"broadcast", operations_broadcast, 0, 0},     {"latency", operations_latency, 0, 0},
        {"stream", operations_stream, 0, 0},
    };
    *kinds = all;
    return (int)(sizeof all / sizeof *all);
}

static inline int operations_has(const operations_side *side, const operations_kind *kind) {
    if (kind->loop == operations_all_reduce) return side->all_reduce != NULL;
    if (kind->loop == operations_all_gather) return side->all_gather != NULL;
    if (kind->loop == operations_reduce_scatter) return side->reduce_scatter != NULL;
    if (kind->loop == operations_all_to_all) return side->all_to_all != NULL;
    if (kind->loop == operations_broadcast) return side->broadcast != NULL;
    return side->send && side->recv && side->send_window && side->recv_window;
}

/* ---- correctness */

/* A value that tells where it comes from, exact in float32, small enough that sums are too. */
static inline float operations_value(int from, int to, size_t i) {
    return (float)((from + 1) * 64 + to * 8 + (int)(i % 61) * 4096);
}

/* What element `i` of the result has to be; NaN where nothing is received. */
static inline float operations_expected(const operations_work *w, const operations_kind *kind, size_t i) {
    const int part = (int)(i / w->count);
    const size_t at = i % w->count;
    if (kind->loop == operations_all_reduce || kind->loop == operations_reduce_scatter) {
        const int to = kind->loop == operations_all_reduce ? 0 : w->rank;
        float sum = 0;
        for (int from = 0; from < w->nranks; from++) sum += operations_value(from, to, at);
        return sum;
    }
    if (kind->loop == operations_all_gather) return operations_value(part, 0, at);
    if (kind->loop == operations_all_to_all) return operations_value(part, w->rank, at);
    if (kind->loop == operations_broadcast) return operations_value(w->nranks - 1, 0, at);
    return operations_value(operations_partner(w), part, at);
}

static inline void operations_verify(const operations_work *w, const operations_kind *kind, size_t elements) {
    for (size_t i = 0; i < elements; i++) {
        const float expected = operations_expected(w, kind, i);
        if (w->recv[i] != expected)
            pair_die("%s: %s of %zu elements, rank %d of %d: element %zu is %g and should be %g", w->side->name, kind->name,
                     w->count, w->rank, w->nranks, i, (double)w->recv[i], (double)expected);
    }
}

/* One call whose result is looked at. */
static inline void operations_check(const operations_work *w, const operations_kind *kind) {
    const size_t parts = (size_t)w->nranks;
    const size_t sent = w->count * (kind->loop == operations_stream ? (size_t)w->window : kind->send_parts ? parts : 1);
    const size_t got = w->count * (kind->loop == operations_stream ? (size_t)w->window : kind->recv_parts ? parts : 1);
    for (size_t i = 0; i < sent; i++) w->send[i] = operations_value(w->rank, (int)(i / w->count), i % w->count);
    memset(w->recv, 0xff, got * sizeof *w->recv);
    if (kind->loop == operations_broadcast) {
        const int root = w->nranks - 1;
        if (w->rank == root) memcpy(w->recv, w->send, got * sizeof *w->recv);
        w->side->broadcast(w->side->context, w->recv, w->count, root);
    } else {
        kind->loop((void *)w, 1);
    }
    const int partner = operations_partner(w);
    if (kind->loop == operations_stream && w->rank < partner) return;
    if (partner < 0 && (kind->loop == operations_stream || kind->loop == operations_latency)) return;
    operations_verify(w, kind, got);
}

/* ---- how far apart ranks 0 and 1 are */

typedef struct {
    volatile uint32_t word;
    char rest[4092];
} operations_line;

/* Memory that all ranks of this host have, of a file that is there already. */
static inline operations_line *operations_map(const char *path) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) pair_die("%s can't be opened", path);
    void *p = mmap(NULL, sizeof(operations_line), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) pair_die("%s can't be mapped", path);
    close(file);
    return (operations_line *)p;
}

/* Nanoseconds for one hop of a cache line between ranks 0 and 1, the least of some rounds, as others may run in
 * between; 0 if there are fewer cores than ranks, which leaves nothing to be measured. */
static inline double operations_hop(operations_line *line, const operations_work *w) {
    enum { ROUNDS = 10, HOPS = 1000 };
    double least = 1;
    if (w->nranks > sysconf(_SC_NPROCESSORS_ONLN)) return 0;
    if (w->rank == 0) line->word = 0;
    operations_settle((void *)w);
    for (uint32_t round = 0; w->rank < 2 && round < ROUNDS; round++) {
        const double start = pair_now();
        for (uint32_t i = round * HOPS; i < (round + 1) * HOPS; i++) {
            uint32_t spins = 0;
            if ((int)(i & 1) != w->rank) continue;
            while (__atomic_load_n(&line->word, __ATOMIC_ACQUIRE) != i)
                if (++spins > 10000) sched_yield();
            __atomic_store_n(&line->word, i + 1, __ATOMIC_RELEASE);
        }
        const double each = (pair_now() - start) / HOPS;
        if (each < least) least = each;
    }
    operations_settle((void *)w);
    return least * 1e9;
}

/* ---- the comparison */

typedef struct {
    const char *operations; /* Comma-separated names, or "all". */
    const char *sizes;
    int pairs;
    double block;
    const char *line; /* A file for operations_map. */
} operations_options;

static inline int operations_wanted(const char *list, const char *name) {
    const size_t length = strlen(name);
    if (strcmp(list, "all") == 0) return 1;
    for (const char *at = list; at; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return 1;
    }
    return 0;
}

/* `argv` from the library on: LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE. */
static inline operations_options operations_arguments(char **argv) {
    operations_options options;
    options.operations = argv[1];
    options.sizes = argv[2];
    options.pairs = atoi(argv[3]);
    options.block = atof(argv[4]);
    options.line = argv[5];
    return options;
}

static inline void operations_size(const operations_options *options, const operations_kind *kind,
                                   const operations_side *sides, int rank, int nranks, size_t bytes,
                                   operations_line *line) {
    const size_t elements = bytes / sizeof(float);
    const int parts = kind->send_parts || kind->recv_parts;
    size_t count = parts ? elements / (size_t)nranks : elements;
    if (count == 0) count = 1;
    /* Some MiB on the way, but never so many small ones that they are all that is measured. */
    const size_t window_most = OPERATIONS_WINDOW;
    size_t window = ((size_t)4 << 20) / bytes;
    window = window < 2 ? 2 : window > window_most ? window_most : window;
    const size_t memory = sizeof(float) * count * (kind->loop == operations_stream ? window : parts ? (size_t)nranks : 1);
    float *send = pair_buffer(memory), *recv = pair_buffer(memory);
    operations_work work[2];
    pair_timed timed[2];
    for (int q = 0; q < 2; q++) {
        operations_work w = {&sides[q], send, recv, count, (int)window, rank, nranks};
        pair_timed t = {kind->loop, operations_settle, &work[q]};
        work[q] = w;
        timed[q] = t;
        operations_check(&work[q], kind);
        operations_settle(&work[q]);
    }
    pair_ranks ranks = {sides[0].all_reduce, sides[0].context, rank, nranks};
    const double hop = operations_hop(line, &work[0]);
    char head[256];
    snprintf(head, sizeof head, "\"operation\":\"%s\",\"bytes\":%zu,\"buffer_bytes\":%zu,\"window\":%d,\"line_ns\":%.1f",
             kind->name, bytes, parts ? count * sizeof(float) * (size_t)nranks : count * sizeof(float),
             kind->loop == operations_stream ? (int)window : 1, hop);
    /* A quarter of a GiB takes a fifth of a second. */
    pair_compare(&ranks, timed, bytes, head, options->pairs, bytes > ((size_t)64 << 20) ? 11 : 21, options->block);
    const double after = operations_hop(line, &work[0]);
    if (rank == 0) {
        printf("{\"operation\":\"%s\",\"bytes\":%zu,\"line_ns_after\":%.1f}\n", kind->name, bytes, after);
        fflush(stdout);
    }
    /* Results that repeated calls left: a side that is right only at first would be seen. */
    for (int q = 0; q < 2; q++) {
        operations_check(&work[q], kind);
        operations_settle(&work[q]);
    }
    munmap(send, memory);
    munmap(recv, memory);
}

/* Every operation and size; `side` needs all_reduce, others may be NULL. */
static inline void operations_run(const operations_options *options, const operations_side *ours,
                                  const operations_side *peer, int rank, int nranks) {
    const operations_side sides[2] = {*ours, *peer};
    operations_line *line = operations_map(options->line);
    const operations_kind *kinds;
    const int n = operations_kinds(&kinds);
    for (int k = 0; k < n; k++) {
        if (!operations_wanted(options->operations, kinds[k].name)) continue;
        if (!operations_has(peer, &kinds[k])) {
            if (rank == 0) printf("{\"operation\":\"%s\",\"absent\":true}\n", kinds[k].name);
            continue;
        }
        const char *at = options->sizes;
        for (size_t bytes; (bytes = pair_next_size(&at, options->sizes));)
            operations_size(options, &kinds[k], sides, rank, nranks, bytes, line);
    }
    munmap(line, sizeof *line);
}

#endif
