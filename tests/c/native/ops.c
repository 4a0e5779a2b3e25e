/* What is not an ordinary collective: non-blocking life, call checking, graphs, operators, windows, children. */
#include "native.h"

static flagosConfig_t config(void)
{
    flagosConfig_t c = FLAGOS_CONFIG_INITIALIZER;
    return c;
}

/* ---- non-blocking ---- */

static void nonblocking_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = NULL, child = NULL;
    flagosConfig_t c = config();
    int value = -1;
    c.blocking = 0;
    OK(flagosSetDevice(rank));
    int *data = device_memory(COUNT * sizeof(int));
    if (rank == n - 1)
        sleep_ms(200);
    IS(flagosInProgress, flagosCommInitRankConfig(&comm, n, id, rank, &c));
    CHECK(comm);
    if (rank == 0) {
        IS(flagosInvalidUsage, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
        SAYS(ERROR(), "still being initialised");
        SAYS(ERROR(), "flagosCommGetAsyncError");
        IS(flagosInvalidUsage, flagosCommCount(comm, &value));
        IS(flagosInvalidUsage, flagosCommSplit(comm, 0, 0, &child, NULL));
        IS(flagosInvalidUsage, flagosCommDestroy(comm));
        IS(flagosInvalidUsage, flagosBarrier(comm, NULL));
    }
    int state = flagosInProgress;
    while (state == flagosInProgress) {
        OK(flagosCommGetAsyncError(comm, &state));
        sleep_ms(1);
    }
    EQUAL(state, flagosSuccess);
    OK(flagosCommCount(comm, &value));
    EQUAL(value, n);
    all_reduce_works(comm, rank, n);
    /* So does a split. */
    IS(flagosInProgress, flagosCommSplit(comm, 0, -rank, &child, NULL));
    do {
        OK(flagosCommGetAsyncError(child, &state));
        sleep_ms(1);
    } while (state == flagosInProgress);
    EQUAL(state, flagosSuccess);
    OK(flagosCommUserRank(child, &value));
    EQUAL(value, n - 1 - rank);
    all_reduce_works(child, n - 1 - rank, n);
    OK(flagosCommDestroy(child));
    OK(flagosCommDestroy(comm));
}

static void nonblocking(void) { ranks(2, nonblocking_body); }

/* A failed background init is seen by asking, and the handle can be freed. */
static void nonblocking_fails(void)
{
    flagosComm_t comm;
    flagosConfig_t c = config();
    flagosUniqueId id = shared_id(0);
    c.blocking = 0;
    OK(flagosSetDevice(0));
    IS(flagosInProgress, flagosCommInitRankConfig(&comm, 1, &id, 0, &c));
    int state = flagosInProgress;
    while (state == flagosInProgress) {
        OK(flagosCommGetAsyncError(comm, &state));
        sleep_ms(1);
    }
    CHECK(state != flagosSuccess);
    SAYS(flagosGetLastError(comm), "ncclCommInitRank failed with 2");
    int value;
    CHECK(flagosCommCount(comm, &value) == state);
    OK(flagosCommDestroy(comm));
}

/* The vendor's own non-blocking mode, which defers every call. */
static void vendor_nonblocking_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm;
    flagosConfig_t c = config();
    c.vendorNonblocking = 1;
    OK(flagosSetDevice(rank));
    OK(flagosCommInitRankConfig(&comm, n, id, rank, &c));
    int *data = device_memory(COUNT * sizeof(int));
    for (int round = 0; round < 3; round++) {
        fill(data, rank);
        int state = flagosInProgress, result;
        if (round == 2) {
            OK(flagosGroupStart());
            result = flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL);
            CHECK(result == flagosSuccess || result == flagosInProgress);
            result = flagosGroupEnd();
        } else {
            result = flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL);
        }
        CHECK(result == flagosSuccess || result == flagosInProgress);
        while (state == flagosInProgress) {
            OK(flagosCommGetAsyncError(comm, &state));
            sleep_ms(1);
        }
        EQUAL(state, flagosSuccess);
        OK(flagosStreamSynchronize(NULL));
        check_sum(data, n);
    }
    int barrier = flagosBarrier(comm, NULL), barrier_state = flagosInProgress;
    CHECK(barrier == flagosSuccess || barrier == flagosInProgress);
    while (barrier_state == flagosInProgress)
        OK(flagosCommGetAsyncError(comm, &barrier_state));
    EQUAL(barrier_state, flagosSuccess);
    OK(flagosStreamSynchronize(NULL));
    int *spread = device_memory(2 * COUNT * sizeof(int));
    fill(data, rank);
    const size_t counts[2] = {COUNT / 2, COUNT / 2}, at[2] = {0, COUNT / 2};
    int result = flagosAlltoAllv(data, counts, at, spread, counts, at, flagosInt32, comm, NULL), state = flagosInProgress;
    CHECK(result == flagosSuccess || result == flagosInProgress);
    while (state == flagosInProgress)
        OK(flagosCommGetAsyncError(comm, &state));
    OK(flagosStreamSynchronize(NULL));
    OK(flagosCommFinalize(comm));
    OK(flagosCommDestroy(comm));
}

static void vendor_nonblocking(void) { ranks(2, vendor_nonblocking_body); }

/* ---- call checking ---- */

static void checking_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    int *a = device_memory(2 * COUNT * sizeof(int)), *b = device_memory(2 * COUNT * sizeof(int));
    together();
    long before[2] = {count_of("ncclAllReduce"), count_of("ncclBroadcast")};
    together();
    IS(flagosInvalidUsage, flagosAllReduce(a, b, rank ? 5 : 7, flagosInt32, flagosSum, comm, NULL));
    SAYS(ERROR(), "in count: rank 0 called AllReduce(count 7, int32, sum) #1 but rank 1 called AllReduce(count 5, int32, sum) #1");
    IS(flagosInvalidUsage, flagosAllReduce(a, b, 5, rank ? flagosFloat32 : flagosInt32, flagosSum, comm, NULL));
    SAYS(ERROR(), "in data type: ");
    SAYS(ERROR(), "float32");
    SAYS(ERROR(), "int32");
    IS(flagosInvalidUsage, flagosAllReduce(a, b, 5, flagosInt32, rank ? flagosMax : flagosSum, comm, NULL));
    IS(flagosInvalidUsage, flagosBroadcast(a, b, 5, flagosInt32, rank, comm, NULL));
    SAYS(ERROR(), "in root: ");
    SAYS(ERROR(), "root 0");
    SAYS(ERROR(), "root 1");
    if (rank)
        IS(flagosInvalidUsage, flagosBroadcast(a, b, 5, flagosInt32, 0, comm, NULL));
    else
        IS(flagosInvalidUsage, flagosAllReduce(a, b, 5, flagosInt32, flagosSum, comm, NULL));
    /* Inside a group: at its end. */
    OK(flagosGroupStart());
    OK(flagosAllReduce(a, b, 5, flagosInt32, flagosSum, comm, NULL));
    OK(flagosAllReduce(a, b, rank ? 3 : 4, flagosInt32, flagosSum, comm, NULL));
    IS(flagosInvalidUsage, flagosGroupEnd());
    SAYS(ERROR(), "in count: rank 0 called AllReduce(count 4, int32, sum) #2 as call 2 of 2 in the group but rank 1 called "
                  "AllReduce(count 3, int32, sum) #2 as call 2 of 2 in the group");
    together();
    EQUAL(count_of("ncclBroadcast"), before[1] + n); /* those that poisoned the group, one a rank */
    OK(flagosStreamSynchronize(NULL));
    /* A bad argument on one rank only: that rank's error, and the other is not left waiting. */
    if (rank)
        IS(flagosInvalidArgument, flagosAllReduce(a, b, 5, 77, flagosSum, comm, NULL));
    else
        IS(flagosInvalidUsage, flagosAllReduce(a, b, 5, flagosInt32, flagosSum, comm, NULL));
    EQUAL(count_of("ncclAllReduce"), before[0] + 2 * n);
    /* AlltoAllv may differ by design, and good calls pass. */
    all_reduce_works(comm, rank, n);
    const size_t counts[2] = {rank ? 2 : 1, rank ? 1 : 2}, from[2] = {rank ? 2 : 1, rank ? 1 : 2}, at[2] = {0, 8};
    OK(flagosAlltoAllv(a, counts, at, b, from, at, flagosInt32, comm, NULL));
    OK(flagosBarrier(comm, NULL));
    /* Not while the stream is captured, and the capture goes on. */
    cudaStream_t stream;
    cudaGraph_t graph;
    CHECK(!RUNTIME(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking));
    CHECK(!RUNTIME(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeThreadLocal));
    IS(flagosNotSupported, flagosAllReduce(a, b, 5, flagosInt32, flagosSum, comm, (flagosStream_t)stream));
    SAYS(ERROR(), "FLAGOSCOMM_CHECK");
    CHECK(!RUNTIME(cudaStreamEndCapture)(stream, &graph));
    together();
    OK(flagosCommDestroy(comm));
}

static void checking(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(2, checking_body);
}

/* ---- graphs ---- */

static void graphs_body(int rank, int n, const flagosUniqueId *id)
{
    static flagosUniqueId host_id;
    flagosComm_t comm = join(rank, n, id), host;
    if (rank == 0)
        OK(flagosGetUniqueId(&host_id));
    together();
    flagosConfig_t c = config();
    c.tiers = "host";
    OK(flagosCommInitRankConfig(&host, n, &host_id, rank, &c));
    int *data = device_memory(COUNT * sizeof(int)), *sum = device_memory(COUNT * sizeof(int)), *in = device_memory(COUNT * sizeof(int));
    cudaStream_t raw;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(!RUNTIME(cudaStreamCreateWithFlags)(&raw, cudaStreamNonBlocking));
    flagosStream_t stream = (flagosStream_t)raw;
    CHECK(!RUNTIME(cudaStreamBeginCapture)(raw, cudaStreamCaptureModeThreadLocal));
    OK(flagosAllReduce(data, sum, COUNT, flagosInt32, flagosSum, comm, stream));
    IS(flagosNotSupported, flagosBarrier(comm, stream));
    IS(flagosNotSupported, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, host, stream));
    SAYS(ERROR(), "captured");
    IS(flagosNotSupported, flagosBarrier(host, stream));
    OK(flagosGroupStart());
    OK(flagosSend(data, COUNT, flagosInt32, (rank + 1) % n, comm, stream));
    OK(flagosRecv(in, COUNT, flagosInt32, (rank + n - 1) % n, comm, stream));
    OK(flagosGroupEnd());
    CHECK(!RUNTIME(cudaStreamEndCapture)(raw, &graph));
    CHECK(!RUNTIME(cudaGraphInstantiate)(&exec, graph, 0));
    for (int round = 0; round < 3; round++) {
        fill(data, rank + round);
        CHECK(!RUNTIME(cudaGraphLaunch)(exec, raw));
        OK(flagosStreamSynchronize(stream));
        int host_sum[COUNT], host_in[COUNT];
        get(host_sum, sum, sizeof host_sum);
        get(host_in, in, sizeof host_in);
        for (int i = 0; i < COUNT; i++) {
            EQUAL(host_sum[i], sum_of(n, i) + 100 * n * round);
            EQUAL(host_in[i], value_of((rank + n - 1) % n + round, i));
        }
        together();
    }
    CHECK(!RUNTIME(cudaGraphExecDestroy)(exec));
    CHECK(!RUNTIME(cudaGraphDestroy)(graph));
    all_reduce_works(comm, rank, n);
    all_reduce_works(host, rank, n);
    OK(flagosCommDestroy(host));
    OK(flagosCommDestroy(comm));
}

static void graphs(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(2, graphs_body);
}

/* ---- operators, memory, windows ---- */

static void operators_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    float scalar = (float)(rank + 2), mine[2] = {1, 3}, got[2];
    float *data = device_memory(sizeof mine), *out = device_memory(sizeof mine), *on_device = device_memory(sizeof scalar);
    put(data, mine, sizeof mine);
    put(on_device, &scalar, sizeof scalar);
    for (int where = 0; where < 2; where++) {
        flagosRedOp_t op;
        float copy = scalar;
        OK(flagosRedOpCreatePreMulSum(&op, where == flagosScalarDevice ? (void *)on_device : &copy, flagosFloat32, where, comm));
        CHECK(op >= FLAGOS_FIRST_CUSTOM_REDOP);
        copy = 100; /* a host scalar was copied at the call */
        OK(flagosAllReduce(data, out, 2, flagosFloat32, op, comm, NULL));
        OK(flagosStreamSynchronize(NULL));
        get(got, out, sizeof got);
        CHECK(got[0] == 2 + 3 && got[1] == 3 * (2 + 3));
        IS(flagosInvalidArgument, flagosAllReduce(data, out, 2, flagosInt32, op, comm, NULL));
        OK(flagosRedOpDestroy(op, comm));
        IS(flagosInvalidArgument, flagosRedOpDestroy(op, comm));
        IS(flagosInvalidArgument, flagosAllReduce(data, out, 2, flagosFloat32, op, comm, NULL));
        SAYS(ERROR(), "no live reduction operator");
    }
    together();
    OK(flagosCommDestroy(comm));
}

static void operators(void) { ranks(2, operators_body); }

static void windows_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    void *memory = device_memory(4096), *handle = NULL;
    flagosWindow_t window = (flagosWindow_t)1;
    OK(flagosCommRegister(comm, memory, 4096, &handle));
    OK(flagosCommDeregister(comm, handle));
    OK(flagosCommWindowRegister(comm, memory, 4096, &window, FLAGOS_WIN_COLL_SYMMETRIC));
    CHECK(window);
    OK(flagosCommWindowDeregister(comm, window));
    /* One rank's bad argument: all ranks have an error, in no time, before any of them calls the vendor. */
    long before = count_of("ncclCommWindowRegister");
    together();
    int result = flagosCommWindowRegister(comm, rank ? NULL : memory, 4096, &window, 0);
    EQUAL(result, rank ? flagosInvalidArgument : flagosRemoteError);
    if (!rank)
        SAYS(ERROR(), "rank 1");
    CHECK(!window);
    together();
    EQUAL(count_of("ncclCommWindowRegister"), before);
    /* The vendor refuses one rank's memory: nobody gets a window. */
    static int ordinary[1024];
    result = flagosCommWindowRegister(comm, rank ? (void *)ordinary : memory, 4096, &window, 0);
    CHECK(result != flagosSuccess && !window);
    SAYS(ERROR(), rank ? "ncclCommWindowRegister failed" : "rank 1");
    together();
    /* Owners of memory. */
    void *own = NULL;
    OK(flagosMemAlloc(&own, 64));
    IS(flagosInvalidArgument, flagosMemFree((char *)own + 8));
    OK(flagosMemFree(own));
    IS(flagosInvalidArgument, flagosMemFree(own));
    OK(flagosMemFree(NULL));
    void *foreign;
    CHECK(!RUNTIME(cudaMalloc)(&foreign, 64));
    IS(flagosInvalidArgument, flagosMemFree(foreign));
    all_reduce_works(comm, rank, n);
    OK(flagosCommDestroy(comm));
}

static void windows(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(2, windows_body);
}

/* ---- children ---- */

static flagosComm_t shared_parent;

static void second_split(void)
{
    flagosComm_t child;
    OK(flagosSetDevice(0));
    IS(flagosInvalidUsage, flagosCommSplit(shared_parent, 0, 0, &child, NULL));
    SAYS(ERROR(), "another collective call");
}

static void split_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id), child = (flagosComm_t)1;
    int value;
    /* Rank 3 has no colour; 0 and 2 are ordered by key, the other way round; 1 is alone. */
    int colour[] = {7, 9, 7, FLAGOS_SPLIT_NOCOLOR}, key[] = {5, 0, -5, 0}, expected[] = {1, 0, 0, -1}, sizes[] = {2, 1, 2, 0};
    OK(flagosCommSplit(comm, colour[rank], key[rank], &child, NULL));
    CHECK(!child == (rank == 3));
    if (child) {
        OK(flagosCommUserRank(child, &value));
        EQUAL(value, expected[rank]);
        OK(flagosCommCount(child, &value));
        EQUAL(value, sizes[rank]);
        OK(flagosCommGetDeviceNumber(child, &value));
        EQUAL(value, rank);
        all_reduce_works(child, expected[rank], sizes[rank]);
        OK(flagosCommDestroy(child));
    }
    /* A second one at the same time is refused. */
    together();
    if (rank == 0) {
        shared_parent = comm;
        pthread_t other;
        /* The peers are late, so this thread's split is under way when the other comes. */
        flagosConfig_t c = config();
        c.blocking = 0;
        IS(flagosInProgress, flagosCommSplit(comm, 0, 0, &child, &c));
        sleep_ms(100);
        other = beside(second_split);
        pthread_join(other, NULL);
        int state = flagosInProgress;
        together();
        while (state == flagosInProgress)
            OK(flagosCommGetAsyncError(child, &state));
        EQUAL(state, flagosSuccess);
    } else {
        together();
        OK(flagosCommSplit(comm, 0, 0, &child, NULL));
    }
    /* A child lives on without its parent. */
    OK(flagosCommDestroy(comm));
    all_reduce_works(child, rank, n);
    OK(flagosBarrier(child, NULL));
    OK(flagosCommDestroy(child));
}

static void split(void) { ranks(4, split_body); }

static void shrink_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id), small = (flagosComm_t)1;
    int value, none = 7;
    all_reduce_works(comm, rank, n);
    IS(flagosInvalidArgument, flagosCommShrink(comm, &none, 1, &small, NULL, FLAGOS_SHRINK_DEFAULT));
    IS(flagosInvalidArgument, flagosCommShrink(comm, NULL, 0, &small, NULL, FLAGOS_SHRINK_DEFAULT));
    SAYS(ERROR(), "at least one rank");
    CHECK(!small);
    together();
    int exclude = getenv("EXCLUDE") ? atoi(getenv("EXCLUDE")) : 0;
    int flags = getenv("ABORT") ? FLAGOS_SHRINK_ABORT : FLAGOS_SHRINK_DEFAULT;
    if (rank == exclude) {
        IS(flagosInvalidArgument, flagosCommShrink(comm, &exclude, 1, &small, NULL, flags));
        if (getenv("REVOKE"))
            OK(flagosCommAbort(comm));
        together();
        return;
    }
    if (getenv("REVOKE")) {
        OK(flagosCommRevoke(comm, FLAGOS_REVOKE_DEFAULT));
        int *data = device_memory(64);
        IS(flagosInvalidUsage, flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL));
        SAYS(ERROR(), "revoked");
        OK(flagosCommGetAsyncError(comm, &value));
        CHECK(value != flagosSuccess);
    }
    OK(flagosCommShrink(comm, &exclude, 1, &small, NULL, flags));
    OK(flagosCommCount(small, &value));
    EQUAL(value, n - 1);
    OK(flagosCommUserRank(small, &value));
    EQUAL(value, rank - (rank > exclude));
    all_reduce_works(small, value, n - 1);
    OK(flagosCommDestroy(comm));
    all_reduce_works(small, value, n - 1);
    OK(flagosCommDestroy(small));
    together();
}

static void shrink(void) { ranks(3, shrink_body); }

/* ---- the end, and errors ---- */

static void finalize_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    all_reduce_works(comm, rank, n);
    OK(flagosCommFinalize(comm));
    int *data = device_memory(64);
    CHECK(flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL) != flagosSuccess);
    OK(flagosCommDestroy(comm));
    IS(flagosInvalidArgument, flagosCommFinalize(comm));
}

static void finalize(void) { ranks(2, finalize_body); }

static void async_error(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm = join(0, 1, &id);
    int state = -1;
    OK(flagosCommGetAsyncError(comm, &state));
    EQUAL(state, 0);
    setenv("FAKE_ASYNC_ERROR", "6", 1);
    OK(flagosCommGetAsyncError(comm, &state));
    EQUAL(state, flagosRemoteError);
    SAYS(flagosGetLastError(comm), "remote process exited");
    unsetenv("FAKE_ASYNC_ERROR");
    OK(flagosCommGetAsyncError(comm, &state));
    EQUAL(state, flagosRemoteError); /* the first failure stays */
    OK(flagosCommAbort(comm));
}

/* The third call fails at the vendor: everything that is known is in the text. */
static void error_text(void)
{
    flagosUniqueId id = shared_id(0);
    flagosConfig_t c = config();
    flagosComm_t comm;
    c.name = "trainer";
    OK(flagosSetDevice(0));
    OK(flagosCommInitRankConfig(&comm, 1, &id, 0, &c));
    int *data = device_memory(64);
    OK(flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL));
    OK(flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL));
    IS(flagosSystemError, flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL));
    for (int i = 0; i < 2; i++) {
        const char *text = i ? flagosGetLastError(comm) : ERROR();
        SAYS(text, "AllReduce(count 4, int32, sum) #3");
        SAYS(text, "communicator 'trainer', rank 0 of 1");
        SAYS(text, "ncclAllReduce failed with 2");
        SAYS(text, "unhandled system error");
        SAYS(text, "made to fail"); /* the vendor's last error */
        SAYS(text, "NVIDIA NCCL 2.32.3");
        SAYS(text, "/libnccl.so.2");
    }
    SAYS(flagosGetErrorString(flagosSystemError), "system");
    /* It has ended the communicator. */
    IS(flagosSystemError, flagosAllReduce(data, data, 4, flagosInt32, flagosSum, comm, NULL));
    SAYS(ERROR(), "#4 on");
    SAYS(ERROR(), "made to fail");
    OK(flagosCommDestroy(comm));
}

/* ---- collectives that the library lacks ---- */

static void emulated_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id);
    int block = 5, host[64];
    int *in = device_memory(64 * sizeof(int)), *out = device_memory(64 * sizeof(int));
    for (int i = 0; i < 64; i++)
        host[i] = 1000 * rank + i;
    for (int grouped = 0; grouped < 2; grouped++) {
#define CALL(call) \
    do { \
        int clean[64]; \
        memset(clean, -1, sizeof clean); \
        put(in, host, sizeof host); \
        put(out, clean, sizeof clean); \
        if (grouped) \
            OK(flagosGroupStart()); \
        OK(call); \
        if (grouped) \
            OK(flagosGroupEnd()); \
        OK(flagosStreamSynchronize(NULL)); \
    } while (0)
        int got[64];
        CALL(flagosAlltoAll(in, out, (size_t)block, flagosInt32, comm, NULL));
        get(got, out, sizeof got);
        for (int i = 0; i < 64; i++)
            EQUAL(got[i], i < n * block ? 1000 * (i / block) + rank * block + i % block : -1);
        CALL(flagosGather(in, rank == 1 ? out : NULL, (size_t)block, flagosInt32, 1, comm, NULL));
        get(got, out, sizeof got);
        for (int i = 0; i < 64; i++)
            EQUAL(got[i], rank == 1 && i < n * block ? 1000 * (i / block) + i % block : -1);
        CALL(flagosScatter(rank == 2 ? in : NULL, out, (size_t)block, flagosInt32, 2, comm, NULL));
        get(got, out, sizeof got);
        for (int i = 0; i < 64; i++)
            EQUAL(got[i], i < block ? 2000 + rank * block + i : -1);
        size_t counts[16], from[16], at[16];
        for (int p = 0; p < n; p++) {
            counts[p] = (size_t)((rank + p) % 3);
            from[p] = counts[p];
            at[p] = (size_t)(4 * p + 1);
        }
        CALL(flagosAlltoAllv(in, counts, at, out, from, at, flagosInt32, comm, NULL));
        get(got, out, sizeof got);
        for (int i = 0; i < 64; i++) {
            int p = (i - 1) / 4, k = (i - 1) % 4;
            int expected = i > 0 && p < n && k < (rank + p) % 3 ? 1000 * p + 4 * rank + 1 + k : -1;
            EQUAL(got[i], expected);
        }
    }
    /* In place where the header allows it. */
    put(out, host, sizeof host);
    OK(flagosGather(rank == 1 ? out + block : out, out, (size_t)block, flagosInt32, 1, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    int got[64];
    get(got, out, sizeof got);
    if (rank == 1)
        for (int i = 0; i < n * block; i++)
            EQUAL(got[i], i / block == 1 ? 1000 + i : 1000 * (i / block) + i % block);
    together();
    OK(flagosCommDestroy(comm));
}

static void emulated(void) { ranks(3, emulated_body); }

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"nonblocking", nonblocking}, {"nonblocking_fails", nonblocking_fails}, {"vendor_nonblocking", vendor_nonblocking},
        {"checking", checking}, {"graphs", graphs}, {"operators", operators}, {"windows", windows}, {"split", split},
        {"shrink", shrink}, {"finalize", finalize}, {"async_error", async_error}, {"error_text", error_text},
        {"emulated", emulated}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
