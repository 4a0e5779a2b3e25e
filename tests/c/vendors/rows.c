/* What was reported of other libraries' handling of these vendors, for whichever vendor the test names. */
#include "vendors.h"

extern char **environ;

static const char *one_line(const char *text)
{
    static char line[16384];
    snprintf(line, sizeof line, "%s", text);
    for (char *p = line; *p; p++)
        if (*p == '\n')
            *p = ' ';
    return line;
}

static flagosStream_t new_stream(void)
{
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    return stream;
}

/* A right all-reduce of every rank on a stream. */
static void sums_up(flagosComm_t comm, int rank, int n, flagosStream_t stream)
{
    int *data = device_memory(COUNT * sizeof(int)), host[COUNT];
    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(rank, i);
    copy_in(data, host, sizeof host, stream);
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    copy_out(host, data, sizeof host, stream);
    for (int i = 0; i < COUNT; i++)
        EQUAL(host[i], sum_of(n, i));
    OK(flagosMemFree(data));
}

/* One init, as far as it gets. The caller's 256 bytes end where they end, and the environment stays as it was. */
static void init(void)
{
    struct { char before[64]; flagosUniqueId id; char after[8192]; } guarded;
    memset(&guarded, 0x5a, sizeof guarded);
    flagosComm_t comm = (flagosComm_t)1;
    int devices = 0;
    size_t variables = 0, again = 0;
    for (char **e = environ; *e; e++)
        variables += strlen(*e) + 1;
    guarded.id = shared_id(0);
    if (!flagosGetDeviceCount(&devices) && devices > my_rank)
        OK(flagosSetDevice(my_rank));
    int result = flagosCommInitRank(&comm, n_ranks, &guarded.id, my_rank);
    printf("init: %d\n", result);
    printf("text: %s\n", one_line(result ? ERROR() : ""));
    for (size_t i = 0; i < sizeof guarded.before; i++)
        EQUAL(guarded.before[i], 0x5a);
    for (size_t i = 0; i < sizeof guarded.after; i++)
        EQUAL(guarded.after[i], 0x5a);
    for (char **e = environ; *e; e++)
        again += strlen(*e) + 1;
    EQUAL(again, variables);
    static char report[65536];
    size_t needed = 0;
    OK(flagosGetLoadReport(report, sizeof report, &needed));
    printf("report: %s\n", one_line(report));
    if (result) {
        CHECK(!comm);
        return;
    }
    flagosCommInfo_t info = info_of(comm);
    printf("tier: %d\nlibrary: %s\nversion: %d\nvendor: %s\n", info.tier, info.libraryPath, info.libraryVersion, info.vendor);
    if (devices > my_rank)
        sums_up(comm, my_rank, n_ranks, new_stream());
    /* What is optional is missed by its own call only, in words. */
    int state = -1;
    result = flagosCommGetAsyncError(comm, &state);
    printf("async: %d %d\n", result, state);
    result = flagosCommFinalize(comm);
    printf("finalize: %d %s\n", result, result ? one_line(ERROR()) : "");
    result = flagosCommDestroy(comm);
    printf("destroy: %d %s\n", result, result ? one_line(ERROR()) : "");
}

/* ---- another device is current ---- */

static flagosComm_t comm;
static int *data;
static flagosStream_t stream;

static void call_with_another_device(void)
{
    int now_ = -1;
    behind(3);
    mark("guarded");
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, stream));
    mark("end");
    OK(flagosGetDevice(&now_));
    EQUAL(now_, 3);
    EQUAL(current(), 3);
    OK(flagosGroupStart());
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosMax, comm, stream));
    OK(flagosGroupEnd());
    EQUAL(current(), 3);
    OK(flagosBarrier(comm, stream));
    EQUAL(current(), 3);
    /* A call that the vendor refuses. */
    mark("refused");
    int result = flagosReduce(data, data, COUNT, flagosInt32, flagosSum, 0, comm, stream);
    mark("end");
    CHECK(result != flagosSuccess);
    EQUAL(current(), 3);
}

static void device(void)
{
    comm = join_all(0);
    stream = new_stream();
    int host[COUNT];
    data = device_memory(sizeof host);
    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(my_rank, i);
    copy_in(data, host, sizeof host, stream);
    call_with_another_device();
    OK(flagosSetDevice(my_rank));
    copy_out(host, data, sizeof host, stream);
    for (int i = 0; i < COUNT; i++)
        EQUAL(host[i], sum_of(n_ranks, i));
    pthread_join(beside(call_with_another_device), NULL); /* a thread whose device was never set */
    OK(flagosSetDevice(my_rank));
    OK(flagosStreamSynchronize(stream));
    OK(flagosCommDestroy(comm));
}

/* ---- messages ---- */

static flagosComm_t comms[2];

/* Each rank sends its numbers to the other one, over one communicator, from a thread of its own. */
static void exchange_over(int which)
{
    OK(flagosSetDevice(my_rank));
    int host[COUNT], *out = device_memory(sizeof host), *in = device_memory(sizeof host);
    flagosStream_t own = new_stream();
    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(my_rank, i) + which;
    copy_in(out, host, sizeof host, own);
    for (int turn = 0; turn < 5; turn++) {
        OK(flagosGroupStart());
        OK(flagosSend(out, COUNT, flagosInt32, 1 - my_rank, comms[which], own));
        OK(flagosRecv(in, COUNT, flagosInt32, 1 - my_rank, comms[which], own));
        OK(flagosGroupEnd());
        copy_out(host, in, sizeof host, own);
        for (int i = 0; i < COUNT; i++)
            EQUAL(host[i], value_of(1 - my_rank, i) + which);
    }
}
static void over_the_first(void) { exchange_over(0); }
static void over_the_second(void) { exchange_over(1); }

static void messages(void)
{
    comms[0] = join_all(0);
    comms[1] = join_all(1);
    flagosStream_t streams[2] = {new_stream(), new_stream()};
    int host[COUNT], *out = device_memory(sizeof host), *in[2] = {device_memory(sizeof host), device_memory(sizeof host)};
    for (int i = 0; i < COUNT; i++)
        host[i] = value_of(my_rank, i);
    copy_in(out, host, sizeof host, streams[0]);
    /* Alone. */
    mark("lone");
    if (my_rank == 0)
        OK(flagosSend(out, COUNT, flagosInt32, 1, comms[0], streams[0]));
    else
        OK(flagosRecv(in[0], COUNT, flagosInt32, 0, comms[0], streams[0]));
    mark("end");
    copy_out(host, my_rank ? in[0] : out, sizeof host, streams[0]);
    EQUAL(host[9], value_of(0, 9));
    /* Two communicators on two streams in one group. */
    mark("two");
    OK(flagosGroupStart());
    for (int c = 0; c < 2; c++) {
        OK(flagosSend(out, COUNT - c, flagosInt32, 1 - my_rank, comms[c], streams[c]));
        OK(flagosRecv(in[c], COUNT - c, flagosInt32, 1 - my_rank, comms[c], streams[c]));
    }
    OK(flagosGroupEnd());
    mark("end");
    for (int c = 0; c < 2; c++) {
        copy_out(host, in[c], (size_t)(COUNT - c) * 4, streams[c]);
        for (int i = 0; i < COUNT - c; i++)
            EQUAL(host[i], value_of(1 - my_rank, i));
    }
    /* Groups of two threads at once. */
    pthread_t threads[2] = {beside(over_the_first), beside(over_the_second)};
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int c = 0; c < 2; c++)
        OK(flagosCommDestroy(comms[c]));
}

/* ---- turns ---- */

static flagosUniqueId ids[2];
static int results[2];
static char texts[2][4096];

static void *make(void *arg)
{
    int which = (int)(size_t)arg;
    OK(flagosSetDevice(my_rank));
    results[which] = flagosCommInitRank(&comms[which], n_ranks, &ids[which], my_rank);
    if (results[which])
        snprintf(texts[which], sizeof texts[which], "%s", ERROR());
    return NULL;
}

/* Two communicators from two threads at once, in the opposite order on the other rank. */
static void turns(void)
{
    for (int round = 0; round < 3; round++) {
        pthread_t threads[2];
        double start = now();
        for (int i = 0; i < 2; i++)
            ids[i] = shared_id(10 + 2 * round + i);
        for (int i = 0; i < 2; i++) {
            int which = my_rank ? 1 - i : i;
            CHECK(!pthread_create(&threads[i], NULL, make, (void *)(size_t)which));
            sleep_ms(20);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(now() - start < 20);
        OK(flagosSetDevice(my_rank));
        for (int i = 0; i < 2; i++) {
            if (results[i])
                FAIL("communicator %d: %d: %s", i, results[i], texts[i]);
            EQUAL(info_of(comms[i]).tier, flagosTierNative);
            sums_up(comms[i], my_rank, n_ranks, new_stream());
        }
        for (int i = 0; i < 2; i++)
            OK(flagosCommDestroy(comms[i]));
    }
}

/* ---- the end ---- */

/* A rank that has made as many collectives as the others may leave, whatever they went through. */
static void leaves(void)
{
    comm = join_all(0);
    stream = new_stream();
    sums_up(comm, my_rank, n_ranks, stream);
    int *from = device_memory(4 * sizeof(int)), *to = device_memory(8 * sizeof(int));
    int in[4] = {my_rank, my_rank, my_rank, my_rank}, out[8];
    copy_in(from, in, sizeof in, stream);
    OK(flagosBroadcast(from, to, 4, flagosInt32, 0, comm, stream));
    OK(flagosGather(from, to, 4, flagosInt32, 0, comm, stream));
    OK(flagosGroupStart());
    OK(flagosAllGather(from, to, 4, flagosInt32, comm, stream));
    OK(flagosGroupEnd());
    /* In a group for those that have messages only there; of one rank it is one message more. */
    for (int i = 0; i <= my_rank; i++) {
        OK(flagosGroupStart());
        OK(flagosSend(from, 1, flagosInt32, my_rank, comm, stream));
        OK(flagosRecv(from + 1, 1, flagosInt32, my_rank, comm, stream));
        OK(flagosGroupEnd());
    }
    copy_out(out, to, sizeof out, stream);
    EQUAL(out[3], 0);
    EQUAL(out[7], 1);
    if (my_rank == 1) {
        double begin = now();
        int result = flagosCommDestroy(comm);
        printf("destroy: %d %s\n", result, result ? one_line(ERROR()) : "");
        CHECK(now() - begin < 2);
        exit(0);
    }
    double begin = now();
    while (now() - begin < 0.9) {
        int state = -1;
        OK(flagosCommGetAsyncError(comm, &state));
        if (state)
            FAIL("the state is %d: %s", state, flagosGetLastError(comm));
        sleep_ms(5);
    }
    begin = now();
    flagosCommDestroy(comm);
    CHECK(now() - begin < 2);
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"init", init}, {"device", device}, {"messages", messages}, {"turns", turns}, {"leaves", leaves}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
