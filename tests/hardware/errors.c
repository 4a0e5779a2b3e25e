/* What goes wrong, and what is rarely used: each must end in words and in bounded time, and leave the rest working. */
#include "hw.h"

enum { count = 10007 };

static void group_poisoned(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4), *b = device_memory(count * 4);
    flagosResult_t inside, end;
    int round;
    for (round = 0; round < 2; round++) { /* the refused call last, then first */
        upload(a, count, rank, 0);
        upload(b, count, rank, 50); /* must stay */
        FLAGOS(GroupStart());
        if (round == 0) FLAGOS(AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        inside = F.AllReduce(a, b, count, 99, flagosSum, r.comm, stream_of(&r));
        EXPECT(inside == flagosInvalidArgument, "type 99 gave %d", (int)inside);
        if (round == 1) F.AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r));
        end = F.GroupEnd();
        EXPECT(end == inside, "GroupEnd gave %d, %s", (int)end, last_text());
        CUDA(StreamSynchronize(r.stream));
        CUDA(DeviceSynchronize());
        expect_values(__LINE__, b, count, rank, 50);
        expect_works(__LINE__, &r, round);
    }
    report(rank, "refused_type", "GroupEnd returns the error, nothing was launched, the next collective is right");
    FLAGOS(GroupStart());
    FLAGOS(Send(a, count, flagosFloat32, 1 - rank, r.comm, stream_of(&r)));
    inside = F.Recv(b, count, flagosFloat32, 7, r.comm, stream_of(&r));
    EXPECT(inside == flagosInvalidArgument, "peer 7 gave %d", (int)inside);
    end = F.GroupEnd();
    EXPECT(end == inside, "GroupEnd gave %d, %s", (int)end, last_text());
    CUDA(StreamSynchronize(r.stream));
    expect_values(__LINE__, b, count, rank, 50);
    expect_works(__LINE__, &r, 9);
    report(rank, "refused_peer", "half an exchange was not launched");
    FLAGOS(GroupStart());
    expect_refused(__LINE__, F.Barrier(r.comm, stream_of(&r)), flagosInvalidUsage, "group");
    end = F.GroupEnd();
    EXPECT(end == flagosInvalidUsage, "GroupEnd gave %d", (int)end);
    expect_works(__LINE__, &r, 10);
    report(rank, "barrier", "a barrier in a group is refused, and so is its end");
    leave(&r);
}

static void arguments(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4);
    flagosComm_t none = NULL;
    size_t words[2] = {1, 1};
    expect_refused(__LINE__, F.AllReduce(a, a, count, 99, flagosSum, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.AllReduce(a, a, count, -1, flagosSum, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.AllReduce(a, a, count, flagosFloat32, 55, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.AllReduce(NULL, a, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.AllReduce(a, a, (size_t)-1 / 2, flagosFloat32, flagosSum, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.Broadcast(a, a, count, flagosFloat32, 2, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.Send(a, count, flagosFloat32, -1, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    expect_refused(__LINE__, F.AlltoAllv(a, NULL, words, a, words, words, flagosFloat32, r.comm, stream_of(&r)), flagosInvalidArgument, NULL);
    text_of = NULL;
    EXPECT(F.AllReduce(a, a, count, flagosFloat32, flagosSum, none, stream_of(&r)) == flagosInvalidArgument, "NULL was accepted");
    EXPECT(F.AllReduce(a, a, count, flagosFloat32, flagosSum, (flagosComm_t)(size_t)0xdeadbeef, stream_of(&r)) == flagosInvalidArgument,
           "a made-up handle was accepted");
    text_of = r.comm;
    expect_works(__LINE__, &r, 1);
    /* Nothing to do is no error. */
    FLAGOS(AllReduce(NULL, NULL, 0, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    expect_works(__LINE__, &r, 2);
    report(rank, "refused", "types, operators, roots, peers, NULLs, sizes and handles, each with a result; the next call is right");
    leave(&r);
    EXPECT(F.AllReduce(a, a, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)) == flagosInvalidArgument, "destroyed, but accepted");
    EXPECT(F.CommDestroy(r.comm) == flagosInvalidArgument, "destroyed twice");
    report(rank, "destroyed", "a handle that was destroyed is refused");
    CUDA(Free(a));
}

static void same_device(int rank)
{
    flagosUniqueId id = common_id(rank);
    flagosComm_t comm = (flagosComm_t)(size_t)1;
    flagosResult_t result;
    double start = now();
    set_device(0);
    result = F.CommInitRank(&comm, 2, &id, rank);
    expect_refused(__LINE__, result, flagosInvalidUsage, "device");
    EXPECT(comm == NULL, "the handle is %p", (void *)comm);
    EXPECT(now() - start < 20, "it took %.1f s", now() - start);
    EXPECT(get_device() == 0, "the device has changed");
    report(rank, "refused", "%s", F.GetLastError(NULL));
}

static void checked(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4);
    flagosResult_t result;
    double start = now();
    expect_works(__LINE__, &r, 0);
    result = F.AllReduce(a, a, count - (size_t)rank, flagosFloat32, flagosSum, r.comm, stream_of(&r));
    EXPECT(result == flagosInvalidUsage, "other counts gave %d", (int)result);
    EXPECT(now() - start < 20, "it took %.1f s", now() - start);
    report(rank, "mismatch", "%s", last_text());
    text_of = NULL;
    F.CommAbort(r.comm);
    CUDA(Free(a));
}

static void premulsum(int rank)
{
    struct rank r = join(rank, NULL);
    void *a = device_memory(count * 4), *b = device_memory(count * 4), *scalar = device_memory(4);
    float host[count], factor;
    int i, where;
    for (where = 0; where < 2; where++) {
        flagosRedOp_t op = 0;
        size_t wrong = 0;
        factor = rank == 0 ? 2.0f : 0.5f;
        upload(a, count, rank, where);
        CUDA(Memcpy(scalar, &factor, 4, to_device));
        FLAGOS(RedOpCreatePreMulSum(&op, where == flagosScalarHostImmediate ? (void *)&factor : scalar, flagosFloat32, where, r.comm));
        EXPECT(op >= FLAGOS_FIRST_CUSTOM_REDOP, "operator %d", op);
        factor = -1; /* a host scalar was copied */
        FLAGOS(AllReduce(a, b, count, flagosFloat32, op, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        CUDA(Memcpy(host, b, sizeof host, to_host));
        for (i = 0; i < count; i++) {
            wrong += host[i] != 2.0f * value(0, (size_t)i, where) + 0.5f * value(1, (size_t)i, where);
        }
        EXPECT(wrong == 0, "%zu wrong values, scalar residence %d", wrong, where);
        FLAGOS(RedOpDestroy(op, r.comm));
        EXPECT(F.AllReduce(a, b, count, flagosFloat32, op, r.comm, stream_of(&r)) == flagosInvalidArgument, "a freed operator was accepted");
    }
    expect_works(__LINE__, &r, 4);
    report(rank, "premulsum", "scalars in host and device memory, another factor on each rank; a freed operator is refused");
    leave(&r);
}

static void alltoallv(int rank)
{
    struct rank r = join(rank, NULL);
    /* Rank i sends 1000 + 300 i + 7 j elements to rank j; rank 0 sends nothing to itself in the second round. */
    enum { room = 4096 };
    void *a = device_memory(2 * room * 4), *b = device_memory(2 * room * 4);
    int round, i;
    for (round = 0; round < 2; round++) {
        size_t sent[2], from[2] = {11, room}, got[2], to[2] = {room, 5};
        for (i = 0; i < 2; i++) {
            sent[i] = round == 1 && i == rank ? 0 : 1000 + 300 * (size_t)rank + 7 * (size_t)i;
            got[i] = round == 1 && i == rank ? 0 : 1000 + 300 * (size_t)i + 7 * (size_t)rank;
        }
        upload(a, 2 * room, rank, round);
        upload(b, 2 * room, 5, 77);
        FLAGOS(AlltoAllv(a, sent, from, b, got, to, flagosFloat32, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        {
            float *host = malloc(2 * room * 4);
            size_t k, wrong = 0;
            CUDA(Memcpy(host, b, 2 * room * 4, to_host));
            for (k = 0; k < 2 * room; k++) {
                float wanted = value(5, k, 77);
                for (i = 0; i < 2; i++) {
                    if (k >= to[i] && k < to[i] + got[i]) wanted = value(i, from[rank] + k - to[i], round);
                }
                wrong += host[k] != wanted;
            }
            EXPECT(wrong == 0, "%zu wrong values in round %d", wrong, round);
            free(host);
        }
    }
    expect_works(__LINE__, &r, 4);
    report(rank, "uneven", "other counts for each pair, zero among them; nothing beside the blocks was touched");
    leave(&r);
}

static void split(int rank)
{
    struct rank r = join(rank, NULL), child = r;
    flagosComm_t single = NULL, none = (flagosComm_t)(size_t)1;
    int number = -1, place = -1;
    FLAGOS(CommSplit(r.comm, 3, -rank, &child.comm, NULL)); /* the order is turned round */
    if (child.comm == NULL) give_up("no child");
    FLAGOS(CommCount(child.comm, &number));
    FLAGOS(CommUserRank(child.comm, &place));
    EXPECT(number == 2 && place == 1 - rank, "rank %d of %d", place, number);
    expect_works(__LINE__, &child, 1);
    expect_works(__LINE__, &r, 2);
    FLAGOS(CommSplit(r.comm, rank == 0 ? 1 : FLAGOS_SPLIT_NOCOLOR, 0, rank == 0 ? &single : &none, NULL));
    if (rank == 0) {
        FLAGOS(CommCount(single, &number));
        EXPECT(number == 1, "%d ranks", number);
        FLAGOS(CommDestroy(single));
    } else {
        EXPECT(none == NULL, "NOCOLOR gave a communicator");
    }
    text_of = child.comm;
    FLAGOS(CommDestroy(r.comm));
    expect_works(__LINE__, &child, 3);
    text_of = NULL;
    FLAGOS(CommDestroy(child.comm));
    report(rank, "split", "order by key, a rank without colour, and a child that outlives its parent");
}

static void shrink(int rank)
{
    struct rank r = join(rank, NULL);
    flagosComm_t less = NULL;
    flagosResult_t result = flagosSuccess;
    int gone = 1, number = 0, can = 1;
    expect_works(__LINE__, &r, 0);
    if (rank == 0) {
        result = F.CommShrink(r.comm, &gone, 1, &less, NULL, FLAGOS_SHRINK_DEFAULT);
        if (result == flagosNotSupported) {
            S->flag[0] = 1;
        } else {
            EXPECT(result == flagosSuccess, "%d, %s", (int)result, last_text());
        }
        if (less != NULL) {
            FLAGOS(CommCount(less, &number));
            EXPECT(number == 1, "%d ranks", number);
            FLAGOS(CommDestroy(less));
        }
    }
    meet();
    can = !S->flag[0];
    meet();
    if (can) report(rank, "shrink", "one rank is left");
    else skip(rank, "shrink", last_text());
    expect_works(__LINE__, &r, 1);
    report(rank, "parent", "the old communicator still works");
    leave(&r);
}

static void memory(int rank)
{
    struct rank r = join(rank, NULL);
    enum { bytes = 4 << 20, elements = bytes / 4 };
    void *a = NULL, *b = NULL, *ordinary, *handle = NULL;
    flagosWindow_t window[2] = {NULL, NULL};
    flagosResult_t result;
    int flags;
    FLAGOS(MemAlloc(&a, bytes));
    FLAGOS(MemAlloc(&b, bytes));
    if (a == NULL || b == NULL) give_up("no memory");
    upload(a, elements, rank, 0);
    FLAGOS(AllReduce(a, b, elements, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    expect_sum(__LINE__, b, elements, 0, 1);
    report(rank, "mem_alloc", "all_reduce in memory of flagosMemAlloc");

    ordinary = device_memory(bytes);
    result = F.CommRegister(r.comm, ordinary, bytes, &handle);
    EXPECT(result == flagosSuccess || result == flagosNotSupported, "%d, %s", (int)result, last_text());
    upload(ordinary, elements, rank, 1);
    FLAGOS(AllReduce(ordinary, ordinary, elements, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    CUDA(StreamSynchronize(r.stream));
    expect_sum(__LINE__, ordinary, elements, 1, 1);
    if (handle != NULL) FLAGOS(CommDeregister(r.comm, handle));
    report(rank, "register", "%s", result == flagosSuccess ? "all_reduce in place in registered memory" : last_text());

    for (flags = FLAGOS_WIN_DEFAULT; flags <= FLAGOS_WIN_COLL_SYMMETRIC; flags++) {
        const char *name = flags ? "window_symmetric" : "window";
        int can;
        if (flags && number_from("HW_SYMMETRIC", 0) == 0) {
            skip(rank, name, "NVLink multicast may be on; HW_SYMMETRIC=1 runs it all the same");
            continue;
        }
        result = F.CommWindowRegister(r.comm, a, bytes, &window[0], flags);
        EXPECT(result == flagosSuccess || result == flagosNotSupported, "%d, %s", (int)result, last_text());
        if (result == flagosNotSupported) S->flag[flags] = 1;
        meet();
        can = !S->flag[flags];
        EXPECT(can == (result == flagosSuccess), "one rank has a window and the other has none");
        if (!can) {
            skip(rank, name, last_text());
            continue;
        }
        FLAGOS(CommWindowRegister(r.comm, b, bytes, &window[1], flags));
        upload(a, elements, rank, 2 + flags);
        FLAGOS(AllReduce(a, b, elements, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        CUDA(StreamSynchronize(r.stream));
        expect_sum(__LINE__, b, elements, 2 + flags, 1);
        FLAGOS(CommWindowDeregister(r.comm, window[0]));
        FLAGOS(CommWindowDeregister(r.comm, window[1]));
        report(rank, name, "registered on all ranks, all_reduce between windows, deregistered");
    }
    expect_works(__LINE__, &r, 7);
    FLAGOS(MemFree(a));
    FLAGOS(MemFree(b));
    EXPECT(F.MemFree(ordinary) == flagosInvalidArgument, "memory of cudaMalloc was freed");
    CUDA(Free(ordinary));
    report(rank, "mem_free", "freed; memory of cudaMalloc is refused");
    leave(&r);
}

static flagosResult_t settle(flagosComm_t comm, double seconds)
{
    flagosResult_t state = flagosInProgress;
    double end = now() + seconds;
    while (now() < end) {
        FLAGOS(CommGetAsyncError(comm, &state));
        if (state != flagosInProgress) break;
        pause_ms(1);
    }
    return state;
}

static void not_blocking(int rank)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosUniqueId id = common_id(rank);
    struct rank r = {rank, rank, NULL, NULL};
    flagosResult_t result, state;
    double start, back;
    config.blocking = 0;
    set_device(rank);
    CUDA(StreamCreateWithFlags(&r.stream, 1));
    if (rank == 1) pause_ms(300); /* the other can't be ready when its call returns */
    start = now();
    result = F.CommInitRankConfig(&r.comm, 2, &id, rank, &config);
    back = now() - start;
    EXPECT(result == flagosInProgress || (rank == 1 && result == flagosSuccess), "init gave %d, %s", (int)result, last_text());
    EXPECT(rank == 1 || back < 0.25, "init returned after %.3f s", back);
    if (r.comm == NULL) give_up("no handle");
    text_of = r.comm;
    state = settle(r.comm, 60);
    EXPECT(state == flagosSuccess, "state %d, %s", (int)state, last_text());
    expect_works(__LINE__, &r, 0);
    text_of = NULL;
    result = F.CommDestroy(r.comm);
    EXPECT(result == flagosSuccess, "destroy: %d", (int)result);
    report(rank, "init", "blocking = 0: InProgress with a handle after %.1f ms, ready after polling, then right", back * 1e3);
}

static void vendor_not_blocking(int rank)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    struct rank r;
    void *a = device_memory(count * 4), *b;
    int round, waited = 0;
    CUDA(Free(a));
    config.vendorNonblocking = 1;
    r = join(rank, &config);
    a = device_memory(count * 4);
    b = device_memory(count * 4);
    for (round = 0; round < 20; round++) {
        flagosResult_t result;
        upload(a, count, rank, round);
        result = F.AllReduce(a, b, count, flagosFloat32, flagosSum, r.comm, stream_of(&r));
        waited += result == flagosInProgress;
        EXPECT(result == flagosSuccess || result == flagosInProgress, "%d, %s", (int)result, last_text());
        result = settle(r.comm, 20);
        EXPECT(result == flagosSuccess, "state %d, %s", (int)result, last_text());
        CUDA(StreamSynchronize(r.stream));
        expect_sum(__LINE__, b, count, round, 1);
    }
    report(rank, "all_reduce", "vendorNonblocking = 1: 20 calls, %d of them InProgress, all right after polling", waited);
    text_of = NULL;
    {
        flagosResult_t result = F.CommDestroy(r.comm);
        EXPECT(result == flagosSuccess || result == flagosInProgress, "destroy: %d", (int)result);
    }
    report(rank, "destroy", "destroyed");
}

struct aborter {
    flagosComm_t comm;
    int after_ms;
    double took;
    flagosResult_t result;
};

static void *abort_it(void *argument)
{
    struct aborter *a = argument;
    double start;
    pause_ms(a->after_ms);
    start = now();
    a->result = F.CommAbort(a->comm);
    a->took = now() - start;
    return NULL;
}

/* Rank 0 is inside a kernel that waits for rank 1, which never comes. */
static void aborted(int rank)
{
    struct rank r = join(rank, NULL);
    struct aborter a = {r.comm, 500, -1, -1};
    void *memory = device_memory(1 << 20);
    pthread_t thread;
    double start, waited = 0;
    expect_works(__LINE__, &r, 0);
    if (rank == 0) {
        pthread_create(&thread, NULL, abort_it, &a);
        FLAGOS(AllReduce(memory, memory, (1 << 20) / 4, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        start = now();
        C.StreamSynchronize(r.stream); /* returns because of the abort */
        waited = now() - start;
        pthread_join(thread, NULL);
        EXPECT(a.result == flagosSuccess, "abort: %d", (int)a.result);
        EXPECT(a.took < 12, "abort took %.1f s", a.took);
        EXPECT(waited < 14, "the stream was stuck for %.1f s", waited);
        EXPECT(F.AllReduce(memory, memory, 1, flagosFloat32, flagosSum, r.comm, stream_of(&r)) == flagosInvalidArgument,
               "aborted, but accepted");
    }
    report(rank, "other_thread", "while the stream waits for a rank that never comes: abort took %.3f s, the stream was free after %.3f s",
           a.took, waited);
    if (rank == 1) {
        text_of = NULL;
        a.after_ms = 0;
        abort_it(&a);
        EXPECT(a.result == flagosSuccess, "abort: %d", (int)a.result);
        EXPECT(a.took < 12, "abort took %.1f s", a.took);
    }
    report(rank, "other_rank", "the other rank's abort is bounded too");
    text_of = NULL;
    CUDA(Free(memory)); /* the device is in order */
    report(rank, "device_after", "the device still works");
}

/* Abort while init waits for the other rank. */
static void aborted_init(int rank)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosUniqueId id = common_id(rank);
    if (rank == 0) {
        flagosComm_t comm = NULL;
        flagosResult_t result, state = flagosSuccess;
        double start;
        config.blocking = 0;
        set_device(0);
        result = F.CommInitRankConfig(&comm, 2, &id, 0, &config);
        EXPECT(result == flagosInProgress, "init gave %d", (int)result);
        pause_ms(300);
        if (comm != NULL) FLAGOS(CommGetAsyncError(comm, &state));
        EXPECT(state == flagosInProgress, "state %d", (int)state);
        start = now();
        FLAGOS(CommAbort(comm));
        EXPECT(now() - start < 12, "abort took %.1f s", now() - start);
        set_device(1);
    }
    report(rank, "init", "abort while init waits for a rank that never comes");
}

static void killed(int rank)
{
    struct rank r = join(rank, NULL);
    void *memory = device_memory(1 << 20);
    expect_works(__LINE__, &r, 0);
    meet();
    if (rank == 1) {
        raise(SIGKILL);
    } else {
        flagosResult_t state = flagosSuccess, result;
        double start = now(), seen, took, freed;
        char text[1024];
        FLAGOS(AllReduce(memory, memory, (1 << 20) / 4, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        while (now() < start + 15) {
            FLAGOS(CommGetAsyncError(r.comm, &state));
            if (state != flagosSuccess && state != flagosInProgress) break;
            pause_ms(2);
        }
        seen = now() - start;
        EXPECT(state == flagosRemoteError, "state %d after %.1f s", (int)state, seen);
        snprintf(text, sizeof text, "%s", last_text());
        start = now();
        result = F.CommAbort(r.comm);
        took = now() - start;
        EXPECT(result == flagosSuccess, "abort: %d", (int)result);
        EXPECT(took < 12, "abort took %.1f s", took);
        C.StreamSynchronize(r.stream);
        freed = now() - start;
        EXPECT(freed < 14, "the stream was stuck for %.1f s", freed);
        text_of = NULL;
        /* The other rank is gone: no meeting. */
        {
            char detail[2048];
            snprintf(detail, sizeof detail, "seen after %.3f s, abort took %.3f s, the stream was free %.3f s after it began: %s", seen, took,
                     freed, text);
            line(S->failures ? "FAIL" : "PASS", "errors.killed.survivor", S->failures ? S->first : detail);
            S->lines++;
            S->failed += S->failures != 0;
            S->failures = 0;
        }
    }
}

/* The other rank comes late: the stream waits, nothing is wrong, and the result is right. */
static void late(int rank)
{
    struct rank r = join(rank, NULL);
    void *memory = device_memory(count * 4);
    flagosResult_t state = flagosSuccess;
    double start, waited;
    expect_works(__LINE__, &r, 0);
    meet();
    if (rank == 1) pause_ms(1500);
    upload(memory, count, rank, 3);
    start = now();
    FLAGOS(AllReduce(memory, memory, count, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
    if (rank == 0) {
        pause_ms(500);
        FLAGOS(CommGetAsyncError(r.comm, &state));
        EXPECT(state == flagosSuccess, "state %d while the other rank is late: %s", (int)state, last_text());
    }
    CUDA(StreamSynchronize(r.stream));
    waited = now() - start;
    expect_sum(__LINE__, memory, count, 3, 1);
    EXPECT(rank == 1 || (waited > 1.0 && waited < 10), "the stream took %.3f s", waited);
    report(rank, "all_reduce", "the other rank came 1.5 s late: right after %.3f s", waited);
    text_of = NULL;
    FLAGOS(CommDestroy(r.comm));
    report(rank, "destroy", "destroyed");
}

/* Rank 0 only waits for its stream, inside a kernel that waits for rank 1, which was killed or stopped: the thread
 * of FLAGOSCOMM_LIVENESS frees it. */
static void freed_by_liveness(int rank, int signal, const char *name)
{
    struct rank r = join(rank, NULL);
    void *memory = device_memory(1 << 20);
    flagosResult_t state = flagosSuccess;
    expect_works(__LINE__, &r, 0);
    meet();
    if (rank == 1) {
        if (signal == SIGSTOP && fork() == 0) { /* wakes the stopped rank when the other one is done */
            pid_t parent = getppid();
            pause_ms(12000);
            kill(parent, SIGCONT);
            _exit(0);
        }
        raise(signal);
        pause_ms(500);
        state = F.CommAbort(r.comm);
        EXPECT(state == flagosSuccess, "abort after the stop: %d", (int)state);
        text_of = NULL;
        return;
    }
    {
        char detail[2048], text[1024];
        double start = now(), freed;
        FLAGOS(AllReduce(memory, memory, (1 << 20) / 4, flagosFloat32, flagosSum, r.comm, stream_of(&r)));
        C.StreamSynchronize(r.stream);
        freed = now() - start;
        EXPECT(freed < 10, "the stream was stuck for %.1f s", freed);
        FLAGOS(CommGetAsyncError(r.comm, &state));
        EXPECT(state == flagosRemoteError, "state %d", (int)state);
        snprintf(text, sizeof text, "%s", last_text());
        EXPECT(strstr(text, "rank 1") != NULL, "it does not name the rank: %s", text);
        F.CommDestroy(r.comm);
        text_of = NULL;
        snprintf(detail, sizeof detail, "the stream was free after %.3f s without a call of ours: %s", freed, text);
        line(S->failures ? "FAIL" : "PASS", name, S->failures ? S->first : detail);
        S->lines++;
        S->failed += S->failures != 0;
        S->failures = 0;
    }
}

static void killed_and_freed(int rank) { freed_by_liveness(rank, SIGKILL, "errors.liveness_killed.survivor"); }
static void stopped_and_freed(int rank) { freed_by_liveness(rank, SIGSTOP, "errors.liveness_stopped.survivor"); }

/* A rank that never comes: the deadline, and its name. */
static void missing(int rank)
{
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    flagosUniqueId id = common_id(rank);
    if (rank == 0) {
        flagosComm_t comm = NULL;
        double start = now();
        config.initTimeoutMs = 1500;
        set_device(0);
        expect_refused(__LINE__, F.CommInitRankConfig(&comm, 2, &id, 0, &config), flagosTimeout, "1");
        EXPECT(comm == NULL, "a handle after a failure");
        EXPECT(now() - start < 6, "it took %.1f s", now() - start);
    }
    report(rank, "init", "%s", rank == 0 ? last_text() : "");
}

#define NATIVE "FLAGOSCOMM_TIERS=native"
static const struct scenario list[] = {
    {"errors.group", processes, 2, 40, group_poisoned, {NATIVE}, 0, 0},
    {"errors.group_threads", threads, 2, 40, group_poisoned, {NATIVE}, 0, 0},
    {"errors.arguments", processes, 2, 40, arguments, {NATIVE}, 0, 0},
    {"errors.same_device", processes, 1, 40, same_device, {NATIVE}, 0, 0},
    {"errors.checked", processes, 2, 40, checked, {NATIVE, "FLAGOSCOMM_CHECK=1"}, 0, 0},
    {"errors.redop", processes, 2, 40, premulsum, {NATIVE}, 0, 0},
    {"errors.alltoallv", processes, 2, 40, alltoallv, {NATIVE}, 0, 0},
    {"errors.split", processes, 2, 40, split, {NATIVE}, 0, 0},
    {"errors.shrink", processes, 2, 40, shrink, {NATIVE}, 0, 0},
    {"errors.memory", processes, 2, 40, memory, {NATIVE}, 0, 0},
    {"errors.not_blocking", processes, 2, 60, not_blocking, {NATIVE}, 0, 0},
    {"errors.vendor_not_blocking", processes, 2, 60, vendor_not_blocking, {NATIVE}, 0, 0},
    {"errors.abort", processes, 2, 60, aborted, {NATIVE}, 0, 0},
    {"errors.abort_init", processes, 2, 40, aborted_init, {NATIVE}, 0, 0},
    {"errors.killed", processes, 2, 60, killed, {NATIVE}, 1, 0},
    {"errors.late", processes, 2, 40, late, {NATIVE}, 0, 0},
    {"errors.liveness_killed", processes, 2, 60, killed_and_freed, {NATIVE, "FLAGOSCOMM_LIVENESS=2"}, 1, 0},
    {"errors.liveness_stopped", processes, 2, 60, stopped_and_freed, {NATIVE, "FLAGOSCOMM_LIVENESS=2"}, 0, 0},
    {"errors.missing", processes, 2, 40, missing, {NATIVE}, 0, 0},
};
HW_MAIN(list)
