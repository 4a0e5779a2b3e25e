/* Tries the stand-ins of ACL and HCCL; with -DFAKE_HCCL_GROUPS the groups too. */
#define _GNU_SOURCE
#include "abi/acl.h"
#include "abi/hccl.h"
#include "selftest.h"
#include <signal.h>

static void *upload(const void *src, size_t n)
{
    void *d;
    OK(aclrtMalloc(&d, n, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMemcpy(d, n, src, n, ACL_MEMCPY_HOST_TO_DEVICE));
    return d;
}
static void download(void *dst, const void *d, size_t n) { OK(aclrtMemcpy(dst, n, d, n, ACL_MEMCPY_DEVICE_TO_HOST)); }

struct rank { int rank; HcclRootInfo info; };

static void *lone_send(void *arg)
{
    void **a = arg;
    OK(aclrtSetDevice((int)(intptr_t)a[3]));
    OK(HcclSend(a[0], 1, HCCL_DATA_TYPE_INT8, (uint32_t)(1 - (intptr_t)a[3]), a[1], a[2]));
    OK(HcclRecv(a[0], 1, HCCL_DATA_TYPE_INT8, (uint32_t)(1 - (intptr_t)a[3]), a[1], a[2]));
    return NULL;
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    int rank = me->rank, peer = 1 - rank, st;
    HcclComm c, none = NULL;
    aclrtStream s;
    uint32_t n;
    char name[128];
    HcclResult async;

    EXPECT(HcclCommInitRootInfo(2, &me->info, (uint32_t)rank, &c), HCCL_E_RUNTIME); /* no device yet */
    OK(aclrtSetDevice(rank));
    EXPECT(HcclCommInitRootInfo(2, NULL, (uint32_t)rank, &c), HCCL_E_PTR);
    EXPECT(HcclCommInitRootInfo(2, &me->info, 2, &c), HCCL_E_PARA);
    static const int bytes[] = {0, 39, 40, 127, 255, 2000, 4000, 4103, 4107};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        HcclRootInfo bad = me->info;
        bad.internal[bytes[i]] ^= 1;
        EXPECT(HcclCommInitRootInfo(2, &bad, (uint32_t)rank, &c), HCCL_E_PARA);
    }
    OK(HcclCommInitRootInfo(2, &me->info, (uint32_t)rank, &c));
    OK(HcclGetRankSize(c, &n));
    EXPECT(n, 2);
    OK(HcclGetRankId(c, &n));
    EXPECT(n, rank);
    OK(HcclGetCommName(c, name));
    EXPECT(strlen(name) > 0, 1);
    OK(HcclGetCommAsyncError(c, &async));
    OK(async);
    EXPECT(HcclGetErrorString(HCCL_E_TIMEOUT)[0], 't');
    OK(aclrtCreateStreamWithConfig(&s, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));

    /* every type that can be reduced, and the others */
    int64_t v[4] = {rank + 1, 0, 0, 0}, w[4];
    void *d = upload(v, sizeof v), *e = upload(v, sizeof v);
    OK(HcclAllReduce(d, e, 4, HCCL_DATA_TYPE_INT64, HCCL_REDUCE_SUM, c, s));
    OK(HcclAllReduce(e, e, 4, HCCL_DATA_TYPE_INT64, HCCL_REDUCE_PROD, c, s));
    OK(aclrtSynchronizeStream(s));
    download(w, e, sizeof w);
    EXPECT(w[0], 9);
    static const int refused[] = {HCCL_DATA_TYPE_UINT8, HCCL_DATA_TYPE_UINT16, HCCL_DATA_TYPE_UINT32, HCCL_DATA_TYPE_UINT64,
                                  HCCL_DATA_TYPE_FP64, HCCL_DATA_TYPE_FP8E4M3, HCCL_DATA_TYPE_RESERVED, 13, -1};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        EXPECT(HcclAllReduce(d, e, 1, (HcclDataType)refused[i], HCCL_REDUCE_SUM, c, s), HCCL_E_NOT_SUPPORT);
    EXPECT(HcclAllReduce(d, e, 1, HCCL_DATA_TYPE_INT32, (HcclReduceOp)4, c, s), HCCL_E_NOT_SUPPORT);
    EXPECT(HcclAllReduce(d, e, 1, HCCL_DATA_TYPE_BFP16, HCCL_REDUCE_PROD, c, s), HCCL_E_NOT_SUPPORT);
    EXPECT(HcclAllReduce(d, e, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, c, NULL), HCCL_E_PTR);
    EXPECT(HcclAllReduce(d, e, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, none, s), HCCL_E_PTR);
    EXPECT(HcclAllReduce(NULL, e, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, c, s), HCCL_E_PTR);
    EXPECT(HcclAllReduce((char *)d + 1, e, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, c, s), HCCL_E_PARA);
    EXPECT(HcclAllReduce(v, v, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, c, s), HCCL_E_RUNTIME); /* the host's memory */
    EXPECT(HcclBroadcast(d, 1, HCCL_DATA_TYPE_INT32, 2, c, s), HCCL_E_PARA);

    /* the others */
    double x[2] = {rank + 0.5, rank + 1.5}, y[2];
    void *dx = upload(x, sizeof x), *dy = upload(x, sizeof x);
    OK(HcclBroadcast(dx, 2, HCCL_DATA_TYPE_FP64, 1, c, s));
    OK(HcclAllGather(dx, dy, 1, HCCL_DATA_TYPE_FP64, c, s));
    OK(aclrtSynchronizeStream(s));
    download(y, dy, sizeof y);
    EXPECT(y[0] == 1.5 && y[1] == 1.5, 1);
    int32_t a[6], b[6];
    for (int i = 0; i < 6; i++)
        a[i] = 10 * rank + i;
    void *da = upload(a, sizeof a), *db = upload(a, sizeof a);
    OK(HcclAlltoAll(da, 3, HCCL_DATA_TYPE_INT32, db, 3, HCCL_DATA_TYPE_INT32, c, s));
    EXPECT(HcclAlltoAll(da, 3, HCCL_DATA_TYPE_INT32, db, 2, HCCL_DATA_TYPE_INT32, c, s), HCCL_E_PARA);
    OK(aclrtSynchronizeStream(s));
    download(b, db, sizeof b);
    EXPECT(b[1], 3 * rank + 1);
    EXPECT(b[4], 10 + 3 * rank + 1);
    /* rank 0 sends 1 to itself and 2 to 1, rank 1 sends 3 to 0 and none to itself */
    static const uint64_t sc[2][2] = {{1, 2}, {3, 0}}, sd[2][2] = {{5, 0}, {1, 0}};
    static const uint64_t rc[2][2] = {{1, 3}, {2, 0}}, rd[2][2] = {{0, 1}, {4, 0}};
    OK(HcclAlltoAllV(da, sc[rank], sd[rank], HCCL_DATA_TYPE_INT32, db, rc[rank], rd[rank], HCCL_DATA_TYPE_INT32, c, s));
    OK(aclrtSynchronizeStream(s));
    download(b, db, sizeof b);
    EXPECT(rank ? b[5] : b[0], rank ? 1 : 5);
    EXPECT(rank ? b[4] : b[3], rank ? 0 : 13);
    OK(HcclReduceScatter(da, db, 3, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_MAX, c, s));
    OK(HcclScatter(da, (char *)db + 12, 2, HCCL_DATA_TYPE_INT32, 1, c, s));
    OK(HcclReduce(da, da, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, 0, c, s));
    OK(aclrtSynchronizeStream(s));
    download(b, db, sizeof b);
    EXPECT(b[1], 10 + 3 * rank + 1);
    EXPECT(b[3], 10 + 2 * rank);
    static const uint64_t vc[2] = {1, 4}, vd[2] = {0, 1};
    OK(HcclAllGatherV(da, vc[rank], db, vc, vd, HCCL_DATA_TYPE_INT32, c, s));
    OK(HcclReduceScatterV(db, vc, vd, da, vc[rank], HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, c, s));
    OK(HcclBarrier(c, s));
    OK(aclrtSynchronizeStream(s));
    download(b, db, sizeof b);
    EXPECT(b[4], 13);
    download(b, da, sizeof b);
    EXPECT(b[0], 20);

    /* lone ones pair; a batch goes both ways */
    if (rank == 0)
        OK(HcclSend(d, 1, HCCL_DATA_TYPE_INT64, 1, c, s));
    else
        OK(HcclRecv(e, 1, HCCL_DATA_TYPE_INT64, 0, c, s));
    HcclSendRecvItem items[2] = {{HCCL_SEND, d, 1, HCCL_DATA_TYPE_INT64, (uint32_t)peer},
                                 {HCCL_RECV, dy, 1, HCCL_DATA_TYPE_INT64, (uint32_t)peer}};
    OK(HcclBatchSendRecv(items, 2, c, s));
    OK(aclrtSynchronizeStream(s));
    if (rank) {
        download(w, e, 8);
        EXPECT(w[0], 1);
    }
    download(w, dy, 8);
    EXPECT(w[0], peer + 1);

    /* an event across streams, and its answers */
    aclrtStream s2;
    aclrtEvent ev, timed;
    OK(aclrtCreateStream(&s2));
    OK(aclrtCreateEventExWithFlag(&ev, ACL_EVENT_SYNC));
    OK(aclrtCreateEvent(&timed));
    EXPECT(aclrtCreateEventWithFlag(&ev, 64), FAKE_ACL_PARAM);
    int go = 0;
    if (rank == 0) {
        OK(aclrtLaunchHostFunc(s, wait_for_flag, &go));
        OK(HcclRecv(e, 1, HCCL_DATA_TYPE_INT64, 1, c, s));
        OK(aclrtRecordEvent(ev, s));
        OK(aclrtStreamWaitEvent(s2, ev));
        EXPECT(aclrtStreamWaitEvent(ev, s2), FAKE_ACL_STREAM); /* the wrong way round */
        OK(aclrtQueryEventStatus(ev, &st));
        EXPECT(st, 0);
        OK(aclrtQueryEventWaitStatus(ev, &st));
        EXPECT(st, 1);
        OK(aclrtStreamQuery(s, &st));
        EXPECT(st, 1);
        EXPECT(aclrtSynchronizeStreamWithTimeout(s2, 20), FAKE_ACL_SYNC_TIMEOUT);
        int word;
        OK(aclrtMalloc((void **)&none, 8, 0));
        OK(aclrtMemcpy(none, 8, &rank, 4, ACL_MEMCPY_HOST_TO_DEVICE)); /* waits for no other stream */
        OK(aclrtMemcpy(&word, 4, none, 4, ACL_MEMCPY_DEFAULT));
        OK(word);
        go = 1;
    } else {
        OK(HcclSend(d, 1, HCCL_DATA_TYPE_INT64, 0, c, s));
        OK(aclrtRecordEvent(ev, s));
    }
    OK(aclrtSynchronizeStream(s2));
    OK(aclrtSynchronizeEvent(ev));
    OK(aclrtQueryEventStatus(ev, &st));
    EXPECT(st, 1);
    OK(aclrtQueryEventWaitStatus(ev, &st));
    OK(st);
    OK(aclrtDestroyEvent(ev));
    OK(aclrtDestroyEvent(timed));

    OK(HcclBarrier(c, s));
    OK(aclrtSynchronizeStream(s));
    OK(HcclCommDestroy(c));
    EXPECT(HcclCommDestroy(NULL), HCCL_E_PTR);
    EXPECT(HcclGetRankSize(c, &n), HCCL_E_PARA);
    OK(aclrtDestroyStream(s2));
    OK(aclrtDestroyStream(s));
    return NULL;
}

/* Two lone sends, each followed by its receive, wait for each other for ever. */
static void *crossing(void *arg)
{
    struct rank *me = arg;
    HcclComm c;
    aclrtStream s;
    int st;
    OK(aclrtSetDevice(me->rank));
    OK(HcclCommInitRootInfo(2, &me->info, (uint32_t)me->rank, &c));
    OK(aclrtCreateStream(&s));
    void *args[4] = {upload("x", 1), c, s, (void *)(intptr_t)me->rank};
    in_thread(lone_send, args);
    usleep(300000);
    OK(aclrtStreamQuery(s, &st));
    EXPECT(st, 1);
    usleep(1000000); /* who ends takes what was sent with him */
    return NULL;
}

static void *unbound(void *arg)
{
    void *p;
    int32_t d;
    uint32_t n;
    HcclRootInfo info;
    (void)arg;
    EXPECT(aclrtGetDevice(&d), FAKE_ACL_NO_CONTEXT);
    EXPECT(aclrtGetLastError(ACL_RT_THREAD_LEVEL), FAKE_ACL_NO_CONTEXT);
    OK(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL));
    OK(aclrtGetDeviceCount(&n));
    EXPECT(n, 4);
    EXPECT(aclrtMalloc(&p, 8, 0), FAKE_ACL_NO_CONTEXT);
    EXPECT(aclrtMemcpy(p, 8, &d, 4, 1), FAKE_ACL_NO_CONTEXT);
    EXPECT(aclrtCreateStream(&p), FAKE_ACL_NO_CONTEXT);
    EXPECT(aclrtSynchronizeDevice(), FAKE_ACL_NO_CONTEXT);
    EXPECT(aclrtGetCurrentContext(&p), FAKE_ACL_NO_CONTEXT);
    EXPECT(HcclGetRootInfo(&info), HCCL_E_RUNTIME);
    EXPECT(aclrtSetDevice(4), FAKE_ACL_DEVICE);
    return NULL;
}

/* Two initialisations at once on one device of one process. */
static void *init_alone(void *arg)
{
    HcclRootInfo *info = arg;
    HcclComm c;
    OK(aclrtSetDevice(0));
    return (void *)(intptr_t)HcclCommInitRootInfo(2, info, 0, &c);
}

static void callback(void *arg) { *(int *)arg = 1; }

static void one_process(void)
{
    in_thread(unbound, NULL);
    OK(aclInit(NULL));
    EXPECT(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    OK(aclrtSetDevice(3));
    int32_t d, can;
    void *p, *h, *context;
    aclrtStream s;
    volatile int called = 0;
    OK(aclrtGetDevice(&d));
    EXPECT(d, 3);
    OK(aclrtGetCurrentContext(&context));
    OK(aclrtSetDevice(0));
    OK(aclrtSetCurrentContext(context));
    OK(aclrtGetDevice(&d));
    EXPECT(d, 3);
    EXPECT(aclrtSynchronizeStream(NULL), FAKE_ACL_STREAM);
    EXPECT(aclrtMemcpyAsync(NULL, 4, NULL, 4, 3, NULL), FAKE_ACL_STREAM);
    OK(aclrtMalloc(&p, 16, 0));
    EXPECT(aclrtMemcpy(p, 4, &d, 8, 1), FAKE_ACL_PARAM); /* more than fits */
    OK(aclrtMemset(p, 16, 7, 16));
    OK(aclrtMallocHost(&h, 16));
    OK(aclrtCreateStream(&s));
    OK(aclrtMemcpyAsync(h, 16, p, 16, ACL_MEMCPY_DEVICE_TO_HOST, s));
    OK(aclrtLaunchCallback(callback, (void *)&called, 1, s));
    OK(aclrtSynchronizeStream(s));
    EXPECT(((char *)h)[15], 7);
    EXPECT(called, 1);
    OK(aclrtDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(can, 1);
    OK(aclrtFree(p));
    OK(aclrtFreeHost(h));

    HcclRootInfo info[2];
    pthread_t t;
    OK(HcclGetRootInfo(&info[0]));
    OK(HcclGetRootInfo(&info[1]));
    setenv("FAKE_INIT_TIMEOUT", "2000", 1);
    void *first;
    pthread_create(&t, NULL, init_alone, &info[0]);
    usleep(200000);
    EXPECT((intptr_t)in_thread(init_alone, &info[1]), HCCL_E_UNAVAIL);
    pthread_join(t, &first);
    EXPECT((intptr_t)first, HCCL_E_TIMEOUT); /* nobody else came */
    unsetenv("FAKE_INIT_TIMEOUT");
    puts("one process: ok");
    fflush(stdout);
}

#ifdef FAKE_HCCL_GROUPS
static void *group_main(void *arg)
{
    struct rank *me = arg;
    HcclComm c;
    aclrtStream s;
    int64_t v = me->rank, w;
    uint32_t peer = (uint32_t)(1 - me->rank);
    OK(aclrtSetDevice(me->rank));
    OK(HcclCommInitRootInfo(2, &me->info, (uint32_t)me->rank, &c));
    OK(aclrtCreateStream(&s));
    void *d = upload(&v, 8), *e = upload(&v, 8);
    OK(HcclGroupStart());
    OK(HcclSend(d, 1, HCCL_DATA_TYPE_INT64, peer, c, s));
    OK(HcclRecv(e, 1, HCCL_DATA_TYPE_INT64, peer, c, s));
    OK(HcclGroupEnd());
    OK(aclrtSynchronizeStream(s));
    download(&w, e, 8);
    EXPECT(w, peer);
    OK(HcclGroupStart());
    OK(HcclSend(d, 1, HCCL_DATA_TYPE_INT64, peer, c, s));
    EXPECT(HcclAllReduce(d, e, 1, HCCL_DATA_TYPE_INT64, HCCL_REDUCE_SUM, c, s), HCCL_E_NOT_SUPPORT);
    EXPECT(HcclGroupEnd() != 0, 1);
    HcclSendRecvItem item = {HCCL_SEND, d, 1, HCCL_DATA_TYPE_INT64, peer};
    OK(HcclGroupStart());
    EXPECT(HcclBatchSendRecv(&item, 1, c, s), HCCL_E_NOT_SUPPORT);
    OK(HcclGroupEnd());
    OK(HcclCommDestroy(c));
    return NULL;
}
#endif

/* The root of a rendezvous lives in the process that asked for it, which must have a device. */
static void *ask(void *arg)
{
    OK(aclrtSetDevice(0));
    OK(HcclGetRootInfo(arg));
    return NULL;
}

int main(void)
{
    struct rank r[2] = {{.rank = 0}, {.rank = 1}};
    alarm(60);
    /* Processes first: what is forked off a process at work has no streams. */
    for (int i = 0; i < 4; i++) {
        in_thread(ask, &r[0].info);
        r[1].info = r[0].info;
#ifdef FAKE_HCCL_GROUPS
        void *(*what[4])(void *) = {rank_main, crossing, rank_main, group_main};
#else
        void *(*what[4])(void *) = {rank_main, crossing, rank_main, NULL};
#endif
        if (what[i])
            two_ranks(i < 2, what[i], r, sizeof *r);
    }
    one_process();
    return 0;
}
