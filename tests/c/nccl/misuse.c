/*
 * Every function of NCCL's API with bad arguments: NULL, numbers out of range, handles that are stale, made up, or another
 * library's, and under both names. An error of NCCL's set, a text, out-parameters NULL or 0, no crash; and afterwards the good
 * communicator still works.
 *
 * AV-1, AV-2, AV-3, AV-5.
 *
 * usage: misuse [LIBFLAGOS_COMM COPY_OF_LIBNCCL]; with them on a machine without a driver only
 */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define FAIL(...)                                                                          \
    do {                                                                                   \
        fprintf(stderr, "line %d: ", __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                      \
        fprintf(stderr, "\n");                                                             \
        failures++;                                                                        \
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
                 ncclGetLastError(NULL));                                                  \
        } else if (result_ != ncclSuccess && ncclGetLastError(NULL)[0] == 0) {             \
            FAIL("%s failed without a text", #call);                                       \
        }                                                                                  \
    } while (0)
#define OK(call) GIVES(ncclSuccess, call)
#define BAD(call) GIVES(ncclInvalidArgument, call)

/* The host side of the device API. */
typedef struct {
    int ranks, rank, stride;
} team;
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *made);
team ncclTeamWorld(ncclComm_t comm);
team ncclTeamLsa(ncclComm_t comm);
team ncclTeamRail(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, team t, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, team t, int rank);
ncclResult_t ncclLsaBarrierCreateRequirement(team t, int n, void *handle, void *requirement);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, team t, int n, void *handle, void *requirement);
int ncclLLA2ACalcSlots(int elements, int size);
ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirement);
void ncclResetDebugInitInternal(void);

/*
 * The table. An argument of every function is an integer or a pointer, so each is called through one type with all its
 * arguments as machine words. The letters say what an argument is:
 *
 *   c  communicator   k  another handle, junk   b  buffer   A  array   s  stream   g  config
 *   d  data type   o  operator   r  root or peer   n  count or number   z  flags, 0   t  residence
 *   p  out: pointer   i  out: 32 bits
 */
typedef size_t (*entry)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);

struct function {
    const char *name;
    entry call;
    const char *kinds;
};

#define FUNCTION(name, kinds) { #name, (entry)(void (*)(void))name, kinds }

static const struct function with_comm[] = {
    FUNCTION(ncclCommFinalize, "c"),
    FUNCTION(ncclCommDestroy, "c"),
    FUNCTION(ncclCommAbort, "c"),
    FUNCTION(ncclCommRevoke, "cz"),
    FUNCTION(ncclCommSplit, "cnnpg"),
    FUNCTION(ncclCommShrink, "cAnpgz"),
    FUNCTION(ncclCommGetAsyncError, "ci"),
    FUNCTION(ncclCommCount, "ci"),
    FUNCTION(ncclCommCuDevice, "ci"),
    FUNCTION(ncclCommUserRank, "ci"),
    FUNCTION(ncclCommRegister, "cbnp"),
    FUNCTION(ncclCommDeregister, "ck"),
    FUNCTION(ncclCommWindowRegister, "cbnpz"),
    FUNCTION(ncclCommWindowDeregister, "ck"),
    FUNCTION(ncclRedOpCreatePreMulSum, "ibdtc"),
    FUNCTION(ncclRedOpDestroy, "kc"),
    FUNCTION(ncclReduce, "bbndorcs"),
    FUNCTION(ncclBcast, "bndrcs"),
    FUNCTION(ncclBroadcast, "bbndrcs"),
    FUNCTION(ncclAllReduce, "bbndocs"),
    FUNCTION(ncclReduceScatter, "bbndocs"),
    FUNCTION(ncclAllGather, "bbndcs"),
    FUNCTION(ncclAlltoAll, "bbndcs"),
    FUNCTION(ncclGather, "bbndrcs"),
    FUNCTION(ncclScatter, "bbndrcs"),
    FUNCTION(ncclSend, "bndrcs"),
    FUNCTION(ncclRecv, "bndrcs"),
    FUNCTION(ncclDevCommCreate, "cAA"),
    FUNCTION(ncclDevCommDestroy, "cA"),
};
enum { functions = sizeof with_comm / sizeof with_comm[0] };

static struct {
    void *pointer;
    int number;
} out;

static int array[64];
static double buffer[32], other_buffer[32];
static ncclComm_t good_comm;

static size_t good(char kind)
{
    switch (kind) {
    case 'k': return 0xdead0;
    case 'b': return (size_t)buffer;
    case 'A': return (size_t)array;
    case 'n': return 1;
    case 't': return ncclScalarHostImmediate;
    case 'd': return ncclFloat64;
    case 'p': return (size_t)&out.pointer;
    case 'i': return (size_t)&out.number;
    case 'c': return (size_t)good_comm;
    default: return 0; /* s NULL, g NULL, o sum, r 0, z 0 */
    }
}

/* The same function under its second name. */
static entry alias(const char *name)
{
    char other[64];
    void *address;
    entry call;
    snprintf(other, sizeof other, "p%s", name);
    address = dlsym(RTLD_DEFAULT, other);
    if (address == NULL) {
        FAIL("no %s", other);
        return NULL;
    }
    *(void **)&call = address;
    return call;
}

/* Calls with the argument of this kind replaced. */
static int call(const struct function *f, entry function, char kind, size_t bad, int *had)
{
    size_t v[9] = { 0 };
    int i, buffers = 0, result;
    *had = 0;
    out.pointer = (void *)0x55;
    out.number = 0x55;
    for (i = 0; f->kinds[i] != 0; i++) {
        v[i] = good(f->kinds[i]);
        if (f->kinds[i] == 'b' && buffers++ == 1) v[i] = (size_t)other_buffer;
        if (f->kinds[i] == kind) {
            v[i] = bad;
            *had = 1;
        }
    }
    if (!*had || function == NULL) return 0;
    result = (int)function(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]);
    if (result != 0) {
        const char *text = ncclGetLastError(NULL);
        if (text[0] == 0) FAIL("%s failed without a text", f->name);
        if (result < 0 || result > 7) FAIL("%s returned %d, which is no result of NCCL", f->name, result);
        if (strchr(f->kinds, 'p') && kind != 'p' && out.pointer != NULL) FAIL("%s left its pointer at %p", f->name, out.pointer);
        if (strchr(f->kinds, 'i') && kind != 'i' && out.number != 0) FAIL("%s left its number at %d", f->name, out.number);
    }
    return result;
}

static void refuse(const struct function *f, char kind, size_t bad, int code)
{
    int had, i;
    for (i = 0; i < 2; i++) {
        int result = call(f, i ? alias(f->name) : f->call, kind, bad, &had);
        if (had && result != code) {
            FAIL("%s%s with %c = %#zx returned %d, not %d: %s", i ? "p" : "", f->name, kind, bad, result, code,
                 ncclGetLastError(NULL));
        }
    }
}

static int is(const struct function *f, const char *name)
{
    return strcmp(f->name, name) == 0;
}

static void bad_comm(const char *what, ncclComm_t comm)
{
    team t = { 1, 0, 1 };
    int i, before = failures;
    for (i = 0; i < functions; i++) {
        const struct function *f = &with_comm[i];
        int ends = is(f, "ncclCommFinalize") || is(f, "ncclCommDestroy") || is(f, "ncclCommAbort");
        /* NCCL takes NULL for nothing to do. */
        refuse(f, 'c', (size_t)comm, comm == NULL && ends ? ncclSuccess : ncclInvalidArgument);
    }
    /* No result code: a text, and nothing. */
    CHECK(ncclTeamWorld(comm).ranks == 0 && ncclGetLastError(NULL)[0] != 0);
    CHECK(ncclTeamLsa(comm).ranks == 0);
    CHECK(ncclTeamRail(comm).ranks == 0);
    CHECK(ncclTeamRankToWorld(comm, t, 0) == -1);
    CHECK(ncclTeamRankToLsa(comm, t, 0) == -1);
    BAD(ncclGinBarrierCreateRequirement(comm, t, 1, array, array));
    CHECK(ncclGetLastError(comm) != NULL);
    if (failures != before) fprintf(stderr, "(communicator: %s)\n", what);
}

static ncclComm_t one_rank(void)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    return comm;
}

static void still_works(void)
{
    OK(ncclAllReduce(buffer, other_buffer, 0, ncclFloat64, ncclSum, good_comm, NULL));
    OK(ncclCommGetAsyncError(good_comm, (ncclResult_t *)&out.number));
    CHECK(out.number == ncclSuccess);
}

static void inits(void)
{
    static const int ranks[][2] = { { 0, 0 }, { -1, 0 }, { 1, 1 }, { 1, -1 }, { 2, 2 }, { INT_MIN, 0 }, { INT_MAX, 0 } };
    static const int numbers[] = { 0, -1, INT_MIN, INT_MAX };
    ncclUniqueId id, zero;
    ncclComm_t comm, several[2];
    size_t i;
    memset(&zero, 0, sizeof zero);
    BAD(ncclGetUniqueId(NULL));
    OK(ncclGetUniqueId(&id));
    for (i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        comm = (ncclComm_t)0x55;
        BAD(ncclCommInitRank(&comm, ranks[i][0], id, ranks[i][1]));
        CHECK(comm == NULL);
        comm = (ncclComm_t)0x55;
        BAD(ncclCommInitRankConfig(&comm, ranks[i][0], id, ranks[i][1], NULL));
        CHECK(comm == NULL);
        comm = (ncclComm_t)0x55;
        BAD(ncclCommInitRankScalable(&comm, ranks[i][0], ranks[i][1], 1, &id, NULL));
        CHECK(comm == NULL);
    }
    BAD(ncclCommInitRank(NULL, 1, id, 0));
    BAD(ncclCommInitRankConfig(NULL, 1, id, 0, NULL));
    BAD(ncclCommInitRankScalable(NULL, 1, 0, 1, &id, NULL));
    comm = (ncclComm_t)0x55;
    BAD(ncclCommInitRank(&comm, 1, zero, 0));
    CHECK(comm == NULL);
    BAD(ncclCommInitRankScalable(&comm, 1, 0, 1, NULL, NULL));
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        BAD(ncclCommInitRankScalable(&comm, 1, 0, numbers[i], &id, NULL));
        BAD(ncclCommInitAll(several, numbers[i], NULL));
    }
    BAD(ncclCommInitAll(NULL, 2, NULL));
    OK(ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL));
    OK(ncclCommDestroy(comm));
}

static void configs(void)
{
    static const struct {
        size_t size;
        unsigned magic, version;
        int blocking, last; /* what of the struct's last number of 2.32 is set */
        int result;
    } cases[] = {
        { 80, NCCL_CONFIG_MAGIC, 22809, NCCL_UNDEF_INT, NCCL_UNDEF_INT, ncclSuccess },
        { 24, NCCL_CONFIG_MAGIC, 21400, 1, 99, ncclSuccess },      /* beyond its size: not the struct's */
        { 24, NCCL_CONFIG_MAGIC, 23203, 1, 99, ncclSuccess },      /* nor what its version would have */
        { 120, NCCL_CONFIG_MAGIC, 22809, 1, 99, ncclSuccess },     /* newer than its version: not there yet */
        { 120, NCCL_CONFIG_MAGIC, 23203, 1, NCCL_UNDEF_INT, ncclSuccess },
        { 120, NCCL_CONFIG_MAGIC, 23203, 1, 99, ncclInvalidUsage }, /* an option that is not known here */
        { 80, NCCL_CONFIG_MAGIC, 22809, 2, NCCL_UNDEF_INT, ncclInvalidArgument },
        { 80, 0, 22809, 1, NCCL_UNDEF_INT, ncclInvalidArgument },
        { 80, NCCL_CONFIG_MAGIC, 0, 1, NCCL_UNDEF_INT, ncclInvalidArgument },
        { 0, NCCL_CONFIG_MAGIC, 22809, 1, NCCL_UNDEF_INT, ncclInvalidArgument },
        { 23, NCCL_CONFIG_MAGIC, 22809, 1, NCCL_UNDEF_INT, ncclInvalidArgument },
        { SIZE_MAX, NCCL_CONFIG_MAGIC, 22809, 1, NCCL_UNDEF_INT, ncclInvalidArgument },
    };
    static char endless[5000];
    union {
        ncclConfig_t known;
        int words[64];
    } larger;
    size_t i, n;
    memset(endless, 'x', sizeof endless);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ncclConfig_t *exact = malloc(cases[i].size > 16 && cases[i].size < 4096 ? cases[i].size : sizeof *exact), c;
        int *word = (int *)&c, *end = (int *)(&c + 1);
        size_t size = cases[i].size > 16 && cases[i].size < sizeof c ? cases[i].size : sizeof c;
        ncclComm_t comm = (ncclComm_t)0x55;
        ncclUniqueId id;
        while (word < end) *word++ = NCCL_UNDEF_INT;
        c.size = cases[i].size;
        c.magic = cases[i].magic;
        c.version = cases[i].version;
        c.blocking = cases[i].blocking;
        c.nvlsHostMode = cases[i].last;
        c.netName = c.commName = NULL;
        memcpy(exact, &c, size); /* not a byte more than it says: the sanitizers see a read behind it */
        OK(ncclGetUniqueId(&id));
        GIVES(cases[i].result, ncclCommInitRankConfig(&comm, 1, id, 0, exact));
        CHECK((comm != NULL) == (cases[i].result == ncclSuccess));
        if (comm != NULL) OK(ncclCommDestroy(comm));
        comm = (ncclComm_t)0x55;
        GIVES(cases[i].result, ncclCommSplit(good_comm, 0, 0, &comm, exact));
        CHECK((comm != NULL) == (cases[i].result == ncclSuccess));
        if (comm != NULL) OK(ncclCommDestroy(comm));
        free(exact);
    }
    /* A header that is yet to come: what nobody set is fine. */
    for (n = 0; n < 3; n++) {
        ncclComm_t comm = (ncclComm_t)0x55;
        for (i = 0; i < 64; i++) larger.words[i] = i % 2 ? 0 : NCCL_UNDEF_INT;
        for (i = 0; i < sizeof larger.known / sizeof(int); i++) larger.words[i] = NCCL_UNDEF_INT;
        larger.known.size = sizeof larger;
        larger.known.magic = NCCL_CONFIG_MAGIC;
        larger.known.version = 29900;
        larger.known.netName = larger.known.commName = NULL;
        if (n == 1) larger.words[50] = 1;
        if (n == 2) larger.known.commName = endless;
        GIVES(n == 0 ? ncclSuccess : n == 1 ? ncclInvalidUsage : ncclInvalidArgument,
              ncclCommSplit(good_comm, 0, 0, &comm, &larger.known));
        if (n == 0) OK(ncclCommDestroy(comm));
        endless[sizeof endless - 1] = 'x';
    }
}

static void numbers(void)
{
    static const int types[] = { -1, 12, 13, 99, INT_MAX, INT_MIN };
    static const int ops[] = { -1, 5, 6, 99, 1000, INT_MAX, INT_MIN };
    static const int roots[] = { -1, 1, 99, INT_MAX, INT_MIN };
    static const int flags[] = { -1, 2, 99, INT_MAX, INT_MIN };
    team t = { 1, 0, 1 };
    size_t n;
    int i, had;
    for (i = 0; i < functions; i++) {
        const struct function *f = &with_comm[i];
        int device_side = strstr(f->name, "DevComm") != NULL;
        for (n = 0; n < sizeof types / sizeof types[0]; n++) refuse(f, 'd', (size_t)types[n], ncclInvalidArgument);
        for (n = 0; n < sizeof ops / sizeof ops[0]; n++) refuse(f, 'o', (size_t)ops[n], ncclInvalidArgument);
        for (n = 0; n < sizeof roots / sizeof roots[0]; n++) refuse(f, 'r', (size_t)roots[n], ncclInvalidArgument);
        for (n = 0; n < sizeof flags / sizeof flags[0]; n++) refuse(f, 't', (size_t)flags[n], ncclInvalidArgument);
        if (is(f, "ncclCommShrink") || is(f, "ncclCommRevoke")) {
            for (n = 0; n < sizeof flags / sizeof flags[0]; n++) refuse(f, 'z', (size_t)flags[n], ncclInvalidArgument);
        }
        if (strchr(f->kinds, 's')) refuse(f, 'b', 0, ncclInvalidArgument);
        if (device_side) continue;
        refuse(f, 'i', 0, ncclInvalidArgument);
        refuse(f, 'p', 0, ncclInvalidArgument);
    }
    for (n = 0; n < sizeof types / sizeof types[0]; n++) {
        CHECK(ncclGetErrorString((ncclResult_t)types[n])[0] != 0);
    }
    for (n = 0; n < 8; n++) CHECK(ncclGetErrorString((ncclResult_t)n)[0] != 0);
    BAD(ncclGetVersion(NULL));
    BAD(ncclCommSplit(good_comm, -2, 0, &good_comm, NULL));
    CHECK(good_comm == NULL);
    good_comm = one_rank();
    /* A count that no memory can hold; nothing at all is fine. */
    BAD(ncclAllReduce(buffer, other_buffer, SIZE_MAX / 4, ncclFloat64, ncclSum, good_comm, NULL));
    OK(ncclAllReduce(NULL, NULL, 0, ncclFloat64, ncclSum, good_comm, NULL));
    for (i = 0; i < functions; i++) { /* a shrink of one rank excludes nobody or itself */
        if (is(&with_comm[i], "ncclCommShrink")) CHECK(call(&with_comm[i], with_comm[i].call, 'n', 0, &had) == ncclInvalidArgument);
    }
    /* Kernels' things are the real NCCL's alone. */
    if (getenv("FAKE_LOG") == NULL) {
        GIVES(ncclInvalidUsage, ncclDevCommCreate(good_comm, array, array));
        GIVES(ncclInvalidUsage, ncclDevCommDestroy(good_comm, array));
        GIVES(ncclInvalidUsage, ncclLsaBarrierCreateRequirement(t, 1, array, array));
        GIVES(ncclInvalidUsage, ncclGinBarrierCreateRequirement(good_comm, t, 1, array, array));
        GIVES(ncclInvalidUsage, ncclLLA2ACreateRequirement(1, 1, array, array));
        CHECK(ncclLLA2ACalcSlots(8, 8) == 0);
        CHECK(ncclTeamWorld(good_comm).ranks == 0 && strstr(ncclGetLastError(good_comm), "ncclTeamWorld") != NULL);
    }
    ncclResetDebugInit();
    ncclResetDebugInitInternal();
}

static void memory(void)
{
    void *p = (void *)0x55, *h1, *h2;
    ncclWindow_t win;
    ncclComm_t second = one_rank();
    ncclRedOp_t op, other;
    double two = 2;
    BAD(ncclMemAlloc(NULL, 8));
    BAD(ncclMemAlloc(&p, 0));
    CHECK(p == NULL);
    p = (void *)0x55;
    GIVES(getenv("FAKE_LOG") == NULL ? ncclSystemError : ncclUnhandledCudaError, ncclMemAlloc(&p, (size_t)1 << 62));
    CHECK(p == NULL);
    OK(ncclMemAlloc(&p, 4096));
    OK(ncclMemFree(NULL));
    BAD(ncclMemFree(buffer));

    BAD(ncclCommRegister(good_comm, NULL, 8, &h1));
    BAD(ncclCommRegister(good_comm, p, 0, &h1));
    CHECK(h1 == NULL);
    /* Twice is counted. */
    OK(ncclCommRegister(good_comm, p, 4096, &h1));
    OK(ncclCommRegister(good_comm, p, 4096, &h2));
    CHECK(h1 == h2);
    OK(ncclCommDeregister(good_comm, NULL));
    BAD(ncclCommDeregister(second, h1));
    OK(ncclCommDeregister(good_comm, h1));
    OK(ncclCommDeregister(good_comm, h1));
    BAD(ncclCommDeregister(good_comm, h1));

    win = (ncclWindow_t)0x55;
    BAD(ncclCommWindowRegister(good_comm, NULL, 4096, &win, 0));
    CHECK(win == NULL);
    OK(ncclCommWindowRegister(good_comm, p, 4096, &win, 0));
    CHECK(win != NULL);
    OK(ncclCommWindowDeregister(good_comm, NULL));
    BAD(ncclCommWindowDeregister(second, win));
    OK(ncclCommWindowDeregister(good_comm, win));
    BAD(ncclCommWindowDeregister(good_comm, win));

    /* Operators belong to their communicator. */
    BAD(ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat64, ncclScalarHostImmediate, good_comm));
    OK(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat64, ncclScalarHostImmediate, good_comm));
    OK(ncclRedOpCreatePreMulSum(&other, &two, ncclFloat64, ncclScalarHostImmediate, second));
    BAD(ncclAllReduce(buffer, other_buffer, 1, ncclFloat32, op, good_comm, NULL));
    BAD(ncclRedOpDestroy(ncclSum, good_comm));
    BAD(ncclRedOpDestroy((ncclRedOp_t)99999, good_comm));
    OK(ncclRedOpDestroy(op, good_comm));
    BAD(ncclRedOpDestroy(op, good_comm));
    BAD(ncclAllReduce(buffer, other_buffer, 1, ncclFloat64, op, good_comm, NULL));

    /* A communicator takes its registrations and operators with it. */
    OK(ncclCommRegister(second, p, 4096, &h1));
    OK(ncclCommDestroy(second));
    BAD(ncclCommDeregister(second, h1));
    BAD(ncclCommDeregister(good_comm, h1));
    BAD(ncclRedOpDestroy(other, second));

    OK(ncclMemFree(p));
    BAD(ncclMemFree(p));
}

static void groups(void)
{
    ncclSimInfo_t sim = { sizeof sim, NCCL_SIM_MAGIC, 22809, 7 };
    ncclComm_t comm = (ncclComm_t)0x55;
    ncclUniqueId id;
    int i;
    GIVES(ncclInvalidUsage, ncclGroupEnd());
    GIVES(ncclInvalidUsage, ncclGroupSimulateEnd(&sim));
    CHECK(sim.estimatedTime == 0 && sim.size == sizeof sim && sim.magic == NCCL_SIM_MAGIC);
    OK(ncclGroupStart());
    OK(ncclGroupEnd());
    /* A refused call makes the group fail, and a bad struct leaves it open. */
    for (i = 0; i < 3; i++) {
        OK(ncclGroupStart());
        BAD(ncclAllReduce(buffer, buffer, 1, i == 0 ? (ncclDataType_t)12 : ncclFloat64, i == 1 ? (ncclRedOp_t)5 : ncclSum,
                          i == 2 ? NULL : good_comm, NULL));
        BAD(ncclGroupEnd());
    }
    OK(ncclGroupStart());
    BAD(ncclGroupSimulateEnd(NULL));
    sim.magic = 0;
    BAD(ncclGroupSimulateEnd(&sim));
    sim.magic = NCCL_SIM_MAGIC;
    sim.size = 4;
    BAD(ncclGroupSimulateEnd(&sim));
    OK(ncclGroupEnd());
    /* An init that a group can't make. */
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    BAD(ncclCommInitRank(&comm, 1, id, 5));
    CHECK(comm == NULL);
    i = (int)ncclGroupEnd();
    CHECK(i == ncclSuccess || i == ncclInvalidArgument);
}

/* Handles of another library and of another copy of this one mean nothing here, and the other way round. */
static void foreign(const char *native, const char *other)
{
    void *lib = dlopen(native, RTLD_NOW | RTLD_LOCAL), *twin = dlopen(other, RTLD_NOW | RTLD_LOCAL);
    void *comm = NULL, *stream = NULL, *registration;
    ncclComm_t twins = NULL;
    if (lib == NULL || twin == NULL) {
        FAIL("%s", dlerror());
        return;
    }
#define OF(library, type, name) ((type)(size_t)dlsym(library, name))
    CHECK(OF(lib, int (*)(void **, int, const int *), "flagosCommInitAll")(&comm, 1, NULL) == 0);
    bad_comm("the native library's", comm);
    CHECK(OF(lib, int (*)(void *, int *), "flagosCommCount")(good_comm, &out.number) == ncclInvalidArgument);
    CHECK(OF(lib, int (*)(void **), "flagosStreamCreate")(&stream) == 0);
    BAD(ncclAllReduce(buffer, buffer, 1, ncclFloat64, ncclSum, good_comm, stream));
    CHECK(OF(lib, int (*)(void *), "flagosStreamDestroy")(stream) == 0);
    CHECK(OF(lib, int (*)(void *), "flagosCommDestroy")(comm) == 0);
    BAD(ncclAllReduce(buffer, buffer, 1, ncclFloat64, ncclSum, good_comm, (cudaStream_t)buffer));

    CHECK(OF(twin, __typeof__(&ncclCommInitAll), "ncclCommInitAll")(&twins, 1, NULL) == 0);
    bad_comm("another copy's", twins);
    CHECK(OF(twin, __typeof__(&ncclCommCount), "ncclCommCount")(good_comm, &out.number) == ncclInvalidArgument);
    CHECK(OF(twin, __typeof__(&ncclCommRegister), "ncclCommRegister")(twins, buffer, 8, &registration) == 0);
    BAD(ncclCommDeregister(good_comm, registration));
    CHECK(OF(twin, __typeof__(&ncclCommDestroy), "ncclCommDestroy")(twins) == 0);
}

int main(int argc, char **argv)
{
    ncclComm_t stale;
    good_comm = one_rank();
    still_works();
    inits();
    configs();
    bad_comm("NULL", NULL);
    bad_comm("made up", (ncclComm_t)0xdeadbeef);
    bad_comm("a pointer", (ncclComm_t)buffer);
    bad_comm("all bits", (ncclComm_t)-1);
    bad_comm("1", (ncclComm_t)1);
    stale = one_rank();
    OK(ncclCommDestroy(stale));
    bad_comm("destroyed", stale);
    stale = one_rank();
    OK(ncclCommAbort(stale));
    bad_comm("aborted", stale);
    stale = one_rank();
    OK(ncclCommFinalize(stale));
    GIVES(ncclInvalidUsage, ncclCommFinalize(stale));
    OK(ncclCommDestroy(stale));
    bad_comm("finalized", stale);
    stale = one_rank();
    OK(ncclCommRevoke(stale, 0));
    GIVES(ncclInvalidUsage, ncclAllReduce(buffer, other_buffer, 1, ncclFloat64, ncclSum, stale, NULL));
    OK(ncclCommDestroy(stale));
    numbers();
    memory();
    groups();
    if (argc == 3) foreign(argv[1], argv[2]);
    still_works();
    OK(ncclCommDestroy(good_comm));
    if (failures) fprintf(stderr, "%d failures\n", failures);
    return failures != 0;
}
