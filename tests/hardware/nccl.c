/*
 * libnccl.so.2 as a program of NCCL's uses it: found by that name (LD_LIBRARY_PATH has ours in front), one process with
 * one thread and two devices, and two processes, every operation checked; non-blocking communicators. The real NCCL
 * below must be one copy, and not ours.
 */
#include "hw.h"

#include "../fakevendor/abi/nccl.h"

#include <limits.h>

#define NC(X)                                                                                      \
    X(GetVersion) X(GetUniqueId) X(GetErrorString) X(GetLastError) X(CommInitRank)                 \
    X(CommInitRankConfig) X(CommInitRankScalable) X(CommInitAll) X(CommFinalize) X(CommDestroy)    \
    X(CommAbort) X(CommRevoke) X(CommSplit) X(CommShrink) X(CommGetAsyncError) X(CommCount)        \
    X(CommCuDevice) X(CommUserRank) X(RedOpCreatePreMulSum) X(RedOpDestroy) X(Reduce) X(Bcast)     \
    X(Broadcast) X(AllReduce) X(ReduceScatter) X(AllGather) X(AlltoAll) X(Gather) X(Scatter)       \
    X(Send) X(Recv) X(GroupStart) X(GroupEnd) X(GroupSimulateEnd) X(MemAlloc) X(MemFree)           \
    X(CommRegister) X(CommDeregister) X(CommWindowRegister) X(CommWindowDeregister)
#define NC_MEMBER(name) __typeof__(&nccl##name) name;
static struct {
    NC(NC_MEMBER)
} D;

/* The call succeeds. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        int nc_r = (int)D.call;                                                                    \
        if (nc_r != 0) complain(__LINE__, "nccl%s: %d, %s", #call, nc_r, D.GetLastError(NULL));    \
    } while (0)

static void *drop_in;

static void load_drop_in(void)
{
    load_cuda();
    drop_in = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (drop_in == NULL) give_up("%s", dlerror());
#define NC_LOOK(name)                                                                              \
    *(void **)&D.name = dlsym(drop_in, "nccl" #name);                                              \
    if (D.name == NULL) give_up("%s", dlerror());
    NC(NC_LOOK)
}

/* The file of the one that is below. */
static void check_copies(char *path)
{
    int real = real_copies(path, PATH_MAX);
    EXPECT(dlsym(drop_in, "flagos_comm_instance") != NULL, "libnccl.so.2 is not ours");
    EXPECT(real == 1, "%d copies of the real NCCL are mapped, the last is %s", real, path);
}

/* ---- a rank ---- */

#define CALL(name) D.name
#define COMPLAIN(...) complain(__LINE__, __VA_ARGS__)
#define SELECT(o) set_device((o)->device)
#define PUT(to, from, bytes) CUDA(Memcpy(to, from, bytes, to_device))
#define GET(to, from, bytes) CUDA(Memcpy(to, from, bytes, to_host))
#define SETTLE(o) CUDA(StreamSynchronize((o)->stream))
#define MEET() meet()
#include "../c/nccl/operations.h"

enum { devices = 2 };

static void prepare(struct one *o, int rank)
{
    memset(o, 0, sizeof *o);
    o->rank = o->device = rank;
    set_device(rank);
    CUDA(StreamCreateWithFlags((Stream *)&o->stream, 1));
    o->in = device_memory(most * count * sizeof(float));
    o->out = device_memory(most * count * sizeof(float));
    o->host = malloc(most * count * sizeof(float));
}

static void give_back(struct one *o)
{
    set_device(o->device);
    CUDA(StreamDestroy(o->stream));
    CUDA(Free(o->in));
    CUDA(Free(o->out));
    free(o->host);
}

/* ---- one process, one thread, two devices: the shape of nccl-tests ---- */

static void single(int unused)
{
    struct one ones[devices];
    ncclUniqueId id;
    ncclComm_t comms[devices];
    ncclResult_t result;
    ncclSimInfo_t sim = {sizeof sim, NCCL_SIM_MAGIC, 22800, 0};
    int i, version = 0;
    char path[PATH_MAX] = "none";
    load_drop_in();
    for (i = 0; i < devices; i++) prepare(&ones[i], i);

    OK(CommInitAll(comms, devices, NULL));
    OK(GetVersion(&version));
    check_copies(path);
    report(unused, "loaded", "libnccl.so.2 is ours, version %d; the one below is %s", version, path);
    for (i = 0; i < devices; i++) {
        ones[i].comm = comms[i];
        check_place(&ones[i], devices);
    }
    every_operation(ones, devices, devices);
    for (i = 0; i < devices; i++) OK(CommDestroy(comms[i]));
    report(unused, "init_all", "ncclCommInitAll on %d devices, %d operations", devices, ops);

    OK(GetUniqueId(&id));
    OK(GroupStart());
    for (i = 0; i < devices; i++) {
        set_device(i);
        OK(CommInitRank(&ones[i].comm, devices, id, i));
    }
    OK(GroupEnd());
    for (i = 0; i < devices; i++) check_place(&ones[i], devices);
    every_operation(ones, devices, devices);
    report(unused, "init_in_group", "ncclCommInitRank of %d ranks in a group of one thread, %d operations", devices, ops);

    OK(GroupStart());
    for (i = 0; i < devices; i++) start(&ones[i], all_reduce, devices, 0, ncclSum);
    result = D.GroupSimulateEnd(&sim);
    EXPECT(result == ncclSuccess && sim.estimatedTime > 0, "result %d, %g us: %s", (int)result, (double)sim.estimatedTime,
           D.GetLastError(NULL));
    every_operation(ones, devices, devices);
    report(unused, "simulate", "an all-reduce of %d elements is estimated at %g us; operations are right afterwards", count,
           (double)sim.estimatedTime);

    OK(GroupStart());
    for (i = 0; i < devices; i++) OK(CommSplit(ones[i].comm, 0, -i, &comms[i], NULL));
    OK(GroupEnd());
    for (i = 0; i < devices; i++) {
        struct one child = ones[i];
        child.comm = comms[i];
        child.rank = devices - 1 - i;
        check_place(&child, devices);
        OK(CommDestroy(comms[i]));
    }
    report(unused, "split_in_group", "the ranks of one thread split, in another order");

    for (i = 0; i < devices; i++) OK(CommFinalize(ones[i].comm));
    for (i = 0; i < devices; i++) OK(CommDestroy(ones[i].comm));
    report(unused, "end", "finalized and destroyed one after the other by one thread");
    for (i = 0; i < devices; i++) give_back(&ones[i]);
}

/* ---- two processes ---- */

static ncclUniqueId shared_id(int rank)
{
    ncclUniqueId id;
    meet();
    if (rank == 0) {
        OK(GetUniqueId(&id));
        memcpy(&S->nccl_id, &id, sizeof id);
    }
    meet();
    memcpy(&id, &S->nccl_id, sizeof id);
    meet();
    return id;
}

static void two(int rank)
{
    struct one o;
    ncclComm_t child = NULL, none = (ncclComm_t)(size_t)1;
    ncclResult_t result, state = ncclInProgress;
    void *memory = NULL, *handle = NULL;
    ncclWindow_t window = NULL;
    char path[PATH_MAX] = "none";
    size_t i;
    load_drop_in();
    prepare(&o, rank);
    for (i = 0; i < config_header_count; i++) {
        ncclConfig_t config = config_of(config_headers[i].size, config_headers[i].version);
        ncclUniqueId id = shared_id(rank);
        if (config.size >= 80) {
            config.commName = "hardware";
            config.splitShare = 1;
        }
        OK(CommInitRankConfig(&o.comm, 2, id, rank, &config));
        check_place(&o, 2);
        if (i + 1 < config_header_count) OK(CommDestroy(o.comm));
    }
    every_operation(&o, 1, 2);
    check_copies(path);
    report(rank, "operations", "%d operations; the configs of %d headers of NCCL are understood", ops, config_header_count);

    OK(CommSplit(o.comm, 0, 1 - rank, &child, NULL));
    {
        struct one c = o;
        c.comm = child;
        c.rank = 1 - rank;
        check_place(&c, 2);
        every_operation(&c, 1, 2);
    }
    OK(CommDestroy(child));
    OK(CommSplit(o.comm, rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    EXPECT((none == NULL) == (rank == 1), "a rank without a colour got %p", (void *)none);
    if (none != NULL) OK(CommDestroy(none));
    report(rank, "split", "another order, %d operations; a rank without a colour gets NULL", ops);

    OK(MemAlloc(&memory, 1 << 20));
    OK(CommRegister(o.comm, memory, 1 << 20, &handle));
    OK(CommDeregister(o.comm, handle));
    result = D.CommDeregister(o.comm, handle);
    EXPECT(result == ncclInvalidArgument, "a registration that is gone gave %d", (int)result);
    if (number_from("HW_SYMMETRIC", 0)) {
        OK(CommWindowRegister(o.comm, memory, 1 << 20, &window, 1));
        EXPECT(window != NULL, "no window");
        OK(CommWindowDeregister(o.comm, window));
    }
    OK(MemFree(memory));
    report(rank, "memory", "allocated, registered%s", window ? ", a symmetric window" : "");

    OK(CommGetAsyncError(o.comm, &state));
    EXPECT(state == ncclSuccess, "state %d", (int)state);
    result = D.AllReduce(o.in, o.out, count, (ncclDataType_t)99, ncclSum, o.comm, o.stream);
    EXPECT(result == ncclInvalidArgument && strstr(D.GetLastError(o.comm), "99") != NULL, "%d: %s", (int)result,
           D.GetLastError(o.comm));
    every_operation(&o, 1, 2);
    report(rank, "refused", "a bad data type is ncclInvalidArgument with a text, and harms nothing");

    OK(CommFinalize(o.comm));
    OK(CommDestroy(o.comm));
    result = D.CommDestroy(o.comm);
    EXPECT(result == ncclInvalidArgument, "a second destroy gave %d", (int)result);
    give_back(&o);
    report(rank, "end", "finalized and destroyed; a second destroy is ncclInvalidArgument");
}

/* ---- non-blocking ---- */

static int waits;

/* Waits until the state is known. */
static void settle(ncclComm_t comm, ncclResult_t given, const char *what)
{
    ncclResult_t state = given;
    double until = now() + 60;
    if (given != ncclSuccess && given != ncclInProgress) {
        complain(__LINE__, "%s: %d, %s", what, (int)given, D.GetLastError(comm));
        return;
    }
    waits += given == ncclInProgress;
    while (now() < until) {
        ncclResult_t asked = D.CommGetAsyncError(comm, &state);
        if (asked != ncclSuccess) {
            complain(__LINE__, "%s: asking gave %d, %s", what, (int)asked, D.GetLastError(NULL));
            return;
        }
        if (state != ncclInProgress) break;
        pause_ms(1);
    }
    EXPECT(state == ncclSuccess, "%s: state %d, %s", what, (int)state, D.GetLastError(comm));
}

static void nonblocking(int rank)
{
    struct one o;
    ncclConfig_t config = config_of(80, 22809);
    ncclComm_t child = NULL;
    ncclResult_t result;
    ncclUniqueId id;
    int round;
    load_drop_in();
    prepare(&o, rank);
    config.blocking = 0;
    id = shared_id(rank);
    result = D.CommInitRankConfig(&o.comm, 2, id, rank, &config);
    EXPECT(result == ncclInProgress, "the init gave %d", (int)result);
    settle(o.comm, result, "init");
    check_place(&o, 2);
    for (round = 0; round < 5; round++) {
        upload(o.in, count, rank, round);
        settle(o.comm, D.AllReduce(o.in, o.out, count, ncclFloat32, ncclSum, o.comm, o.stream), "AllReduce");
        CUDA(StreamSynchronize(o.stream));
        expect_sum(__LINE__, o.out, count, round, 1);
        settle(o.comm, D.GroupStart(), "GroupStart");
        settle(o.comm, D.Send(o.in, count, ncclFloat32, 1 - rank, o.comm, o.stream), "Send");
        settle(o.comm, D.Recv(o.out, count, ncclFloat32, 1 - rank, o.comm, o.stream), "Recv");
        settle(o.comm, D.GroupEnd(), "GroupEnd");
        CUDA(StreamSynchronize(o.stream));
        expect_values(__LINE__, o.out, count, 1 - rank, round);
    }
    report(rank, "operations", "%d calls said ncclInProgress, all results are right", waits);
    settle(o.comm, D.CommSplit(o.comm, 0, rank, &child, &config), "CommSplit");
    if (child == NULL) give_up("no child");
    settle(child, ncclSuccess, "the child");
    {
        struct one c = o;
        c.comm = child;
        check_place(&c, 2);
        upload(o.in, count, rank, 9);
        settle(child, D.AllReduce(o.in, o.out, count, ncclFloat32, ncclSum, child, o.stream), "AllReduce of the child");
        CUDA(StreamSynchronize(o.stream));
        expect_sum(__LINE__, o.out, count, 9, 1);
    }
    meet(); /* an abort ends the others too */
    OK(CommAbort(child));
    report(rank, "split", "the child works and is aborted");
    settle(o.comm, D.CommFinalize(o.comm), "CommFinalize");
    OK(CommDestroy(o.comm));
    give_back(&o);
    report(rank, "end", "finalized and destroyed");
}

static const struct scenario list[] = {
    {"nccl.single", alone, 2, 120, single, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"nccl.processes", processes, 2, 120, two, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
    {"nccl.nonblocking", processes, 2, 90, nonblocking, {"FLAGOSCOMM_TIERS=native"}, 0, 1},
};
HW_MAIN(list)
