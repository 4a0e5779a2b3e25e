/* Tries the stand-in of FlagCX on streams of the CUDA runtime's. */
#define _GNU_SOURCE
#include "abi/cuda.h"
#include "abi/flagcx.h"
#include "selftest.h"
#include <signal.h>

struct flagcxStream { cudaStream_t base; };
struct rank { int rank; flagcxUniqueId id; };

static void *upload(const void *src, size_t n)
{
    void *d;
    OK(cudaMalloc(&d, n));
    OK(cudaMemcpy(d, src, n, cudaMemcpyHostToDevice));
    return d;
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    int rank = me->rank, peer = 1 - rank, n;
    flagcxComm_t c = NULL;
    flagcxDeviceHandle_t dev;
    flagcxStream_t s;
    flagcxUniqueId id = me->id, zero = {{0}};
    flagcxResult_t async;
    OK(flagcxDeviceHandleInit(&dev));
    OK(dev->setDevice(rank));
    OK(dev->getDeviceCount(&n));
    EXPECT(n, 4);
    EXPECT(flagcxCommInitRank(&c, 2, &id, 2), flagcxInvalidArgument);
    EXPECT(c == NULL, 1);
    EXPECT(flagcxCommInitRank(&c, 2, &zero, rank), flagcxInternalError);
    EXPECT(c != NULL, 1);
    memset(id.internal + 40, 0, sizeof id.internal - 40);
    OK(flagcxCommInitRank(&c, 2, &id, rank));
    OK(flagcxCommCount(c, &n));
    EXPECT(n, 2);
    OK(flagcxCommUserRank(c, &n));
    EXPECT(n, rank);
    OK(flagcxCommGetDeviceNumber(c, &n));
    EXPECT(n, rank);
    OK(flagcxIsHomoComm(c, &n));
    EXPECT(n, 1);
    OK(flagcxCommGetAsyncError(c, &async));
    OK(async);
    OK(dev->streamCreate(&s));

    double v[4] = {rank + 1, rank + 2, 7, 8}, w[4];
    void *d = upload(v, sizeof v), *e = upload(v, sizeof v);
#define GET() \
    do { \
        OK(dev->deviceMemcpy(w, e, sizeof w, flagcxMemcpyDeviceToHost, s)); \
        OK(dev->streamSynchronize(s)); \
    } while (0)
    OK(flagcxAllReduce(d, e, 4, flagcxDouble, flagcxAvg, c, s));
    GET();
    EXPECT(w[1] == 2.5, 1);
    OK(flagcxBroadcast(d, e, 2, flagcxDouble, 1, c, s));
    GET();
    EXPECT(w[1] == 3, 1);
    OK(flagcxAllGather(d, e, 1, flagcxDouble, c, s));
    OK(flagcxReduceScatter(e, d, 1, flagcxDouble, flagcxMax, c, s));
    OK(flagcxReduce(d, d, 1, flagcxDouble, flagcxSum, 0, c, s));
    OK(flagcxGather(d, e, 1, flagcxDouble, 0, c, s));
    OK(flagcxScatter(e, d, 1, flagcxDouble, 0, c, s));
    OK(flagcxAlltoAll(d, e, 1, flagcxDouble, c, s));
    GET();
    EXPECT(w[1] == 2 + rank, 1);
    size_t counts[2] = {rank ? 2 : 1, rank ? 1 : 2}, displs[2] = {rank ? 1 : 0, rank ? 0 : 1};
    /* the wrapper of a stream may be gone after the call, also within a group */
    OK(flagcxGroupStart(NULL));
    flagcxStream_t copy;
    OK(dev->streamCopy(&copy, s->base));
    OK(flagcxSend(d, 1, flagcxDouble, peer, c, copy));
    OK(flagcxRecv(e, 1, flagcxDouble, peer, c, copy));
    copy->base = NULL;
    OK(dev->streamFree(copy));
    OK(flagcxGroupEnd(c));
    OK(flagcxAlltoAllv(d, counts, displs, e, counts, displs, flagcxDouble, c, s));
    OK(flagcxBarrier(c, s));
    OK(dev->streamQuery(s));

    /* codes */
    EXPECT(flagcxAllReduce(d, e, 4, flagcxDouble, flagcxSum, NULL, NULL), flagcxInternalError);
    EXPECT(flagcxAllReduce(d, e, 4, flagcxDouble, flagcxRedNoOp, c, s), flagcxInvalidArgument);
    EXPECT(flagcxBroadcast(d, e, 4, flagcxDouble, 2, c, s), flagcxInvalidArgument);
    EXPECT(flagcxGroupEnd(NULL), flagcxInvalidUsage);
    EXPECT(flagcxCommSuspend(c), flagcxInvalidUsage);
    EXPECT(flagcxCommDestroy(NULL), flagcxInternalError);
    EXPECT(flagcxOneSideRegister(c, d, 8), flagcxNotSupported);
    OK(flagcxWaitSignal(0, NULL, NULL, NULL));
    EXPECT(flagcxWaitSignal(1, NULL, c, s), flagcxInvalidArgument);
    void *p, *handle;
    flagcxWindow_t win = NULL;
    EXPECT(flagcxMemAlloc(&p, 0, flagcxMemCCL), flagcxInvalidArgument);
    OK(flagcxMemAlloc(&p, 64, flagcxMemCCL));
    OK(flagcxCommRegister(c, p, 64, &handle, flagcxMemCCL));
    EXPECT(flagcxCommDeregister(NULL, handle, flagcxMemCCL), flagcxInvalidArgument);
    OK(flagcxCommDeregister(c, handle, flagcxMemCCL));
    OK(flagcxCommWindowRegister(c, p, 64, &win, 0, flagcxMemCCL));
    EXPECT(win == NULL, 1);
    OK(flagcxMemFree(p, flagcxMemCCL));
    OK(flagcxCommDestroy(c));
    OK(dev->streamDestroy(s));
    OK(flagcxDeviceHandleFree(dev));
    return NULL;
}

static flagcxComm_t one_rank(void)
{
    flagcxUniqueId id;
    flagcxComm_t c;
    OK(cudaSetDevice(0));
    OK(flagcxGetUniqueId(&id));
    OK(flagcxCommInitRank(&c, 1, &id, 0));
    return c;
}

/* What ends the process. */
static void *null_stream(void *arg) { return (void)flagcxAllReduce(arg, arg, 1, flagcxInt8, flagcxSum, one_rank(), NULL), NULL; }
static void *null_device(void *arg) { return (void)flagcxCommGetDeviceNumber(NULL, arg), NULL; }
static void *destroy_twice(void *arg)
{
    flagcxComm_t c = one_rank();
    (void)arg;
    OK(flagcxCommDestroy(c));
    return (void)flagcxCommDestroy(c), NULL;
}
static void *destroy_aborted(void *arg)
{
    flagcxComm_t c = one_rank();
    (void)arg;
    OK(flagcxCommAbort(c));
    return (void)flagcxCommDestroy(c), NULL;
}
static void *no_number(void *arg)
{
    (void)arg;
    setenv("FLAGCX_USE_HETERO_COMM", "yes", 1);
    OK(flagcxGroupStart(NULL)); /* not with the knob off */
    OK(flagcxGroupEnd(NULL));
    setenv("FAKE_FLAGCX_THROWS", "1", 1);
    setenv("FLAGCX_USE_HETERO_COMM", "1x", 1);
    OK(flagcxGroupStart(NULL));
    setenv("FLAGCX_USE_HETERO_COMM", "yes", 1);
    return (void)flagcxGroupEnd(NULL), NULL;
}

int main(void)
{
    struct rank r[2] = {{.rank = 0}, {.rank = 1}};
    int v = 0;
    alarm(60);
    OK(flagcxGetVersion(&v));
    EXPECT(v, 10000);
    EXPECT(strcmp(flagcxGetErrorString(0), "Not implemented."), 0);
    EXPECT(flagcxGetLastError(NULL)[0], 'U');
    EXPECT(flagcxGetUniqueId(NULL), flagcxInvalidArgument);
    OK(flagcxCommDeregister(NULL, NULL, flagcxMemCCL));
    EXPECT(getFlagcxDataTypeSize(flagcxBfloat16), 2);
    fclose(stderr);
    join_process(start_process(null_stream, &v), SIGSEGV);
    join_process(start_process(null_device, &v), SIGSEGV);
    join_process(start_process(destroy_twice, NULL), SIGABRT);
    join_process(start_process(destroy_aborted, NULL), SIGABRT);
    join_process(start_process(no_number, NULL), SIGABRT);
    stderr = fdopen(dup(1), "w");
    puts("endings: ok");
    for (int i = 0; i < 2; i++) {
        OK(flagcxGetUniqueId(&r[0].id));
        r[1].id = r[0].id;
        fflush(stdout);
        two_ranks(i == 0, rank_main, r, sizeof *r);
    }
    return 0;
}
