/* The host tier with device memory, which this program and the library can't touch: every access is a copy. */
#include "native.h"
#include <dirent.h>

#define N 2
#define WORDS 12

static void put_words(int *device, const int *host, int n) { put(device, host, (size_t)n * sizeof *host); }

static void expect(const int *device, const int *expected, int n)
{
    int got[64];
    get(got, device, (size_t)n * sizeof *got);
    for (int i = 0; i < n; i++)
        if (got[i] != expected[i])
            FAIL("element %d is %d, not %d", i, got[i], expected[i]);
}

/* Every collective with 4 elements a rank. Each is between marks, so that the test can count the copied bytes. */
static void every_collective_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    EQUAL(info_of(comm).tier, flagosTierHost);
    EQUAL(info_of(comm).completion, flagosCompletionDeviceStream);
    char name[32];
    int *in = device_memory(8 * sizeof(int)), *out = device_memory(8 * sizeof(int));
    const int mine[8] = {10 * rank + 1, 10 * rank + 2, 10 * rank + 3, 10 * rank + 4, 10 * rank + 5, 10 * rank + 6, 10 * rank + 7, 10 * rank + 8};
    const int clean[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
#define STEP(what, call, ...) \
    do { \
        const int expected[8] = {__VA_ARGS__}; \
        put_words(in, mine, 8); \
        put_words(out, clean, 8); \
        together(); \
        snprintf(name, sizeof name, "%s %d", what, rank); \
        mark(name); \
        OK(call); \
        mark("end"); \
        expect(out, expected, 8); \
        expect(in, mine, 8); \
    } while (0)
    STEP("AllReduce", flagosAllReduce(in, out, 4, flagosInt32, flagosSum, comm, NULL), 12, 14, 16, 18, -1, -1, -1, -1);
    if (rank == 1)
        STEP("Reduce", flagosReduce(in, out, 4, flagosInt32, flagosMax, 1, comm, NULL), 11, 12, 13, 14, -1, -1, -1, -1);
    else
        STEP("Reduce", flagosReduce(in, out, 4, flagosInt32, flagosMax, 1, comm, NULL), -1, -1, -1, -1, -1, -1, -1, -1);
    STEP("Broadcast", flagosBroadcast(in, out, 4, flagosInt32, 1, comm, NULL), 11, 12, 13, 14, -1, -1, -1, -1);
    STEP("AllGather", flagosAllGather(in, out, 4, flagosInt32, comm, NULL), 1, 2, 3, 4, 11, 12, 13, 14);
    if (rank == 0)
        STEP("ReduceScatter", flagosReduceScatter(in, out, 4, flagosInt32, flagosSum, comm, NULL), 12, 14, 16, 18, -1, -1, -1, -1);
    else
        STEP("ReduceScatter", flagosReduceScatter(in, out, 4, flagosInt32, flagosSum, comm, NULL), 20, 22, 24, 26, -1, -1, -1, -1);
    if (rank == 0)
        STEP("Gather", flagosGather(in, out, 4, flagosInt32, 0, comm, NULL), 1, 2, 3, 4, 11, 12, 13, 14);
    else
        STEP("Gather", flagosGather(in, NULL, 4, flagosInt32, 0, comm, NULL), -1, -1, -1, -1, -1, -1, -1, -1);
    if (rank == 0)
        STEP("Scatter", flagosScatter(in, out, 4, flagosInt32, 0, comm, NULL), 1, 2, 3, 4, -1, -1, -1, -1);
    else
        STEP("Scatter", flagosScatter(NULL, out, 4, flagosInt32, 0, comm, NULL), 5, 6, 7, 8, -1, -1, -1, -1);
    if (rank == 0)
        STEP("AlltoAll", flagosAlltoAll(in, out, 4, flagosInt32, comm, NULL), 1, 2, 3, 4, 11, 12, 13, 14);
    else
        STEP("AlltoAll", flagosAlltoAll(in, out, 4, flagosInt32, comm, NULL), 5, 6, 7, 8, 15, 16, 17, 18);
    /* AlltoAllv with gaps: rank r gives 1 element to rank 0 and 2 to rank 1; what lies between is left alone. */
    const size_t send_counts[2] = {1, 2}, send_at[2] = {1, 4};
    const size_t recv_counts[2] = {rank ? 2 : 1, rank ? 2 : 1}, recv_at[2] = {0, 5};
    if (rank == 0)
        STEP("AlltoAllv", flagosAlltoAllv(in, send_counts, send_at, out, recv_counts, recv_at, flagosInt32, comm, NULL), 2, -1, -1, -1, -1, 12, -1, -1);
    else
        STEP("AlltoAllv", flagosAlltoAllv(in, send_counts, send_at, out, recv_counts, recv_at, flagosInt32, comm, NULL), 5, 6, -1, -1, -1, 15, 16, -1);
    if (rank == 0)
        STEP("Send", flagosSend(in, 4, flagosInt32, 1, comm, NULL), -1, -1, -1, -1, -1, -1, -1, -1);
    else
        STEP("Recv", flagosRecv(out, 4, flagosInt32, 0, comm, NULL), 1, 2, 3, 4, -1, -1, -1, -1);
    STEP("Barrier", flagosBarrier(comm, NULL), -1, -1, -1, -1, -1, -1, -1, -1);
    STEP("Nothing", flagosAllReduce(in, out, 0, flagosInt32, flagosSum, comm, NULL), -1, -1, -1, -1, -1, -1, -1, -1);
    /* In place. */
    put_words(out, mine, 8);
    OK(flagosAllReduce(out, out, 4, flagosInt32, flagosSum, comm, NULL));
    expect(out, (const int[]){12, 14, 16, 18, mine[4], mine[5], mine[6], mine[7]}, 8);
    put_words(out, clean, 8);
    put_words(out + 4 * rank, mine, 4);
    OK(flagosAllGather(out + 4 * rank, out, 4, flagosInt32, comm, NULL));
    expect(out, (const int[]){1, 2, 3, 4, 11, 12, 13, 14}, 8);
    put_words(out, mine, 8);
    OK(flagosReduceScatter(out, out + 4 * rank, 4, flagosInt32, flagosSum, comm, NULL));
    if (rank == 0)
        expect(out, (const int[]){12, 14, 16, 18, 5, 6, 7, 8}, 8);
    else
        expect(out, (const int[]){11, 12, 13, 14, 20, 22, 24, 26}, 8);
    put_words(out, mine, 8);
    OK(flagosBroadcast(out, out, 4, flagosInt32, 0, comm, NULL));
    expect(out, (const int[]){1, 2, 3, 4, mine[4], mine[5], mine[6], mine[7]}, 8);
    /* A device scalar is fetched. */
    int three = 3;
    int *scalar = device_memory(sizeof *scalar);
    put_words(scalar, &three, 1);
    flagosRedOp_t op;
    OK(flagosRedOpCreatePreMulSum(&op, scalar, flagosInt32, flagosScalarDevice, comm));
    put_words(in, mine, 8);
    OK(flagosAllReduce(in, out, 2, flagosInt32, op, comm, NULL));
    int got[2];
    get(got, out, sizeof got);
    EQUAL(got[0], 3 * (1 + 11));
    OK(flagosRedOpDestroy(op, comm));
    /* Host memory and device memory in one call; pinned memory needs no copy. */
    int host[8] = {0};
    OK(flagosAllReduce(in, host, 4, flagosInt32, flagosSum, comm, NULL));
    EQUAL(host[3], 18);
    void *pinned;
    CHECK(!RUNTIME(cudaMallocHost)(&pinned, sizeof mine));
    memcpy(pinned, mine, sizeof mine);
    snprintf(name, sizeof name, "Pinned %d", rank);
    mark(name);
    OK(flagosAllReduce(pinned, pinned, 4, flagosInt32, flagosSum, comm, NULL));
    mark("end");
    EQUAL(((int *)pinned)[3], 18);
    OK(flagosCommDestroy(comm));
}

static void every_collective(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(N, every_collective_body);
}

/* Slow work is queued on the stream before the call; the call waits for it, and what follows sees the result. */
static void slow(void *unused)
{
    (void)unused;
    sleep_ms(200);
}

static void queued_work_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    int *data = device_memory(COUNT * sizeof(int)), *source = device_memory(COUNT * sizeof(int));
    int *after = device_memory(COUNT * sizeof(int));
    fill(source, rank);
    OK(flagosMemsetAsync(data, 0, COUNT * sizeof(int), NULL));
    OK(flagosStreamSynchronize(NULL));
    together();
    CHECK(!RUNTIME(cudaLaunchHostFunc)((cudaStream_t)stream, slow, NULL));
    OK(flagosMemcpyAsync(data, source, COUNT * sizeof(int), flagosMemcpyDeviceToDevice, stream));
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    OK(flagosMemcpyAsync(after, data, COUNT * sizeof(int), flagosMemcpyDeviceToDevice, stream));
    OK(flagosStreamSynchronize(stream));
    check_sum(after, n);
    /* Also in a group over two streams. */
    flagosStream_t other;
    OK(flagosStreamCreate(&other));
    int *second = device_memory(COUNT * sizeof(int));
    OK(flagosMemsetAsync(data, 0, COUNT * sizeof(int), NULL));
    OK(flagosMemsetAsync(second, 0, COUNT * sizeof(int), NULL));
    OK(flagosStreamSynchronize(NULL));
    CHECK(!RUNTIME(cudaLaunchHostFunc)((cudaStream_t)other, slow, NULL));
    OK(flagosMemcpyAsync(second, source, COUNT * sizeof(int), flagosMemcpyDeviceToDevice, other));
    OK(flagosMemcpyAsync(data, source, COUNT * sizeof(int), flagosMemcpyDeviceToDevice, stream));
    OK(flagosGroupStart());
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    OK(flagosAllReduce(second, second, COUNT, flagosInt32, flagosSum, comm, other));
    OK(flagosGroupEnd());
    OK(flagosStreamSynchronize(stream));
    OK(flagosStreamSynchronize(other));
    check_sum(data, n);
    check_sum(second, n);
    OK(flagosCommDestroy(comm));
}

static void queued_work(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(N, queued_work_body);
}

/* A call from a thread whose current device is another one, and a group of two ranks from one thread. */
static void other_device(void)
{
    flagosComm_t comms[2];
    int *data[2];
    RUNTIME(cudaSetDevice)(0);
    OK(flagosCommInitAll(comms, 2, NULL));
    for (int r = 0; r < 2; r++) {
        behind(r);
        data[r] = device_memory(COUNT * sizeof(int));
        fill(data[r], r);
    }
    /* What the default stream of a communicator's device still does is waited for, whatever device is current. */
    int *late[2], *source[2];
    for (int r = 0; r < 2; r++) {
        behind(r);
        late[r] = device_memory(COUNT * sizeof(int));
        source[r] = device_memory(COUNT * sizeof(int));
        fill(source[r], r);
        OK(flagosMemsetAsync(late[r], 0, COUNT * sizeof(int), NULL));
        OK(flagosStreamSynchronize(NULL));
        CHECK(!RUNTIME(cudaLaunchHostFunc)(NULL, slow, NULL));
        OK(flagosMemcpyAsync(late[r], source[r], COUNT * sizeof(int), flagosMemcpyDeviceToDevice, NULL));
    }
    behind(3);
    OK(flagosGroupStart());
    for (int r = 0; r < 2; r++)
        OK(flagosAllReduce(late[r], late[r], COUNT, flagosInt32, flagosSum, comms[r], NULL));
    OK(flagosGroupEnd());
    EQUAL(current(), 3);
    OK(flagosGroupStart());
    for (int r = 0; r < 2; r++)
        OK(flagosAllReduce(data[r], data[r], COUNT, flagosInt32, flagosSum, comms[r], NULL));
    OK(flagosGroupEnd());
    EQUAL(current(), 3);
    for (int r = 0; r < 2; r++) {
        behind(r);
        check_sum(late[r], 2);
        check_sum(data[r], 2);
        OK(flagosCommDestroy(comms[r]));
    }
}

/* ---- buffers that are staged in many steps, on streams ---- */

#define MOST 300007

/* Each rank's number of an element, small enough that no sum overflows. */
static int number(int rank, size_t i) { return (int)((i * 7 + (size_t)rank * 131) % 10007); }

struct work {
    int rank, n;
    flagosComm_t comm;
    flagosStream_t stream;
    int *in, *out, *host;
    size_t count;
};

/* `blocks` blocks of this rank's numbers in `in`, and -1 in `out`. */
static void prepare(struct work *w, size_t blocks)
{
    for (size_t i = 0; i < blocks * w->count; i++)
        w->host[i] = number(w->rank, i);
    OK(flagosMemcpyAsync(w->in, w->host, blocks * w->count * sizeof(int), flagosMemcpyHostToDevice, w->stream));
    OK(flagosMemsetAsync(w->out, 0xff, (size_t)w->n * w->count * sizeof(int), w->stream));
    OK(flagosStreamSynchronize(w->stream));
}

static void fetch(struct work *w, const int *from, size_t count)
{
    OK(flagosMemcpyAsync(w->host, from, count * sizeof(int), flagosMemcpyDeviceToHost, w->stream));
    OK(flagosStreamSynchronize(w->stream));
}

static int sum(int n, size_t i)
{
    int all = 0;
    for (int r = 0; r < n; r++)
        all += number(r, i);
    return all;
}

#define EACH(what, length, expected) \
    do { \
        for (size_t i = 0; i < (length); i++) \
            if (w->host[i] != (expected)) \
                FAIL("%s of %zu on rank %d: element %zu is %d, not %d", what, w->count, w->rank, i, w->host[i], (int)(expected)); \
    } while (0)

/* Every collective, apart and in place, and messages. */
static void all_of_a_size(struct work *w)
{
    size_t c = w->count, n = (size_t)w->n, root = n - 1;
    int rank = w->rank;
    for (int in_place = 0; in_place < 2; in_place++) {
        int *out = in_place ? w->in : w->out;
        prepare(w, 1);
        OK(flagosAllReduce(w->in, out, c, flagosInt32, flagosSum, w->comm, w->stream));
        fetch(w, out, c);
        EACH("AllReduce", c, sum(w->n, i));
        prepare(w, 1);
        OK(flagosReduce(w->in, out, c, flagosInt32, flagosSum, (int)root, w->comm, w->stream));
        fetch(w, out, c);
        if (rank == (int)root)
            EACH("Reduce", c, sum(w->n, i));
        prepare(w, 1);
        OK(flagosBroadcast(w->in, out, c, flagosInt32, (int)root, w->comm, w->stream));
        fetch(w, out, c);
        EACH("Broadcast", c, number((int)root, i));
        prepare(w, n);
        OK(flagosReduceScatter(w->in, in_place ? w->in + (size_t)rank * c : w->out, c, flagosInt32, flagosSum, w->comm, w->stream));
        fetch(w, in_place ? w->in + (size_t)rank * c : w->out, c);
        EACH("ReduceScatter", c, sum(w->n, (size_t)rank * c + i));
        prepare(w, n);
        OK(flagosAlltoAll(w->in, w->out, c, flagosInt32, w->comm, w->stream));
        fetch(w, w->out, n * c);
        EACH("AlltoAll", n * c, number((int)(i / c), (size_t)rank * c + i % c));
        prepare(w, 1);
        int *block = w->out + (size_t)rank * c;
        if (in_place)
            OK(flagosMemcpyAsync(block, w->in, c * sizeof(int), flagosMemcpyDeviceToDevice, w->stream));
        OK(flagosAllGather(in_place ? block : w->in, w->out, c, flagosInt32, w->comm, w->stream));
        fetch(w, w->out, n * c);
        EACH("AllGather", n * c, number((int)(i / c), i % c));
        prepare(w, 1);
        OK(flagosGather(w->in, w->out, c, flagosInt32, (int)root, w->comm, w->stream));
        fetch(w, w->out, n * c);
        if (rank == (int)root)
            EACH("Gather", n * c, number((int)(i / c), i % c));
        prepare(w, n);
        OK(flagosScatter(w->in, w->out, c, flagosInt32, (int)root, w->comm, w->stream));
        fetch(w, w->out, c);
        EACH("Scatter", c, number((int)root, (size_t)rank * c + i));
    }
    /* Every pair has its own amount. */
    size_t counts[2][16], displs[2][16], at[2] = {0, 0};
    for (size_t peer = 0; peer < n; peer++)
        for (int receives = 0; receives < 2; receives++) {
            size_t from = receives ? peer : (size_t)rank, to = receives ? (size_t)rank : peer;
            counts[receives][peer] = c * ((from + 2 * to) % 3) / 2;
            displs[receives][peer] = at[receives];
            at[receives] += counts[receives][peer];
        }
    if (at[0] <= n * c && at[1] <= n * c) {
        prepare(w, n);
        OK(flagosAlltoAllv(w->in, counts[0], displs[0], w->out, counts[1], displs[1], flagosInt32, w->comm, w->stream));
        fetch(w, w->out, at[1]);
        for (size_t peer = 0; peer < n; peer++) {
            size_t start = 0;
            for (int before = 0; before < rank; before++)
                start += c * ((peer + 2 * (size_t)before) % 3) / 2;
            for (size_t i = 0; i < counts[1][peer]; i++)
                EQUAL(w->host[displs[1][peer] + i], number((int)peer, start + i));
        }
    }
    prepare(w, 1);
    OK(flagosGroupStart());
    OK(flagosSend(w->in, c, flagosInt32, (rank + 1) % w->n, w->comm, w->stream));
    OK(flagosRecv(w->out, c, flagosInt32, (rank + w->n - 1) % w->n, w->comm, w->stream));
    OK(flagosGroupEnd());
    fetch(w, w->out, c);
    EACH("Recv", c, number((rank + w->n - 1) % w->n, i));
}

static void in_steps_body(int rank, int n, const flagosUniqueId *id)
{
    struct work w = {.rank = rank, .n = n};
    OK(flagosSetDevice(rank));
    OK(flagosCommInitRank(&w.comm, n, id, rank));
    OK(flagosStreamCreate(&w.stream));
    w.in = device_memory((size_t)n * MOST * sizeof(int));
    w.out = device_memory((size_t)n * MOST * sizeof(int));
    w.host = malloc((size_t)n * MOST * sizeof(int));
    const size_t counts[] = {1, 4099, MOST};
    for (int i = 0; i < 3; i++) {
        w.count = counts[i];
        all_of_a_size(&w);
    }
    OK(flagosBarrier(w.comm, w.stream));
    OK(flagosCommDestroy(w.comm));
    free(w.host);
    OK(flagosMemFree(w.in));
    OK(flagosMemFree(w.out));
    OK(flagosStreamDestroy(w.stream));
}

/* Both ranks on device 0. */
static void one_device_body(int rank, int n, const flagosUniqueId *id)
{
    struct work w = {.rank = rank, .n = n, .count = MOST};
    OK(flagosSetDevice(0));
    OK(flagosCommInitRank(&w.comm, n, id, rank));
    OK(flagosStreamCreate(&w.stream));
    w.in = device_memory((size_t)n * MOST * sizeof(int));
    w.out = device_memory((size_t)n * MOST * sizeof(int));
    w.host = malloc((size_t)n * MOST * sizeof(int));
    all_of_a_size(&w);
    OK(flagosCommDestroy(w.comm));
    free(w.host);
}

static void one_device(void)
{
    ranks(N, one_device_body);
    printf("queued: %ld\n", count_of("cuStreamWriteValue32_v2") - N);
}

static void in_steps(void) { ranks(3, in_steps_body); }

/* ---- ranks of different vendors, and one that has none: processes ---- */

static void mixed(void)
{
    flagosUniqueId id = shared_id(0);
    int has_device = 0;
    struct work w = {.rank = my_rank, .n = n_ranks};
    int count = 0;
    has_device = flagosGetDeviceCount(&count) == flagosSuccess && count > 0;
    printf("devices: %d\n", has_device ? count : 0);
    if (has_device)
        OK(flagosSetDevice(0));
    OK(flagosCommInitRank(&w.comm, n_ranks, &id, my_rank));
    EQUAL(info_of(w.comm).tier, flagosTierHost);
    printf("vendor: %s\n", info_of(w.comm).vendor);
    OK(flagosStreamCreate(&w.stream));
    w.in = device_memory((size_t)n_ranks * MOST * sizeof(int));
    w.out = device_memory((size_t)n_ranks * MOST * sizeof(int));
    w.host = malloc((size_t)n_ranks * MOST * sizeof(int));
    const size_t counts[] = {1, 4099, MOST};
    for (int i = 0; i < 3; i++) {
        w.count = counts[i];
        all_of_a_size(&w);
    }
    OK(flagosCommDestroy(w.comm));
    OK(flagosStreamDestroy(w.stream));
}

/* ---- who waits ---- */

/* The call returns while its stream is busy, and what follows sees the result. */
static void returns_at_once_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    int *data = device_memory(COUNT * sizeof(int)), *after = device_memory(COUNT * sizeof(int));
    fill(data, rank);
    OK(flagosAllReduce(after, after, COUNT, flagosInt32, flagosMax, comm, stream));
    OK(flagosStreamSynchronize(stream));
    together();
    CHECK(!RUNTIME(cudaLaunchHostFunc)((cudaStream_t)stream, slow, NULL));
    double start = now();
    if (rank == 0)
        mark("call");
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    if (rank == 0)
        mark("end");
    double took = now() - start;
    OK(flagosMemcpyAsync(after, data, COUNT * sizeof(int), flagosMemcpyDeviceToDevice, stream));
    OK(flagosStreamSynchronize(stream));
    double all = now() - start;
    check_sum(after, n);
    CHECK(all > 0.15);
    if (rank == 0)
        printf("waited: %d\n", took > 0.1);
    OK(flagosCommDestroy(comm));
    OK(flagosStreamDestroy(stream));
}

static void returns_at_once(void) { ranks(N, returns_at_once_body); }

/* Operations on many streams, all called before any is waited for; each stands between copies of its own stream, which a
 * device may have in one queue with ours. Other calls of the program wait meanwhile. */
static void many_streams_body(int rank, int n, const flagosUniqueId *id)
{
    enum { streams = 6, elements = 20011 };
    flagosComm_t comm = join(rank, n, id);
    flagosStream_t stream[streams];
    int *data[streams], *host, *back;
    CHECK(!RUNTIME(cudaMallocHost)((void **)&host, elements * sizeof(int)));
    CHECK(!RUNTIME(cudaMallocHost)((void **)&back, streams * elements * sizeof(int)));
    for (int i = 0; i < elements; i++)
        host[i] = number(rank, (size_t)i);
    for (int s = 0; s < streams; s++) {
        OK(flagosStreamCreate(&stream[s]));
        data[s] = device_memory(elements * sizeof(int));
    }
    OK(flagosAllReduce(data[0], data[0], elements, flagosInt32, flagosMax, comm, stream[0]));
    OK(flagosStreamSynchronize(stream[0]));
    together();
    for (int round = 0; round < 3; round++) {
        memset(back, 0, streams * elements * sizeof(int));
        for (int s = 0; s < streams; s++) {
            size_t count = s % 2 ? 1000 : elements;
            OK(flagosMemcpyAsync(data[s], host, elements * sizeof(int), flagosMemcpyHostToDevice, stream[s]));
            OK(flagosAllReduce(data[s], data[s], count, flagosInt32, flagosSum, comm, stream[s]));
            OK(flagosMemcpyAsync(back + s * elements, data[s], elements * sizeof(int), flagosMemcpyDeviceToHost, stream[s]));
        }
        for (int s = 0; s < streams; s++) {
            OK(flagosStreamSynchronize(stream[s]));
            size_t count = s % 2 ? 1000 : elements;
            for (size_t i = 0; i < elements; i++)
                EQUAL(back[(size_t)s * elements + i], i < count ? sum(n, i) : number(rank, i));
        }
    }
    OK(flagosCommDestroy(comm));
}

static void many_streams(void) { ranks(3, many_streams_body); }

/* A stream that is captured: the call is refused, and the capture goes on. */
static void captured_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    int *data = device_memory(COUNT * sizeof(int));
    cudaGraph_t graph = NULL;
    CHECK(!RUNTIME(cudaStreamBeginCapture)((cudaStream_t)stream, 2));
    OK(flagosMemsetAsync(data, 0, COUNT * sizeof(int), stream));
    IS(flagosNotSupported, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    SAYS(flagosGetLastError(comm), "captured");
    CHECK(!RUNTIME(cudaStreamEndCapture)((cudaStream_t)stream, &graph));
    CHECK(graph != NULL);
    together();
    all_reduce_works(comm, rank, n);
    OK(flagosCommDestroy(comm));
}

static void captured(void) { ranks(N, captured_body); }

/* ---- the end ---- */

static int entries_of(const char *path)
{
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* Nothing of a communicator is left. */
static void nothing_left_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    int *data = device_memory(MOST * sizeof(int));
    OK(flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    OK(flagosCommDestroy(comm));
    OK(flagosMemFree(data));
}

static long made_less_ended(void)
{
    long streams = count_of("cudaStreamCreateWithPriority") + count_of("cudaStreamCreateWithFlags") - count_of("cudaStreamDestroy");
    long events = count_of("cudaEventCreateWithFlags") - count_of("cudaEventDestroy");
    long pinned = count_of("cudaHostRegister") - count_of("cudaHostUnregister");
    EQUAL(streams, 0);
    EQUAL(events, 0);
    EQUAL(pinned, 0);
    return count_of("cudaHostAlloc") - count_of("cudaFreeHost");
}

static void nothing_left(void)
{
    int threads = 0, files = 0;
    long memory = 0;
    for (int round = 0; round < 4; round++) {
        ranks(N, nothing_left_body);
        long now_memory = made_less_ended();
        int now_threads = entries_of("/proc/self/task"), now_files = entries_of("/proc/self/fd");
        if (round > 0) {
            EQUAL(now_threads, threads);
            EQUAL(now_files, files);
            EQUAL(now_memory, memory);
        }
        threads = now_threads;
        files = now_files;
        memory = now_memory;
    }
    /* One page with the words for which streams wait stays for the next. */
    printf("pinned: %ld\n", memory);
    CHECK(count_of("cudaHostRegister") == 4 * N);
}

/* A rank dies while the others stage: processes. */
static void peer_dies(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm = join(my_rank, n_ranks, &id);
    int *data = device_memory(MOST * sizeof(int));
    OK(flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    if (my_rank == 1) {
        sleep_ms(50);
        _exit(0);
    }
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    double start = now();
    int called = flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, stream);
    printf("called: %d\n", called);
    /* The stream goes on, and the communicator says why. */
    OK(flagosStreamSynchronize(stream));
    CHECK(now() - start < 5);
    flagosResult_t state = flagosSuccess;
    OK(flagosCommGetAsyncError(comm, &state));
    EQUAL(state, flagosRemoteError);
    SAYS(flagosGetLastError(comm), "rank 1");
    CHECK(flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, stream) == flagosRemoteError);
    OK(flagosStreamDestroy(stream));
    OK(flagosCommDestroy(comm));
    OK(flagosMemFree(data));
    made_less_ended();
}

/* An abort, and a destroy with a deadline, free a stream that waits for a rank that doesn't come. */
static flagosComm_t waiting;
static void abort_it(void) { sleep_ms(50); OK(flagosCommAbort(waiting)); }

static void aborted_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    int *data = device_memory(MOST * sizeof(int));
    OK(flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    together();
    if (rank == 0) {
        flagosStream_t stream;
        OK(flagosStreamCreate(&stream));
        waiting = comm;
        double start = now();
        pthread_t other = beside(abort_it);
        int called = flagosAllReduce(data, data, MOST, flagosInt32, flagosSum, comm, stream);
        CHECK(called == flagosSuccess || called == flagosAborted);
        OK(flagosStreamSynchronize(stream));
        pthread_join(other, NULL);
        CHECK(now() - start < 5);
        OK(flagosStreamDestroy(stream));
    }
    together();
    if (rank != 0)
        OK(flagosCommDestroy(comm));
    OK(flagosMemFree(data));
}

static void aborted(void)
{
    ranks(N, aborted_body);
    made_less_ended();
}

/* The driver refuses one of the copies that are queued: FAKE_FAIL says which. */
static void queue_fails_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    int *data = NULL;
    CHECK(!machine()->mem_alloc((void **)&data, MOST * sizeof(int), 2, true));
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    flagosResult_t state = flagosSuccess;
    for (int i = 0; i < 20 && !state; i++) {
        int result = flagosAllReduce(data, data, i % 2 ? 1000 : MOST, flagosInt32, flagosMax, comm, stream);
        CHECK(!result || result == flagosUnhandledDeviceError || result == flagosRemoteError);
        OK(flagosStreamSynchronize(stream));
        OK(flagosCommGetAsyncError(comm, &state));
        if (result)
            break;
    }
    double start = now();
    while (!state && now() - start < 5) {
        OK(flagosCommGetAsyncError(comm, &state));
        sleep_ms(1);
    }
    CHECK(state == flagosUnhandledDeviceError || state == flagosRemoteError);
    OK(flagosStreamDestroy(stream));
    OK(flagosCommDestroy(comm));
}

static void queue_fails(void)
{
    ranks(N, queue_fails_body);
    made_less_ended();
}

/* Bytes of this process that are in memory. */
static long resident(void)
{
    long all, here;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &all, &here) == 2);
    fclose(file);
    return here * 4096;
}

/* Rank 1 makes no call: rank 0 gives up with copies of what it wanted to send. Processes. */
static void copies_after_a_failure(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm = join(my_rank, n_ranks, &id);
    if (my_rank == 1) {
        sleep_ms(3000);
        return;
    }
    const size_t much = 48 << 20, none[2] = {0, 0}, counts[2] = {0, much};
    char *host = malloc(much), *in = device_memory(much), *out = device_memory(much);
    memset(host, 1, much);
    put(in, host, much);
    get(host, in, much);
    long before = resident();
    EQUAL(flagosAlltoAllv(in, counts, none, out, counts, none, flagosUint8, comm, NULL), flagosTimeout);
    long after = resident();
    printf("kept: %ld\n", (after - before + (8 << 20)) / (48 << 20));
    free(host);
    OK(flagosCommDestroy(comm));
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"every_collective", every_collective}, {"queued_work", queued_work}, {"other_device", other_device},
        {"in_steps", in_steps}, {"mixed", mixed}, {"returns_at_once", returns_at_once}, {"captured", captured},
        {"nothing_left", nothing_left}, {"peer_dies", peer_dies}, {"aborted", aborted}, {"queue_fails", queue_fails}, {"many_streams", many_streams}, {"one_device", one_device},
        {"copies_after_a_failure", copies_after_a_failure},
        {0, 0},
    };
    return scenarios(argc, argv, list);
}
