/* Tries the stand-ins of CNRT and CNCL. */
#define _GNU_SOURCE
#include "abi/cncl.h"
#include "abi/cnrt.h"
#include "selftest.h"

static void *upload(const void *src, size_t n)
{
    void *d;
    OK(cnrtMalloc(&d, n));
    OK(cnrtMemcpy(d, (void *)src, n, cnrtMemcpyHostToDev));
    return d;
}
static void download(void *dst, void *d, size_t n) { OK(cnrtMemcpy(dst, d, n, cnrtMemcpyDevToHost)); }

struct rank { int rank; struct cnclCliqueId id, second; };

/* All operations, with one communicator. */
static void operations(int rank, cnclComm_t c, cnrtQueue_t q)
{
    int peer = 1 - rank, n = -1;
    int64_t v[4] = {rank + 1, rank + 2, 7, 8}, w[4];
    void *d = upload(v, sizeof v), *e = upload(v, sizeof v);
    OK(cnclGetCommCount(&n, c));
    EXPECT(n, 2);
    OK(cnclGetCommRank(&n, c));
    EXPECT(n, rank);
    OK(cnclGetCommDevice(&n, c));
    EXPECT(n, 2 + rank);
    OK(cnclGetCommAsyncError(c));
    OK(cnclAllReduce(d, e, 4, cnclInt64, cnclSum, c, q));
    OK(cnrtQueueSync(q));
    download(w, e, sizeof w);
    EXPECT(w[1], 5);
    OK(cnclBroadcast(d, e, 2, cnclInt64, 1, c, q));
    OK(cnclBcast(e, 1, cnclInt64, 0, c, q));
    OK(cnrtQueueSync(q));
    download(w, e, sizeof w);
    EXPECT(w[1], 3);
    OK(cnclAllGather(d, e, 1, cnclInt64, c, q));
    OK(cnclReduceScatter(e, d, 1, cnclInt64, cnclMax, c, q));
    OK(cnclReduce(e, e, 2, cnclInt64, cnclSum, 0, c, q));
    OK(cnclAlltoAll(d, e, 1, cnclInt64, c, q));
    OK(cnrtQueueSync(q));
    download(w, d, sizeof w);
    EXPECT(w[0], rank + 1);
    int32_t a[3] = {10 * rank, 10 * rank + 1, 10 * rank + 2}, b[3];
    char *da = upload(a, sizeof a), *db = upload(a, sizeof a);
    /* 1 to oneself, 2 to the other */
    const void *s[2] = {rank ? da + 4 : da, rank ? da : da + 4};
    void *r[2] = {rank ? db + 4 : db, rank ? db : db + 4};
    uint32_t counts[2] = {rank ? 2 : 1, rank ? 1 : 2};
    cnclDataType_t t[2] = {cnclInt32, cnclInt32};
    OK(cnclAlltoAllv(s, counts, t, r, counts, t, c, q));
    EXPECT(cnclAlltoAllv(s, counts, t, (void **)s, counts, t, c, q), CNCL_RET_ERR_ARGUMENTS);
    OK(cnrtQueueSync(q));
    download(b, db, sizeof b);
    EXPECT(b[rank ? 0 : 0], rank ? 10 : 0);
    EXPECT(b[2], rank ? 2 : 12);
    OK(cnclGroupStart());
    OK(cnclSend(d, 1, cnclInt64, peer, c, q));
    OK(cnclRecv(e, 1, cnclInt64, peer, c, q));
    OK(cnclGroupEnd());
    OK(cnrtQueueSync(q));
    download(w, e, sizeof w);
    EXPECT(w[0], peer + 1);

    /* what is refused */
    EXPECT(cnclAllReduce(d, e, 1, (cnclDataType_t)0x13, cnclSum, c, q), CNCL_RET_ERR_UNSUPPORTED);
    EXPECT(cnclAllReduce(d, e, 1, cnclInvalid, cnclSum, c, q), CNCL_RET_ERR_UNSUPPORTED);
    EXPECT(cnclAllReduce(d, e, 1, (cnclDataType_t)7, cnclSum, c, q), CNCL_RET_ERR_UNSUPPORTED);
    EXPECT(cnclAllReduce(d, e, 1, cnclInt64, (cnclReduceOp_t)4, c, q), CNCL_RET_ERR_UNSUPPORTED);
    EXPECT(cnclAllReduce(d, e, 1, cnclInt64, cnclSum, NULL, q), CNCL_RET_ERR_NULL_POINTER);
    EXPECT(cnclAllReduce(v, v, 1, cnclInt64, cnclSum, c, q), CNCL_RET_ERR_MLU_RUNTIME);
    EXPECT(cnclSend(d, 1, cnclInt64, 2, c, q), CNCL_RET_ERR_ARGUMENTS);
    EXPECT(cnclGroupEnd(), CNCL_RET_ERR_ARGUMENTS);

    /* notifiers */
    cnrtQueue_t q2;
    cnrtNotifier_t x;
    OK(cnrtQueueCreate(&q2));
    OK(cnrtNotifierCreateWithFlags(&x, 2));
    int ready = 0;
    if (rank == 0) {
        OK(cnrtInvokeHostFunc(q, wait_for_flag, &ready));
        OK(cnclRecv(e, 1, cnclInt64, 1, c, q));
        EXPECT(cnrtPlaceNotifier((cnrtNotifier_t)q, (cnrtQueue_t)x), cnrtErrorHandleInvalid);
        OK(cnrtPlaceNotifier(x, q));
        EXPECT(cnrtQueueWaitNotifier((cnrtNotifier_t)q2, (cnrtQueue_t)x, 0), cnrtErrorHandleInvalid); /* the wrong way round */
        OK(cnrtQueueWaitNotifier(x, q2, 0));
        EXPECT(cnrtQueryNotifier(x), cnrtErrorBusy);
        EXPECT(cnrtQueueQuery(q2), cnrtErrorNotReady);
        EXPECT(cnrtGetLastError(), cnrtErrorNotReady);
        OK(cnrtGetLastError());
        ready = 1;
    } else {
        OK(cnclSend(d, 1, cnclInt64, 0, c, q));
        OK(cnrtPlaceNotifierWithFlags(x, q, 0));
    }
    OK(cnrtQueueSync(q2));
    OK(cnrtWaitNotifier(x));
    OK(cnrtQueryNotifier(x));
    OK(cnrtMemcpyAsync_V2(v, e, 8, q2, cnrtMemcpyDevToHost));
    OK(cnrtQueueSync(q2));
    cnrtPointerAttributes_t at;
    OK(cnrtPointerGetAttributes(&at, (char *)e + 8));
    EXPECT(at.type, cnrtMemTypeDevice);
    EXPECT(at.device, 2 + rank);
    OK(cnrtPointerGetAttributes(&at, v));
    EXPECT(at.type, cnrtMemTypeUnregistered);
    OK(cnrtNotifierDestroy(x));
    OK(cnrtQueueDestroy(q2));
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    int rank = me->rank, dev = 2 + rank;
    cnclComm_t c;
    cnrtQueue_t q;
    static const int bytes[] = {0, 10, 60, 127, 128, 135};
    OK(cnrtSetDevice(1)); /* the list counts, not this */
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        struct cnclCliqueId bad = me->id;
        ((char *)&bad)[bytes[i]] ^= 1;
        EXPECT(cnclInitComms(&c, 1, &dev, &rank, 2, &bad), CNCL_RET_ERR_ARGUMENTS);
    }
    OK(cnclInitComms(&c, 1, &dev, &rank, 2, &me->id));
    EXPECT(cnclInitComms(&c, 1, &dev, &rank, 2, &me->id), CNCL_RET_ERR_REINIT);
    OK(cnrtSetDevice(dev));
    OK(cnrtQueueCreate(&q));
    operations(rank, c, q);
    OK(cnrtQueueSync(q));
    if (rank)
        usleep(100000);
    OK(cnclDestroyComms(&c, 1)); /* together */
    EXPECT(cnclGetCommAsyncError(c), CNCL_RET_ERR_ARGUMENTS);
    OK(cnrtQueueDestroy(q));
    return NULL;
}

struct init { struct cnclCliqueId *id; int rank, wait; };
static void *init_one(void *arg)
{
    struct init *i = arg;
    cnclComm_t c;
    usleep((useconds_t)i->wait);
    OK(cnclInitComms(&c, 1, &i->rank, &i->rank, 2, i->id));
    return NULL;
}

/* Two cliques from two threads: in the same order it works, in another one nobody comes through. */
static void two_cliques(struct rank *me, bool same)
{
    bool turned = me->rank && !same;
    struct init x[2] = {{turned ? &me->second : &me->id, me->rank, 0}, {turned ? &me->id : &me->second, me->rank, 300000}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, init_one, &x[i]);
    if (same)
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
    else {
        usleep(800000);
        EXPECT(pthread_tryjoin_np(t[0], NULL) != 0, 1);
        EXPECT(pthread_tryjoin_np(t[1], NULL) != 0, 1);
    }
}
static void *same_order(void *arg) { return two_cliques(arg, true), NULL; }
static void *other_order(void *arg) { return two_cliques(arg, false), NULL; }

static void one_process(void)
{
    struct cnclCliqueId id;
    cnclComm_t c[2];
    cnrtQueue_t q[2];
    int dev[2] = {0, 1}, rank[2] = {1, 0}, n;
    unsigned count;
    void *b[2];
    OK(cnrtGetDeviceCount(&count));
    EXPECT(count, 4);
    OK(cnclGetCliqueId(&id));
    OK(cnclInitComms(c, 2, dev, rank, 2, &id));
    OK(cnclGetCommRank(&n, c[0]));
    EXPECT(n, 1);
    for (int i = 0; i < 2; i++) {
        float f = 1.5f;
        OK(cnrtSetDevice(i));
        OK(cnrtQueueCreate(&q[i]));
        b[i] = upload(&f, 4);
    }
    OK(cnclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(cnclAllReduce(b[i], b[i], 1, cnclFloat, cnclProd, c[i], q[i]));
    OK(cnclGroupEnd());
    for (int i = 0; i < 2; i++) {
        float f;
        OK(cnrtQueueSync(q[i]));
        download(&f, b[i], 4);
        EXPECT(f == 2.25f, 1);
    }
    OK(cnclDestroyComms(c, 2));
    OK(cnclGetCliqueId(&id));
    OK(cnclInitComms(c, 2, dev, rank, 2, &id));
    OK(cnclAbortComm(c[0]));
    OK(cnclAbortComm(c[1]));
    puts("one process: ok");
    fflush(stdout);
}

int main(void)
{
    struct rank r[2] = {{.rank = 0}, {.rank = 1}};
    void *(*what[3])(void *) = {rank_main, same_order, other_order};
    alarm(60);
    for (int i = 0; i < 3; i++) {
        OK(cnclGetCliqueId(&r[0].id));
        OK(cnclGetCliqueId(&r[0].second));
        r[1].id = r[0].id;
        r[1].second = r[0].second;
        two_ranks(true, what[i], r, sizeof *r);
    }
    one_process();
    return 0;
}
