/*
 * Every function with bad arguments: an error code, a text, out-parameters NULL or 0, no crash.
 * Needs no communicator.
 *
 * AV-1 numbers outside the enums, AV-2 NULL with count 0, AV-5 handles that are none.
 */
#include "flagos_comm.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition,                    \
                    flagosGetLastError(NULL));                                             \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

/*
 * The table. An argument of every function is an integer or a pointer, so each is called through one
 * type with all its arguments as machine words. The letters say what an argument is:
 *
 *   c  communicator        s  stream             v  event            k  other handle
 *   p  out: pointer-sized  i  out: 32 bits       z  out: size_t      f  out: float
 *   U  out: unique id      C  out: comm info     P  out: pointer attributes   S  sim info
 *   b  buffer, never touched                     A  array, never touched when comm is bad
 *   u  unique id           g  config             n  count            e  number that is checked
 *   t  text buffer         w  bytes of it
 */
typedef size_t (*entry)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);

struct function {
    const char *name;
    entry call;
    const char *kinds;
};

#define FUNCTION(name, kinds) { #name, (entry)(void (*)(void))name, kinds }

/* Functions that fail when their handle is bad, whatever the rest is. */
static const struct function with_comm[] = {
    FUNCTION(flagosCommSplit, "ceepg"),
    FUNCTION(flagosCommShrink, "cAepge"),
    FUNCTION(flagosCommAgree, "cebibtwz"),
    FUNCTION(flagosCommFinalize, "c"),
    FUNCTION(flagosCommDestroy, "c"),
    FUNCTION(flagosCommAbort, "c"),
    FUNCTION(flagosCommRevoke, "ce"),
    FUNCTION(flagosCommSuspend, "ce"),
    FUNCTION(flagosCommResume, "c"),
    FUNCTION(flagosCommGetAsyncError, "ci"),
    FUNCTION(flagosCommCount, "ci"),
    FUNCTION(flagosCommUserRank, "ci"),
    FUNCTION(flagosCommGetDeviceNumber, "ci"),
    FUNCTION(flagosCommGetName, "ctwz"),
    FUNCTION(flagosCommGetInfo, "cC"),
    FUNCTION(flagosAllReduce, "bbneecs"),
    FUNCTION(flagosBroadcast, "bbneecs"),
    FUNCTION(flagosReduce, "bbneeecs"),
    FUNCTION(flagosAllGather, "bbnecs"),
    FUNCTION(flagosReduceScatter, "bbneecs"),
    FUNCTION(flagosGather, "bbneecs"),
    FUNCTION(flagosScatter, "bbneecs"),
    FUNCTION(flagosAlltoAll, "bbnecs"),
    FUNCTION(flagosAlltoAllv, "bAAbAAecs"),
    FUNCTION(flagosSend, "bneecs"),
    FUNCTION(flagosRecv, "bneecs"),
    FUNCTION(flagosBarrier, "cs"),
    FUNCTION(flagosCommRegister, "cbnp"),
    FUNCTION(flagosCommDeregister, "ck"),
    FUNCTION(flagosCommWindowRegister, "cbnpe"),
    FUNCTION(flagosCommWindowDeregister, "ck"),
    FUNCTION(flagosRedOpCreatePreMulSum, "ibeec"),
    FUNCTION(flagosRedOpDestroy, "ec"),
};

static const size_t numbers[] = {
    (size_t)-1, 0, 1, 5, 10, 99, INT_MAX, (size_t)INT_MIN, 0xdeadbeef,
};

static const size_t bad_comms[] = { 0, 0xdeadbeef, INT_MAX, (size_t)-1, 1, 0x100000001 };

/* What out-parameters point to; filled with a pattern before a call. */
static struct {
    void *pointer;
    int32_t number;
    size_t size;
    float real;
    flagosUniqueId id;
    flagosCommInfo_t info;
    flagosPointerAttributes_t attributes;
    flagosSimInfo_t sim;
    char text[32];
} out;

static size_t array[16];
static double buffer[16];
static flagosConfig_t config;
static flagosUniqueId id;

static int zero(const void *memory, size_t size)
{
    const char *byte = memory;
    while (size-- > 0) {
        if (*byte++ != 0) {
            return 0;
        }
    }
    return 1;
}

static size_t good_value(char kind)
{
    switch (kind) {
    case 'p': return (size_t)&out.pointer;
    case 'i': return (size_t)&out.number;
    case 'z': return (size_t)&out.size;
    case 'f': return (size_t)&out.real;
    case 'U': return (size_t)&out.id;
    case 'C': return (size_t)&out.info;
    case 'P': return (size_t)&out.attributes;
    case 'S': return (size_t)&out.sim;
    case 't': return (size_t)out.text;
    case 'w': return sizeof out.text;
    case 'b': return (size_t)buffer;
    case 'A': return (size_t)array;
    case 'u': return (size_t)&id;
    case 'g': return (size_t)&config;
    case 'n': return 4;
    case 'k': return 0xdeadbeef;
    default: return 0;
    }
}

static void prepare(void)
{
    const flagosConfig_t undefined = FLAGOS_CONFIG_INITIALIZER;
    const flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    memset(&out, 0x5a, sizeof out);
    out.info.size = sizeof out.info;
    out.attributes.size = sizeof out.attributes;
    out.sim = sim;
    out.sim.estimatedTime = 1.0f;
    config = undefined;
}

/* Calls, and expects an error that names the function, and empty out-parameters. */
static void refused(const struct function *function, const size_t *a, int32_t expected)
{
    const size_t length = strlen(function->name);
    const char *text;
    const char *kind;
    int32_t result = (int32_t)function->call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
    int i;
    if (result != expected) {
        fprintf(stderr, "%s(", function->name);
        for (i = 0; function->kinds[i] != 0; i++) {
            fprintf(stderr, " %#zx", a[i]);
        }
        fprintf(stderr, " ) returned %d, not %d: %s\n", result, expected, flagosGetLastError(NULL));
        failures++;
    }
    text = flagosGetLastError(NULL);
    if (strstr(text, function->name + strlen("flagos")) == NULL) {
        fprintf(stderr, "%s: the text of the error does not name it: \"%s\"\n", function->name, text);
        failures++;
    }
    if (strncmp(text, function->name, length) == 0 && text[length] == ':'
        && strncmp(text + length + 2, function->name, length) == 0) {
        fprintf(stderr, "the text of the error names its function twice: \"%s\"\n", text);
        failures++;
    }
    for (kind = function->kinds, i = 0; *kind != 0; kind++, i++) {
        int empty = 1;
        if (a[i] != good_value(*kind)) {
            continue; /* this one was the bad argument */
        }
        switch (*kind) {
        case 'p': empty = out.pointer == NULL; break;
        case 'i': empty = out.number == 0; break;
        case 'z': empty = out.size == 0; break;
        case 'f': empty = out.real == 0.0f; break;
        case 'U': empty = zero(&out.id, sizeof out.id); break;
        case 'C': empty = zero(&out.info.tier, sizeof out.info - sizeof(size_t)); break;
        case 'P': empty = zero(&out.attributes.kind, sizeof out.attributes - sizeof(size_t)); break;
        case 't': empty = out.text[0] == 0; break;
        default: break;
        }
        if (!empty) {
            fprintf(stderr, "%s: out-parameter %d is not empty after an error\n", function->name, i);
            failures++;
        }
    }
}

static void fill(const struct function *function, size_t *arguments)
{
    int i;
    for (i = 0; i < 9; i++) {
        arguments[i] = i < (int)strlen(function->kinds) ? good_value(function->kinds[i]) : 0;
    }
}

static void misuse_communicators(void)
{
    size_t f;
    for (f = 0; f < sizeof with_comm / sizeof *with_comm; f++) {
        const struct function *function = &with_comm[f];
        int comm = (int)(strchr(function->kinds, 'c') - function->kinds);
        size_t arguments[9];
        size_t n;
        int i;
        for (n = 0; n < sizeof bad_comms / sizeof *bad_comms; n++) {
            fill(function, arguments);
            arguments[comm] = bad_comms[n];
            prepare();
            refused(function, arguments, flagosInvalidArgument);
        }
        /* One more bad argument beside the bad communicator. */
        for (i = 0; function->kinds[i] != 0; i++) {
            char kind = function->kinds[i];
            if (i == comm) {
                continue;
            }
            fill(function, arguments);
            if (kind == 'e' || kind == 'n' || kind == 'b' || kind == 's' || kind == 'k') {
                for (n = 0; n < sizeof numbers / sizeof *numbers; n++) {
                    arguments[i] = numbers[n];
                    prepare();
                    refused(function, arguments, flagosInvalidArgument);
                }
            } else if (kind != 'w' && kind != 'g' && kind != 't') {
                arguments[i] = 0;
                prepare();
                refused(function, arguments, flagosInvalidArgument);
            }
        }
    }
}

static void one(const char *name, entry call, const char *kinds, const size_t *a, int32_t expected)
{
    struct function function;
    size_t arguments[9] = { 0 };
    function.name = name;
    function.call = call;
    function.kinds = kinds;
    memcpy(arguments, a, strlen(kinds) * sizeof *a);
    prepare();
    refused(&function, arguments, expected);
}

/* REFUSED(code, function, kinds, arguments...) */
#define REFUSED(expected, name, kinds, ...)                                                \
    do {                                                                                   \
        const size_t arguments[] = { __VA_ARGS__ };                                        \
        one(#name, (entry)(void (*)(void))name, kinds, arguments, expected);               \
    } while (0)

#define OUT(kind) good_value(kind)

static void misuse_init(void)
{
    const size_t ranks[] = { 0, (size_t)-1, (size_t)INT_MIN, INT_MAX };
    size_t i;

    REFUSED(flagosInvalidArgument, flagosGetUniqueId, "U", 0);

    REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", 0, 1, OUT('u'), 0);
    REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), 1, 0, 0);
    /* An id of zeros, and one of noise. */
    memset(&id, 0, sizeof id);
    REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), 1, OUT('u'), 0);
    memset(&id, 0xa5, sizeof id);
    REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), 1, OUT('u'), 0);
    REFUSED(flagosInvalidArgument, flagosCommInitRankConfig, "peueg", OUT('p'), 1, 0, 0, OUT('g'));
    REFUSED(flagosInvalidArgument, flagosCommInitRankConfig, "peueg", 0, 1, OUT('u'), 0, OUT('g'));
    REFUSED(flagosInvalidArgument, flagosCommInitRankConfig, "peueg", OUT('p'), 1, OUT('u'), 0, 0);
    REFUSED(flagosInvalidArgument, flagosCommInitRankScalable, "peeeug", 0, 1, 0, 1, OUT('u'), 0);
    REFUSED(flagosInvalidArgument, flagosCommInitRankScalable, "peeeug", OUT('p'), 1, 0, 1, 0, 0);
    for (i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), ranks[i], OUT('u'), 0);
        REFUSED(flagosInvalidArgument, flagosCommInitRankConfig, "peueg", OUT('p'), ranks[i],
                OUT('u'), 0, OUT('g'));
        REFUSED(flagosInvalidArgument, flagosCommInitRankScalable, "peeeug", OUT('p'), ranks[i], 0, 1,
                OUT('u'), OUT('g'));
        /* More ids than ranks, or none: the array is not read. */
        REFUSED(flagosInvalidArgument, flagosCommInitRankScalable, "peeeug", OUT('p'), 1, 0, ranks[i],
                OUT('u'), OUT('g'));
        REFUSED(flagosInvalidArgument, flagosCommInitAll, "peA", OUT('p'), ranks[i], 0);
        REFUSED(flagosInvalidArgument, flagosCommInitAll, "peA", OUT('p'), ranks[i], OUT('A'));
        if (ranks[i] != 0) {
            REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), 2, OUT('u'),
                    ranks[i]);
        }
    }
    REFUSED(flagosInvalidArgument, flagosCommInitRank, "peue", OUT('p'), 2, OUT('u'), 2);
    REFUSED(flagosInvalidArgument, flagosCommInitAll, "peA", 0, 1, 0);
    memset(&id, 0, sizeof id);
}

/* CommInitRankConfig with a changed config; `expected` is what reading the config must give. */
static void config_refused(int line, const void *changed, flagosResult_t expected, const char *words)
{
    flagosComm_t comm = (flagosComm_t)buffer;
    flagosResult_t result = flagosCommInitRankConfig(&comm, 1, &id, 0, changed);
    const char *text = flagosGetLastError(NULL);
    if (result != expected || comm != NULL || strstr(text, words) == NULL) {
        fprintf(stderr, "line %d: returned %d, not %d; \"%s\" should have \"%s\"\n", line, result,
                expected, text, words);
        failures++;
    }
}

#define CONFIG(change, code, words)                                                        \
    do {                                                                                   \
        flagosConfig_t changed = FLAGOS_CONFIG_INITIALIZER;                                \
        changed.change;                                                                    \
        config_refused(__LINE__, &changed, code, words);                                   \
    } while (0)

static void misuse_config(void)
{
    char longer[sizeof(flagosConfig_t) + 64];
    char endless[FLAGOS_MAX_TEXT_BYTES + 1];
    flagosConfig_t newer = FLAGOS_CONFIG_INITIALIZER;

    memset(endless, 'x', sizeof endless);
    endless[FLAGOS_MAX_TEXT_BYTES] = 0;
    memset(longer, 0, sizeof longer);
    config_refused(__LINE__, longer, flagosInvalidArgument, "FLAGOS_CONFIG_INITIALIZER");
    CONFIG(magic = 0, flagosInvalidArgument, "magic");
    CONFIG(version = 0, flagosInvalidArgument, "version");
    CONFIG(size = 0, flagosInvalidArgument, "0 bytes");
    CONFIG(size = sizeof(flagosConfig_t) - 1, flagosInvalidArgument, "bytes");
    CONFIG(size = (size_t)-1, flagosInvalidArgument, "bytes");
    CONFIG(blocking = 2, flagosInvalidArgument, "blocking");
    CONFIG(vendorNonblocking = -1, flagosInvalidArgument, "vendorNonblocking");
    CONFIG(initTimeoutMs = -1, flagosInvalidArgument, "initTimeoutMs");
    CONFIG(collectiveTimeoutMs = INT64_MIN, flagosInvalidArgument, "collectiveTimeoutMs");
    CONFIG(destroyTimeoutMs = -5, flagosInvalidArgument, "destroyTimeoutMs");
    CONFIG(device = -1, flagosInvalidArgument, "device");
    CONFIG(reserved = 0, flagosInvalidArgument, "reserved");
    CONFIG(name = endless, flagosInvalidArgument, "name");
    CONFIG(description = endless, flagosInvalidArgument, "description");
    CONFIG(name = "\xff\xfe", flagosInvalidArgument, "UTF-8");

    /* A newer header: fine as long as what is new is not set. The id is bad, so init fails later. */
    newer.size = sizeof longer;
    newer.version = FLAGOS_COMM_VERSION_CODE + 10000;
    memset(longer, 0, sizeof longer);
    memcpy(longer, &newer, sizeof newer);
    config_refused(__LINE__, longer, flagosInvalidArgument, "id");
    longer[sizeof longer - 1] = 1;
    config_refused(__LINE__, longer, flagosNotSupported, "newer header");
}

static void misuse_structs(void)
{
    struct {
        flagosPointerAttributes_t known;
        char behind[64];
    } newer;
    flagosPointerAttributes_t attributes = FLAGOS_POINTER_ATTRIBUTES_INITIALIZER;
    flagosPluginCounters_t counters = FLAGOS_PLUGIN_COUNTERS_INITIALIZER;
    flagosSimInfo_t sim = FLAGOS_SIM_INFO_INITIALIZER;
    int local = 0;

    REFUSED(flagosInvalidArgument, flagosPointerGetAttributes, "Pb", 0, OUT('b'));
    REFUSED(flagosInvalidArgument, flagosPointerGetAttributes, "Pb", OUT('P'), 0);
    attributes.size = 0;
    CHECK(flagosPointerGetAttributes(&attributes, &local) == flagosInvalidArgument);
    attributes.size = (size_t)-1;
    CHECK(flagosPointerGetAttributes(&attributes, &local) == flagosInvalidArgument);
    /* A newer header's struct: what this library does not know becomes zero. */
    memset(&newer, 0x5a, sizeof newer);
    newer.known.size = sizeof newer;
    CHECK(flagosPointerGetAttributes(&newer.known, &local) == flagosSuccess);
    CHECK(newer.known.size == sizeof newer);
    CHECK(newer.known.kind == flagosMemoryUnregistered && newer.known.device == -1);
    CHECK(zero(newer.behind, sizeof newer.behind));
    /* Any value is a fine question. */
    attributes.size = sizeof attributes;
    CHECK(flagosPointerGetAttributes(&attributes, (void *)(size_t)0xdeadbeef) == flagosSuccess);

    CHECK(flagosGetPluginCounters(NULL) == flagosInvalidArgument);
    counters.operations = 5;
    CHECK(flagosGetPluginCounters(&counters) == flagosSuccess);
    /* FlagCX has not been here. */
    CHECK(counters.size == sizeof counters && counters.communicators == 0 && counters.operations == 0 && counters.deviceCalls == 0);
    counters.size = 8;
    CHECK(flagosGetPluginCounters(&counters) == flagosInvalidArgument);
    counters.size = (size_t)-1;
    CHECK(flagosGetPluginCounters(&counters) == flagosInvalidArgument);

    REFUSED(flagosInvalidArgument, flagosGroupSimulateEnd, "S", 0);
    REFUSED(flagosInvalidUsage, flagosGroupSimulateEnd, "S", OUT('S'));
    CHECK(flagosGroupSimulateEnd(&sim) == flagosInvalidUsage);
    CHECK(sim.estimatedTime == 0.0f && sim.magic == FLAGOS_CONFIG_MAGIC);
    sim.magic = 0;
    CHECK(flagosGroupSimulateEnd(&sim) == flagosInvalidArgument);
}

static void misuse_memory(void)
{
    REFUSED(flagosInvalidArgument, flagosMemAlloc, "pn", 0, 16);
    REFUSED(flagosInvalidArgument, flagosMemAlloc, "pn", OUT('p'), 0);
    REFUSED(flagosInvalidArgument, flagosMemFree, "b", 0xdeadbeef);
    REFUSED(flagosInvalidArgument, flagosMemFree, "b", OUT('b'));
    CHECK(flagosMemFree(NULL) == flagosSuccess);
}

static void misuse_device(int host)
{
    size_t kinds[] = { (size_t)-1, 4, 5, 10, 99, INT_MAX };
    size_t i;

    REFUSED(flagosInvalidArgument, flagosGetDevice, "i", 0);
    REFUSED(flagosInvalidArgument, flagosGetDeviceCount, "i", 0);
    CHECK(flagosSetDevice(-1) != flagosSuccess);
    CHECK(flagosSetDevice(INT_MAX) != flagosSuccess);
    REFUSED(flagosInvalidArgument, flagosStreamCreate, "p", 0);
    REFUSED(flagosInvalidArgument, flagosStreamDestroy, "s", 0);
    REFUSED(flagosInvalidArgument, flagosStreamWaitEvent, "sv", 0, 0);
    REFUSED(flagosInvalidArgument, flagosEventCreate, "pe", 0, FLAGOS_EVENT_DEFAULT);
    REFUSED(flagosInvalidArgument, flagosEventDestroy, "v", 0);
    REFUSED(flagosInvalidArgument, flagosEventRecord, "vs", 0, 0);
    REFUSED(flagosInvalidArgument, flagosEventQuery, "v", 0);
    REFUSED(flagosInvalidArgument, flagosEventSynchronize, "v", 0);
    REFUSED(flagosInvalidArgument, flagosEventElapsedTime, "fvv", 0, 0xdeadbeef, 0xdeadbeef);
    REFUSED(flagosInvalidArgument, flagosEventElapsedTime, "fvv", OUT('f'), 0, 0xdeadbeef);
    REFUSED(flagosInvalidArgument, flagosEventElapsedTime, "fvv", OUT('f'), 0xdeadbeef, 0);
    REFUSED(flagosInvalidArgument, flagosMemcpyAsync, "bbnes", 0, OUT('b'), 8, 3, 0);
    REFUSED(flagosInvalidArgument, flagosMemcpyAsync, "bbnes", OUT('b'), 0, 8, 3, 0);
    REFUSED(flagosInvalidArgument, flagosMemsetAsync, "bens", 0, 0, 8, 0);
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        REFUSED(flagosInvalidArgument, flagosMemcpyAsync, "bbnes", OUT('b'), OUT('A'), 8, kinds[i], 0);
        if (kinds[i] != 1) {
            REFUSED(flagosInvalidArgument, flagosEventCreate, "pe", OUT('p'), kinds[i]);
        }
    }
    CHECK(flagosStreamQuery(NULL) == flagosSuccess);
    CHECK(flagosStreamSynchronize(NULL) == flagosSuccess);
    if (host) {
        /* A vendor's driver would follow these. */
        flagosStream_t stream = NULL;
        flagosEvent_t event = NULL;
        REFUSED(flagosInvalidArgument, flagosStreamDestroy, "s", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosStreamQuery, "s", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosStreamSynchronize, "s", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosStreamWaitEvent, "sv", 0xdeadbeef, 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosEventDestroy, "v", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosEventRecord, "vs", 0xdeadbeef, 0);
        REFUSED(flagosInvalidArgument, flagosEventQuery, "v", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosEventSynchronize, "v", 0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosEventElapsedTime, "fvv", OUT('f'), 0xdeadbeef, INT_MAX);
        REFUSED(flagosInvalidArgument, flagosMemcpyAsync, "bbnes", OUT('b'), OUT('A'), 8, 3,
                0xdeadbeef);
        REFUSED(flagosInvalidArgument, flagosMemsetAsync, "bens", OUT('b'), 0, 8, 0xdeadbeef);
        /* Twice freed. */
        CHECK(flagosStreamCreate(&stream) == flagosSuccess && stream != NULL);
        CHECK(flagosEventCreate(&event, FLAGOS_EVENT_DISABLE_TIMING) == flagosSuccess);
        CHECK(flagosEventRecord(event, stream) == flagosSuccess);
        CHECK(flagosEventSynchronize(event) == flagosSuccess);
        CHECK(flagosEventQuery(event) == flagosSuccess);
        CHECK(flagosStreamSynchronize(stream) == flagosSuccess);
        CHECK(flagosEventDestroy(event) == flagosSuccess);
        CHECK(flagosEventDestroy(event) == flagosInvalidArgument);
        CHECK(flagosStreamDestroy(stream) == flagosSuccess);
        CHECK(flagosStreamDestroy(stream) == flagosInvalidArgument);
    }
}

static void misuse_groups(void)
{
    int i;
    REFUSED(flagosInvalidUsage, flagosGroupEnd, "", 0);
    /* Depth never gets below 0. */
    for (i = 0; i < 3; i++) {
        CHECK(flagosGroupEnd() == flagosInvalidUsage);
    }
    CHECK(flagosGroupStart() == flagosSuccess);
    CHECK(flagosGroupStart() == flagosSuccess);
    CHECK(flagosGroupEnd() == flagosSuccess);
    CHECK(flagosGroupEnd() == flagosSuccess);
    CHECK(flagosGroupEnd() == flagosInvalidUsage);
    /* A refused call makes the end fail, and the thread is clean afterwards. */
    CHECK(flagosGroupStart() == flagosSuccess);
    CHECK(flagosAllReduce(buffer, buffer, 1, flagosFloat64, flagosSum, NULL, NULL)
          == flagosInvalidArgument);
    CHECK(flagosGroupEnd() == flagosInvalidArgument);
    CHECK(flagosGroupEnd() == flagosInvalidUsage);
}

static void misuse_texts(void)
{
    static const int codes[] = { -1, 5, 10, 99, 100, 102, 103, INT_MAX, INT_MIN };
    char small[4] = { 1, 1, 1, 1 };
    char large[256];
    size_t needed = 0;
    size_t again = 0;
    size_t i;

    for (i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = flagosGetErrorString(codes[i]);
        CHECK(text != NULL && text[0] != 0);
    }
    for (i = 0; i < 13; i++) {
        CHECK(flagosGetErrorString((flagosResult_t)i)[0] != 0);
        CHECK((flagosDataTypeSize((flagosDataType_t)i) == 0) == (i >= FLAGOS_NUM_DATA_TYPES));
    }
    CHECK(flagosDataTypeSize(-1) == 0);
    CHECK(flagosDataTypeSize(99) == 0);
    CHECK(flagosDataTypeSize(INT_MAX) == 0);
    CHECK(flagosDataTypeSize(INT_MIN) == 0);
    CHECK(flagosDataTypeSize(flagosFloat64) == 8);
    CHECK(flagosDataTypeSize(flagosBfloat16) == 2);
    CHECK(flagosGetLastError(NULL) != NULL);
    CHECK(flagosGetLastError((flagosComm_t)(size_t)0xdeadbeef) != NULL);

    REFUSED(flagosInvalidArgument, flagosGetVersion, "i", 0);
    REFUSED(flagosInvalidArgument, flagosGetVendor, "twz", 0, 0, 0);
    REFUSED(flagosInvalidArgument, flagosGetVendor, "twz", 0, 16, OUT('z'));
    REFUSED(flagosInvalidArgument, flagosGetLoadReport, "twz", 0, 0, 0);
    REFUSED(flagosInvalidArgument, flagosGetLoadReport, "twz", 0, 16, OUT('z'));
    REFUSED(flagosInvalidArgument, flagosGetLoadReportJson, "twz", 0, 0, 0);
    REFUSED(flagosInvalidArgument, flagosGetLoadReportJson, "twz", 0, 16, OUT('z'));

    CHECK(flagosGetVendor(NULL, 0, &needed) == flagosSuccess);
    CHECK(needed > 1);
    CHECK(flagosGetVendor(large, sizeof large, &again) == flagosSuccess);
    CHECK(again == needed && strlen(large) + 1 == needed);
    /* Cut, terminated, and nothing behind the size is written. */
    CHECK(flagosGetVendor(small, 3, NULL) == flagosSuccess);
    CHECK(small[2] == 0 && small[3] == 1 && memcmp(small, large, 2) == 0);
    small[0] = 1;
    CHECK(flagosGetVendor(small, 0, &needed) == flagosSuccess);
    CHECK(small[0] == 1);
    CHECK(flagosGetLoadReport(NULL, 0, &needed) == flagosSuccess && needed > 0);
    CHECK(flagosGetLoadReportJson(NULL, 0, &needed) == flagosSuccess && needed > 1);
    CHECK(flagosSetLogCallback(NULL, NULL) == flagosSuccess);
}

int main(void)
{
    char vendor[64];
    if (flagosGetVendor(vendor, sizeof vendor, NULL) != flagosSuccess) {
        strcpy(vendor, "?");
    }
    misuse_communicators();
    misuse_init();
    misuse_config();
    misuse_structs();
    misuse_memory();
    misuse_device(strcmp(vendor, "host") == 0);
    misuse_groups();
    misuse_texts();
    if (failures != 0) {
        fprintf(stderr, "%d failures\n", failures);
    }
    return failures != 0;
}
