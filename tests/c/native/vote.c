/* Agreements of the ranks on something of the caller's, on whichever tier the test allows. */
#include "native.h"

static flagosComm_t comm;
static int lowest, levels[8];
static char text[4096];
static size_t needed;

static int agree(int level, const char *reason)
{
    lowest = -99;
    memset(levels, 0x5a, sizeof levels);
    memset(text, 0x5a, sizeof text);
    needed = 12345;
    return flagosCommAgree(comm, level, reason, &lowest, levels, text, sizeof text, &needed);
}

static void start(void)
{
    flagosUniqueId id = shared_id(0);
    comm = join(my_rank, n_ranks, &id);
}

static void works_on(void)
{
    if (info_of(comm).tier == flagosTierNative)
        all_reduce_works(comm, my_rank, n_ranks);
    OK(agree(my_rank, NULL));
    EQUAL(lowest, 0);
    EQUAL(levels[n_ranks - 1], n_ranks - 1);
}

/* Three ranks: the same answer on all of them, whatever each says. */
static void answers(void)
{
    start();
    /* All of one mind. */
    OK(agree(1, NULL));
    EQUAL(lowest, 1);
    EQUAL(needed, 1);
    CHECK(!text[0]);
    for (int r = 0; r < 3; r++)
        EQUAL(levels[r], 1);
    EQUAL(levels[3], 0x5a5a5a5a);
    /* One is not. */
    OK(agree(my_rank == 1 ? 0 : 1, my_rank == 1 ? "no peer access" : ""));
    EQUAL(lowest, 0);
    EQUAL(levels[0], 1);
    EQUAL(levels[1], 0);
    EQUAL(levels[2], 1);
    SAYS(text, "level 0: rank 1 (host ");
    SAYS(text, "): no peer access; level 1: ranks 0, 2");
    EQUAL(needed, strlen(text) + 1);
    /* For good, and for the same reason. */
    OK(agree(my_rank ? -1 : -2147483647 - 1, my_rank ? "switched off" : "broken"));
    EQUAL(lowest, -2147483647 - 1);
    SAYS(text, "level -2147483648: rank 0 (host ");
    SAYS(text, "): broken; level -1: ranks 1, 2: switched off");
    printf("text: %s\n", text);
    OK(agree(my_rank ? -1 : -2147483647 - 1, my_rank ? "switched off" : "broken"));
    /* A long reason is cut, and so is a text without room. */
    char reason[3000];
    memset(reason, 'x', sizeof reason - 1);
    reason[sizeof reason - 1] = 0;
    char little[24];
    OK(flagosCommAgree(comm, my_rank, reason, &lowest, NULL, little, sizeof little, &needed));
    EQUAL(lowest, 0);
    EQUAL(strlen(little), sizeof little - 1);
    CHECK(needed > 3 * 1023 && needed < 3 * 1023 + 300);
    OK(flagosCommAgree(comm, 5 - my_rank, NULL, &lowest, NULL, NULL, 0, NULL));
    EQUAL(lowest, 3);
    OK(flagosCommAgree(comm, 5 - my_rank, NULL, &lowest, NULL, NULL, 0, &needed));
    CHECK(needed > 1);
    works_on();
    OK(flagosCommDestroy(comm));
}

/* What is wrong on one rank is said there, and disturbs nobody. */
static void misuse(void)
{
    start();
    int code = flagosCommAgree(comm, 1, NULL, NULL, levels, text, sizeof text, &needed);
    EQUAL(code, flagosInvalidArgument);
    SAYS(ERROR(), "lowest is NULL");
    CHECK(!text[0] && needed == 0);
    IS(flagosInvalidArgument, flagosCommAgree(comm, 1, NULL, &lowest, NULL, NULL, 5, NULL));
    OK(flagosGroupStart());
    IS(flagosInvalidUsage, agree(1, NULL));
    SAYS(ERROR(), "can't be inside a group");
    EQUAL(lowest, 0);
    EQUAL(levels[0], 0x5a5a5a5a);
    CHECK(!text[0] && needed == 0);
    OK(flagosGroupEnd());
    works_on();
    OK(flagosCommFinalize(comm));
    IS(flagosInvalidUsage, agree(1, NULL));
    SAYS(ERROR(), "finalized");
    OK(flagosCommDestroy(comm));
}

/* While a stream is captured: nothing of it reaches the stream. */
static void while_capturing(void)
{
    start();
    flagosStream_t stream;
    OK(flagosStreamCreate(&stream));
    cudaGraph_t graph;
    CHECK(!RUNTIME(cudaStreamBeginCapture)((cudaStream_t)stream, cudaStreamCaptureModeGlobal));
    OK(agree(my_rank, NULL));
    CHECK(!RUNTIME(cudaStreamEndCapture)((cudaStream_t)stream, &graph));
    works_on();
    OK(flagosCommDestroy(comm));
}

/* One rank does not call: it is late, dead, gone in order, or elsewhere. */
static void without_one(void)
{
    const char *how = getenv("HOW");
    start();
    works_on();
    double begin = now();
    if (my_rank == 1) {
        if (!strcmp(how, "dead"))
            _exit(0);
        if (!strcmp(how, "gone"))
            OK(flagosCommDestroy(comm));
        if (!strcmp(how, "elsewhere")) {
            flagosComm_t child;
            IS(flagosInvalidUsage, flagosCommSplit(comm, 0, 0, &child, NULL));
        }
        if (!strcmp(how, "aborted")) {
            sleep_ms(100);
            OK(flagosCommAbort(comm));
        }
        sleep_ms(1500);
        exit(0);
    }
    int code = agree(1, NULL);
    CHECK(now() - begin < 5);
    printf("code: %d\ntext: %s\n", code, ERROR());
    EQUAL(lowest, 0);
    IS(code, agree(1, NULL));
    flagosCommDestroy(comm);
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct scenario list[] = {
        {"answers", answers}, {"misuse", misuse}, {"while_capturing", while_capturing}, {"without_one", without_one}, {0, 0},
    };
    return scenarios(argc, argv, list);
}
