/* The device index: asked at every call, bound at init, put back on every path. */
#include "native.h"

/* Another hand moves the current device between calls, by the runtime and without any call. */
static void moved(void)
{
    int device;
    cudaError_t (*set)(int) = RUNTIME(cudaSetDevice);
    for (int round = 0; round < 3; round++)
        for (int d = 3; d >= 0; d--) {
            CHECK(!set(d));
            OK(flagosGetDevice(&device));
            EQUAL(device, d);
            behind((d + 2) % 4);
            OK(flagosGetDevice(&device));
            EQUAL(device, (d + 2) % 4);
        }
    OK(flagosSetDevice(1));
    behind(3);
    OK(flagosGetDevice(&device));
    EQUAL(device, 3);
}

/* A communicator stays on the device of its init, and its calls leave the caller's device alone. */
static void bound(void)
{
    int device;
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm, explicit_one;
    RUNTIME(cudaSetDevice)(1);
    OK(flagosGetDevice(&device));
    behind(2);
    OK(flagosCommInitRank(&comm, 1, &id, 0));
    int *data = device_memory(COUNT * sizeof *data);
    fill(data, 0);
    for (int d = 3; d >= 0; d--) {
        behind(d);
        OK(flagosCommGetDeviceNumber(comm, &device));
        EQUAL(device, 2);
        mark("reduce");
        OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
        EQUAL(current(), d);
        mark("barrier");
        OK(flagosBarrier(comm, NULL));
        mark("end");
        EQUAL(current(), d);
        OK(flagosGetDevice(&device));
        EQUAL(device, d);
    }
    /* Named in the config: the thread's device is neither asked for nor moved. */
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.device = 3;
    behind(1);
    OK(flagosGetUniqueId(&id));
    OK(flagosCommInitRankConfig(&explicit_one, 1, &id, 0, &config));
    EQUAL(current(), 1);
    OK(flagosCommGetDeviceNumber(explicit_one, &device));
    EQUAL(device, 3);
    behind(0);
    OK(flagosCommDestroy(explicit_one));
    OK(flagosCommDestroy(comm));
    EQUAL(current(), 0);
}

/* A thread that was never bound: the runtime says 0, asking binds nothing, calls on a communicator work. */
static flagosComm_t of_main;
static int *of_main_data;

static void never_bound(void)
{
    int device = -7;
    EQUAL(current(), -1);
    OK(flagosGetDevice(&device));
    EQUAL(device, 0);
    EQUAL(current(), -1);
    OK(flagosAllReduce(of_main_data, of_main_data, COUNT, flagosInt32, flagosSum, of_main, NULL));
    EQUAL(current(), -1);
    OK(flagosCommGetDeviceNumber(of_main, &device));
    EQUAL(device, 2);
}

static void unbound_thread(void)
{
    flagosUniqueId id = shared_id(0);
    RUNTIME(cudaSetDevice)(2);
    OK(flagosCommInitRank(&of_main, 1, &id, 0));
    of_main_data = device_memory(COUNT * sizeof(int));
    fill(of_main_data, 0);
    pthread_join(beside(never_bound), NULL);
    OK(flagosStreamSynchronize(NULL));
    check_sum(of_main_data, 1);
}

/* A barrier is the first call of all, on devices that no rule would guess, also in a child with other ranks. */
static void barrier_first(void)
{
    static const int devices[] = {3, 1, 2};
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm, child;
    int device = devices[my_rank];
    RUNTIME(cudaSetDevice)(device);
    OK(flagosCommInitRank(&comm, n_ranks, &id, my_rank));
    behind(0);
    mark("barrier");
    OK(flagosBarrier(comm, NULL));
    mark("end");
    EQUAL(current(), 0);
    OK(flagosCommSplit(comm, 5, -my_rank, &child, NULL));
    int rank = -1, bound = -1;
    OK(flagosCommUserRank(child, &rank));
    EQUAL(rank, n_ranks - 1 - my_rank);
    OK(flagosCommGetDeviceNumber(child, &bound));
    EQUAL(bound, device);
    behind((device + 1) % 4);
    mark("barrier");
    OK(flagosBarrier(child, NULL));
    mark("end");
    EQUAL(current(), (device + 1) % 4);
    OK(flagosCommDestroy(child));
    OK(flagosCommDestroy(comm));
}

/* set, call, restore: from the first thread and from a second one. */
static void call_from_elsewhere(void)
{
    RUNTIME(cudaSetDevice)(0);
    behind(0);
    mark("second");
    OK(flagosAllReduce(of_main_data, of_main_data, COUNT, flagosInt32, flagosSum, of_main, NULL));
    mark("end");
    EQUAL(current(), 0);
}

static void guard(void)
{
    flagosUniqueId id = shared_id(0);
    RUNTIME(cudaSetDevice)(1);
    OK(flagosCommInitRank(&of_main, 1, &id, 0));
    of_main_data = device_memory(COUNT * sizeof(int));
    fill(of_main_data, 0);
    behind(0);
    mark("first");
    OK(flagosAllReduce(of_main_data, of_main_data, COUNT, flagosInt32, flagosSum, of_main, NULL));
    mark("end");
    EQUAL(current(), 0);
    behind(1);
    mark("same");
    OK(flagosAllReduce(of_main_data, of_main_data, COUNT, flagosInt32, flagosSum, of_main, NULL));
    mark("end");
    pthread_join(beside(call_from_elsewhere), NULL);
    OK(flagosStreamSynchronize(NULL));
    check_sum(of_main_data, 1);
}

/* One guarded call; says what became of it. The test makes one of the driver's or the vendor's calls fail. */
static void guard_fails(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm;
    RUNTIME(cudaSetDevice)(1);
    OK(flagosCommInitRank(&comm, 1, &id, 0));
    int *data = device_memory(COUNT * sizeof(int));
    fill(data, 0);
    behind(2);
    printf("sets before: %ld\n", count_of("cudaSetDevice"));
    int result = flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL);
    printf("result: %d\ncurrent: %d\ntext: %s\n", result, current(), result ? ERROR() : "");
    /* The next call is not disturbed: it works, unless the failure was of a kind that ends the communicator. */
    behind(2);
    IS(result == flagosInvalidArgument ? 0 : result, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
    EQUAL(current(), 2);
}

/* A barrier that fails leaves the device as it was, and the next one too, which works unless the communicator has ended. */
static void barrier_fails(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm;
    RUNTIME(cudaSetDevice)(1);
    OK(flagosCommInitRank(&comm, 1, &id, 0));
    behind(2);
    int result = flagosBarrier(comm, NULL);
    printf("result: %d\ncurrent: %d\ntext: %s\n", result, current(), result ? ERROR() : "");
    behind(2);
    IS(result == flagosInvalidArgument ? 0 : result, flagosBarrier(comm, NULL));
    EQUAL(current(), 2);
}

static void refuse(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm;
    RUNTIME(cudaSetDevice)(1);
    OK(flagosCommInitRank(&comm, 1, &id, 0));
    int *data = device_memory(COUNT * sizeof(int));
    fill(data, 0);
    behind(3);
    long before = count_of("ncclAllReduce");
    IS(flagosInvalidUsage, flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
    SAYS(ERROR(), "device 1");
    SAYS(ERROR(), "device 3");
    EQUAL(count_of("ncclAllReduce"), before);
    EQUAL(current(), 3);
    behind(1);
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
}

/* What the library takes for the current device: with `preload` the program has a runtime that says 2. */
static void which(void)
{
    int device = -7;
    if (getenv("PRELOAD"))
        RUNTIME(cudaSetDevice)(2);
    if (getenv("CONTEXT")) /* a context of the driver below, which the program made by other means */
        behind(atoi(getenv("CONTEXT")));
    int result = flagosGetDevice(&device);
    printf("device: %d %d\n", result, device);
    if (result)
        printf("text: %s\n", ERROR());
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm;
    result = flagosCommInitRank(&comm, 1, &id, 0);
    device = -7;
    if (!result)
        OK(flagosCommGetDeviceNumber(comm, &device));
    printf("init: %d %d\n", result, device);
    if (result)
        printf("text: %s\n", ERROR());
    printf("current: %d\n", current());
}

/* Two ranks on one device. */
static void twins(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm = (flagosComm_t)1;
    if (my_rank == 1 && getenv("SECOND"))
        OK(flagosSetDevice(atoi(getenv("SECOND"))));
    double start = now();
    int result = flagosCommInitRank(&comm, n_ranks, &id, my_rank);
    CHECK(now() - start < 20);
    printf("init: %d\n", result);
    if (result) {
        CHECK(!comm);
        printf("text: %s\n", ERROR());
        return;
    }
    all_reduce_works(comm, my_rank, n_ranks);
    printf("tier: %d\n", info_of(comm).tier);
    OK(flagosCommDestroy(comm));
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"moved", moved}, {"bound", bound}, {"unbound_thread", unbound_thread}, {"barrier_first", barrier_first},
        {"guard", guard}, {"guard_fails", guard_fails}, {"barrier_fails", barrier_fails}, {"refuse", refuse},
        {"which", which}, {"twins", twins}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
