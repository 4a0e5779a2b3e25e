/*
 * Cost of a call and bandwidth, ours and direct NCCL, in one run and in the same two processes: blocks alternate (ours, direct,
 * ours, direct, ...), and each figure is the median over pairs of neighbours. Between two blocks of direct calls stands the
 * noise of the method. Ours is libflagos_comm.so in the scenario cost, and in drop_in what the loader finds as libnccl.so.2.
 * Both write SCENARIO.json into HW_LOG. The same, of calls alone, for libflagcx.so (HW_FLAGCX) and for the plugin that FlagCX
 * would call: flagcx_cost.
 */
#include "hw.h"
#include "../fakevendor/abi/flagcx_adaptor.h"

#include <limits.h>

enum { max_pairs = 2000, max_sizes = 32 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int n, double q)
{
    int at = (int)(q * (n - 1) + 0.5);
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[at];
}

enum way { ours, direct, skin, plugin };
static const char *const way_names[] = { "ours", "direct", "libflagcx.so", "the plugin" };
enum { float32 = 7, sum = 0 }; /* in all libraries */

typedef int AllReduce(const void *, void *, size_t, int, int, void *, void *);

struct side {
    AllReduce *all_reduce;
    void *comm, *stream;
};

struct both {
    struct rank r;
    struct side side[4]; /* of the same ranks, by way */
    void *in, *out;
    struct { void *base; } wrapper; /* of the stream, for FlagCX's functions */
};

static struct {
    __typeof__(&flagcxGetUniqueId) GetUniqueId;
    __typeof__(&flagcxCommInitRank) CommInitRank;
    __typeof__(&flagcxCommDestroy) CommDestroy;
} X; /* libflagcx.so */
static const struct flagcxCCLAdaptor_v1 *P;

/* `calls` all-reduces of so many floats; whether one failed. */
static int run(struct both *b, enum way way, size_t count, int calls)
{
    AllReduce *all_reduce = b->side[way].all_reduce;
    void *comm = b->side[way].comm, *stream = b->side[way].stream;
    int i, bad = 0;
    for (i = 0; i < calls; i++) bad |= all_reduce(b->in, b->out, count, float32, sum, comm, stream);
    return bad;
}

static void call(struct both *b, enum way way, size_t count)
{
    EXPECT(run(b, way, count, 1) == 0, "%s: the call failed", way_names[way]);
}

/* Nanoseconds of host time for one call, out of `calls` in a row; the stream is empty before and after, outside the clock. */
static double host_cost(struct both *b, enum way way, int calls)
{
    double start, took;
    int bad;
    CUDA(StreamSynchronize(b->r.stream));
    start = now();
    bad = run(b, way, 2, calls);
    took = now() - start;
    EXPECT(bad == 0, "%s: a call failed", way_names[way]);
    CUDA(StreamSynchronize(b->r.stream));
    return took / calls * 1e9;
}

struct cost {
    double ours, direct, difference, low, high, control, control_low, control_high;
    int pairs, calls;
};

static struct cost measure_cost(struct both *b, enum way way, int calls, int pairs)
{
    static double a[max_pairs], d[max_pairs], difference[max_pairs], control[max_pairs];
    struct cost c;
    int i;
    for (i = 0; i < 20; i++) {
        host_cost(b, way, calls);
        host_cost(b, direct, calls);
    }
    for (i = 0; i < pairs; i++) {
        double again;
        if (i % 2 == 0) {
            a[i] = host_cost(b, way, calls);
            d[i] = host_cost(b, direct, calls);
            again = host_cost(b, direct, calls);
        } else {
            again = host_cost(b, direct, calls);
            d[i] = host_cost(b, direct, calls);
            a[i] = host_cost(b, way, calls);
        }
        difference[i] = a[i] - d[i];
        control[i] = again - d[i];
    }
    c.ours = quantile(a, pairs, 0.5);
    c.direct = quantile(d, pairs, 0.5);
    c.difference = quantile(difference, pairs, 0.5);
    c.low = quantile(difference, pairs, 0.1);
    c.high = quantile(difference, pairs, 0.9);
    c.control = quantile(control, pairs, 0.5);
    c.control_low = quantile(control, pairs, 0.1);
    c.control_high = quantile(control, pairs, 0.9);
    c.pairs = pairs;
    c.calls = calls;
    return c;
}

/* Seconds of device time for one all-reduce, the slower rank's. */
static double device_time(struct both *b, enum way way, size_t bytes, int calls, void **event)
{
    float ms = 0;
    int i;
    double slower;
    CUDA(StreamSynchronize(b->r.stream));
    meet();
    call(b, way, bytes / 4); /* brings the streams together */
    CUDA(EventRecord(event[0], b->r.stream));
    for (i = 0; i < calls; i++) call(b, way, bytes / 4);
    CUDA(EventRecord(event[1], b->r.stream));
    CUDA(EventSynchronize(event[1]));
    CUDA(EventElapsedTime(&ms, event[0], event[1]));
    S->number[b->r.rank] = ms;
    meet();
    slower = S->number[0] > S->number[1] ? S->number[0] : S->number[1];
    meet();
    return slower / calls * 1e-3;
}

struct row {
    size_t bytes;
    double time[2], ratio, low, high;
};

static void write_cost(FILE *f, const char *name, const struct cost *c)
{
    fprintf(f,
            "  \"%s\": {\"bytes\": 8, \"calls_in_a_row\": %d, \"pairs\": %d, \"ours_ns\": %.1f, \"direct_ns\": %.1f, "
            "\"difference_ns\": {\"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f}, "
            "\"direct_minus_direct_ns\": {\"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f}},\n",
            name, c->calls, c->pairs, c->ours, c->direct, c->difference, c->low, c->high, c->control, c->control_low, c->control_high);
}

static void say_cost(int rank, const char *name, enum way way, const struct cost *c, int gated)
{
    if (gated && rank == 0) {
        double allowed = c->direct * 0.05 > 150 ? c->direct * 0.05 : 150;
        EXPECT(c->difference < allowed, "%s costs %.0f ns more than direct's %.0f ns", way_names[way], c->difference, c->direct);
    }
    report(rank, name, "8 B: %s %.0f ns, direct %.0f ns, difference %+.1f ns (p10 %+.1f, p90 %+.1f; direct against itself %+.1f, "
           "p10 %+.1f, p90 %+.1f); %d pairs of %d calls", way_names[way], c->ours, c->direct, c->difference, c->low, c->high, c->control,
           c->control_low, c->control_high, c->pairs, c->calls);
}

/* The file of NCCL that ours is over. */
static void connect_library(struct both *b, char *file)
{
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    load_nccl();
    load_ours();
    b->r = join(b->r.rank, NULL);
    b->side[ours].all_reduce = (AllReduce *)F.AllReduce;
    b->side[ours].comm = b->r.comm;
    b->side[ours].stream = stream_of(&b->r);
    FLAGOS(CommGetInfo(b->r.comm, &info));
    if (realpath(info.libraryPath, file) == NULL) file[0] = 0;
}

static int (*drop_in_destroy)(void *);

static void connect_drop_in(struct both *b, char *file)
{
    int (*id_of)(NcclId *), (*init)(void **, int, NcclId, int), result = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    NcclId id;
    if (library == NULL || dlsym(library, "flagos_comm_instance") == NULL) give_up("libnccl.so.2 is not ours");
    *(void **)&id_of = dlsym(library, "ncclGetUniqueId");
    *(void **)&init = dlsym(library, "ncclCommInitRank");
    *(void **)&drop_in_destroy = dlsym(library, "ncclCommDestroy");
    *(void **)&b->side[ours].all_reduce = dlsym(library, "ncclAllReduce");
    set_device(b->r.rank);
    CUDA(StreamCreateWithFlags(&b->r.stream, 1));
    if (b->r.rank == 0) result = id_of(&S->nccl_id);
    meet();
    id = S->nccl_id;
    meet();
    result = result ? result : init(&b->side[ours].comm, 2, id, b->r.rank);
    if (result != 0) give_up("init over libnccl.so.2: %d", result);
    b->side[ours].stream = b->r.stream;
    /* What of that name is in the process now is what ours is over. */
    if (real_copies(file, PATH_MAX) != 1) give_up("not one copy of NCCL: %s", file);
}

static void connect_direct(struct both *b)
{
    if (b->r.rank == 0) NCCL(GetUniqueId(&S->nccl_id));
    meet();
    NCCL(CommInitRank(&b->side[direct].comm, 2, S->nccl_id, b->r.rank));
    if (b->side[direct].comm == NULL) give_up("no communicator of NCCL");
    *(void **)&b->side[direct].all_reduce = *(void **)&N.AllReduce;
    b->side[direct].stream = b->r.stream;
}

static void compare(int rank, void (*connect)(struct both *, char *))
{
    struct both b = {.r.rank = rank};
    struct cost lone, row_of;
    struct row rows[max_sizes];
    char direct_file[PATH_MAX] = "?", our_file[PATH_MAX] = "?";
    Dl_info where;
    int n = 0, i, version = 0, small = quick(), gated = !small && number_from("HW_STANDIN", 0) == 0;
    size_t bytes, largest = small ? 1 << 16 : 1 << 30;
    void *event[2];

    load_cuda();
    connect(&b, our_file);
    /* The drop-in has to find the other one by itself first. */
    if (N.AllReduce == NULL) load_nccl();
    connect_direct(&b);
    if (dladdr((void *)(size_t)N.AllReduce, &where) != 0 && realpath(where.dli_fname, direct_file) == NULL) direct_file[0] = 0;
    NCCL(GetVersion(&version));
    EXPECT(strcmp(our_file, direct_file) == 0, "ours is over %s, direct over %s", our_file, direct_file);
    b.in = device_memory(largest);
    b.out = device_memory(largest);
    CUDA(Memset(b.in, 0, largest));
    upload(b.in, 1024, rank, 0);
    for (i = 0; i < 2; i++) {
        call(&b, (enum way)i, 1024);
        CUDA(StreamSynchronize(b.r.stream));
        expect_sum(__LINE__, b.out, 1024, 0, 1);
        CUDA(Memset(b.out, 0, 4096));
    }
    report(rank, "same_library", "ours and direct are over one copy: %s, version %d; both right", direct_file, version);

    lone = measure_cost(&b, ours, 1, small ? 50 : 2000);
    say_cost(rank, "one_call", ours, &lone, gated);
    row_of = measure_cost(&b, ours, 64, small ? 10 : 400);
    say_cost(rank, "calls_in_a_row", ours, &row_of, gated);

    CUDA(EventCreateWithFlags(&event[0], 0));
    CUDA(EventCreateWithFlags(&event[1], 0));
    for (bytes = 8; bytes <= largest; bytes *= bytes < 64 ? 8 : 4) {
        double ratio[64], times[2][64];
        int pairs = small ? 3 : bytes >= 64 << 20 ? 12 : 30;
        int calls = small ? 3 : bytes >= 64 << 20 ? 5 : bytes >= 1 << 20 ? 20 : 100;
        struct row *row = &rows[n++];
        for (i = 0; i < 3; i++) {
            device_time(&b, ours, bytes, 2, event);
            device_time(&b, direct, bytes, 2, event);
        }
        for (i = 0; i < pairs; i++) {
            enum way first = i % 2 ? direct : ours;
            times[first][i] = device_time(&b, first, bytes, calls, event);
            times[!first][i] = device_time(&b, !first, bytes, calls, event);
            ratio[i] = times[direct][i] / times[ours][i];
        }
        row->bytes = bytes;
        row->time[ours] = quantile(times[ours], pairs, 0.5);
        row->time[direct] = quantile(times[direct], pairs, 0.5);
        row->ratio = quantile(ratio, pairs, 0.5);
        row->low = quantile(ratio, pairs, 0.1);
        row->high = quantile(ratio, pairs, 0.9);
        if (gated && rank == 0 && bytes >= 1 << 20) {
            EXPECT(row->ratio > 0.97, "%zu bytes: %.3f of direct's bandwidth", bytes, row->ratio);
        }
        if (bytes < largest && bytes * 4 > largest) bytes = largest / 4;
    }
    for (i = 0; i < n && rank == 0; i++) {
        fprintf(stderr, "%s%12zu %12.2f %12.2f %10.2f %10.2f %8.3f  %.3f..%.3f\n",
                i == 0 ? "# all_reduce, float32, sum, 2 ranks; bus bandwidth in GB/s; ratio of bandwidths, ours to direct\n"
                         "#      bytes      ours us    direct us  ours GB/s direct GB/s  ratio  p10..p90\n"
                       : "",
                rows[i].bytes, rows[i].time[ours] * 1e6, rows[i].time[direct] * 1e6, (double)rows[i].bytes / rows[i].time[ours] * 1e-9,
                (double)rows[i].bytes / rows[i].time[direct] * 1e-9, rows[i].ratio, rows[i].low, rows[i].high);
    }
    report(rank, "bandwidth", "%zu bytes: ours %.2f GB/s, direct %.2f GB/s, median ratio %.3f (p10 %.3f, p90 %.3f)", rows[n - 1].bytes,
           (double)rows[n - 1].bytes / rows[n - 1].time[ours] * 1e-9, (double)rows[n - 1].bytes / rows[n - 1].time[direct] * 1e-9,
           rows[n - 1].ratio, rows[n - 1].low, rows[n - 1].high);
    if (rank == 0 && getenv("HW_LOG") != NULL) {
        char path[PATH_MAX];
        FILE *f;
        snprintf(path, sizeof path, "%s/%s.json", getenv("HW_LOG"), scenario_name);
        f = fopen(path, "w");
        if (f == NULL) give_up("%s can't be written", path);
        fprintf(f, "{\n  \"operation\": \"all_reduce\", \"datatype\": \"float32\", \"ranks\": 2, \"nccl_version\": %d, \"standin\": %d,\n", version,
                number_from("HW_STANDIN", 0));
        write_cost(f, "one_call", &lone);
        write_cost(f, "calls_in_a_row", &row_of);
        fprintf(f, "  \"bandwidth\": [\n");
        for (i = 0; i < n; i++) {
            fprintf(f,
                    "    {\"bytes\": %zu, \"ours_us\": %.3f, \"direct_us\": %.3f, \"ours_busbw_gbs\": %.4f, \"direct_busbw_gbs\": %.4f, "
                    "\"ratio\": {\"median\": %.4f, \"p10\": %.4f, \"p90\": %.4f}}%s\n",
                    rows[i].bytes, rows[i].time[ours] * 1e6, rows[i].time[direct] * 1e6, (double)rows[i].bytes / rows[i].time[ours] * 1e-9,
                    (double)rows[i].bytes / rows[i].time[direct] * 1e-9, rows[i].ratio, rows[i].low, rows[i].high, i + 1 < n ? "," : "");
        }
        fprintf(f, "  ]\n}\n");
        fclose(f);
    }
    NCCL(CommDestroy(b.side[direct].comm));
    if (b.r.comm != NULL) FLAGOS(CommDestroy(b.r.comm));
    else EXPECT(drop_in_destroy(b.side[ours].comm) == 0, "the destroy failed");
    CUDA(StreamDestroy(b.r.stream));
}

static void cost(int rank)
{
    compare(rank, connect_library);
}

static void cost_of_drop_in(int rank)
{
    compare(rank, connect_drop_in);
}

/* What FlagCX's programs pay, and FlagCX itself. */
static void of_flagcx(int rank)
{
    const char *path = getenv("HW_FLAGCX");
    struct both b;
    flagcxUniqueId id;
    flagcxInnerUniqueId inner;
    flagcxInnerUniqueId_t place = &inner;
    int small = quick(), gated = !small && number_from("HW_STANDIN", 0) == 0, ways = path != NULL && *path ? 2 : 1, w;
    void *library;
    load_cuda();
    load_nccl();
    load_ours();
    memset(&b, 0, sizeof b);
    b.r = join(rank, NULL);
    connect_direct(&b);
    b.wrapper.base = b.r.stream;
    b.side[plugin].stream = b.side[skin].stream = &b.wrapper;
    library = dlopen(getenv("HW_LIB"), RTLD_NOW | RTLD_LOCAL);
    P = library == NULL ? NULL : dlsym(library, "flagcxCCLAdaptorPlugin_v1");
    if (P == NULL) give_up("%s", dlerror());
    memset(&inner, 0, sizeof inner);
    if (rank == 0) {
        EXPECT(P->getUniqueId(&place) == flagcxSuccess, "getUniqueId: %s", P->getLastError(NULL));
        memcpy(&S->id, &inner, sizeof S->id);
    }
    meet();
    memcpy(&inner, &S->id, sizeof S->id);
    if (P->commInitRank((flagcxInnerComm_t *)&b.side[plugin].comm, 2, &inner, rank, NULL) != flagcxSuccess) {
        give_up("commInitRank: %s", P->getLastError(NULL));
    }
    b.side[plugin].all_reduce = (AllReduce *)P->allReduce;
    meet();
    if (ways == 2) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) give_up("%s", dlerror());
        *(void **)&X.GetUniqueId = dlsym(library, "flagcxGetUniqueId");
        *(void **)&X.CommInitRank = dlsym(library, "flagcxCommInitRank");
        *(void **)&X.CommDestroy = dlsym(library, "flagcxCommDestroy");
        *(void **)&b.side[skin].all_reduce = dlsym(library, "flagcxAllReduce");
        if (rank == 0) {
            EXPECT(X.GetUniqueId(&id) == flagcxSuccess, "flagcxGetUniqueId failed");
            memcpy(&S->id, &id, sizeof id);
        }
        meet();
        memcpy(&id, &S->id, sizeof id);
        if (X.CommInitRank((flagcxComm_t *)&b.side[skin].comm, 2, &id, rank) != flagcxSuccess) give_up("flagcxCommInitRank failed");
    }
    b.in = device_memory(4096);
    b.out = device_memory(4096);
    upload(b.in, 1024, rank, 0);
    for (w = 0; w < ways; w++) {
        enum way way = w == 0 ? plugin : skin;
        struct cost lone, row;
        CUDA(Memset(b.out, 0, 4096));
        call(&b, way, 1024);
        CUDA(StreamSynchronize(b.r.stream));
        expect_sum(__LINE__, b.out, 1024, 0, 1);
        lone = measure_cost(&b, way, 1, small ? 50 : 2000);
        say_cost(rank, way == plugin ? "plugin_one_call" : "libflagcx_one_call", way, &lone, gated);
        row = measure_cost(&b, way, 64, small ? 10 : 400);
        say_cost(rank, way == plugin ? "plugin_calls_in_a_row" : "libflagcx_calls_in_a_row", way, &row, gated);
    }
    EXPECT(P->commDestroy(b.side[plugin].comm) == flagcxSuccess, "commDestroy: %s", P->getLastError(NULL));
    if (ways == 2) EXPECT(X.CommDestroy(b.side[skin].comm) == flagcxSuccess, "flagcxCommDestroy failed");
    NCCL(CommDestroy(b.side[direct].comm));
    leave(&b.r);
    report(rank, "destroyed", "all communicators");
}

static const struct scenario list[] = {
    {"cost", processes, 2, 150, cost, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"drop_in", processes, 2, 150, cost_of_drop_in, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"flagcx_cost", processes, 2, 100, of_flagcx, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
};
HW_MAIN(list)
