/*
 * Device buffers on the host tier: how fast they are staged, and that streams wait for them.
 *
 * Ours is compared with staging of the whole buffer through pinned shared memory, which both ranks see, with one thread
 * a rank that adds: everything to the host, then the sum, then everything back. That is done in two ways: each rank adds
 * the whole buffer (`whole`), or half of it and takes the other half's sum from its peer (`halves`). All in one run, in the
 * same two processes, in turns: a figure is the median of the ratios of neighbours. What the copies and the sum could do
 * by themselves is measured beside it. Writes staging.json into HW_LOG.
 */
#include "hw.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>

enum { pairs_of_size = 21, max_rows = 8 };
enum way { ours, whole, halves, ways };
static const char *const way_names[] = {"ours", "whole", "halves"};

/* ---- the other way -------------------------------------------------------------------------- */

#if defined __x86_64__
#define FAST __attribute__((optimize("O3"), target("avx2"), noinline))
#else
#define FAST __attribute__((optimize("O3"), noinline))
#endif

FAST static void add_float(float *restrict to, const float *restrict a, const float *restrict b, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) to[i] = a[i] + b[i];
}

FAST static void add_bfloat16(uint16_t *restrict to, const uint16_t *restrict a, const uint16_t *restrict b, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) {
        union {
            uint32_t bits;
            float value;
        } x = {(uint32_t)a[i] << 16}, y = {(uint32_t)b[i] << 16};
        x.value += y.value;
        to[i] = (uint16_t)((x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16);
    }
}

static void add(flagosDataType_t type, void *to, const void *a, const void *b, size_t bytes)
{
    if (type == flagosFloat32) add_float(to, a, b, bytes / 4);
    else add_bfloat16(to, a, b, bytes / 2);
}

/* Memory of both ranks, pinned by each: a page for the barrier, then for each rank what it has copied out and what it
 * copies in. */
struct board {
    char *base;
    size_t bytes, part;
    long step;
};

static struct board share(int rank, size_t part)
{
    struct board b = {NULL, 4096 + 4 * part, part, 0};
    char path[64];
    int fd = -1;
    if (rank == 0) {
        fd = memfd_create("staging", 0);
        if (fd < 0 || ftruncate(fd, (off_t)b.bytes) != 0) give_up("no shared memory");
        S->number[0] = getpid();
        S->number[1] = fd;
    }
    meet();
    if (rank != 0) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)S->number[0], (int)S->number[1]);
        fd = open(path, O_RDWR);
        if (fd < 0) give_up("no shared memory");
    }
    b.base = mmap(NULL, b.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b.base == MAP_FAILED) give_up("no shared memory");
    /* Each its own part, so that it lies where its rank runs. */
    memset(b.base + 4096 + 2 * (size_t)rank * part, 1, 2 * part);
    meet();
    CUDA(HostRegister(b.base, b.bytes, 0));
    meet();
    close(fd);
    return b;
}

static void *copied_out(const struct board *b, int rank)
{
    return b->base + 4096 + 2 * (size_t)rank * b->part;
}

static void *copied_in(const struct board *b, int rank)
{
    return (char *)copied_out(b, rank) + b->part;
}

/* Both ranks are there. Neither sleeps. */
static void line_up(struct board *b, int rank)
{
    long *at = (long *)(void *)b->base;
    b->step++;
    __atomic_store_n(&at[rank * 16], b->step, __ATOMIC_RELEASE);
    while (__atomic_load_n(&at[(1 - rank) * 16], __ATOMIC_ACQUIRE) < b->step) {
#if defined __x86_64__
        __builtin_ia32_pause();
#endif
        if (quick()) sched_yield();
    }
}

static void stage_whole(struct board *b, struct rank *r, flagosDataType_t type, void *in, void *out, size_t bytes, enum way way)
{
    void *mine = copied_out(b, r->rank), *peers = copied_out(b, 1 - r->rank), *sum;
    CUDA(MemcpyAsync(mine, in, bytes, to_host, r->stream));
    CUDA(StreamSynchronize(r->stream));
    line_up(b, r->rank);
    if (way == whole) {
        sum = copied_in(b, r->rank);
        add(type, sum, mine, peers, bytes);
    } else {
        size_t half = bytes / 2, from = (size_t)r->rank * half;
        sum = copied_in(b, 0);
        add(type, (char *)sum + from, (char *)mine + from, (char *)peers + from, half);
        line_up(b, r->rank);
    }
    CUDA(MemcpyAsync(out, sum, bytes, to_device, r->stream));
    CUDA(StreamSynchronize(r->stream));
    /* The peer has read all before the next copy comes in. */
    line_up(b, r->rank);
}

/* ---- the comparison ------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *values, int n, double q)
{
    double sorted[256];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return sorted[(int)(q * (n - 1) + 0.5)];
}

/* Seconds of the slower rank for one all-reduce, from both being there to the result being on the device. */
static double once(struct board *b, struct rank *r, flagosDataType_t type, void *in, void *out, size_t bytes, enum way way, int calls)
{
    double start, took;
    int i;
    CUDA(StreamSynchronize(r->stream));
    meet();
    line_up(b, r->rank);
    start = now();
    for (i = 0; i < calls; i++) {
        if (way == ours) {
            size_t count = bytes / (type == flagosFloat32 ? 4 : 2);
            FLAGOS(AllReduce(in, out, count, type, flagosSum, r->comm, stream_of(r)));
            CUDA(StreamSynchronize(r->stream));
        } else {
            stage_whole(b, r, type, in, out, bytes, way);
        }
    }
    took = (now() - start) / calls;
    S->number[r->rank] = took;
    meet();
    took = S->number[0] > S->number[1] ? S->number[0] : S->number[1];
    meet();
    return took;
}

/* Small whole numbers, which a bfloat16 holds, and their sums too. */
static void upload_small(void *device, flagosDataType_t type, size_t bytes, int rank)
{
    char *host = malloc(bytes);
    size_t i, n = bytes / (type == flagosFloat32 ? 4 : 2);
    for (i = 0; i < n; i++) {
        union {
            float value;
            uint32_t bits;
        } x = {(float)((i * 7 + (size_t)rank * 5) % 61)};
        if (type == flagosFloat32) memcpy(host + 4 * i, &x.value, 4);
        else host[2 * i] = (char)(x.bits >> 16), host[2 * i + 1] = (char)(x.bits >> 24);
    }
    CUDA(Memcpy(device, host, bytes, to_device));
    CUDA(DeviceSynchronize());
    free(host);
}

static void expect_small(int where, const void *device, flagosDataType_t type, size_t bytes, const char *what)
{
    unsigned char *host = malloc(bytes);
    size_t i, n = bytes / (type == flagosFloat32 ? 4 : 2), wrong = 0, first = 0;
    CUDA(Memcpy(host, device, bytes, to_host));
    for (i = 0; i < n; i++) {
        union {
            uint32_t bits;
            float value;
        } x = {0};
        if (type == flagosFloat32) memcpy(&x.value, host + 4 * i, 4);
        else x.bits = (uint32_t)host[2 * i] << 16 | (uint32_t)host[2 * i + 1] << 24;
        if (x.value != (float)(i * 7 % 61 + (i * 7 + 5) % 61) && wrong++ == 0) first = i;
    }
    if (wrong != 0) complain(where, "%s of %zu bytes: %zu wrong values, the first at %zu", what, bytes, wrong, first);
    free(host);
}

struct row {
    size_t bytes;
    const char *type;
    double seconds[ways], ratio[ways], low[ways], high[ways];
};

struct limits {
    double d2h, h2d, both, sum;
};

static struct limits measure_limits(struct board *b, struct rank *r, void *device, size_t bytes)
{
    struct limits limits = {0, 0, 0, 0};
    Stream second;
    double best[4];
    int kind, i;
    CUDA(StreamCreateWithFlags(&second, 1));
    for (kind = 0; kind < 4; kind++) {
        double times[7];
        for (i = 0; i < 7; i++) {
            double start;
            meet();
            start = now();
            if (kind == 0 || kind == 2) CUDA(MemcpyAsync(copied_out(b, r->rank), device, bytes / 2, to_host, r->stream));
            if (kind == 1 || kind == 2)
                CUDA(MemcpyAsync((char *)device + bytes / 2, copied_in(b, r->rank), bytes / 2, to_device, second));
            if (kind == 3) add(flagosFloat32, copied_in(b, r->rank), copied_out(b, 0), copied_out(b, 1), bytes / 2);
            CUDA(StreamSynchronize(r->stream));
            CUDA(StreamSynchronize(second));
            times[i] = now() - start;
        }
        best[kind] = (double)bytes / 2 / quantile(times, 7, 0.5) * 1e-9;
    }
    limits.d2h = best[0];
    limits.h2d = best[1];
    limits.both = best[2];
    limits.sum = best[3];
    CUDA(StreamDestroy(second));
    return limits;
}

static void speed(int rank)
{
    static const struct {
        flagosDataType_t type;
        const char *name;
    } types[] = {{flagosFloat32, "float32"}, {flagosBfloat16, "bfloat16"}};
    struct rank r = join(rank, NULL);
    int small = quick(), standin = number_from("HW_STANDIN", 0), pairs = small ? 3 : pairs_of_size;
    size_t sizes[3] = {1 << 20, 16 << 20, 256 << 20}, t, s, largest;
    struct row rows[max_rows];
    struct limits limits;
    struct board board;
    void *in, *out;
    int n = 0, i;
    enum way way;
    if (small) sizes[0] = 64 << 10, sizes[1] = 1 << 20, sizes[2] = 3 << 20;
    largest = sizes[2];
    board = share(rank, largest);
    in = device_memory(largest);
    out = device_memory(largest);
    limits = measure_limits(&board, &r, in, largest);
    report(rank, "limits", "both ranks at once, GB/s of each: to the host %.1f, to the device %.1f, both ways %.1f + %.1f, one thread's sum %.1f",
           limits.d2h, limits.h2d, limits.both, limits.both, limits.sum);
    for (t = 0; t < 2; t++) {
        for (s = 0; s < 3; s++) {
            flagosDataType_t type = types[t].type;
            double times[ways][pairs_of_size], ratio[pairs_of_size];
            size_t bytes = sizes[s];
            int calls = bytes >= 256 << 20 ? 1 : bytes >= 16 << 20 ? 3 : 10;
            struct row *row = &rows[n++];
            char name[64];
            if (small) calls = 1;
            upload_small(in, type, bytes, rank);
            for (way = ours; way < ways; way++) {
                CUDA(Memset(out, 0xa5, bytes));
                CUDA(DeviceSynchronize());
                once(&board, &r, type, in, out, bytes, way, 1);
                expect_small(__LINE__, out, type, bytes, way_names[way]);
                once(&board, &r, type, in, out, bytes, way, 2);
            }
            for (i = 0; i < pairs; i++) {
                /* Ours stands before and behind the others in turn. */
                if (i % 2 == 0) times[ours][i] = once(&board, &r, type, in, out, bytes, ours, calls);
                times[whole][i] = once(&board, &r, type, in, out, bytes, whole, calls);
                if (i % 2 == 1) times[ours][i] = once(&board, &r, type, in, out, bytes, ours, calls);
                times[halves][i] = once(&board, &r, type, in, out, bytes, halves, calls);
            }
            row->bytes = bytes;
            row->type = types[t].name;
            for (way = ours; way < ways; way++) {
                for (i = 0; i < pairs; i++) ratio[i] = times[way][i] / times[ours][i];
                row->seconds[way] = quantile(times[way], pairs, 0.5);
                row->ratio[way] = quantile(ratio, pairs, 0.5);
                row->low[way] = quantile(ratio, pairs, 0.25);
                row->high[way] = quantile(ratio, pairs, 0.75);
            }
            if (rank == 0 && !small && !standin && bytes == largest && type == flagosFloat32) {
                EXPECT(row->low[whole] >= 2.5, "%.2f times as fast as the whole buffer with one thread (p25 %.2f)", row->ratio[whole],
                       row->low[whole]);
            }
            snprintf(name, sizeof name, "%s.%zu", types[t].name, bytes);
            report(rank, name, "ours %.3f ms (%.1f GB/s); whole buffer, one thread a rank: %.3f ms, %.2f times ours (p25 %.2f, p75 %.2f); "
                   "in halves: %.3f ms, %.2f times ours (p25 %.2f, p75 %.2f); %d pairs",
                   row->seconds[ours] * 1e3, (double)bytes / row->seconds[ours] * 1e-9, row->seconds[whole] * 1e3, row->ratio[whole],
                   row->low[whole], row->high[whole], row->seconds[halves] * 1e3, row->ratio[halves], row->low[halves],
                   row->high[halves], pairs);
        }
    }
    if (rank == 0 && getenv("HW_LOG") != NULL) {
        char path[PATH_MAX];
        FILE *f;
        snprintf(path, sizeof path, "%s/staging.json", getenv("HW_LOG"));
        f = fopen(path, "w");
        if (f == NULL) give_up("%s can't be written", path);
        fprintf(f, "{\n  \"operation\": \"all_reduce\", \"ranks\": 2, \"pairs\": %d, \"standin\": %d,\n", pairs, standin);
        fprintf(f, "  \"limits_gbs\": {\"device_to_host\": %.2f, \"host_to_device\": %.2f, \"both_ways_each\": %.2f, \"sum_of_one_thread\": %.2f},\n",
                limits.d2h, limits.h2d, limits.both, limits.sum);
        fprintf(f, "  \"rows\": [\n");
        for (i = 0; i < n; i++) {
            fprintf(f, "    {\"datatype\": \"%s\", \"bytes\": %zu, \"ours_ms\": %.4f", rows[i].type, rows[i].bytes, rows[i].seconds[ours] * 1e3);
            for (way = whole; way < ways; way++) {
                fprintf(f, ", \"%s_ms\": %.4f, \"%s_ratio\": {\"median\": %.3f, \"p25\": %.3f, \"p75\": %.3f}", way_names[way],
                        rows[i].seconds[way] * 1e3, way_names[way], rows[i].ratio[way], rows[i].low[way], rows[i].high[way]);
            }
            fprintf(f, "}%s\n", i + 1 < n ? "," : "");
        }
        fprintf(f, "  ]\n}\n");
        fclose(f);
    }
    meet();
    CUDA(HostUnregister(board.base));
    munmap(board.base, board.bytes);
    leave(&r);
    CUDA(Free(in));
    CUDA(Free(out));
}

/* ---- the order of streams -------------------------------------------------------------------- */

/* Operations on many streams, all queued before any is waited for; each stands between copies of its own stream. */
static void streams(int rank)
{
    enum { count = 48, elements = 100003, repeats = 3 };
    struct rank r = join(rank, NULL);
    Stream stream[count];
    void *data[count];
    float *host = NULL, *back = NULL;
    size_t i, k, wrong = 0;
    double start, queued;
    int round;
    CUDA(HostAlloc((void **)&host, (size_t)elements * 4, 0));
    CUDA(HostAlloc((void **)&back, (size_t)elements * 4 * count, 0));
    fill(host, elements, rank, 1);
    for (i = 0; i < count; i++) {
        CUDA(StreamCreateWithFlags(&stream[i], 1));
        data[i] = device_memory((size_t)elements * 4);
    }
    /* What is made at first is made now. */
    FLAGOS(AllReduce(data[0], data[0], elements, flagosFloat32, flagosMin, r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    for (round = 0; round < repeats; round++) {
        memset(back, 0, (size_t)elements * 4 * count);
        meet();
        start = now();
        for (i = 0; i < count; i++) {
            CUDA(MemcpyAsync(data[i], host, (size_t)elements * 4, to_device, stream[i]));
            FLAGOS(AllReduce(data[i], data[i], elements, flagosFloat32, flagosSum, r.comm, (flagosStream_t)stream[i]));
            CUDA(MemcpyAsync(back + i * elements, data[i], (size_t)elements * 4, to_host, stream[i]));
        }
        queued = now() - start;
        for (i = 0; i < count; i++) CUDA(StreamSynchronize(stream[i]));
        for (i = 0; i < count; i++) {
            for (k = 0; k < elements; k++) wrong += back[i * elements + k] != value(0, k, 1) + value(1, k, 1);
        }
        EXPECT(wrong == 0, "%zu wrong values", wrong);
        report(rank, "many", "%d operations on as many streams: queued in %.2f ms, done in %.2f ms", (int)count, queued * 1e3,
               (now() - start) * 1e3);
    }
    for (i = 0; i < count; i++) {
        CUDA(Free(data[i]));
        CUDA(StreamDestroy(stream[i]));
    }
    CUDA(FreeHost(host));
    CUDA(FreeHost(back));
    leave(&r);
}

/* A call does not wait for what its stream holds, nor for the operation. */
static void returns(int rank)
{
    enum { elements = 4 << 20 };
    size_t large = quick() ? 8 << 20 : (size_t)1 << 30;
    struct rank r = join(rank, NULL);
    void *busy = device_memory(large), *data = device_memory((size_t)elements * 4);
    double start, call, all;
    int i, copies = quick() ? 10 : 400, waits = strcmp(getenv("FLAGOSCOMM_STAGING_WAIT") ? getenv("FLAGOSCOMM_STAGING_WAIT") : "", "call") == 0;
    upload(data, elements, rank, 3);
    FLAGOS(AllReduce(data, data, elements, flagosFloat32, flagosMax, r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    upload(data, elements, rank, 4);
    meet();
    /* A copy to ordinary memory behind the operation, which waits inside the driver. */
    FLAGOS(AllReduce(data, data, elements, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    {
        float *back = malloc((size_t)elements * 4);
        size_t k, wrong = 0;
        CUDA(MemcpyAsync(back, data, (size_t)elements * 4, to_host, r.stream));
        CUDA(StreamSynchronize(r.stream));
        for (k = 0; k < elements; k++) wrong += back[k] != value(0, k, 4) + value(1, k, 4);
        EXPECT(wrong == 0, "%zu wrong values", wrong);
        free(back);
    }
    upload(data, elements, rank, 4);
    meet();
    for (i = 0; i < copies; i++) CUDA(MemcpyAsync(busy, (char *)busy + large / 2, large / 2, any_way, r.stream));
    start = now();
    FLAGOS(AllReduce(data, data, elements, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    call = now() - start;
    CUDA(StreamSynchronize(r.stream));
    all = now() - start;
    expect_sum(__LINE__, data, elements, 4, 1);
    if (!quick()) EXPECT(waits ? call > all / 2 : call < all / 4, "the call took %.2f ms of %.2f ms", call * 1e3, all * 1e3);
    report(rank, "call", "behind copies on its stream the call takes %.3f ms, the operation is done after %.2f ms", call * 1e3, all * 1e3);
    leave(&r);
    CUDA(Free(busy));
    CUDA(Free(data));
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Ours alone under the scenario's settings. */
static void settings(int rank)
{
    static const size_t sizes[] = {1 << 20, 16 << 20, 256 << 20};
    struct rank r;
    struct board board;
    double median[3];
    int s, i;
    if (no_way(rank)) return;
    r = join(rank, NULL);
    board = share(rank, 4096);
    for (s = 0; s < 3; s++) {
        size_t bytes = quick() ? sizes[s] / 64 : sizes[s];
        double times[15];
        void *in = device_memory(bytes), *out = device_memory(bytes);
        upload_small(in, flagosFloat32, bytes, rank);
        for (i = 0; i < 3; i++) once(&board, &r, flagosFloat32, in, out, bytes, ours, 1);
        expect_small(__LINE__, out, flagosFloat32, bytes, "ours");
        for (i = 0; i < 15; i++) times[i] = once(&board, &r, flagosFloat32, in, out, bytes, ours, s == 2 ? 1 : 5);
        median[s] = quantile(times, 15, 0.5);
        CUDA(Free(in));
        CUDA(Free(out));
    }
    report(rank, "ms", "1, 16, 256 MiB: %.3f %.3f %.3f", median[0] * 1e3, median[1] * 1e3, median[2] * 1e3);
    CUDA(HostUnregister(board.base));
    leave(&r);
}

#define HOST "FLAGOSCOMM_TIERS=host"
#define MEMORY "FLAGOSCOMM_STAGING_MEMORY="
#define THREADS "FLAGOSCOMM_STAGING_THREADS="
#define CALL "FLAGOSCOMM_STAGING_WAIT=call"
static const struct scenario list[] = {
    {"staging.speed", processes, 2, 120, speed, {HOST}, 0, 0},
    {"staging.streams", processes, 2, 40, streams, {HOST}, 0, 0},
    {"staging.streams_of_threads", threads, 2, 40, streams, {HOST}, 0, 0},
    {"staging.returns", processes, 2, 40, returns, {HOST}, 0, 0},
    {"staging.waits", processes, 2, 40, returns, {HOST, CALL}, 0, 0},
    {"staging.no_pool", processes, 2, 60, settings, {HOST, MEMORY "0"}, 0, 0},
    {"staging.one_thread", processes, 2, 60, settings, {HOST, THREADS "1"}, 0, 0},
    {"staging.three_threads", processes, 2, 60, settings, {HOST, THREADS "3"}, 0, 0},
    {"staging.six_threads", processes, 2, 60, settings, {HOST, THREADS "6"}, 0, 0},
    {"staging.small_pool", processes, 2, 60, settings, {HOST, MEMORY "8M"}, 0, 0},
    {"staging.large_pool", processes, 2, 60, settings, {HOST, MEMORY "128M"}, 0, 0},
    {"staging.default", processes, 2, 60, settings, {HOST}, 0, 0},
    {"staging.machines", processes, 2, 120, settings, {HOST, MACHINES}, 0, 0},
    {"staging.machines_no_pool", processes, 2, 120, settings, {HOST, MEMORY "0", MACHINES}, 0, 0},
    {"staging.call_waits", processes, 2, 60, settings, {HOST, CALL}, 0, 0},
};
HW_MAIN(list)
