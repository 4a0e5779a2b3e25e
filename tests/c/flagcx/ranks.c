/*
 * A program of FlagCX's on N ranks: every operation, groups, memory, events, through the device handle only, so
 * that it runs on any accelerator and on none.
 *
 * With -DMINI_FLAGCX and mini_flagcx.c in place of the library it runs through FlagCX's plugins.
 *
 * usage: ranks threads N | ranks RANK N IDFILE
 *
 * Environment: EXPECTED_VENDOR, FlagCX's name of the vendor; NOT_EVERYTHING, the vendor can't register memory, fill memory of
 * a device, or say how a device sees pinned memory.
 */
#define _GNU_SOURCE
#include "flagcx.h"
#ifdef MINI_FLAGCX
#include "mini_flagcx.h"
#endif

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...)                                                                          \
    do {                                                                                   \
        fprintf(stderr, "line %d: ", __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                      \
        fprintf(stderr, "\n");                                                             \
        _exit(1);                                                                          \
    } while (0)
#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            FAIL("%s", #condition);                                                        \
        }                                                                                  \
    } while (0)
#define GIVES(expected, call)                                                              \
    do {                                                                                   \
        int result_ = (int)(call);                                                         \
        if (result_ != (int)(expected)) {                                                  \
            FAIL("%s returned %d, not %d: %s", #call, result_, (int)(expected),            \
                 flagcxGetLastError(NULL));                                                \
        }                                                                                  \
    } while (0)
#define OK(call) GIVES(flagcxSuccess, call)

enum { count = 1000, most = 4, large = 1 << 20 };

struct rank {
    int rank, ranks;
    flagcxUniqueId id;
    flagcxDeviceHandle_t device;
    flagcxStream_t stream;
    flagcxComm_t comm;
    double *send, *recv; /* of the device */
    double in[most * count], got[most * count];
};

static double element(int rank, int at)
{
    return rank * 10000 + at;
}

static void fill(struct rank *r, int byte, size_t size, flagcxStream_t stream)
{
    if (!getenv("NOT_EVERYTHING")) {
        OK(r->device->deviceMemset(r->recv, byte, size, flagcxMemDevice, stream));
        return;
    }
    memset(r->got, byte, size);
    OK(r->device->deviceMemcpy(r->recv, r->got, size, flagcxMemcpyHostToDevice, stream));
    OK(r->device->streamSynchronize(stream));
}

static void put(struct rank *r, size_t elements)
{
    size_t i;
    for (i = 0; i < elements; i++) {
        r->in[i] = element(r->rank, (int)i);
    }
    OK(r->device->deviceMemcpy(r->send, r->in, elements * 8, flagcxMemcpyHostToDevice, NULL));
    fill(r, 0xff, most * count * 8, r->stream);
    OK(r->device->streamSynchronize(r->stream));
}

static void get(struct rank *r, const void *from)
{
    OK(r->device->streamSynchronize(r->stream));
    OK(r->device->deviceMemcpy(r->got, (void *)from, most * count * 8, flagcxMemcpyDeviceToHost, NULL));
}

static void reductions(struct rank *r)
{
    int op, i, root, n = r->ranks;
    double sum = n * (n + 1) / 2.0, product = 1, expected[5];
    for (i = 1; i <= n; i++) {
        product *= i;
    }
    expected[flagcxSum] = sum;
    expected[flagcxProd] = product;
    expected[flagcxMax] = n;
    expected[flagcxMin] = 1;
    expected[flagcxAvg] = sum / n;
    for (op = 0; op < flagcxNumRedOps; op++) {
        for (i = 0; i < n * count; i++) {
            r->in[i] = r->rank + 1;
        }
        OK(r->device->deviceMemcpy(r->send, r->in, sizeof r->in, flagcxMemcpyHostToDevice, r->stream));
        OK(flagcxAllReduce(r->send, r->recv, count, flagcxDouble, (flagcxRedOp_t)op, r->comm, r->stream));
        get(r, r->recv);
        CHECK(r->got[0] == expected[op] && r->got[count - 1] == expected[op]);
        fill(r, 0, sizeof r->in, NULL);
        OK(flagcxReduceScatter(r->send, r->recv, count, flagcxDouble, (flagcxRedOp_t)op, r->comm, r->stream));
        get(r, r->recv);
        CHECK(r->got[0] == expected[op] && r->got[count - 1] == expected[op]);
        root = op % n;
        fill(r, 0, sizeof r->in, NULL);
        OK(flagcxReduce(r->send, r->rank == root ? r->recv : NULL, count, flagcxDouble, (flagcxRedOp_t)op, root, r->comm,
                        r->stream));
        get(r, r->recv);
        CHECK(r->got[count - 1] == (r->rank == root ? expected[op] : 0));
    }
}

/* Each number of a type means that type: n ones are n. */
static void types(struct rank *r)
{
    static const struct { size_t size; uint64_t one, two, three, four; } as[flagcxNumTypes] = {
        { 1, 1, 2, 3, 4 }, { 1, 1, 2, 3, 4 }, { 4, 1, 2, 3, 4 }, { 4, 1, 2, 3, 4 }, { 8, 1, 2, 3, 4 }, { 8, 1, 2, 3, 4 },
        { 2, 0x3c00, 0x4000, 0x4200, 0x4400 },
        { 4, 0x3f800000, 0x40000000, 0x40400000, 0x40800000 },
        { 8, 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000, 0x4010000000000000 },
        { 2, 0x3f80, 0x4000, 0x4040, 0x4080 },
    };
    int type, i;
    for (type = 0; type < flagcxNumTypes; type++) {
        uint64_t results[] = { 0, as[type].one, as[type].two, as[type].three, as[type].four }, got = 0;
        char *raw = (char *)r->in;
        CHECK(getFlagcxDataTypeSize((flagcxDataType_t)type) == as[type].size);
        for (i = 0; i < 8; i++) {
            memcpy(raw + (size_t)i * as[type].size, &as[type].one, as[type].size);
        }
        OK(r->device->deviceMemcpy(r->send, raw, 64, flagcxMemcpyHostToDevice, r->stream));
        OK(flagcxAllReduce(r->send, r->recv, 8, (flagcxDataType_t)type, flagcxSum, r->comm, r->stream));
        get(r, r->recv);
        memcpy(&got, (char *)r->got + 7 * as[type].size, as[type].size);
        if (got != results[r->ranks]) {
            FAIL("type %d: %#llx", type, (unsigned long long)got);
        }
    }
}

static void moves(struct rank *r)
{
    int i, j, n = r->ranks, me = r->rank, root = n - 1;
    size_t counts[most], displs[most], other_counts[most];
    put(r, count);
    OK(flagcxAllGather(r->send, r->recv, count, flagcxDouble, r->comm, r->stream));
    get(r, r->recv);
    for (i = 0; i < n; i++) {
        CHECK(r->got[i * count] == element(i, 0) && r->got[i * count + count - 1] == element(i, count - 1));
    }
    put(r, count);
    OK(flagcxBroadcast(me == root ? r->send : NULL, r->recv, count, flagcxDouble, root, r->comm, r->stream));
    get(r, r->recv);
    CHECK(r->got[count - 1] == element(root, count - 1));
    put(r, count);
    OK(flagcxGather(r->send, me == root ? r->recv : NULL, count, flagcxDouble, root, r->comm, r->stream));
    get(r, r->recv);
    for (i = 0; i < n && me == root; i++) {
        CHECK(r->got[i * count + 5] == element(i, 5));
    }
    put(r, (size_t)n * count);
    OK(flagcxScatter(me == root ? r->send : NULL, r->recv, count, flagcxDouble, root, r->comm, r->stream));
    get(r, r->recv);
    CHECK(r->got[5] == element(root, me * count + 5));
    put(r, (size_t)n * count);
    OK(flagcxAlltoAll(r->send, r->recv, count, flagcxDouble, r->comm, r->stream));
    get(r, r->recv);
    for (i = 0; i < n; i++) {
        CHECK(r->got[i * count + 5] == element(i, me * count + 5));
    }
    /* Rank i sends j + 1 elements to rank j. */
    put(r, (size_t)n * count);
    for (j = 0; j < n; j++) {
        counts[j] = (size_t)j + 1;
        other_counts[j] = (size_t)me + 1;
        displs[j] = (size_t)j * count;
    }
    OK(flagcxAlltoAllv(r->send, counts, displs, r->recv, other_counts, displs, flagcxDouble, r->comm, r->stream));
    get(r, r->recv);
    for (i = 0; i < n; i++) {
        CHECK(r->got[i * count + me] == element(i, me * count + me));
        CHECK(r->got[i * count + me + 1] != r->got[i * count + me + 1]); /* untouched */
    }
}

/*
 * All ranks send before they receive, more than fits anywhere: only a real group gets through. The wrapper of the stream
 * is gone before the group's end.
 */
static void messages(struct rank *r)
{
    double *out, *in, *host = malloc(large * 8);
    int n = r->ranks, next = (r->rank + 1) % n, before = (r->rank + n - 1) % n, i, round;
    struct { void *base; } wrapper;
    flagcxStream_t stream = (flagcxStream_t)&wrapper;
    flagcxComm_t words[] = { r->comm, NULL, (flagcxComm_t)0xdeadbeef };
    OK(r->device->deviceMalloc((void **)&out, large * 8, flagcxMemDevice, NULL));
    OK(r->device->deviceMalloc((void **)&in, large * 8, flagcxMemDevice, NULL));
    for (round = 0; round < 3; round++) {
        for (i = 0; i < large; i++) {
            host[i] = element(r->rank, i + round);
        }
        OK(r->device->deviceMemcpy(out, host, large * 8, flagcxMemcpyHostToDevice, NULL));
        OK(flagcxGroupStart(words[round]));
        OK(flagcxGroupStart(words[2 - round]));
        wrapper.base = *(void **)r->stream;
        OK(flagcxSend(out, large, flagcxDouble, next, r->comm, stream));
        memset(&wrapper, 0xee, sizeof wrapper);
        OK(flagcxGroupEnd(words[round]));
        wrapper.base = *(void **)r->stream;
        OK(flagcxRecv(in, large, flagcxDouble, before, r->comm, stream));
        memset(&wrapper, 0xee, sizeof wrapper);
        OK(flagcxGroupEnd(words[round]));
        OK(r->device->streamSynchronize(r->stream));
        OK(r->device->deviceMemcpy(host, in, large * 8, flagcxMemcpyDeviceToHost, NULL));
        for (i = 0; i < large; i++) {
            CHECK(host[i] == element(before, i + round));
        }
        /* The torch plugin does this around what it runs outside. */
        OK(flagcxGroupStart(r->comm));
        OK(flagcxGroupEnd(r->comm));
    }
    /* Collectives in a group, after which the thread can go on. */
    put(r, count);
    OK(flagcxGroupStart(NULL));
    OK(flagcxAllReduce(r->send, r->recv, count, flagcxDouble, flagcxMax, r->comm, r->stream));
    OK(flagcxAllGather(r->send, out, count, flagcxDouble, r->comm, r->stream));
    OK(flagcxGroupEnd(NULL));
    get(r, r->recv);
    CHECK(r->got[7] == element(n - 1, 7));
    get(r, out);
    CHECK(r->got[count + 7] == element(1 % n, 7) || n == 1);
    OK(r->device->deviceFree(out, flagcxMemDevice, NULL));
    OK(r->device->deviceFree(in, flagcxMemDevice, r->stream));
    free(host);
}

static void events(struct rank *r)
{
    flagcxEvent_t start, end;
    flagcxStream_t second;
    float ms = -1;
    OK(r->device->eventCreate(&start, flagcxEventDefault));
    OK(r->device->eventCreate(&end, flagcxEventDefault));
    OK(r->device->streamCreate(&second));
    CHECK(*(void **)second != *(void **)r->stream);
    put(r, count);
    OK(r->device->eventRecord(start, r->stream));
    OK(flagcxAllReduce(r->send, r->recv, count, flagcxDouble, flagcxMin, r->comm, r->stream));
    OK(r->device->eventRecord(end, r->stream));
    /* What is on another stream waits for it. */
    OK(r->device->streamWaitEvent(second, end));
    OK(r->device->deviceMemcpy(r->got, r->recv, count * 8, flagcxMemcpyDeviceToHost, second));
    OK(r->device->streamSynchronize(second));
    CHECK(r->got[9] == element(0, 9));
    OK(r->device->eventSynchronize(end));
    OK(r->device->eventQuery(end));
    OK(r->device->eventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    OK(r->device->eventDestroy(start));
    OK(r->device->eventDestroy(end));
    OK(r->device->streamDestroy(second));
    /* Everything on the device. */
    put(r, count);
    OK(flagcxAllReduce(r->send, r->recv, count, flagcxDouble, flagcxMin, r->comm, r->stream));
    OK(r->device->deviceSynchronize());
    OK(r->device->streamQuery(r->stream));
    /* The host has waited too. */
    OK(flagcxAllReduce(r->send, r->recv, count, flagcxDouble, flagcxMin, r->comm, r->stream));
    OK(flagcxBarrier(r->comm, r->stream));
    OK(r->device->streamQuery(r->stream));
}

static void memory(struct rank *r)
{
    void *p, *pinned, *seen, *registration;
    flagcxWindow_t window = NULL;
    flagcxResult_t result;
    int everything = !getenv("NOT_EVERYTHING");
    OK(flagcxMemAlloc(&p, 1 << 16, flagcxMemCCL));
    result = flagcxCommRegister(r->comm, p, 1 << 16, &registration, flagcxMemCCL);
    CHECK(result == flagcxSuccess || (result == flagcxNotSupported && !everything));
    CHECK((registration != NULL) == (result == flagcxSuccess));
    OK(flagcxCommWindowRegister(r->comm, p, 1 << 16, &window, 0, flagcxMemCCL));
    put(r, count);
    OK(flagcxAllReduce(r->send, p, count, flagcxDouble, flagcxMax, r->comm, r->stream));
    OK(r->device->deviceMemcpy(r->got, p, count * 8, flagcxMemcpyDeviceToHost, r->stream));
    OK(r->device->streamSynchronize(r->stream));
    CHECK(r->got[3] == element(r->ranks - 1, 3));
    OK(flagcxCommWindowDeregister(r->comm, window, flagcxMemCCL));
    OK(flagcxCommDeregister(r->comm, registration, flagcxMemCCL));
    OK(flagcxMemFree(p, flagcxMemCCL));
    OK(r->device->deviceMalloc(&pinned, 4096, flagcxMemHost, NULL));
    OK(r->device->deviceMemset(pinned, 7, 4096, flagcxMemHost, NULL)); /* any vendor's: it is the host's */
    CHECK(((char *)pinned)[4095] == 7);
    GIVES(everything ? flagcxSuccess : flagcxNotSupported, r->device->hostGetDevicePointer(&seen, pinned));
    CHECK(seen == (everything ? pinned : NULL));
    OK(r->device->deviceFree(pinned, flagcxMemHost, NULL));
    OK(r->device->deviceMalloc(&p, 0, flagcxMemDevice, NULL));
    CHECK(p == NULL);
}

static void questions(struct rank *r)
{
    int number = -1, device = -1, devices = 0;
    flagcxResult_t state = flagcxInternalError;
    OK(flagcxCommCount(r->comm, &number));
    CHECK(number == r->ranks);
    OK(flagcxCommUserRank(r->comm, &number));
    CHECK(number == r->rank);
    OK(r->device->getDeviceCount(&devices));
    OK(flagcxCommGetDeviceNumber(r->comm, &number));
    OK(r->device->getDevice(&device));
    CHECK(number == device && device == r->rank % devices);
    OK(flagcxCommGetAsyncError(r->comm, &state));
    CHECK(state == flagcxSuccess);
    OK(flagcxIsHomoComm(r->comm, &number));
    CHECK(number == 1);
}

static void *run(void *argument)
{
    struct rank *r = argument;
    int devices = 0;
    char vendor[64] = "";
    const char *expected = getenv("EXPECTED_VENDOR");
    OK(flagcxDeviceHandleInit(&r->device));
    OK(r->device->getDeviceCount(&devices));
    OK(r->device->setDevice(r->rank % devices));
    OK(r->device->getVendor(vendor));
    if (expected && strcmp(vendor, expected) != 0) {
        FAIL("the vendor is %s", vendor);
    }
    OK(r->device->streamCreate(&r->stream));
    OK(r->device->deviceMalloc((void **)&r->send, most * count * 8, flagcxMemDevice, r->stream));
    OK(r->device->deviceMalloc((void **)&r->recv, most * count * 8, flagcxMemDevice, NULL));
    OK(flagcxCommInitRank(&r->comm, r->ranks, &r->id, r->rank));
    questions(r);
    reductions(r);
    types(r);
    moves(r);
    messages(r);
    events(r);
    memory(r);
    OK(flagcxBarrier(r->comm, r->stream));
    OK(flagcxCommFinalize(r->comm));
    OK(flagcxCommDestroy(r->comm));
    OK(r->device->deviceFree(r->send, flagcxMemDevice, NULL));
    OK(r->device->deviceFree(r->recv, flagcxMemDevice, NULL));
    OK(r->device->streamDestroy(r->stream));
    OK(flagcxDeviceHandleFree(r->device));
    return NULL;
}

#ifndef MINI_FLAGCX
/* One thread owns two ranks: they are made in a group, and their calls need one. */
static void two_ranks_of_one_thread(void)
{
    flagcxUniqueId id;
    flagcxComm_t comm[2] = { NULL, NULL };
    flagcxStream_t stream[2];
    flagcxDeviceHandle_t device;
    double *buffer[2], value;
    int i, devices = 0;
    OK(flagcxDeviceHandleInit(&device));
    OK(device->getDeviceCount(&devices));
    OK(flagcxGetUniqueId(&id));
    OK(flagcxGroupStart(NULL));
    for (i = 0; i < 2; i++) {
        OK(device->setDevice(i % devices));
        OK(flagcxCommInitRank(&comm[i], 2, &id, i));
    }
    OK(flagcxGroupEnd(NULL));
    for (i = 0; i < 2; i++) {
        OK(device->setDevice(i % devices));
        OK(device->streamCreate(&stream[i]));
        OK(device->deviceMalloc((void **)&buffer[i], 8, flagcxMemDevice, NULL));
        value = i + 1;
        OK(device->deviceMemcpy(buffer[i], &value, 8, flagcxMemcpyHostToDevice, NULL));
    }
    OK(flagcxGroupStart(comm[0]));
    for (i = 0; i < 2; i++) {
        OK(flagcxAllReduce(buffer[i], buffer[i], 1, flagcxDouble, flagcxSum, comm[i], stream[i]));
    }
    OK(flagcxGroupEnd(comm[1]));
    for (i = 0; i < 2; i++) {
        OK(device->setDevice(i % devices));
        OK(device->streamSynchronize(stream[i]));
        OK(device->deviceMemcpy(&value, buffer[i], 8, flagcxMemcpyDeviceToHost, NULL));
        CHECK(value == 3);
        OK(flagcxCommDestroy(comm[i]));
        OK(device->streamDestroy(stream[i]));
        OK(device->deviceFree(buffer[i], flagcxMemDevice, NULL));
    }
    OK(flagcxDeviceHandleFree(device));
}
#endif

/* The id goes over a file; other ranks know no more than 128 of its bytes. */
static void share(struct rank *r, const char *file)
{
    char name[4096];
    int fd;
    memset(&r->id, 0x5a, sizeof r->id);
    if (r->rank == 0) {
        OK(flagcxGetUniqueId(&r->id));
        snprintf(name, sizeof name, "%s.new", file);
        fd = open(name, O_CREAT | O_WRONLY, 0600);
        CHECK(fd >= 0 && write(fd, &r->id, 128) == 128 && close(fd) == 0 && rename(name, file) == 0);
        return;
    }
    while ((fd = open(file, O_RDONLY)) < 0) {
        struct timespec a_while = { 0, 2000000 };
        nanosleep(&a_while, NULL);
    }
    CHECK(read(fd, &r->id, 128) == 128 && close(fd) == 0);
}

static int through(void)
{
#ifdef MINI_FLAGCX
    CHECK(mini_flagcx_went_through_the_plugin());
#endif
    return 0;
}

int main(int argc, char **argv)
{
    static struct rank rank[most];
    pthread_t thread[most];
    int i, ranks;
    CHECK(argc >= 3);
    ranks = atoi(argv[2]);
    CHECK(ranks >= 1 && ranks <= most);
    if (strcmp(argv[1], "threads") != 0) {
        CHECK(argc == 4);
        rank[0].rank = atoi(argv[1]);
        rank[0].ranks = ranks;
        share(&rank[0], argv[3]);
        run(&rank[0]);
        return through();
    }
    OK(flagcxGetUniqueId(&rank[0].id));
    for (i = 0; i < ranks; i++) {
        rank[i].rank = i;
        rank[i].ranks = ranks;
        rank[i].id = rank[0].id;
        CHECK(pthread_create(&thread[i], NULL, run, &rank[i]) == 0);
    }
    for (i = 0; i < ranks; i++) {
        pthread_join(thread[i], NULL);
    }
#ifndef MINI_FLAGCX /* FlagCX itself waits for the other ranks in the call */
    two_ranks_of_one_thread();
#endif
    return through();
}
