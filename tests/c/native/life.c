/* The end of communicators: destroy and abort that hang, exit without destroy, abort from elsewhere. */
#include "native.h"

static flagosComm_t comm;

static void one_rank(void)
{
    flagosUniqueId id = shared_id(0);
    RUNTIME(cudaSetDevice)(0);
    OK(flagosCommInitRank(&comm, 1, &id, 0));
    all_reduce_works(comm, 0, 1);
}

/* The vendor's destroy or abort hangs: ours returns at its limit and says so; the handle is gone. */
static void ends(int (*end)(flagosComm_t), const char *what)
{
    one_rank();
    double start = now();
    IS(flagosTimeout, end(comm));
    double took = now() - start;
    CHECK(took > 0.3 && took < 5);
    SAYS(ERROR(), what);
    SAYS(ERROR(), "FLAGOSCOMM_DESTROY_TIMEOUT");
    IS(flagosInvalidArgument, flagosCommDestroy(comm));
    IS(flagosInvalidArgument, flagosCommAbort(comm));
    /* Others are not hurt. */
    one_rank();
    exit(0);
}

static void destroy_hangs(void) { ends(flagosCommDestroy, "destroy"); }
static void abort_hangs(void) { ends(flagosCommAbort, "abort"); }

/* A destroy that takes its time is waited for. */
static void destroy_is_slow(void)
{
    one_rank();
    double start = now();
    OK(flagosCommDestroy(comm));
    CHECK(now() - start > 0.25);
}

/* The others have gone already, by a kill: destroy is local. */
static void peer_is_gone(void)
{
    flagosUniqueId id = shared_id(0);
    comm = join(my_rank, n_ranks, &id);
    all_reduce_works(comm, my_rank, n_ranks);
    if (my_rank == 1)
        _exit(0);
    sleep_ms(200);
    double start = now();
    flagosCommDestroy(comm);
    CHECK(now() - start < 5);
}

/* exit() without destroy, _exit() without destroy, both with the driver torn down before. */
static void exit_without_destroy(void)
{
    one_rank();
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    void *memory = device_memory(64);
    (void)memory;
    exit(0);
}

static void quick_exit_without_destroy(void)
{
    one_rank();
    _exit(0);
}

/* A thread is inside a collective or a barrier whose peer never comes, and the program ends. */
static flagosUniqueId two_id;

static void stuck_rank(void)
{
    comm = join(my_rank, 2, &two_id);
    int *data = device_memory(COUNT * sizeof(int));
    fill(data, my_rank);
    if (getenv("BARRIER")) {
        OK(flagosBarrier(comm, NULL));
    } else {
        OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
    }
    flagosStreamSynchronize(NULL);
    FAIL("the collective ended without its peer");
}

static void exit_inside(void)
{
    two_id = shared_id(0);
    if (my_rank == 1) {
        comm = join(1, 2, &two_id);
        sleep_ms(800);
        exit(0);
    }
    beside(stuck_rank);
    sleep_ms(400);
    exit(0);
}

/* Abort from another thread while a rank waits inside a collective: all return within two seconds. */
static atomic_int returned;

static void waits(void)
{
    RUNTIME(cudaSetDevice)(0);
    int *data = device_memory(COUNT * sizeof(int));
    if (getenv("BARRIER")) {
        OK(flagosBarrier(comm, NULL));
    } else {
        OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
    }
    flagosStreamSynchronize(NULL);
    returned = 1;
}

static void abort_a_waiter(void)
{
    two_id = shared_id(0);
    comm = join(my_rank, 2, &two_id);
    if (my_rank == 1) {
        /* Is told by the other's abort. */
        int state = 0;
        double start = now();
        while (state == 0 && now() - start < 10) {
            OK(flagosCommGetAsyncError(comm, &state));
            sleep_ms(10);
        }
        CHECK(state == flagosRemoteError || state == flagosAborted);
        OK(flagosCommAbort(comm));
        return;
    }
    pthread_t thread = beside(waits);
    sleep_ms(300);
    EQUAL(returned, 0);
    double start = now();
    OK(flagosCommAbort(comm));
    pthread_join(thread, NULL);
    CHECK(now() - start < 2);
    IS(flagosInvalidArgument, flagosCommDestroy(comm));
    IS(flagosInvalidArgument, flagosAllReduce(NULL, NULL, 0, flagosInt32, flagosSum, comm, NULL));
}

/* Abort while the vendor's collective hangs inside the call itself. */
static atomic_int inside_gave;

static void is_inside(void)
{
    OK(flagosSetDevice(my_rank));
    int *data = device_memory(COUNT * sizeof(int));
    inside_gave = flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL);
    if (inside_gave != flagosAborted)
        fprintf(stderr, "the collective said: %s\n", ERROR());
}

static void abort_a_call(void)
{
    two_id = shared_id(0);
    comm = join(my_rank, n_ranks, &two_id);
    inside_gave = -1;
    pthread_t thread = beside(is_inside);
    sleep_ms(300); /* into the vendor's call, which the log shows */
    double start = now();
    if (my_rank == 1) {
        /* Is told by the other's abort, and then aborts as well. */
        int state = 0;
        while (state == 0 && now() - start < 10) {
            OK(flagosCommGetAsyncError(comm, &state));
            sleep_ms(10);
        }
        CHECK(state == flagosRemoteError || state == flagosAborted);
        start = now();
    } else {
        EQUAL(inside_gave, -1);
    }
    OK(flagosCommAbort(comm));
    pthread_join(thread, NULL);
    CHECK(now() - start < 2);
    CHECK(inside_gave == flagosAborted || (my_rank == 1 && inside_gave == flagosRemoteError));
    exit(0);
}

/* The vendor's init or finalize hangs on some rank: all ranks time out. */
static void init_times_out(void)
{
    flagosUniqueId id = shared_id(0);
    OK(flagosSetDevice(my_rank));
    double start = now();
    IS(flagosTimeout, flagosCommInitRank(&comm, n_ranks, &id, my_rank));
    CHECK(!comm && now() - start < 5);
    exit(0);
}

static void finalize_times_out(void)
{
    flagosUniqueId id = shared_id(0);
    comm = join(my_rank, n_ranks, &id);
    all_reduce_works(comm, my_rank, n_ranks);
    double start = now();
    IS(flagosTimeout, flagosCommFinalize(comm));
    CHECK(now() - start < 5);
    start = now();
    flagosCommDestroy(comm);
    CHECK(now() - start < 5);
    exit(0);
}

/* Abort while the vendor's init hangs: the handle is there from the start. */
static void abort_an_init(void)
{
    flagosUniqueId id = shared_id(0);
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.blocking = 0;
    OK(flagosSetDevice(0));
    IS(flagosInProgress, flagosCommInitRankConfig(&comm, 1, &id, 0, &config));
    CHECK(comm);
    sleep_ms(300); /* into the vendor's call, which the log shows */
    int state = 0;
    OK(flagosCommGetAsyncError(comm, &state));
    EQUAL(state, flagosInProgress);
    double start = now();
    OK(flagosCommAbort(comm));
    CHECK(now() - start < 2);
    IS(flagosInvalidArgument, flagosCommGetAsyncError(comm, &state));
    exit(0);
}

/* The same with a peer that is blocked in its init: it is told and returns. */
static void abort_frees_the_peer(void)
{
    flagosUniqueId id = shared_id(0);
    OK(flagosSetDevice(my_rank));
    double start = now();
    if (my_rank == 1) {
        int result = flagosCommInitRank(&comm, 2, &id, 1);
        CHECK(result == flagosRemoteError || result == flagosAborted);
        CHECK(!comm);
        CHECK(now() - start < 8);
        exit(0);
    }
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (getenv("VENDOR_NONBLOCKING"))
        config.vendorNonblocking = 1;
    IS(flagosInProgress, flagosCommInitRankConfig(&comm, 2, &id, 0, &config));
    sleep_ms(300); /* into the vendor's call, which the log shows */
    start = now();
    OK(flagosCommAbort(comm));
    CHECK(now() - start < 2);
    sleep_ms(300);
    exit(0);
}

/* Abort of an init whose peer never arrives; the waiting thread of a blocking init is freed by the deadline. */
static void peer_never_arrives(void)
{
    flagosUniqueId id = shared_id(0);
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.blocking = 0;
    OK(flagosSetDevice(0));
    IS(flagosInProgress, flagosCommInitRankConfig(&comm, 2, &id, 0, &config));
    sleep_ms(100);
    double start = now();
    OK(flagosCommAbort(comm));
    CHECK(now() - start < 2);
    OK(flagosGetUniqueId(&id));
    config.blocking = FLAGOS_CONFIG_UNDEF;
    config.initTimeoutMs = 500;
    start = now();
    IS(flagosTimeout, flagosCommInitRankConfig(&comm, 3, &id, 0, &config));
    SAYS(ERROR(), "missing: ranks 1, 2 of 3");
    CHECK(!comm && now() - start < 5);
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"destroy_hangs", destroy_hangs}, {"abort_hangs", abort_hangs}, {"destroy_is_slow", destroy_is_slow},
        {"peer_is_gone", peer_is_gone}, {"exit_without_destroy", exit_without_destroy},
        {"quick_exit_without_destroy", quick_exit_without_destroy}, {"exit_inside", exit_inside},
        {"abort_a_waiter", abort_a_waiter}, {"abort_an_init", abort_an_init},
        {"abort_a_call", abort_a_call}, {"init_times_out", init_times_out}, {"finalize_times_out", finalize_times_out},
        {"abort_frees_the_peer", abort_frees_the_peer}, {"peer_never_arrives", peer_never_arrives}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
