/* Tries the NVIDIA stand-ins. Usage: selftest all | fail | late */
#define _GNU_SOURCE
#include "abi/cuda.h"
#include "abi/nccl.h"
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(expr, want) \
    do { \
        long got_ = (long)(expr); \
        if (got_ != (long)(want)) { \
            fprintf(stderr, "%s:%d: %s = %ld, expected %ld (%s)\n", __FILE__, __LINE__, #expr, got_, (long)(want), \
                    ncclGetLastError(NULL)); \
            exit(1); \
        } \
    } while (0)
#define OK(expr) EXPECT(expr, 0)

static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* The values 1, 2, 3, 1.5, 6 in each type. */
static void element(void *out, int dt, int which)
{
    static const double v[] = {1, 2, 3, 1.5, 6};
    static const uint16_t half[] = {0x3c00, 0x4000, 0x4200, 0x3e00, 0x4600}, bf[] = {0x3f80, 0x4000, 0x4040, 0x3fc0, 0x40c0};
    static const uint8_t e4[] = {0x38, 0x40, 0x44, 0x3c, 0x4c}, e5[] = {0x3c, 0x40, 0x42, 0x3e, 0x46};
    int64_t i = (int64_t)v[which];
    float f = (float)v[which];
    const void *src = dt == ncclFloat16 ? (const void *)&half[which] : dt == ncclBfloat16 ? (const void *)&bf[which]
                    : dt == ncclFloat8e4m3 ? (const void *)&e4[which] : dt == ncclFloat8e5m2 ? (const void *)&e5[which]
                    : dt == ncclFloat32 ? (const void *)&f : dt == ncclFloat64 ? (const void *)&v[which] : (const void *)&i;
    memcpy(out, src, sizes[dt]);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *upload(const void *src, size_t n)
{
    void *d;
    OK(cudaMalloc(&d, n));
    OK(cudaMemcpy(d, src, n, cudaMemcpyHostToDevice));
    return d;
}

struct rank { int rank; ncclUniqueId id; };

static void numeric(int rank, ncclComm_t c, cudaStream_t s)
{
    enum { N = 1001 };
    char host[N * 8], one[8], want[8];
    for (int dt = 0; dt < ncclNumTypes; dt++)
        for (int op = 0; op < 6; op++) {
            static const int result[] = {2, 1, 1, 0, 3, 4}; /* index into the values: sum 3, prod 2, max 2, min 1, avg 1.5, 2*sum 6 */
            ncclRedOp_t redop = (ncclRedOp_t)op;
            element(one, dt, 1);
            if (op == 5)
                OK(ncclRedOpCreatePreMulSum(&redop, one, (ncclDataType_t)dt, ncclScalarHostImmediate, c));
            element(one, dt, rank);
            for (int i = 0; i < N; i++)
                memcpy(host + (size_t)i * sizes[dt], one, sizes[dt]);
            void *d = upload(host, N * sizes[dt]);
            OK(ncclAllReduce(d, d, N, (ncclDataType_t)dt, redop, c, s));
            OK(cudaMemcpyAsync(host, d, N * sizes[dt], cudaMemcpyDeviceToHost, s));
            OK(cudaStreamSynchronize(s));
            element(want, dt, result[op]);
            for (int i = 0; i < N; i++)
                if (memcmp(host + (size_t)i * sizes[dt], want, sizes[dt])) {
                    fprintf(stderr, "dtype %d op %d element %d is wrong\n", dt, op, i);
                    exit(1);
                }
            if (op == 5)
                OK(ncclRedOpDestroy(redop, c));
            OK(cudaFree(d));
        }
}

static void everything(int rank, ncclComm_t c, cudaStream_t s)
{
    int peer = 1 - rank, n = -1;
    enum { BIG = 1 << 20 };
    OK(ncclCommCount(c, &n));
    EXPECT(n, 2);
    OK(ncclCommCuDevice(c, &n));
    EXPECT(n, rank);
    numeric(rank, c, s);

    /* grouped send and receive, larger than any socket buffer */
    int *host = malloc(2 * BIG * sizeof *host);
    for (int i = 0; i < BIG; i++)
        host[i] = rank * BIG + i;
    int *a = upload(host, BIG * sizeof *host), *b = upload(host, 2 * BIG * sizeof *host);
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    OK(ncclSend(a, BIG, ncclInt32, peer, c, s));
    OK(ncclGroupEnd());
    OK(ncclRecv(b, BIG, ncclInt32, peer, c, s));
    OK(ncclSend(a, 10, ncclInt32, rank, c, s));
    OK(ncclRecv(b + BIG, 10, ncclInt32, rank, c, s));
    OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(host, b, 2 * BIG * sizeof *host, cudaMemcpyDefault));
    for (int i = 0; i < BIG; i++)
        EXPECT(host[i], peer * BIG + i);
    EXPECT(host[BIG + 9], rank * BIG + 9);

    /* the other collectives */
    OK(ncclAllGather(a, b, BIG, ncclInt32, c, s));
    OK(ncclReduceScatter(b, a, BIG, ncclInt32, ncclMax, c, s));
    OK(ncclBroadcast(a, a, 4, ncclInt32, 1, c, s));
    OK(ncclReduce(a, a, 4, ncclInt32, ncclSum, 0, c, s));
    OK(ncclAlltoAll(b, b, BIG, ncclInt32, c, s));
    OK(ncclGather(b, b, 1, ncclInt32, 0, c, s));
    OK(ncclScatter(b, b, 1, ncclInt32, 0, c, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(host, a, 8, cudaMemcpyDeviceToHost));
    EXPECT(host[1], (BIG + 1) * (rank == 0 ? 2 : 1));

    /* what is refused */
    EXPECT(ncclAllReduce(host, host, 4, ncclInt32, ncclSum, c, s), ncclUnhandledCudaError);
    EXPECT(ncclGetLastError(c)[0] != 0, 1); /* one text per process, as in the real one: another thread may have changed it */
    EXPECT(ncclSend(a, 1, ncclInt32, 2, c, s), ncclInvalidArgument);
    EXPECT(ncclAllReduce(a, a, 4, ncclInt32, ncclSum, NULL, s), ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, a, 4, ncclInt32, ncclSum, c, s));
    EXPECT(ncclBroadcast(a, a, 4, ncclInt32, -1, c, s), ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    OK(ncclGroupStart());
    EXPECT(ncclAllReduce(a, a, 4, ncclInt32, ncclSum, NULL, s), ncclInvalidArgument);
    OK(ncclGroupEnd());

    /* a call returns before the peer arrives */
    OK(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, c, s));
    OK(cudaStreamSynchronize(s));
    double t = now();
    if (rank == 1)
        usleep(400000);
    else {
        OK(ncclAllReduce(a, a, 4, ncclInt32, ncclSum, c, s));
        EXPECT(now() - t < 0.2, 1);
        EXPECT(cudaStreamQuery(s), cudaErrorNotReady);
        EXPECT(cudaGetLastError(), cudaErrorNotReady);
        OK(cudaGetLastError());
    }
    if (rank == 1)
        OK(ncclAllReduce(a, a, 4, ncclInt32, ncclSum, c, s));
    OK(cudaStreamSynchronize(s));

    /* capture and replay */
    int v = rank + 1;
    int *g = upload(&v, sizeof v);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int status;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(ncclAllReduce(g, g, 1, ncclInt32, ncclSum, c, s));
    OK(cudaStreamIsCapturing(s, &status));
    EXPECT(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemcpy(&v, g, sizeof v, cudaMemcpyDeviceToHost));
    EXPECT(v, rank + 1);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(&v, g, sizeof v, cudaMemcpyDeviceToHost));
    EXPECT(v, 6);
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphExecDestroy(exec));

    /* an unsafe call breaks a capture */
    void *p;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    EXPECT(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);

    /* children */
    ncclComm_t child;
    OK(ncclCommSplit(c, 0, -rank, &child, NULL));
    OK(ncclCommUserRank(child, &n));
    EXPECT(n, 1 - rank);
    OK(ncclAllReduce(g, g, 1, ncclInt32, ncclSum, child, s));
    OK(cudaStreamSynchronize(s));
    OK(ncclCommDestroy(child));
    EXPECT(ncclCommCount(child, &n), ncclInvalidArgument);
    OK(ncclCommSplit(c, rank ? NCCL_SPLIT_NOCOLOR : 3, 0, &child, NULL));
    EXPECT(child == NULL, rank);
    OK(ncclCommDestroy(child));
    if (rank == 0) {
        int gone = 1;
        OK(ncclCommShrink(c, &gone, 1, &child, NULL, 0));
        OK(ncclCommDestroy(child));
    }
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(g));
    free(host);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    ncclComm_t c;
    cudaStream_t s;
    OK(cudaSetDevice(r->rank));
    OK(ncclCommInitRank(&c, 2, r->id, r->rank));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    everything(r->rank, c, s);
    OK(ncclCommFinalize(c));
    OK(ncclCommDestroy(c));
    OK(cudaStreamDestroy(s));
    return NULL;
}

static void join(pid_t p, int sig)
{
    int st;
    EXPECT(waitpid(p, &st, 0), p);
    if (sig ? !WIFSIGNALED(st) || WTERMSIG(st) != sig : st) {
        fprintf(stderr, "a process ended with %#x\n", st);
        exit(1);
    }
}

static void *abort_later(void *c)
{
    usleep(100000);
    OK(ncclCommAbort(c));
    return NULL;
}

static bool call_late;
__attribute__((destructor)) static void late(void)
{
    int n;
    if (call_late)
        cudaGetDeviceCount(&n);
}

static void one_process(void)
{
    /* the current device */
    int d = -1;
    OK(cuInit(0));
    EXPECT(cuCtxGetDevice(&d), 201);
    OK(cudaGetDevice(&d));
    EXPECT(d, 0);
    EXPECT(cuCtxGetDevice(&d), 201);
    fake_set_current_device(2);
    OK(cudaGetDevice(&d));
    EXPECT(d, 2);
    OK(cuCtxGetDevice(&d));
    EXPECT(d, 2);
    fake_unbind_thread();
    EXPECT(cudaSetDevice(99), cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT(fake_call_count("cudaGetDevice"), 2);

    /* device memory is out of the host's reach */
    int v = 42;
    int *p = upload(&v, sizeof v);
    cudaPointerAttributes at;
    OK(cudaPointerGetAttributes(&at, p));
    EXPECT(at.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&at, &v));
    EXPECT(at.type, cudaMemoryTypeUnregistered);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile int *)p);
    }
    join(child, SIGSEGV);

    /* events */
    cudaStream_t s, s1;
    cudaEvent_t e;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&s1));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreate(&s));
    OK(cudaEventCreate(&e));
    EXPECT(cudaEventRecord(e, s1), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(s1, e, 0));
    OK(cudaEventSynchronize(e));
    OK(cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)p, 43, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT(cudaStreamQuery(s), cudaErrorNotReady);
    OK(cudaSetDevice(1));
    OK(cuStreamWriteValue32(s1, (CUdeviceptr)(uintptr_t)p, 43, 0));
    OK(cudaSetDevice(0));
    OK(cudaStreamSynchronize(s));
    cudaGetLastError();

    /* recorded again, on another stream, before it was there: who waits for the first record still waits for that */
    cudaStream_t busy, idle, waits;
    OK(cudaStreamCreate(&busy));
    OK(cudaStreamCreate(&idle));
    OK(cudaStreamCreate(&waits));
    OK(cuStreamWaitValue32(busy, (CUdeviceptr)(uintptr_t)p, 44, CU_STREAM_WAIT_VALUE_EQ));
    OK(cudaEventRecord(e, busy));
    OK(cudaStreamWaitEvent(waits, e, 0));
    OK(cudaEventRecord(e, idle));
    OK(cudaEventSynchronize(e));
    usleep(20000);
    EXPECT(cudaStreamQuery(waits), cudaErrorNotReady);
    cudaGetLastError();
    OK(cuStreamWriteValue32(s, (CUdeviceptr)(uintptr_t)p, 44, 0));
    OK(cudaStreamSynchronize(waits));
    OK(cudaStreamDestroy(busy));
    OK(cudaStreamDestroy(idle));
    OK(cudaStreamDestroy(waits));

    /* one thread, two ranks */
    ncclComm_t c[2];
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        OK(cudaSetDevice(i));
        OK(ncclCommInitRank(&c[i], 2, id, i));
    }
    OK(ncclGroupEnd());
    int *b[2];
    cudaStream_t st[2] = {s, s1};
    for (int i = 0; i < 2; i++) {
        OK(cudaSetDevice(i));
        v = i + 1;
        b[i] = upload(&v, sizeof v);
    }
    OK(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(ncclAllReduce(b[i], b[i], 1, ncclInt32, ncclSum, c[i], st[i]));
    OK(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamSynchronize(st[i]));
        OK(cudaMemcpy(&v, b[i], sizeof v, cudaMemcpyDeviceToHost));
        EXPECT(v, 3);
    }
    EXPECT(ncclAllReduce(b[0], b[0], 1, ncclInt32, ncclSum, c[0], s1), ncclUnhandledCudaError);

    /* abort frees a stream whose peer never comes */
    pthread_t t;
    double t0 = now();
    OK(ncclAllReduce(b[0], b[0], 1, ncclInt32, ncclSum, c[0], s));
    pthread_create(&t, NULL, abort_later, c[0]);
    OK(cudaStreamSynchronize(s));
    pthread_join(t, NULL);
    EXPECT(now() - t0 < 2, 1);
    ncclResult_t ar;
    EXPECT(ncclCommGetAsyncError(c[0], &ar), ncclInvalidArgument);
    OK(ncclCommAbort(c[1]));

    /* init that does not block, and never completes; the same device twice */
    ncclConfig_t cfg = {.size = 48, .magic = NCCL_CONFIG_MAGIC, .version = 21800, .blocking = 0,
                        .cgaClusterSize = NCCL_UNDEF_INT, .minCTAs = NCCL_UNDEF_INT, .maxCTAs = NCCL_UNDEF_INT};
    OK(ncclGetUniqueId(&id));
    EXPECT(ncclCommInitRankConfig(&c[0], 2, id, 0, &cfg), ncclInProgress);
    OK(ncclCommGetAsyncError(c[0], &ar));
    EXPECT(ar, ncclInProgress);
    OK(ncclCommAbort(c[0]));
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&c[0], 2, id, 0));
    OK(ncclCommInitRank(&c[1], 2, id, 1));
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT(c[0] == NULL && c[1] == NULL, 1);
    OK(ncclCommInitAll(c, 2, NULL));
    OK(ncclCommDestroy(c[0]));
    OK(ncclCommDestroy(c[1]));

    /* a communicator that does not block, to its end */
    OK(ncclGetUniqueId(&id));
    OK(cudaSetDevice(0));
    EXPECT(ncclCommInitRankConfig(&c[0], 1, id, 0, &cfg), ncclInProgress);
    do
        OK(ncclCommGetAsyncError(c[0], &ar));
    while (ar == ncclInProgress);
    OK(ar);
    EXPECT(ncclAllReduce(b[0], b[0], 1, ncclInt32, ncclSum, c[0], s), ncclInProgress);
    do
        OK(ncclCommGetAsyncError(c[0], &ar));
    while (ar == ncclInProgress);
    OK(ar);
    OK(cudaStreamSynchronize(s));
    OK(ncclCommDestroy(c[0]));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    ncclUniqueId id;
    alarm(60);
    if (!strcmp(what, "fail")) { /* FAKE_FAIL=ncclCommCount:3@2,cudaMalloc:2 */
        ncclComm_t c;
        int n;
        void *p;
        OK(ncclGetUniqueId(&id));
        OK(ncclCommInitRank(&c, 1, id, 0));
        OK(ncclCommCount(c, &n));
        EXPECT(ncclCommCount(c, &n), 3);
        OK(ncclCommCount(c, &n));
        EXPECT(cudaMalloc(&p, 1), 2);
        OK(ncclCommDestroy(c));
        return 0;
    }
    if (!strcmp(what, "late")) {
        int n;
        OK(cudaGetDeviceCount(&n));
        call_late = true;
        return 0;
    }
    struct rank r[2];
    OK(ncclGetUniqueId(&id));
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        r[i] = (struct rank){i, id};
        pids[i] = fork();
        if (!pids[i]) {
            rank_main(&r[i]);
            exit(0);
        }
    }
    join(pids[0], 0);
    join(pids[1], 0);
    puts("processes: ok");
    one_process();
    puts("one process: ok");
    pthread_t t[2];
    OK(ncclGetUniqueId(&id));
    for (int i = 0; i < 2; i++) {
        r[i] = (struct rank){i, id};
        pthread_create(&t[i], NULL, rank_main, &r[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    puts("threads: ok");
    return 0;
}
