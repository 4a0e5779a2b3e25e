/* Groups on the vendor's tier: balance, refusals, poisoning, several communicators. */
#include "native.h"

static flagosComm_t comms[8];

/* All ranks of one communicator in this thread. */
static void all_in_one(int n) { OK(flagosCommInitAll(comms, n, NULL)); }

/* A good all-reduce of all ranks from this thread. */
static void all_work(int n)
{
    int *data[8];
    for (int r = 0; r < n; r++) {
        behind(r);
        data[r] = device_memory(COUNT * sizeof(int));
        fill(data[r], r);
    }
    OK(flagosGroupStart());
    for (int r = 0; r < n; r++)
        OK(flagosAllReduce(data[r], data[r], COUNT, flagosInt32, flagosSum, comms[r], NULL));
    OK(flagosGroupEnd());
    for (int r = 0; r < n; r++) {
        behind(r);
        OK(flagosStreamSynchronize(NULL));
        check_sum(data[r], n);
        OK(flagosMemFree(data[r]));
    }
}

static void balance(void)
{
    RUNTIME(cudaSetDevice)(0);
    for (int i = 0; i < 2; i++) {
        IS(flagosInvalidUsage, flagosGroupEnd());
        SAYS(ERROR(), "flagosGroupEnd without flagosGroupStart");
    }
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    IS(flagosInvalidUsage, flagosGroupSimulateEnd(&sim));
    all_in_one(2);
    int *data[2];
    for (int r = 0; r < 2; r++) {
        behind(r);
        data[r] = device_memory(COUNT * sizeof(int));
        fill(data[r], r);
    }
    OK(flagosGroupStart());
    OK(flagosGroupStart());
    for (int r = 0; r < 2; r++)
        OK(flagosAllReduce(data[r], data[r], COUNT, flagosInt32, flagosSum, comms[r], NULL));
    long ends = count_of("ncclGroupEnd");
    OK(flagosGroupEnd());
    EQUAL(count_of("ncclGroupEnd"), ends); /* nothing is submitted yet */
    int host[COUNT];
    get(host, data[1], sizeof host);
    EQUAL(host[7], value_of(1, 7));
    OK(flagosGroupEnd());
    EQUAL(count_of("ncclGroupEnd"), ends + 1);
    for (int r = 0; r < 2; r++) {
        behind(r);
        OK(flagosStreamSynchronize(NULL));
        check_sum(data[r], 2);
    }
    IS(flagosInvalidUsage, flagosGroupEnd());
    all_work(2);
}

/* A refused call inside: the end says it, nothing is launched, the thread is clean afterwards. */
static void error_inside(void)
{
    RUNTIME(cudaSetDevice)(0);
    all_in_one(2);
    int *data[2];
    for (int r = 0; r < 2; r++) {
        behind(r);
        data[r] = device_memory(COUNT * sizeof(int));
        fill(data[r], r);
    }
    for (int order = 0; order < 3; order++) {
        mark("group");
        OK(flagosGroupStart());
        if (order > 0) /* a good call first: the vendor's group is open already */
            OK(flagosAllReduce(data[0], data[0], COUNT, flagosInt32, flagosSum, comms[0], NULL));
        if (order == 2)
            OK(flagosAllReduce(data[1], data[1], COUNT, flagosInt32, flagosSum, comms[1], NULL));
        IS(flagosInvalidArgument, flagosAllReduce(data[1], data[1], COUNT, 99, flagosSum, comms[1], NULL));
        if (order == 0)
            for (int r = 0; r < 2; r++)
                flagosAllReduce(data[r], data[r], COUNT, flagosInt32, flagosSum, comms[r], NULL);
        IS(flagosInvalidArgument, flagosGroupEnd());
        SAYS(ERROR(), "99 is no data type");
        SAYS(ERROR(), "not launched");
        mark("end");
        for (int r = 0; r < 2; r++) {
            int host[COUNT];
            behind(r);
            OK(flagosStreamSynchronize(NULL));
            get(host, data[r], sizeof host);
            for (int i = 0; i < COUNT; i++)
                EQUAL(host[i], value_of(r, i));
        }
        IS(flagosInvalidUsage, flagosGroupEnd());
    }
    /* A stale handle and a barrier inside are refused in the same way. */
    OK(flagosGroupStart());
    IS(flagosInvalidArgument, flagosAllReduce(data[0], data[0], COUNT, flagosInt32, flagosSum, (flagosComm_t)0x12345, NULL));
    IS(flagosInvalidArgument, flagosGroupEnd());
    OK(flagosGroupStart());
    IS(flagosInvalidUsage, flagosBarrier(comms[0], NULL));
    IS(flagosInvalidUsage, flagosGroupEnd());
    SAYS(ERROR(), "Barrier");
    all_work(2);
    /* The vendor's own refusal. */
    OK(flagosGroupStart());
    OK(flagosSend(data[0], 4, flagosInt32, 0, comms[0], NULL));
    IS(flagosInvalidUsage, flagosGroupEnd());
    SAYS(ERROR(), "send to self without a matching recv");
    all_work(2);
}

/* Inits and operations in one group are refused, whichever comes first. */
static void mixed_with_init(void)
{
    RUNTIME(cudaSetDevice)(0);
    flagosUniqueId id;
    flagosComm_t made = (flagosComm_t)1;
    all_in_one(1);
    int *data = device_memory(COUNT * sizeof(int));
    fill(data, 0);
    OK(flagosGetUniqueId(&id));
    OK(flagosGroupStart());
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comms[0], NULL));
    IS(flagosInvalidUsage, flagosCommInitRank(&made, 1, &id, 0));
    CHECK(!made);
    IS(flagosInvalidUsage, flagosGroupEnd());
    OK(flagosGetUniqueId(&id));
    OK(flagosGroupStart());
    OK(flagosCommInitRank(&made, 1, &id, 0));
    IS(flagosInvalidUsage, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comms[0], NULL));
    IS(flagosInvalidUsage, flagosGroupEnd());
    CHECK(!made);
    OK(flagosGroupStart());
    IS(flagosInvalidUsage, flagosCommInitAll(&made, 1, NULL));
    flagosGroupEnd();
    all_work(1);
}

/* One thread owns two ranks; a rank that comes twice fails the group and frees the others. */
static void two_ranks(void)
{
    flagosUniqueId id;
    RUNTIME(cudaSetDevice)(0);
    OK(flagosGetUniqueId(&id));
    OK(flagosGroupStart());
    for (int r = 0; r < 2; r++) {
        behind(r);
        OK(flagosCommInitRank(&comms[r], 2, &id, r));
    }
    OK(flagosGroupEnd());
    CHECK(comms[0] && comms[1]);
    EQUAL(info_of(comms[0]).tier, getenv("TIER") ? atoi(getenv("TIER")) : flagosTierNative);
    all_work(2);
    OK(flagosGetUniqueId(&id));
    flagosComm_t twice[2];
    double start = now();
    OK(flagosGroupStart());
    for (int i = 0; i < 2; i++) {
        behind(i);
        OK(flagosCommInitRank(&twice[i], 2, &id, 1));
    }
    int result = flagosGroupEnd();
    CHECK(result != flagosSuccess && result != flagosTimeout);
    SAYS(ERROR(), "rank 1");
    CHECK(!twice[0] && !twice[1]);
    CHECK(now() - start < 10);
    all_work(2);
    for (int r = 0; r < 2; r++)
        OK(flagosCommDestroy(comms[r]));
}

/* Messages in a ring, to oneself, and over two communicators and two streams at once. */
static void messages_body(int rank, int n, const flagosUniqueId *id)
{
    flagosComm_t comm = join(rank, n, id), child;
    OK(flagosCommSplit(comm, 0, -rank, &child, NULL));
    flagosStream_t other;
    OK(flagosStreamCreate(&other));
    int *out = device_memory(COUNT * sizeof(int)), *self = device_memory(COUNT * sizeof(int));
    int *in = device_memory(COUNT * sizeof(int)), *by_child = device_memory(COUNT * sizeof(int));
    fill(out, rank);
    OK(flagosGroupStart());
    OK(flagosRecv(in, COUNT, flagosInt32, (rank + n - 1) % n, comm, NULL));
    OK(flagosSend(out, COUNT, flagosInt32, (rank + 1) % n, comm, NULL));
    OK(flagosSend(out, COUNT, flagosInt32, rank, comm, NULL));
    OK(flagosRecv(self, COUNT, flagosInt32, rank, comm, NULL));
    OK(flagosAllReduce(out, by_child, COUNT, flagosInt32, flagosSum, child, other));
    OK(flagosGroupEnd());
    OK(flagosStreamSynchronize(NULL));
    OK(flagosStreamSynchronize(other));
    int host[COUNT];
    get(host, in, sizeof host);
    for (int i = 0; i < COUNT; i++)
        EQUAL(host[i], value_of((rank + n - 1) % n, i));
    get(host, self, sizeof host);
    for (int i = 0; i < COUNT; i++)
        EQUAL(host[i], value_of(rank, i));
    check_sum(by_child, n);
    /* The sends of a rank without a group meet their receives. */
    if (rank == 0)
        OK(flagosSend(out, 3, flagosInt32, 1, comm, NULL));
    if (rank == 1)
        OK(flagosRecv(in, 3, flagosInt32, 0, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    OK(flagosStreamDestroy(other));
    OK(flagosCommDestroy(child));
    OK(flagosCommDestroy(comm));
}

static void messages(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(3, messages_body);
}

/* One group with a communicator of the vendor's and one of the host tier. */
static void tiers_mixed_body(int rank, int n, const flagosUniqueId *id)
{
    static flagosUniqueId host_id;
    flagosComm_t comm = join(rank, n, id), host;
    if (rank == 0)
        OK(flagosGetUniqueId(&host_id));
    together();
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.tiers = "host";
    OK(flagosCommInitRankConfig(&host, n, &host_id, rank, &config));
    EQUAL(info_of(comm).tier, flagosTierNative);
    EQUAL(info_of(host).tier, flagosTierHost);
    int *a = device_memory(COUNT * sizeof(int)), *b = device_memory(COUNT * sizeof(int));
    fill(a, rank);
    fill(b, rank);
    for (int order = 0; order < 2; order++) {
        fill(a, rank);
        fill(b, rank);
        OK(flagosGroupStart());
        OK(flagosAllReduce(order ? a : b, order ? a : b, COUNT, flagosInt32, flagosSum, order ? comm : host, NULL));
        OK(flagosAllReduce(order ? b : a, order ? b : a, COUNT, flagosInt32, flagosSum, order ? host : comm, NULL));
        OK(flagosGroupEnd());
        OK(flagosStreamSynchronize(NULL));
        check_sum(a, n);
        check_sum(b, n);
    }
    /* A refused call on one of them stops both. */
    fill(a, rank);
    fill(b, rank);
    OK(flagosGroupStart());
    OK(flagosAllReduce(a, a, COUNT, flagosInt32, flagosSum, comm, NULL));
    OK(flagosAllReduce(b, b, COUNT, flagosInt32, flagosSum, host, NULL));
    IS(flagosInvalidArgument, flagosBroadcast(b, b, COUNT, flagosInt32, n, host, NULL));
    IS(flagosInvalidArgument, flagosGroupEnd());
    OK(flagosStreamSynchronize(NULL));
    int got[COUNT];
    get(got, a, sizeof got);
    EQUAL(got[5], value_of(rank, 5));
    get(got, b, sizeof got);
    EQUAL(got[5], value_of(rank, 5));
    OK(flagosCommDestroy(host));
    OK(flagosCommDestroy(comm));
}

static void tiers_mixed(void)
{
    RUNTIME(cudaSetDevice)(0);
    ranks(2, tiers_mixed_body);
}

/* Splits of all ranks from one thread, which come to be at the group's end. */
static void split_in_group(void)
{
    RUNTIME(cudaSetDevice)(0);
    all_in_one(3);
    flagosComm_t parents[3], children[3] = {0};
    memcpy(parents, comms, sizeof parents);
    OK(flagosGroupStart());
    for (int r = 0; r < 3; r++)
        OK(flagosCommSplit(parents[r], r == 1 ? FLAGOS_SPLIT_NOCOLOR : 4, -r, &children[r], NULL));
    OK(flagosGroupEnd());
    CHECK(children[0] && !children[1] && children[2]);
    int rank;
    OK(flagosCommUserRank(children[2], &rank));
    EQUAL(rank, 0);
    int *data[3];
    for (int r = 0; r < 3; r += 2) {
        behind(r);
        data[r] = device_memory(COUNT * sizeof(int));
        fill(data[r], r / 2);
    }
    OK(flagosGroupStart());
    for (int r = 0; r < 3; r += 2)
        OK(flagosAllReduce(data[r], data[r], COUNT, flagosInt32, flagosSum, children[r], NULL));
    OK(flagosGroupEnd());
    for (int r = 0; r < 3; r += 2) {
        behind(r);
        OK(flagosStreamSynchronize(NULL));
        check_sum(data[r], 2);
    }
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    OK(flagosGroupStart());
    OK(flagosAllReduce(data[0], data[0], COUNT, flagosInt32, flagosSum, children[0], NULL));
    OK(flagosGroupSimulateEnd(&sim));
    CHECK(sim.estimatedTime > 0);
    behind(0);
    OK(flagosStreamSynchronize(NULL));
    check_sum(data[0], 2);
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"balance", balance}, {"error_inside", error_inside}, {"mixed_with_init", mixed_with_init},
        {"two_ranks", two_ranks}, {"messages", messages}, {"tiers_mixed", tiers_mixed},
        {"split_in_group", split_in_group}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
