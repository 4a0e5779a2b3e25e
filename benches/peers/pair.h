/* A paired comparison of two all-reduces inside the same processes.
 *
 * Where the scheduler puts the ranks (two threads of a core, two cores, two sockets) decides absolute times,
 * and it moves them during a run. So blocks of about 10 ms alternate, ours and the peer's, and each pair of
 * neighbours gives one ratio: a move hits both. The median of the ratios is the result.
 *
 * Both are checked first, at every size, against the known sum. Rank 0 prints one line of JSON per size.
 */
#ifndef PAIR_H
#define PAIR_H

#include <flagos_comm.h>

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef void (*pair_allreduce)(void *context, const float *send, float *recv, size_t count);

enum { PAIR_MOST = 401 };

static inline void pair_die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(1);
}

static inline double pair_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds that all processes of the machine have used, and those of this process. */
static inline double pair_busy(void) {
    unsigned long long user, nice, system, idle, iowait, irq, softirq;
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return 0;
    int n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq);
    fclose(f);
    return n == 7 ? (double)(user + nice + system + irq + softirq) / (double)sysconf(_SC_CLK_TCK) : 0;
}

static inline double pair_own(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* ---- our side: the library is loaded by path, so that any libflagos_comm.so can be compared */

typedef struct {
    flagosComm_t comm;
    flagosResult_t (*all_reduce)(const void *, void *, size_t, flagosDataType_t, flagosRedOp_t, flagosComm_t,
                                 flagosStream_t);
    const char *(*last_error)(flagosComm_t);
} pair_ours;

typedef struct {
    void *library;
    pair_ours ours;
    flagosResult_t (*get_unique_id)(flagosUniqueId *);
    flagosResult_t (*init_rank)(flagosComm_t *, int32_t, const flagosUniqueId *, int32_t);
    flagosResult_t (*destroy)(flagosComm_t);
} pair_library;

static inline void *pair_symbol(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) pair_die("%s", dlerror());
    return symbol;
}

static inline pair_library pair_load(const char *path) {
    pair_library l;
    memset(&l, 0, sizeof l);
    setenv("FLAGOSCOMM_TIERS", "host", 0);
    l.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l.library) pair_die("%s", dlerror());
    /* POSIX has dlsym give functions as objects; copying the bits is the way without a warning. */
    void *symbol;
#define PAIR_LOAD(field, name)             \
    symbol = pair_symbol(l.library, name); \
    memcpy(&l.field, &symbol, sizeof symbol)
    PAIR_LOAD(ours.all_reduce, "flagosAllReduce");
    PAIR_LOAD(ours.last_error, "flagosGetLastError");
    PAIR_LOAD(get_unique_id, "flagosGetUniqueId");
    PAIR_LOAD(init_rank, "flagosCommInitRank");
    PAIR_LOAD(destroy, "flagosCommDestroy");
#undef PAIR_LOAD
    return l;
}

static inline void pair_ours_allreduce(void *context, const float *send, float *recv, size_t count) {
    pair_ours *o = (pair_ours *)context;
    if (o->all_reduce(send, recv, count, flagosFloat32, flagosSum, o->comm, NULL) != flagosSuccess)
        pair_die("flagosAllReduce: %s", o->last_error(o->comm));
}

/* ---- the comparison */

static inline int pair_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One number of rank 0, on every rank; `f` is also what brings the ranks together. */
static inline double pair_agree(pair_allreduce f, void *context, int rank, double value) {
    float send[2] = {rank == 0 ? (float)value : 0, 0}, recv[2];
    f(context, send, recv, 2);
    return recv[0];
}

static inline double pair_total(pair_allreduce f, void *context, double value) {
    float send[2] = {(float)value, 0}, recv[2];
    f(context, send, recv, 2);
    return recv[0];
}

/* Sums that float32 holds exactly, so that any order of adding gives the same bits. */
static inline void pair_check(const char *name, pair_allreduce f, void *context, int rank, int nranks, float *send,
                              float *recv, size_t count) {
    for (size_t i = 0; i < count; i++) send[i] = (float)((rank + 1) * (int)(i % 13));
    memset(recv, 0xff, count * sizeof *recv);
    f(context, send, recv, count);
    for (size_t i = 0; i < count; i++)
        if (recv[i] != (float)(nranks * (nranks + 1) / 2 * (int)(i % 13)))
            pair_die("%s: rank %d, %zu elements: element %zu is %g", name, rank, count, i, (double)recv[i]);
}

static inline float *pair_buffer(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) pair_die("no memory");
    memset(p, 0, bytes);
    return (float *)p;
}

/* What a side has instead of the buffers that both share, if it wants others: `make` and `drop`. */
typedef struct {
    float *(*make)(void *context, size_t bytes);
    void (*drop)(void *context, float *buffer, size_t bytes);
    int no_reduction; /* It only stands for a cost: there is no result to check. */
} pair_side;

static inline void pair_quantiles(const char *name, double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, pair_order);
    printf("\"%s\":{\"p10\":%.6g,\"p25\":%.6g,\"median\":%.6g,\"p75\":%.6g,\"p90\":%.6g},", name, v[n / 10], v[n / 4],
           v[n / 2], v[n * 3 / 4], v[n * 9 / 10]);
}

/* One side of a comparison: `loop` makes that many calls and gives the seconds of one; `settle`, if there is one,
 * brings the ranks together afterwards, outside the measured time. */
typedef struct {
    double (*loop)(void *work, int calls);
    void (*settle)(void *work);
    void *work;
} pair_timed;

/* What the ranks agree on goes through one of the all-reduces. */
typedef struct {
    pair_allreduce sum;
    void *context;
    int rank, nranks;
} pair_ranks;

static inline double pair_timed_block(const pair_timed *side, int calls) {
    const double each = side->loop(side->work, calls);
    if (side->settle) side->settle(side->work);
    return each;
}

/* Blocks of both sides in turns. Rank 0 prints the line of JSON, which begins with `head`. */
static inline void pair_compare(const pair_ranks *ranks, const pair_timed sides[2], size_t bytes, const char *head,
                                int pairs, int least, double block) {
    int calls[2];
    double each[2];
    if (pairs < 3) pairs = 3;
    if (pairs > PAIR_MOST) pairs = PAIR_MOST;
    if (least > pairs) least = pairs;
    for (int q = 0; q < 2; q++) {
        double once = pair_agree(ranks->sum, ranks->context, ranks->rank, pair_timed_block(&sides[q], 2));
        /* Ours tries both of its ways in the first calls of a large size. */
        const int few = bytes >= (256u << 10) ? 5 : 1;
        const double many = 2 * block / (once > 0 ? once : block);
        const int warm = many < few ? few : many > 20 ? 20 : (int)many;
        /* The least of some: others' work in one would make the blocks of all pairs too short. */
        double least_each = pair_timed_block(&sides[q], warm);
        for (int i = 0; i < 2; i++) {
            const double again = pair_timed_block(&sides[q], warm);
            if (again < least_each) least_each = again;
        }
        each[q] = pair_agree(ranks->sum, ranks->context, ranks->rank, least_each);
        double wanted = block / each[q];
        calls[q] = wanted < 1 ? 1 : wanted > 200000 ? 200000 : (int)wanted;
    }
    /* No size takes much longer than six seconds. */
    double pair_time = each[0] * calls[0] + each[1] * calls[1];
    int n = pairs * pair_time > 6 ? (int)(6 / pair_time) : pairs;
    n = (int)pair_agree(ranks->sum, ranks->context, ranks->rank, n < least ? least : n);
    static double t[2][PAIR_MOST], ratio[PAIR_MOST];
    double busy = pair_busy(), own = pair_own(), wall = pair_now();
    for (int p = 0; p < n; p++) {
        for (int q = 0; q < 2; q++) t[q][p] = pair_timed_block(&sides[q], calls[q]) * 1e6;
        ratio[p] = t[1][p] / t[0][p];
    }
    wall = pair_now() - wall;
    own = pair_total(ranks->sum, ranks->context, pair_own() - own);
    double foreign = (pair_busy() - busy - own) / (wall * (double)sysconf(_SC_NPROCESSORS_ONLN)) * 100;
    if (ranks->rank != 0) return;
    printf("{%s,\"ranks\":%d,\"pairs\":%d,\"calls_ours\":%d,\"calls_peer\":%d,", head, ranks->nranks, n, calls[0],
           calls[1]);
    pair_quantiles("ours_us", t[0], n);
    pair_quantiles("peer_us", t[1], n);
    pair_quantiles("ratio", ratio, n);
    printf("\"foreign_cpu_percent\":%.1f}\n", foreign < 0 ? 0 : foreign);
    fflush(stdout);
}

/* The next number of a comma-separated list; 0 at its end. */
static inline size_t pair_next_size(const char **at, const char *sizes) {
    if (!**at) return 0;
    char *end;
    size_t bytes = (size_t)strtoull(*at, &end, 10);
    if (end == *at || bytes < sizeof(float)) pair_die("bad list of sizes: %s", sizes);
    *at = *end == ',' ? end + 1 : end;
    return bytes;
}

typedef struct {
    pair_allreduce f;
    void *context;
    float *send, *recv;
    size_t count;
} pair_allreduce_work;

static inline double pair_allreduce_loop(void *work, int calls) {
    const pair_allreduce_work *w = (const pair_allreduce_work *)work;
    double start = pair_now();
    for (int i = 0; i < calls; i++) w->f(w->context, w->send, w->recv, w->count);
    return (pair_now() - start) / calls;
}

static inline void pair_run_sides(pair_allreduce ours, void *ours_context, const char *peer_name, pair_allreduce peer,
                                  void *peer_context, int rank, int nranks, const char *sizes, int pairs, double block,
                                  const pair_side *sides) {
    pair_allreduce f[2] = {ours, peer};
    void *context[2] = {ours_context, peer_context};
    const char *names[2] = {"flagos-comm", peer_name};
    const pair_ranks ranks = {ours, ours_context, rank, nranks};
    const char *at = sizes;
    for (size_t bytes; (bytes = pair_next_size(&at, sizes));) {
        size_t count = bytes / sizeof(float);
        float *shared[2] = {pair_buffer(bytes), pair_buffer(bytes)};
        pair_allreduce_work work[2];
        pair_timed timed[2];
        for (int q = 0; q < 2; q++) {
            float *send = sides[q].make ? sides[q].make(context[q], bytes) : shared[0];
            float *recv = sides[q].make ? sides[q].make(context[q], bytes) : shared[1];
            work[q] = (pair_allreduce_work){f[q], context[q], send, recv, count};
            timed[q] = (pair_timed){pair_allreduce_loop, NULL, &work[q]};
            if (!sides[q].no_reduction) pair_check(names[q], f[q], context[q], rank, nranks, send, recv, count);
        }
        char head[64];
        snprintf(head, sizeof head, "\"bytes\":%zu", bytes);
        pair_compare(&ranks, timed, bytes, head, pairs, 21, block);
        for (int q = 0; q < 2; q++) {
            if (!sides[q].drop) continue;
            sides[q].drop(context[q], work[q].send, bytes);
            sides[q].drop(context[q], work[q].recv, bytes);
        }
        munmap(shared[0], bytes);
        munmap(shared[1], bytes);
    }
}

/* `sizes` is a comma-separated list of bytes. Ratios are peer / ours: above 1, ours is faster. */
static inline void pair_run(pair_allreduce ours, void *ours_context, const char *peer_name, pair_allreduce peer,
                            void *peer_context, int rank, int nranks, const char *sizes, int pairs, double block) {
    const pair_side sides[2] = {{NULL, NULL, 0}, {NULL, NULL, 0}};
    pair_run_sides(ours, ours_context, peer_name, peer, peer_context, rank, nranks, sizes, pairs, block, sides);
}

#endif
