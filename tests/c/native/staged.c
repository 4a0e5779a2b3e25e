/* The host tier with device memory, which this program and the library can't touch: every access is a copy. */
#include "native.h"

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

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"every_collective", every_collective}, {"queued_work", queued_work}, {"other_device", other_device}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
