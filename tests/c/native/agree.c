/* One init, as far as it gets: prints what came of it, for the test to compare. */
#include "native.h"

static const char *one_line(const char *text)
{
    static char line[8192];
    snprintf(line, sizeof line, "%s", text);
    for (char *p = line; *p; p++)
        if (*p == '\n')
            *p = ' ';
    return line;
}

/* The second and third call of the optional functions, which may be missing. */
static void optional(flagosComm_t comm)
{
    int state = -1;
    int asked = flagosCommGetAsyncError(comm, &state);
    printf("async: %d %d\n", asked, state);
    flagosRedOp_t op;
    float two = 2;
    int result = flagosRedOpCreatePreMulSum(&op, &two, flagosFloat32, flagosScalarHostImmediate, comm);
    printf("premulsum: %d %s\n", result, result ? one_line(ERROR()) : "");
    result = flagosCommSuspend(comm, FLAGOS_SUSPEND_MEM);
    printf("suspend: %d %s\n", result, result ? one_line(ERROR()) : "");
    if (!result)
        OK(flagosCommResume(comm));
    /* What is simulated is never launched, also where the library can't simulate. */
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    int *data = device_memory(COUNT * sizeof(int)), host[COUNT];
    fill(data, my_rank);
    mark("simulate");
    OK(flagosGroupStart());
    OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosMax, comm, NULL));
    result = flagosGroupSimulateEnd(&sim);
    printf("simulate: %d %s\n", result, result ? one_line(ERROR()) : "");
    mark("end");
    all_reduce_works(comm, my_rank, n_ranks);
    get(host, data, sizeof host);
    EQUAL(host[3], value_of(my_rank, 3));
    result = flagosCommFinalize(comm);
    printf("finalize: %d %s\n", result, result ? one_line(ERROR()) : "");
}

static void init(void)
{
    flagosUniqueId id = shared_id(0);
    flagosComm_t comm = (flagosComm_t)1;
    int devices = 0;
    if (!flagosGetDeviceCount(&devices) && devices > my_rank)
        OK(flagosSetDevice(my_rank));
    double start = now();
    int result = flagosCommInitRank(&comm, n_ranks, &id, my_rank);
    CHECK(now() - start < 20);
    printf("init: %d\n", result);
    if (result) {
        CHECK(!comm);
        printf("text: %s\n", one_line(ERROR()));
        return;
    }
    flagosCommInfo_t info = info_of(comm);
    printf("tier: %d\nlibrary: %s\nversion: %d\nvendor: %s\n", info.tier, info.libraryPath, info.libraryVersion, info.vendor);
    if (devices > my_rank) {
        all_reduce_works(comm, my_rank, n_ranks);
        /* The host tier serves host memory too. */
    }
    if (info.tier == flagosTierHost) {
        int data[COUNT];
        for (int i = 0; i < COUNT; i++)
            data[i] = value_of(my_rank, i);
        OK(flagosAllReduce(data, data, COUNT, flagosInt32, flagosSum, comm, NULL));
        for (int i = 0; i < COUNT; i++)
            EQUAL(data[i], sum_of(n_ranks, i));
    }
    if (getenv("OPTIONAL"))
        optional(comm);
    result = flagosCommDestroy(comm);
    printf("destroy: %d %s\n", result, result ? one_line(ERROR()) : "");
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {{"init", init}, {0, 0}};
    return scenarios(argc, argv, list);
}
