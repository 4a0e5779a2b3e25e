/* One rank's failure, or its end, is known to the others, which wait inside the vendor's work. */
#include "native.h"

static flagosComm_t comm;
static int *data;

static int all_reduce(void) { return flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL); }

static void start(void)
{
    flagosUniqueId id = shared_id(0);
    comm = join(my_rank, n_ranks, &id);
    data = device_memory(COUNT * sizeof(int));
    all_reduce_works(comm, my_rank, n_ranks);
}

static int state_of(void)
{
    int state = -1;
    OK(flagosCommGetAsyncError(comm, &state));
    return state;
}

/* Says when something has happened, for the test to compare the ranks. */
static void at(const char *what) { printf("%s: %.6f\n", what, now()); }

/* The state stops being good within the time. Its text stays. */
static void is_told(int code)
{
    double begin = now();
    int state;
    while (!(state = state_of()) && now() - begin < 10)
        sleep_ms(1);
    at("told");
    if (state != code)
        FAIL("the state is %d: %s", state, flagosGetLastError(comm));
    printf("text: %s\n", flagosGetLastError(comm));
    /* Later calls go nowhere and say the same. */
    IS(code, all_reduce());
    EQUAL(state_of(), code);
    fflush(stdout);
}

static atomic_int freed;

static void waits_on_the_device(void)
{
    RUNTIME(cudaSetDevice)(my_rank);
    flagosStreamSynchronize(NULL);
    freed = 1;
}

/* The vendor fails the call of the last rank; the others have made it. GROUPED: in a group, whose `end` fails or a call
 * `inside`. */
static void a_call_fails(void)
{
    start();
    const char *grouped = getenv("GROUPED");
    bool watched = getenv("FLAGOSCOMM_LIVENESS") != NULL;
    int code = atoi(getenv("CODE"));
    if (my_rank == n_ranks - 1) {
        sleep_ms(200); /* the others are inside by then */
        if (grouped) {
            OK(flagosGroupStart());
            IS(strcmp(grouped, "inside") ? 0 : code, all_reduce());
            at("failed");
            IS(code, flagosGroupEnd());
        } else {
            at("failed");
            IS(code, all_reduce());
        }
        SAYS(ERROR(), "failed with");
        EQUAL(state_of(), code);
        SAYS(flagosGetLastError(comm), "AllReduce(count 1000, int32, sum) #2");
        IS(code, all_reduce());
        EQUAL(state_of(), code);
        sleep_ms(300);
    } else {
        OK(all_reduce());
        pthread_t waiting = beside(waits_on_the_device);
        is_told(flagosRemoteError);
        if (watched) {
            double begin = now();
            pthread_join(waiting, NULL);
            CHECK(now() - begin < 2);
        } else {
            EQUAL(freed, 0);
        }
    }
    double begin = now();
    OK(flagosCommDestroy(comm));
    CHECK(now() - begin < 2);
    exit(0);
}

/* The vendor refuses an argument: nobody is told, it is said so, and the communicator goes on. */
static void a_call_is_refused(void)
{
    start();
    IS(flagosInvalidArgument, all_reduce());
    SAYS(ERROR(), "#2 on");
    if (n_ranks > 1) {
        SAYS(ERROR(), "the other ranks were not told");
        SAYS(ERROR(), "flagosCommAbort");
    } else {
        QUIET(ERROR(), "other ranks");
    }
    OK(flagosGroupStart());
    OK(all_reduce());
    IS(flagosInvalidUsage, flagosGroupEnd());
    if (n_ranks > 1)
        SAYS(ERROR(), "the other ranks were not told");
    EQUAL(state_of(), 0);
    all_reduce_works(comm, my_rank, n_ranks);
    /* What was refused did not count. */
    IS(flagosInvalidArgument, flagosAllReduce(data, data, COUNT, 99, flagosSum, comm, NULL));
    SAYS(ERROR(), "#3 on");
    EQUAL(state_of(), 0);
    OK(flagosCommDestroy(comm));
}

/* The state of the vendor's communicator is bad on the last rank. */
static void a_communicator_fails(void)
{
    start();
    if (my_rank == n_ranks - 1) {
        sleep_ms(200);
        setenv("FAKE_ASYNC_ERROR", "1", 1);
        at("failed");
        EQUAL(state_of(), flagosUnhandledDeviceError);
        sleep_ms(300);
    } else {
        OK(all_reduce());
        is_told(flagosRemoteError);
    }
    OK(flagosCommDestroy(comm));
    exit(0);
}

/* Rank 1 of three leaves in order. Messages and what was not launched don't count. */
static void message(void)
{
    if (my_rank == 0)
        OK(flagosSend(data, COUNT, flagosInt32, 2, comm, NULL));
    if (my_rank == 2)
        OK(flagosRecv(data, COUNT, flagosInt32, 0, comm, NULL));
    OK(flagosStreamSynchronize(NULL));
}

static void not_launched(void)
{
    OK(flagosGroupStart());
    OK(all_reduce());
    OK(all_reduce());
    IS(flagosInvalidArgument, flagosAllReduce(data, data, COUNT, 99, flagosSum, comm, NULL));
    IS(flagosInvalidArgument, flagosGroupEnd());
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    OK(flagosGroupStart());
    OK(all_reduce());
    OK(flagosGroupSimulateEnd(&sim));
    IS(flagosInvalidArgument, flagosAllReduce(data, data, COUNT, 99, flagosSum, comm, NULL));
}

static void a_rank_leaves(void)
{
    bool watched = getenv("FLAGOSCOMM_LIVENESS") != NULL;
    start();
    for (int i = 0; i < 3; i++)
        message();
    if (my_rank == 0)
        not_launched();
    OK(flagosGroupStart());
    OK(all_reduce());
    OK(all_reduce());
    OK(flagosGroupEnd());
    OK(flagosBarrier(comm, NULL));
    OK(flagosStreamSynchronize(NULL));
    if (my_rank == 1) {
        OK(flagosCommDestroy(comm));
        sleep_ms(600);
        exit(0);
    }
    /* That it has left is no error by itself. */
    double begin = now();
    while (now() - begin < 0.4) {
        EQUAL(state_of(), 0);
        sleep_ms(5);
    }
    message();
    EQUAL(state_of(), 0);
    OK(all_reduce());
    pthread_t waiting = beside(waits_on_the_device);
    is_told(flagosRemoteError);
    if (watched) {
        begin = now();
        pthread_join(waiting, NULL);
        CHECK(now() - begin < 2);
    }
    OK(flagosCommDestroy(comm));
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"a_call_fails", a_call_fails}, {"a_call_is_refused", a_call_is_refused},
        {"a_communicator_fails", a_communicator_fails}, {"a_rank_leaves", a_rank_leaves}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
