/*
 * A program of NCCL's on N ranks, on any accelerator with a runtime of CUDA's shape and on none: every operation, types
 * and operators, groups, split, shrink, configs of every header, communicators that don't block.
 *
 * usage: ranks threads N | ranks single N | ranks RANK N IDFILE; behind it PREFIX RUNTIME name the accelerator's runtime
 * threads: each rank is a thread; single: one thread owns all of them. LACKS names what the library below has not: operations,
 * 64bit for reductions of types of 64 bits.
 */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COMPLAIN(...)                                                                      \
    do {                                                                                   \
        fprintf(stderr, "line %d: ", __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                      \
        fprintf(stderr, "\n");                                                             \
        _exit(1);                                                                          \
    } while (0)
#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            COMPLAIN("%s", #condition);                                                    \
        }                                                                                  \
    } while (0)
#define GIVES(expected, call)                                                              \
    do {                                                                                   \
        int result_ = (int)nccl##call;                                                     \
        if (result_ != (int)(expected)) {                                                  \
            COMPLAIN("%s returned %d, not %d: %s", #call, result_, (int)(expected),        \
                     ncclGetLastError(NULL));                                              \
        }                                                                                  \
    } while (0)
#define OK(call) GIVES(ncclSuccess, call)

/* ---- the accelerator ---- */

static struct {
    int (*SetDevice)(int);
    int (*Malloc)(void **, size_t);
    int (*Memcpy)(void *, const void *, size_t, int);
    int (*StreamCreateWithFlags)(void **, unsigned);
    int (*StreamSynchronize)(void *);
    int (*Free)(void *);
} device;

static void load(const char *prefix, const char *runtime)
{
    void *library = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
    char name[64];
    if (library == NULL) COMPLAIN("%s", dlerror());
#define LOOK(suffix)                                                                       \
    snprintf(name, sizeof name, "%s" #suffix, prefix);                                     \
    *(void **)&device.suffix = dlsym(library, name);                                       \
    if (device.suffix == NULL) COMPLAIN("no %s", name)
    LOOK(SetDevice);
    LOOK(Malloc);
    LOOK(Memcpy);
    LOOK(StreamCreateWithFlags);
    LOOK(StreamSynchronize);
    LOOK(Free);
}

#define DEVICE(call)                                                                       \
    do {                                                                                   \
        int rc_ = device.SetDevice == NULL ? 0 : device.call;                              \
        if (rc_ != 0) {                                                                    \
            COMPLAIN("%s: %d", #call, rc_);                                                \
        }                                                                                  \
    } while (0)

static void copy(void *to, const void *from, size_t bytes, int kind)
{
    if (device.SetDevice == NULL) memcpy(to, from, bytes);
    DEVICE(Memcpy(to, from, bytes, kind));
}

#define SELECT(o) DEVICE(SetDevice((o)->device))
#define PUT(to, from, bytes) copy(to, from, bytes, 1)
#define GET(to, from, bytes) copy(to, from, bytes, 2)
#define SETTLE(o) DEVICE(StreamSynchronize((o)->stream))
#define MEET() (void)0
#include "operations.h"

static int ranks;
static ncclUniqueId ids[config_header_count + 4];

static void *memory(size_t bytes)
{
    void *got = device.SetDevice == NULL ? malloc(bytes) : NULL;
    DEVICE(Malloc(&got, bytes));
    CHECK(got != NULL);
    return got;
}

static void prepare(struct one *o, int rank)
{
    memset(o, 0, sizeof *o);
    o->rank = rank;
    o->device = device.SetDevice == NULL ? 0 : rank;
    o->lacks = getenv("LACKS");
    SELECT(o);
    DEVICE(StreamCreateWithFlags((void **)&o->stream, 1));
    o->in = memory(most * count * sizeof(float));
    o->out = memory(most * count * sizeof(float));
    o->host = malloc(most * count * sizeof(float));
}

static void give_back(struct one *o)
{
    SELECT(o);
    if (device.SetDevice == NULL) {
        free(o->in);
        free(o->out);
    }
    DEVICE(Free(o->in));
    DEVICE(Free(o->out));
    free(o->host);
}

/* ---- what each rank does on its own ---- */

static int lacks(const struct one *o, const char *what)
{
    return o->lacks != NULL && strstr(o->lacks, what) != NULL;
}

/* Each number means what NCCL says: n ones are n. */
static void types_and_operators(struct one *o)
{
    static const struct { size_t size; unsigned long long ones[5]; } as[] = {
        { 1, { 0, 1, 2, 3, 4 } }, { 1, { 0, 1, 2, 3, 4 } }, { 4, { 0, 1, 2, 3, 4 } }, { 4, { 0, 1, 2, 3, 4 } },
        { 8, { 0, 1, 2, 3, 4 } }, { 8, { 0, 1, 2, 3, 4 } }, { 2, { 0, 0x3c00, 0x4000, 0x4200, 0x4400 } },
        { 4, { 0, 0x3f800000, 0x40000000, 0x40400000, 0x40800000 } },
        { 8, { 0, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000, 0x4010000000000000 } },
        { 2, { 0, 0x3f80, 0x4000, 0x4040, 0x4080 } },
    };
    int type, op, i, n = ranks;
    float results[5] = { (float)(n * (n + 1)) / 2, 1, (float)n, 1, (float)(n + 1) / 2 };
    for (i = 2; i <= n; i++) results[ncclProd] *= (float)i;
    for (type = 0; type < (int)(sizeof as / sizeof as[0]); type++) {
        unsigned long long got = 0;
        char *raw = (char *)o->host;
        if (as[type].size == 8 && lacks(o, "64bit")) continue;
        for (i = 0; i < 8; i++) memcpy(raw + (size_t)i * as[type].size, &as[type].ones[1], as[type].size);
        PUT(o->in, raw, 64);
        OK(AllReduce(o->in, o->out, 8, (ncclDataType_t)type, ncclSum, o->comm, o->stream));
        SETTLE(o);
        GET(raw, o->out, 64);
        memcpy(&got, raw + 7 * as[type].size, as[type].size);
        if (got != as[type].ones[n]) COMPLAIN("type %d: %#llx", type, got);
    }
    for (op = 0; op < ncclNumOps; op++) {
        o->host[0] = (float)(o->rank + 1);
        PUT(o->in, o->host, sizeof(float));
        OK(AllReduce(o->in, o->out, 1, ncclFloat32, (ncclRedOp_t)op, o->comm, o->stream));
        SETTLE(o);
        GET(o->host, o->out, sizeof(float));
        if (o->host[0] != results[op]) COMPLAIN("operator %d: %g instead of %g", op, (double)o->host[0], (double)results[op]);
    }
}

/* More than fits anywhere, and all ranks send before they receive: only a real group gets through. */
static void messages(struct one *o)
{
    int next = (o->rank + 1) % ranks, before = (o->rank + ranks - 1) % ranks, i;
    size_t large = (size_t)1 << 20;
    float *out = memory(large * 4), *in = memory(large * 4), *host = malloc(large * 4);
    for (i = 0; i < (int)large; i++) host[i] = input(o->rank, (size_t)i, 0);
    PUT(out, host, large * 4);
    OK(GroupStart());
    OK(GroupStart());
    OK(Send(out, large, ncclFloat32, next, o->comm, o->stream));
    OK(GroupEnd());
    OK(Recv(in, large, ncclFloat32, before, o->comm, o->stream));
    OK(GroupEnd());
    SETTLE(o);
    GET(host, in, large * 4);
    for (i = 0; i < (int)large; i++) CHECK(host[i] == input(before, (size_t)i, 0));
    if (device.SetDevice == NULL) {
        free(out);
        free(in);
    }
    DEVICE(Free(out));
    DEVICE(Free(in));
    free(host);
}

static void wait_for(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    struct timespec nap = { 0, 1000000 };
    int i;
    for (i = 0; i < 20000 && state == ncclInProgress; i++) {
        if (i > 0) nanosleep(&nap, NULL);
        OK(CommGetAsyncError(comm, &state));
    }
    if (state != ncclSuccess) COMPLAIN("state %d: %s", (int)state, ncclGetLastError(comm));
}

/* NCCL's word for a call of a communicator that does not block: done, or ask. */
#define SOON(comm, call)                                                                   \
    do {                                                                                   \
        int soon_ = (int)nccl##call;                                                       \
        if (soon_ != ncclSuccess && soon_ != ncclInProgress) {                             \
            COMPLAIN("%s returned %d: %s", #call, soon_, ncclGetLastError(comm));          \
        }                                                                                  \
        wait_for(comm);                                                                    \
    } while (0)

static void without_blocking(struct one *o, ncclUniqueId id)
{
    ncclConfig_t config = config_of(80, 22809);
    struct one child = *o;
    ncclComm_t none = (ncclComm_t)o;
    config.blocking = 0;
    o->comm = NULL;
    GIVES(ncclInProgress, CommInitRankConfig(&o->comm, ranks, id, o->rank, &config));
    CHECK(o->comm != NULL);
    wait_for(o->comm);
    check_place(o, ranks);
    fill_in(o, ranks, 1);
    SOON(o->comm, AllReduce(o->in, o->out, count, ncclFloat32, ncclSum, o->comm, o->stream));
    SETTLE(o);
    check_result(o, all_reduce, ranks, 0, 1);
    /* The parent is busy until its child is there; a rank without a colour has only the parent to ask. */
    SOON(o->comm, CommSplit(o->comm, 0, -o->rank, &child.comm, &config));
    child.rank = ranks - 1 - o->rank;
    wait_for(child.comm);
    check_place(&child, ranks);
    SOON(o->comm, CommSplit(o->comm, o->rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, &config));
    CHECK((none != NULL) == (o->rank == 0));
    if (none != NULL) {
        wait_for(none);
        OK(CommAbort(none));
        GIVES(ncclInvalidArgument, CommAbort(none));
    }
    fill_in(&child, ranks, 2);
    SOON(child.comm, AllReduce(o->in, o->out, count, ncclFloat32, ncclSum, child.comm, o->stream));
    SETTLE(o);
    check_result(&child, all_reduce, ranks, 0, 2);
    OK(CommDestroy(child.comm));
    SOON(o->comm, CommFinalize(o->comm));
    OK(CommDestroy(o->comm));
}

static void parts(struct one *o)
{
    struct one child = *o;
    ncclComm_t none = (ncclComm_t)o;
    int half = o->rank % 2, excluded = ranks - 1;
    OK(CommSplit(o->comm, half, o->rank, &child.comm, NULL));
    child.rank = o->rank / 2;
    check_place(&child, (ranks + 1 - half) / 2);
    OK(CommDestroy(child.comm));
    OK(CommSplit(o->comm, o->rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
    CHECK((none != NULL) == (o->rank == 0));
    if (none != NULL) OK(CommDestroy(none));
    if (ranks > 2 && o->rank != excluded) {
        OK(CommShrink(o->comm, &excluded, 1, &child.comm, NULL, 0));
        child.rank = o->rank;
        check_place(&child, ranks - 1);
        OK(CommDestroy(child.comm));
    }
}

static void run_rank(int rank)
{
    struct one o;
    ncclResult_t state = ncclInProgress;
    int i;
    prepare(&o, rank);
    for (i = 0; i < config_header_count; i++) {
        ncclConfig_t config = config_of(config_headers[i].size, config_headers[i].version);
        if (config.size > 48) config.commName = "a name";
        if (config.size > 40) config.splitShare = 1;
        OK(CommInitRankConfig(&o.comm, ranks, ids[i], rank, &config));
        check_place(&o, ranks);
        OK(CommDestroy(o.comm));
    }
    OK(CommInitRankScalable(&o.comm, ranks, rank, 1, &ids[i++], NULL));
    OK(CommDestroy(o.comm));
    OK(CommInitRank(&o.comm, ranks, ids[i++], rank));
    check_place(&o, ranks);
    every_operation(&o, 1, ranks);
    types_and_operators(&o);
    if (ranks > 1 && !lacks(&o, "SendRecv")) messages(&o);
    parts(&o);
    OK(CommGetAsyncError(o.comm, &state));
    CHECK(state == ncclSuccess);
    OK(CommFinalize(o.comm));
    GIVES(ncclInvalidUsage, AllReduce(o.in, o.out, 1, ncclFloat32, ncclSum, o.comm, o.stream));
    OK(CommDestroy(o.comm));
    without_blocking(&o, ids[i++]);
    give_back(&o);
}

static void *thread(void *rank)
{
    run_rank((int)(size_t)rank);
    return NULL;
}

/* One thread owns all ranks, as in nccl-tests. */
static void run_single(void)
{
    struct one o[most];
    ncclComm_t comms[most];
    ncclUniqueId id;
    int i;
    for (i = 0; i < ranks; i++) prepare(&o[i], i);
    OK(CommInitAll(comms, ranks, NULL));
    for (i = 0; i < ranks; i++) {
        o[i].comm = comms[i];
        check_place(&o[i], ranks);
    }
    every_operation(o, ranks, ranks);
    for (i = 0; i < ranks; i++) OK(CommDestroy(o[i].comm));
    OK(GetUniqueId(&id));
    OK(GroupStart());
    for (i = 0; i < ranks; i++) {
        SELECT(&o[i]);
        OK(CommInitRank(&o[i].comm, ranks, id, i));
    }
    OK(GroupEnd());
    for (i = 0; i < ranks; i++) check_place(&o[i], ranks);
    every_operation(o, ranks, ranks);
    OK(GroupStart());
    for (i = 0; i < ranks; i++) OK(CommSplit(o[i].comm, i % 2, 0, &comms[i], NULL));
    OK(GroupEnd());
    for (i = 0; i < ranks; i++) {
        struct one child = o[i];
        child.comm = comms[i];
        child.rank = i / 2;
        check_place(&child, (ranks + 1 - i % 2) / 2);
        OK(CommDestroy(child.comm));
    }
    for (i = 0; i < ranks; i++) OK(CommFinalize(o[i].comm));
    for (i = 0; i < ranks; i++) OK(CommDestroy(o[i].comm));
    for (i = 0; i < ranks; i++) give_back(&o[i]);
}

/* All ids are in one file, which rank 0 makes. */
static void share_ids(int rank, const char *path)
{
    struct timespec nap = { 0, 2000000 };
    char other[4096];
    int i, file = -1;
    if (rank == 0) {
        snprintf(other, sizeof other, "%s.new", path);
        for (i = 0; i < (int)(sizeof ids / sizeof ids[0]); i++) OK(GetUniqueId(&ids[i]));
        file = open(other, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        CHECK(write(file, ids, sizeof ids) == (ssize_t)sizeof ids);
        close(file);
        CHECK(rename(other, path) == 0);
        return;
    }
    for (i = 0; i < 10000 && file < 0; i++) {
        file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) nanosleep(&nap, NULL);
    }
    CHECK(read(file, ids, sizeof ids) == (ssize_t)sizeof ids);
    close(file);
}

int main(int argc, char **argv)
{
    int i, version = 0, more = 3;
    if (argc < 3) return 2;
    ranks = atoi(argv[2]);
    CHECK(ranks >= 1 && ranks <= most);
    if (argv[1][0] >= '0' && argv[1][0] <= '9') more = 4;
    if (argc >= more + 2) load(argv[more], argv[more + 1]);
    OK(GetVersion(&version));
    CHECK(version >= 21800 && version <= 22809);
    if (strcmp(argv[1], "single") == 0) {
        run_single();
    } else if (strcmp(argv[1], "threads") == 0) {
        pthread_t others[most];
        for (i = 0; i < (int)(sizeof ids / sizeof ids[0]); i++) OK(GetUniqueId(&ids[i]));
        for (i = 1; i < ranks; i++) CHECK(pthread_create(&others[i], NULL, thread, (void *)(size_t)i) == 0);
        run_rank(0);
        for (i = 1; i < ranks; i++) CHECK(pthread_join(others[i], NULL) == 0);
    } else {
        share_ids(atoi(argv[1]), argv[3]);
        run_rank(atoi(argv[1]));
    }
    return 0;
}
