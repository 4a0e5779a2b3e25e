/* Tries the stand-ins of every vendor, each through its own declarations. Written in NCCL's and CUDA's names; the headers
 * that rename them for the stand-ins rename them here too. Usage: flavours CASE, with a case of `cases` below. */
#define _GNU_SOURCE
#ifdef FAKE_FLAVOUR
#include FAKE_FLAVOUR
#else
#include "abi/nccl.h"
#endif
#ifdef FAKE_RUNTIME
#include FAKE_RUNTIME
#endif
#include "core.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(expr, want) \
    do { \
        long got_ = (long)(expr); \
        if (got_ != (long)(want)) { \
            fprintf(stderr, "%s:%d: %s = %ld, expected %ld\n", __FILE__, __LINE__, #expr, got_, (long)(want)); \
            exit(1); \
        } \
    } while (0)
#define OK(expr) EXPECT(expr, 0)

#ifdef FK_FLAVOUR_TCCL_H /* its runtime is not made of these sources: ask the machine itself */
#define RT(fn, args) OK(fake_driver_table()->args)
#else
#define RT(fn, args) OK(fn)
#endif

static void set_device(int d)
{
#ifdef FK_FLAVOUR_TCCL_H
    fake_driver_table()->init();
    fake_set_current_device(d);
#else
    OK(cudaSetDevice(d));
#endif
}
static void *upload(const void *src, size_t n)
{
    void *d = NULL;
    RT(cudaMalloc(&d, n), mem_alloc(&d, n, cudaMemoryTypeDevice, true));
    RT(cudaMemcpy(d, src, n, cudaMemcpyHostToDevice), memcpy(d, src, n, cudaMemcpyHostToDevice, NULL, true));
    return d;
}
__attribute__((unused)) static void sync_stream(cudaStream_t s) { RT(cudaStreamSynchronize(s), stream_sync(s)); }
__attribute__((unused)) static void download(void *dst, const void *src, size_t n)
{
    RT(cudaMemcpy(dst, src, n, cudaMemcpyDeviceToHost), memcpy(dst, src, n, cudaMemcpyDeviceToHost, NULL, true));
}
static cudaStream_t new_stream(void)
{
    cudaStream_t s = NULL;
    RT(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), stream_create(&s, cudaStreamNonBlocking));
    return s;
}

#ifndef FAKE_ONLY_RUNTIME
typedef void body(int rank, int n, ncclComm_t, cudaStream_t);

static void join(pid_t p, int sig)
{
    int st;
    EXPECT(waitpid(p, &st, 0), p);
    if (sig ? !WIFSIGNALED(st) || WTERMSIG(st) != sig : st) {
        fprintf(stderr, "a process ended with %#x\n", st);
        exit(1);
    }
}

/* Runs the body in n processes; each is expected to end by the signal, or with 0. */
static void ranks_until(int n, body *fn, int sig)
{
    ncclUniqueId id;
    pid_t pids[8];
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r])
            continue;
        ncclComm_t c;
        signal(SIGABRT, SIG_DFL);
        set_device(r);
        OK(ncclCommInitRank(&c, n, id, r));
        fn(r, n, c, new_stream());
        OK(ncclCommDestroy(c));
        exit(0);
    }
    for (int r = 0; r < n; r++)
        join(pids[r], sig);
}
static void ranks(int n, body *fn) { ranks_until(n, fn, 0); }

/* One element in, one out. */
static long reduce(ncclComm_t c, cudaStream_t s, const void *in, size_t size, ncclDataType_t dt, ncclRedOp_t op)
{
    long out = 0;
    void *d = upload(in, size);
    OK(ncclAllReduce(d, d, 1, dt, op, c, s));
    sync_stream(s);
    download(&out, d, size);
    return out;
}

static void basic(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = -1;
    ncclResult_t ar;
    OK(ncclCommCount(c, &v));
    EXPECT(v, n);
    OK(ncclCommCuDevice(c, &v));
    EXPECT(v, rank);
    OK(ncclCommUserRank(c, &v));
    EXPECT(v, rank);
    OK(ncclCommGetAsyncError(c, &ar));
    OK(ar);
    OK(ncclGetVersion(&v));
    EXPECT(v > 0, 1);

    int i32 = rank + 3;
    EXPECT(reduce(c, s, &i32, 4, ncclInt32, ncclSum), 7);
    EXPECT(reduce(c, s, &i32, 4, ncclInt32, ncclProd), 12);
    EXPECT(reduce(c, s, &i32, 4, ncclInt32, ncclMax), 4);
    EXPECT(reduce(c, s, &i32, 4, ncclInt32, ncclMin), 3);
    signed char i8 = (signed char)(rank * 2 - 1);
    EXPECT((unsigned char)reduce(c, s, &i8, 1, ncclInt8, ncclMin), 255);
    EXPECT(reduce(c, s, &i8, 1, ncclUint8, ncclMin), 1);
    uint16_t bf = rank ? 0x4040 : 0x3f80; /* 3 and 1 */
    EXPECT(reduce(c, s, &bf, 2, ncclBfloat16, ncclSum), 0x4080);
    EXPECT(reduce(c, s, &bf, 2, ncclBfloat16, ncclAvg), 0x4000);
    uint16_t half = rank ? 0x4200 : 0x3c00;
    EXPECT(reduce(c, s, &half, 2, ncclFloat16, ncclSum), 0x4400);
    float f = 1.5f + (float)rank, want = 4;
    int bits;
    memcpy(&bits, &want, 4);
    EXPECT(reduce(c, s, &f, 4, ncclFloat32, ncclSum), bits);
#ifndef FK_FLAVOUR_ECCL_H
    long i64 = (long)(rank + 1) << 40;
    EXPECT(reduce(c, s, &i64, 8, ncclInt64, ncclSum), 3l << 40);
#ifndef FK_FLAVOUR_PCCL_H
    double f64 = 0.5, one = 1;
    memcpy(&i64, &one, 8);
    EXPECT(reduce(c, s, &f64, 8, ncclFloat64, ncclSum), i64);
#endif
#endif
    int host[4] = {rank * 10, rank * 10 + 1, 0, 0};
    int *d = upload(host, sizeof host), *e = upload(host, sizeof host);
    OK(ncclAllGather(d, e, 2, ncclInt32, c, s));
    OK(ncclReduceScatter(e, d, 2, ncclInt32, ncclSum, c, s));
    OK(ncclBroadcast(d, d, 1, ncclInt32, 1, c, s));
    OK(ncclReduce(d, d, 1, ncclInt32, ncclSum, 0, c, s));
    sync_stream(s);
    download(host, e, sizeof host);
    EXPECT(host[0] * 1000000 + host[1] * 10000 + host[2] * 100 + host[3], 11011);
    download(host, d, 8);
    EXPECT(host[0], rank ? 20 : 40);
    EXPECT(host[1], rank ? 22 : 2);

    /* there and back */
#ifndef FK_FLAVOUR_PCCL_H
    OK(ncclGroupStart());
    OK(ncclSend(e, 2, ncclInt32, 1 - rank, c, s));
    OK(ncclRecv(d, 2, ncclInt32, 1 - rank, c, s));
    OK(ncclGroupEnd());
#else
    for (int turn = 0; turn < 2; turn++)
        OK(turn == rank ? ncclSend(&e[2 * rank], 2, ncclInt32, 1 - rank, c, s) : ncclRecv(d, 2, ncclInt32, 1 - rank, c, s));
#endif
    sync_stream(s);
    download(host, d, 8);
#ifndef FK_FLAVOUR_PCCL_H
    EXPECT(host[1], 1);
#else
    EXPECT(host[1], rank ? 1 : 11);
#endif
    EXPECT(ncclAllReduce(d, d, 1, (ncclDataType_t)57, ncclSum, c, s), ncclInvalidArgument);
}

static void case_basic(void) { ranks(2, basic); }

static void fp8(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    (void)n;
    unsigned char v = rank ? 0x40 : 0x38;
    void *d = upload(&v, 1);
    const char *want = getenv("WANT");
    EXPECT(ncclAllReduce(d, d, 1, (ncclDataType_t)10, ncclSum, c, s), want ? atoi(want) : 4);
}
static void case_fp8(void) { ranks(2, fp8); }

/* Two communicators made in another order on each side: hangs if the order matters. */
static ncclUniqueId two_ids[2];
static void *make_one(void *arg)
{
    long which = (long)arg;
    ncclComm_t c;
    set_device((int)(which & 1));
    OK(ncclCommInitRank(&c, 2, two_ids[which >> 1], (int)(which & 1)));
    return NULL;
}
static void case_order(void)
{
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        OK(ncclGetUniqueId(&two_ids[i]));
    for (int r = 0; r < 2; r++) {
        pids[r] = fork();
        if (pids[r])
            continue;
        pthread_t t[2];
        for (int i = 0; i < 2; i++) {
            pthread_create(&t[i], NULL, make_one, (void *)(long)((i ^ r) << 1 | r));
            usleep(100000);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
        exit(0);
    }
    join(pids[0], 0);
    join(pids[1], 0);
}

/* ---- exchanges ---- */

#if defined(FK_FLAVOUR_RCCL_H) || defined(FK_FLAVOUR_METAX_H) || defined(FK_FLAVOUR_TCCL_H) || \
    (defined(FK_FLAVOUR_ECCL_H) && defined(FAKE_ECCL_ALLTOALL)) || (defined(FK_FLAVOUR_MUSA_H) && defined(FAKE_MUSA_NEW))
#define HAVE_V
/* Rank 0 sends 1 element to itself and 2 to rank 1; rank 1 sends 3 to rank 0 and none to itself. */
static void all_to_all_v(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    (void)n;
    int host[8];
    for (int i = 0; i < 8; i++)
        host[i] = rank * 100 + i;
    int *a = upload(host, sizeof host);
    memset(host, 0xff, sizeof host);
    int *b = upload(host, sizeof host);
    size_t sc[2] = {rank ? 3 : 1, rank ? 0 : 2}, sd[2] = {1, 5}, rc[2] = {rank ? 2 : 1, rank ? 0 : 3}, rd[2] = {4, 0};
    int times = 1;
#if defined(FK_FLAVOUR_RCCL_H) && defined(NEWEST_RCCL)
    times = 2;
#endif
    for (int t = 0; t < times; t++) {
#if defined(FK_FLAVOUR_ECCL_H)
        OK(ncclAlltoAllv(a, sc, sd, ncclInt32, b, rc, rd, ncclInt32, c, s));
#elif defined(FK_FLAVOUR_TCCL_H)
        OK(ncclAlltoAllv(a, sc, sd, b, rc, rd, ncclInt32, c, s));
#else
#if defined(FK_FLAVOUR_RCCL_H) && defined(NEWEST_RCCL)
        if (t)
            OK(ncclAlltoAllv(a, sc, sd, b, rc, rd, ncclInt32, c, s));
        else
#endif
            OK(ncclAllToAllv(a, sc, sd, b, rc, rd, ncclInt32, c, s));
#endif
    }
    sync_stream(s);
    download(host, b, sizeof host);
    static const int want[2][8] = {{101, 102, 103, -1, 1, -1, -1, -1}, {-1, -1, -1, -1, 5, 6, -1, -1}};
    for (int i = 0; i < 8; i++)
        EXPECT(host[i], want[rank][i]);

    /* and equal amounts */
#if !defined(FK_FLAVOUR_MUSA_H)
#if defined(FK_FLAVOUR_ECCL_H)
    OK(ncclAlltoall(a, 2, ncclInt32, b, 2, ncclInt32, c, s));
    EXPECT(ncclAlltoall(a, 2, ncclInt32, b, 1, ncclInt32, c, s), ncclInvalidArgument);
#elif defined(FK_FLAVOUR_TCCL_H)
    OK(ncclAlltoAll(a, b, 2, ncclInt32, c, s));
#else
    OK(ncclAllToAll(a, b, 2, ncclInt32, c, s));
#ifdef NEWEST_RCCL
    OK(ncclAlltoAll(a, b, 2, ncclInt32, c, s));
#endif
#endif
    sync_stream(s);
    download(host, b, 16);
    EXPECT(host[0] * 1000 + host[3], rank ? 2 * 1000 + 103 : 101);
#endif
#ifdef FK_FLAVOUR_METAX_H
    const void *from[2] = {a, a + 4};
    void *to[2] = {b + 6, b};
    size_t one[2] = {1, 1};
    OK(mcclAllToAlld(from, one, to, one, mcclInt32, c, s));
    sync_stream(s);
    download(host, b, sizeof host);
    EXPECT(host[6] * 1000 + host[0], rank ? 4 * 1000 + 104 : 100);
#endif
}
#endif

#ifdef FK_FLAVOUR_METAX_H
static void case_metax(void)
{
    ranks(2, all_to_all_v);
    ncclUniqueId id;
    mcclComm_t c;
    mcclConfig_t cfg = {.size = 24, .magic = 0xcafebeef, .version = 21400, .blocking = 0};
    mcclResult_t ar;
    set_device(2);
    OK(mcclGetUniqueId(&id));
    OK(mcclCommInitRankMulti(&c, 1, id, 0, 5));
    OK(mcclCommFinalize(c));
    OK(mcclCommDestroy(c));
    OK(mcclGetUniqueId(&id));
    EXPECT(mcclCommInitRankConfig(&c, 1, id, 0, &cfg), mcclInProgress);
    do
        OK(mcclCommGetAsyncError(c, &ar));
    while (ar == mcclInProgress);
    OK(mcclCommDestroy(c));
}
#endif

#if defined(FK_FLAVOUR_MUSA_H) && defined(FAKE_MUSA_NEW)
static void musa_new(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    mcclComm_t child;
    all_to_all_v(rank, n, c, s);
    OK(mcclCommSplit(c, rank, 0, &child, NULL));
    OK(mcclCommCount(child, &n));
    EXPECT(n, 1);
    OK(mcclCommFinalize(child));
    OK(mcclCommDestroy(child));
    EXPECT(mcclCommSplit(c, rank, 0, &child, (mcclConfig_t *)&n), mcclInvalidArgument);
}
#endif

/* ---- Enflame ---- */

#ifdef FK_FLAVOUR_ECCL_H
static void eccl_types(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    long v = rank ? 5 : 1l << 40, got[2];
    (void)n;
    void *d = upload(&v, 8), *two = upload((long[]){0, 0}, 16);
    EXPECT(ecclAllReduce(d, d, 1, ecclInt64, ecclSum, c, s), ecclInvalidArgument);
    EXPECT(ecclReduceScatter(two, d, 1, ecclFloat64, ecclSum, c, s), ecclInvalidArgument);
    EXPECT(ecclSend(d, 1, ecclUint64, 0, c, s), ecclInvalidArgument);
    OK(ecclAllGather(d, two, 1, ecclInt64, c, s));
    OK(ecclBroadcast(d, d, 1, ecclFloat64, 0, c, s));
    sync_stream(s);
    download(got, two, 16);
    EXPECT(got[1], 5);
    download(got, d, 8);
    EXPECT(got[0], 1l << 40);
    /* and the outputs of Gather and Scatter */
    int i = rank + 1, out[2] = {-1, -1};
    void *a = upload(&i, 4), *b = upload(out, 8);
    OK(ecclGather(a, b, 1, ecclInt32, 0, c, s));
    OK(ecclScatter(b, a, 1, ecclInt32, 0, c, s));
    sync_stream(s);
    download(out, b, 8);
    EXPECT(out[0], -1);
    download(out, a, 4);
    EXPECT(out[0], rank + 1);
}

static void eccl_kinds(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = 7;
    (void)n;
    void *a = upload(&v, 4), *b = upload(&v, 4);
    OK(ecclGroupStart());
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s));
    EXPECT(ecclBroadcast(b, b, 1, ecclInt32, 0, c, s), ecclInvalidUsage);
    EXPECT(ecclGroupEnd(), ecclInvalidUsage);
    sync_stream(s);
    download(&v, a, 4);
    EXPECT(v, 7); /* nothing was launched */
    OK(ecclGroupStart());
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s));
    OK(ecclAllReduce(b, b, 1, ecclInt32, ecclSum, c, s));
    OK(ecclGroupEnd());
    OK(ecclGroupStart());
    OK(ecclSend(a, 1, ecclInt32, 1 - rank, c, s));
    OK(ecclRecv(b, 1, ecclInt32, 1 - rank, c, s));
    OK(ecclGroupEnd());
    sync_stream(s);
    download(&v, b, 4);
    EXPECT(v, 14);
}

/* An event says "done"; only waiting for the stream shows the result to the host. */
static void eccl_stale(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = rank + 1;
    topsEvent_t e;
    (void)n;
    int *a = upload(&v, 4), *b = upload(&v, 4), *pinned;
    topsStream_t other = new_stream();
    OK(topsHostMalloc((void **)&pinned, 8, 0));
    OK(topsEventCreateWithFlags(&e, 0));
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s));
    OK(topsEventRecord(e, s));
    OK(topsEventSynchronize(e));
    while (topsStreamQuery(s))
        usleep(1000);
    download(&v, a, 4);
    EXPECT(v, rank + 1);
    OK(topsMemcpyAsync(pinned, a, 4, topsMemcpyDeviceToHost, other));
    OK(topsStreamSynchronize(other));
    EXPECT(pinned[0], rank + 1);
    /* devices see it, and so does a copy on the same stream */
    OK(topsMemcpy(b, a, 4, topsMemcpyDeviceToDevice));
    download(&v, b, 4);
    EXPECT(v, 3);
    OK(topsMemcpyAsync(pinned, a, 4, topsMemcpyDeviceToHost, s));
    while (topsStreamQuery(s))
        usleep(1000);
    EXPECT(pinned[0], 3);
    download(&v, a, 4);
    EXPECT(v, rank + 1);
    OK(topsStreamSynchronize(s));
    download(&v, a, 4);
    EXPECT(v, 3);
    /* what the host writes meanwhile it sees; a device synchronisation is enough too */
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s));
    while (topsStreamQuery(s))
        usleep(1000);
    download(&v, a, 4);
    EXPECT(v, 3);
    OK(topsDeviceSynchronize());
    download(&v, a, 4);
    EXPECT(v, 6);
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s));
    while (topsStreamQuery(s))
        usleep(1000);
    v = 50;
    OK(topsMemcpy(a, &v, 4, topsMemcpyHostToDevice));
    v = 0;
    download(&v, a, 4);
    EXPECT(v, 50);
    OK(topsFree(a));
}

static void eccl_silent(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = rank + 1;
    void *a = upload(&v, 4);
    OK(topsSetDevice(3));
    OK(ecclAllReduce(a, a, 1, ecclInt32, ecclSum, c, s)); /* nothing happens */
    OK(ecclCommDestroy(c));
    OK(topsSetDevice(rank));
    OK(topsStreamSynchronize(s));
    download(&v, a, 4);
    EXPECT(v, rank + 1);
    OK(ecclCommCount(c, &n)); /* it is still there */
    EXPECT(reduce(c, s, &v, 4, ecclInt32, ecclSum), 3);
}
static void case_types(void) { ranks(2, eccl_types); }
static void case_kinds(void) { ranks(2, eccl_kinds); }
static void case_stale(void) { ranks(2, eccl_stale); }
static void case_silent(void) { ranks(2, eccl_silent); }

static void case_scope(void)
{
    int v = 4, w = 5;
    void *a = NULL, *b, *host;
    topsEvent_t e;
    set_device(0);
    a = upload(&v, 4);
    topsStream_t s = new_stream();
    OK(topsEventCreateWithFlags(&e, 0));
    OK(topsMallocAsync(&b, 4, s, 0));
    OK(topsFreeAsync(b, s));
    set_device(1);
    EXPECT(topsStreamSynchronize(s), topsErrorInvalidHandle);
    EXPECT(topsStreamQuery(s), topsErrorInvalidHandle);
    EXPECT(topsEventRecord(e, s), topsErrorInvalidHandle);
    EXPECT(topsEventRecord(e, NULL), topsErrorInvalidHandle);
    EXPECT(topsEventSynchronize(e), topsErrorInvalidHandle);
    EXPECT(topsStreamWaitEvent(s, e, 0), topsErrorInvalidHandle);
    EXPECT(topsStreamDestroy(s), topsErrorInvalidHandle);
    EXPECT(topsEventDestroy(e), topsErrorInvalidHandle);
    b = upload(&w, 4);
    EXPECT(topsMemcpy(b, a, 4, topsMemcpyDeviceToDevice), topsErrorInvalidValue);
    OK(topsMemcpy(&w, a, 4, topsMemcpyDeviceToHost)); /* these do nothing */
    EXPECT(w, 5);
    OK(topsMemset(a, 0, 4));
    OK(topsFree(a));
    set_device(0);
    download(&w, a, 4);
    EXPECT(w, 4);
    topsPointerAttribute_t at;
    OK(topsPointerGetAttributes(&at, a));
    EXPECT(at.memoryType, topsMemoryTypeDevice);
    OK(topsHostMalloc(&host, 8, 0));
    OK(topsPointerGetAttributes(&at, host));
    EXPECT(at.memoryType, topsMemoryTypeHost);
    OK(topsHostFree(host));
    OK(topsStreamDestroy(s));
    OK(topsEventDestroy(e));
    OK(topsFree(a));
}
#endif

/* ---- Sunrise ---- */

#ifdef FK_FLAVOUR_PCCL_H
static void pccl_pairs(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = 1;
    void *d = upload(&v, 4);
    EXPECT(pcclSend(d, 1, pcclInt32, (rank + 1) % n, c, s), pcclInvalidUsage);
    EXPECT(pcclRecv(d, 1, pcclInt32, (rank + 1) % n, c, s), pcclInvalidUsage);
    EXPECT(reduce(c, s, &v, 4, pcclInt32, pcclSum), n);
    EXPECT(pcclAllReduce(d, d, 1, (pcclDataType_t)9, pcclSum, c, s), pcclInvalidArgument);
    EXPECT(pcclAllReduce(d, d, 1, pcclInt32, pcclNull, c, s), pcclInvalidArgument);
}
static void pccl_crash(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = 1;
    (void)n;
    void *d = upload(&v, 4);
    OK(pcclGroupStart());
    pcclSend(d, 1, pcclInt32, 1 - rank, c, s);
    exit(0); /* not reached */
}
static void pccl_device(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = rank + 1;
    (void)n;
    void *d = upload(&v, 4);
    set_device(3);
    EXPECT(pcclAllReduce(d, d, 1, pcclInt32, pcclSum, c, s), pcclInvalidDeviceIndex);
    set_device(rank);
    EXPECT(reduce(c, s, &v, 4, pcclInt32, pcclSum), 3);
}
static void case_pairs(void) { ranks(3, pccl_pairs); }
static void case_crash(void) { ranks_until(2, pccl_crash, SIGABRT); }
static void case_device(void) { ranks(2, pccl_device); }
#endif

/* ---- Tsingmicro ---- */

#ifdef FK_FLAVOUR_TCCL_H
static void tccl_other(int rank, int n, ncclComm_t c, cudaStream_t s)
{
    int v = rank + 1;
    void *d = upload(&v, 4), *handle;
    all_to_all_v(rank, n, c, s);
    OK(tcclCommRegister(c, d, 4, &handle));
    OK(tcclCommDeregister(c, handle));
    OK(tcclCommSuspend(c));
    EXPECT(tcclAllReduce(d, d, 1, tcclInt32, tcclSum, c, s), tcclInvalidUsage);
    OK(tcclCommResume(c));
    EXPECT(reduce(c, s, &v, 4, tcclInt32, tcclSum), 3);
    EXPECT(tcclAllReduce(d, d, 1, tcclInt32, tcclNoOp, c, s), tcclInvalidArgument);
#ifdef FAKE_SHIFTED_NUMBERS
    EXPECT(tcclInt32 * 1000 + tcclMax, 102102);
    EXPECT(tcclAllReduce(d, d, 1, (tcclDataType_t)2, tcclSum, c, s), tcclInvalidArgument);
    EXPECT(tcclAllReduce(d, d, 1, tcclInt32, (tcclRedOp_t)2, c, s), tcclInvalidArgument);
#endif
    OK(tcclCommFinalize(c));
}
static void case_tccl(void) { ranks(2, tccl_other); }
#endif
#endif /* FAKE_ONLY_RUNTIME */

/* ---- runtimes ---- */

#ifndef FK_FLAVOUR_TCCL_H
#if defined(FAKE_HIP_MAJOR) || defined(FK_RUNTIME_TOPS_H)
#define HOST_ALLOC_WITH_FLAGS
#endif
#if defined(FK_RUNTIME_MC_H)
enum { NOT_READY = mcErrorNotReady };
#elif defined(FK_RUNTIME_MUSA_H)
enum { NOT_READY = musaErrorNotReady };
#elif defined(FK_RUNTIME_TANG_H)
enum { NOT_READY = tangErrorNotReady };
#else
enum { NOT_READY = 600 };
#endif
#ifndef FK_RUNTIME_NAME
#define FK_RUNTIME_NAME "cuda"
#endif
#ifndef FK_TYPE_FIELD
#define FK_TYPE_FIELD type
#endif
#ifndef FK_UNKNOWN_POINTER
#define FK_UNKNOWN_POINTER 0
#endif
#if defined(FAKE_HIP_MAJOR) && FAKE_HIP_MAJOR < 6
enum { HOST_TYPE = 0, DEVICE_TYPE = 1 };
#else
enum { HOST_TYPE = 1, DEVICE_TYPE = 2 };
#endif
/* Where the layout is known. */
#if !defined(FK_RUNTIME_TANG_H) && (!defined(FK_RUNTIME_MC_H) || defined(FAKE_POINTER_ATTRIBUTES))
#define ATTRIBUTES cudaPointerAttributes
#endif

static void slow(void *arg)
{
    (void)arg;
    usleep(100000);
}

static void case_runtime(void)
{
    int n = 0, can = 0;
    char bus[32];
    void *host;
    cudaEvent_t a, b;
    float ms = -1;
    OK(cudaGetDeviceCount(&n));
    EXPECT(n, 4);
    set_device(1);
    fake_set_current_device(2);
    OK(cudaGetDevice(&n));
    EXPECT(n, 2);
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(can, 1);
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 3));
    EXPECT(strcmp(bus, "00000000:13:00.0"), 0);
    cudaStream_t s = new_stream();
    OK(cudaEventCreateWithFlags(&a, 0));
    OK(cudaEventCreateWithFlags(&b, 0));
    OK(cudaLaunchHostFunc(s, slow, NULL));
    OK(cudaEventRecord(a, s));
    int rc = cudaStreamQuery(s);
    EXPECT(rc, NOT_READY);
    EXPECT(cudaEventQuery(a), NOT_READY);
    EXPECT(cudaGetLastError(), NOT_READY);
    OK(cudaGetLastError());
    const char *name = cudaGetErrorName(rc);
    EXPECT(strncmp(name, FK_RUNTIME_NAME, strlen(FK_RUNTIME_NAME)), 0);
    EXPECT(strcmp(name + strlen(FK_RUNTIME_NAME), "ErrorNotReady"), 0);
    int ready = 0;
    for (int i = 1; i <= 1000; i++)
        ready += strstr(cudaGetErrorName(i), "ErrorNotReady") != NULL;
    EXPECT(ready, 1);
    OK(cudaStreamWaitEvent(s, a, 0));
    OK(cudaEventRecord(b, s));
    OK(cudaEventSynchronize(b));
    OK(cudaEventElapsedTime(&ms, a, b));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    int v = 11, w = 0;
    void *d = upload(&v, 4);
    OK(cudaMemsetAsync(d, 0, 1, s));
    OK(cudaMemcpyAsync(&w, d, 4, cudaMemcpyDeviceToHost, s));
    EXPECT(w, 0);
#ifdef HOST_ALLOC_WITH_FLAGS
    OK(cudaHostAlloc(&host, 64, 0));
#else
    OK(cudaMallocHost(&host, 64));
#endif
    memset(host, 1, 64);
#ifdef ATTRIBUTES
    ATTRIBUTES at;
    OK(cudaPointerGetAttributes(&at, d));
    EXPECT(at.FK_TYPE_FIELD, DEVICE_TYPE);
    EXPECT(at.device, 2);
    OK(cudaPointerGetAttributes(&at, host));
    EXPECT(at.FK_TYPE_FIELD, HOST_TYPE);
    EXPECT(cudaPointerGetAttributes(&at, &v), FK_UNKNOWN_POINTER);
#endif
    OK(cudaFreeHost(host));
    OK(cudaFree(d));
    OK(cudaEventDestroy(a));
    OK(cudaEventDestroy(b));
    OK(cudaStreamDestroy(s));
    EXPECT(cudaSetDevice(99), 101);
    EXPECT(cudaPeekAtLastError(), 101);
#ifdef FAKE_HIP_MAJOR
    OK(hipRuntimeGetVersion(&v));
    EXPECT(v / 10000000, FAKE_HIP_MAJOR);
    unsigned type, hops;
    OK(hipExtGetLinkTypeAndHopCount(0, 1, &type, &hops));
    EXPECT(hops, 1);
#endif
}
#endif

/* In every collective library and runtime but NVIDIA's. */
__attribute__((weak)) const char *fake_vendor_name(void);

int main(int argc, char **argv)
{
    if (getenv("WANT_VENDOR"))
        EXPECT(strcmp(fake_vendor_name ? fake_vendor_name() : "nvidia", getenv("WANT_VENDOR")), 0);
    static const struct { const char *name; void (*fn)(void); } cases[] = {
#ifndef FK_FLAVOUR_TCCL_H
        {"runtime", case_runtime},
#endif
#ifndef FAKE_ONLY_RUNTIME
        {"basic", case_basic},
        {"fp8", case_fp8},
        {"order", case_order},
#endif
#ifdef HAVE_V
        {"exchange", NULL},
#endif
#ifdef FK_FLAVOUR_METAX_H
        {"metax", case_metax},
#endif
#ifdef FK_FLAVOUR_ECCL_H
        {"types", case_types}, {"kinds", case_kinds}, {"stale", case_stale}, {"silent", case_silent}, {"scope", case_scope},
#endif
#ifdef FK_FLAVOUR_PCCL_H
        {"pairs", case_pairs}, {"crash", case_crash}, {"device", case_device},
#endif
#ifdef FK_FLAVOUR_TCCL_H
        {"tccl", case_tccl},
#endif
    };
    alarm(60);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc > 1 && !strcmp(argv[1], cases[i].name)) {
#ifdef HAVE_V
            if (!cases[i].fn) {
#if defined(FK_FLAVOUR_MUSA_H)
                ranks(2, musa_new);
#else
                ranks(2, all_to_all_v);
#endif
                puts("ok");
                return 0;
            }
#endif
            cases[i].fn();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "usage: flavours CASE\n");
    return 2;
}
