/*
 * Every field of FlagCX's two adaptor plugins with bad arguments: NULL, numbers out of range, handles that are stale or
 * made up, and calls before anything was made. An error of FlagCX's set, a text, out-parameters NULL or 0, no crash; and
 * afterwards the good communicator still works. Then the library is opened and closed again and again.
 *
 * usage: plugin_misuse LIBFLAGOS_COMM [panics]; with `panics`, a debug library of which every function panics once
 */
#define _GNU_SOURCE
#include "flagcx_adaptor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <time.h>

static const struct flagcxCCLAdaptor_v1 *ccl;
static const struct flagcxDeviceAdaptor_v1 *device;

#define LAST_ERROR ccl->getLastError(NULL)
#define COMM flagcxInnerComm_t
#include "misuse.h"

enum { ccl_fields = 34, device_fields = 48 };

/* In the order of the tables; the letters are those of misuse.h, and ! is for what has tests of its own. */
static const struct { const char *name, *kinds; } ccl_kinds[ccl_fields] = {
    { "getVersion", "i" }, { "getUniqueId", "!" }, { "getErrorString", "!" }, { "getLastError", "!" },
    { "getStagedBuffer", "cpnn" }, { "commInitRank", "!" }, { "commFinalize", "c" }, { "commDestroy", "c" },
    { "commAbort", "c" }, { "commResume", "c" }, { "commSuspend", "c" }, { "commCount", "ci" },
    { "commGetDeviceNumber", "ci" }, { "commUserRank", "ci" }, { "commGetAsyncError", "ci" }, { "memAlloc", "pn" },
    { "memFree", "k" }, { "commRegister", "cbnp" }, { "commDeregister", "ck" }, { "commWindowRegister", "cbnpn" },
    { "commWindowDeregister", "ck" }, { "reduce", "bbndorcs" }, { "gather", "bbndrcs" }, { "scatter", "bbndrcs" },
    { "broadcast", "bbndrcs" }, { "allReduce", "bbndocs" }, { "reduceScatter", "bbndocs" }, { "allGather", "bbndcs" },
    { "alltoAll", "bbndcs" }, { "alltoAllv", "bAAbAAdcs" }, { "send", "bndrcs" }, { "recv", "bndrcs" },
    { "groupStart", "!" }, { "groupEnd", "!" },
};
static const char *const device_names[device_fields] = {
    "deviceSynchronize", "deviceMemcpy", "deviceMemset", "deviceMalloc", "deviceFree", "setDevice", "getDevice",
    "getDeviceCount", "getVendor", "hostGetDevicePointer", "memHandleInit", "memHandleDestroy", "gdrMemAlloc", "gdrMemFree",
    "hostShareMemAlloc", "hostShareMemFree", "gdrPtrMmap", "gdrPtrMunmap", "streamCreate", "streamDestroy", "streamCopy",
    "streamFree", "streamSynchronize", "streamQuery", "streamWaitEvent", "streamWaitValue64", "streamWriteValue64",
    "eventCreate", "eventDestroy", "eventRecord", "eventSynchronize", "eventQuery", "eventElapsedTime", "ipcMemHandleCreate",
    "ipcMemHandleGet", "ipcMemHandleOpen", "ipcMemHandleClose", "ipcMemHandleFree", "launchKernel", "copyArgsInit",
    "copyArgsFree", "launchDeviceFunc", "getDeviceProperties", "getDevicePciBusId", "getDeviceByPciBusId", "launchHostFunc",
    "dmaSupport", "getHandleForAddressRange",
};
static struct function functions[ccl_fields];
static void *device_field[device_fields];

static const void *look_up(void *library, const char *name, size_t size)
{
    void *table = dlsym(library, name);
    const ElfW(Sym) *symbol = NULL;
    Dl_info info;
    if (table == NULL || dladdr1(table, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL) {
        fprintf(stderr, "no %s: %s\n", name, dlerror());
        exit(1);
    }
    if (symbol->st_size != size) {
        FAIL("%s has %zu bytes, not %zu", name, (size_t)symbol->st_size, size);
    }
    return table;
}

static void *take(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *field[ccl_fields + 1];
    int i;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    ccl = look_up(library, "flagcxCCLAdaptorPlugin_v1", 280);
    device = look_up(library, "flagcxDeviceAdaptorPlugin_v1", 416);
    memcpy(field, ccl, sizeof field);
    for (i = 0; i < ccl_fields; i++) {
        CHECK(field[i + 1] != NULL);
        functions[i].name = ccl_kinds[i].name;
        functions[i].kinds = ccl_kinds[i].kinds;
        *(void **)&functions[i].call = field[i + 1];
    }
    memcpy(device_field, (const char *)device + 32, sizeof device_field);
    for (i = 0; i < device_fields; i++) {
        /* Without these two FlagCX takes another way; a function that fails would close it. */
        CHECK((device_field[i] == NULL) == (strncmp(device_names[i], "gdrPtr", 6) == 0));
    }
    CHECK(ccl->name != NULL && ccl->name[0] != 0 && device->name[0] != 0);
    CHECK(memchr(device->name, 0, sizeof device->name) != NULL);
    return library;
}

static flagcxInnerComm_t one_rank(void)
{
    flagcxInnerUniqueId id;
    flagcxInnerUniqueId_t place = &id;
    flagcxInnerComm_t comm = NULL;
    memset(&id, 0, sizeof id);
    OK(ccl->getUniqueId(&place));
    CHECK(place == &id);
    OK(ccl->commInitRank(&comm, 1, &id, 0, NULL));
    CHECK(comm != NULL);
    return comm;
}

static void still_works(void)
{
    double in = 3, result = 0;
    double *pair[2] = { NULL, NULL };
    int i;
    for (i = 0; i < 2; i++) {
        OK(device->deviceMalloc((void **)&pair[i], sizeof in, flagcxMemDevice, NULL));
    }
    OK(device->deviceMemcpy(pair[0], &in, sizeof in, flagcxMemcpyHostToDevice, good_stream, NULL));
    OK(ccl->allReduce(pair[0], pair[1], 1, flagcxDouble, flagcxSum, good_comm, good_stream));
    OK(device->deviceMemcpy(&result, pair[1], sizeof in, flagcxMemcpyDeviceToHost, good_stream, NULL));
    OK(device->streamSynchronize(good_stream));
    CHECK(result == 3);
    for (i = 0; i < 2; i++) {
        OK(device->deviceFree(pair[i], flagcxMemDevice, NULL));
    }
}

static void bad_comm(const char *what, flagcxInnerComm_t comm)
{
    int i, before = failures;
    for (i = 0; i < ccl_fields; i++) {
        refuse(&functions[i], 'c', (size_t)comm, flagcxInvalidArgument);
    }
    CHECK(ccl->getLastError(comm) != NULL && ccl->getLastError(comm)[0] != 0);
    if (failures > before) {
        fprintf(stderr, "(communicator: %s)\n", what);
    }
}

static void inits(void)
{
    static const int ranks[][2] = { { 0, 0 }, { -1, 0 }, { 1, 1 }, { 1, -1 }, { 2, 2 }, { INT_MIN, 0 }, { INT_MAX, 0 } };
    flagcxInnerUniqueId id, zero;
    flagcxInnerUniqueId_t place = NULL;
    flagcxInnerComm_t comm;
    size_t i;
    memset(&zero, 0, sizeof zero);
    memset(&id, 0, sizeof id);
    BAD(ccl->getUniqueId(NULL));
    BAD(ccl->getUniqueId(&place));
    CHECK(place == NULL);
    place = &id;
    OK(ccl->getUniqueId(&place));
    /* Older versions of FlagCX have room for 256 bytes. */
    CHECK(memcmp(id.internal + 256, zero.internal, sizeof id - 256) == 0);
    for (i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        comm = (flagcxInnerComm_t)0x55;
        BAD(ccl->commInitRank(&comm, ranks[i][0], &id, ranks[i][1], NULL));
        CHECK(comm == NULL);
    }
    BAD(ccl->commInitRank(NULL, 1, &id, 0, NULL));
    comm = (flagcxInnerComm_t)0x55;
    BAD(ccl->commInitRank(&comm, 1, NULL, 0, NULL));
    CHECK(comm == NULL);
    comm = (flagcxInnerComm_t)0x55;
    BAD(ccl->commInitRank(&comm, 1, &zero, 0, NULL));
    CHECK(comm == NULL);
    /* Nobody follows FlagCX's channel. */
    OK(ccl->commInitRank(&comm, 1, &id, 0, (struct bootstrapState *)0xdead0));
    OK(ccl->commDestroy(comm));
}

static void numbers(void)
{
    static const int types[] = { -1, 10, 11, 99, INT_MAX, INT_MIN };
    static const int ops[] = { -1, 5, 6, 99, 1000, INT_MAX, INT_MIN };
    static const int roots[] = { -1, 1, 99, INT_MAX, INT_MIN };
    size_t n;
    int i;
    for (i = 0; i < ccl_fields; i++) {
        const struct function *f = &functions[i];
        for (n = 0; n < sizeof types / sizeof types[0]; n++) {
            refuse(f, 'd', (size_t)types[n], flagcxInvalidArgument);
        }
        for (n = 0; n < sizeof ops / sizeof ops[0]; n++) {
            refuse(f, 'o', (size_t)ops[n], flagcxInvalidArgument);
        }
        for (n = 0; n < sizeof roots / sizeof roots[0]; n++) {
            refuse(f, 'r', (size_t)roots[n], flagcxInvalidArgument);
        }
        refuse(f, 's', 0, flagcxInvalidArgument);
        if (!is(f, "alltoAllv")) { /* its counts are 0 here */
            refuse(f, 'b', 0, flagcxInvalidArgument);
        }
        if (strstr(f->kinds, "bn") && !strchr(f->kinds, 's')) {
            refuse(f, 'n', 0, flagcxInvalidArgument);
        }
        refuse(f, 'A', 0, flagcxInvalidArgument);
        refuse(f, 'i', 0, flagcxInvalidArgument);
        refuse(f, 'p', 0, flagcxInvalidArgument);
        refuse(f, 'k', 0xdead0, flagcxInvalidArgument);
    }
    for (n = 0; n < sizeof types / sizeof types[0]; n++) {
        CHECK(ccl->getErrorString((flagcxResult_t)types[n])[0] != 0);
    }
    for (i = 0; i <= flagcxNumResults; i++) {
        CHECK(ccl->getErrorString((flagcxResult_t)i)[0] != 0);
    }
    OK(ccl->getVersion(&i));
    CHECK(i > 0);
    /* A count that no memory can hold; and nothing to do, which is no error. */
    BAD(ccl->allReduce(buffer, other_buffer, SIZE_MAX / 4, flagcxDouble, flagcxSum, good_comm, good_stream));
    OK(ccl->allReduce(NULL, NULL, 0, flagcxDouble, flagcxSum, good_comm, good_stream));
    OK(device->streamSynchronize(good_stream));
}

static void communicators(void)
{
    flagcxInnerComm_t comm = one_rank();
    flagcxResult_t state = flagcxInternalError;
    void *p, *handle;
    int number = 7;
    OK(ccl->commCount(comm, &number));
    CHECK(number == 1);
    OK(ccl->commUserRank(comm, &number));
    CHECK(number == 0);
    OK(ccl->commGetDeviceNumber(comm, &number));
    CHECK(number == 0);
    OK(ccl->commGetAsyncError(comm, &state));
    CHECK(state == flagcxSuccess);

    OK(ccl->memAlloc(&p, 4096));
    BAD(ccl->memAlloc(&out.pointer, 0));
    CHECK(out.pointer == NULL);
    OK(ccl->commRegister(comm, p, 4096, &handle));
    BAD(ccl->commDeregister(good_comm, handle));
    OK(ccl->commDeregister(comm, handle));
    BAD(ccl->commDeregister(comm, handle));
    OK(ccl->commDeregister(comm, NULL));
    OK(ccl->memFree(p));
    OK(ccl->memFree(NULL));
    BAD(ccl->memFree(p));

    /* FlagCX goes on without: in words. */
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, ccl->commWindowRegister(comm, buffer, sizeof buffer, (flagcxInnerWindow_t *)&out.pointer, 0));
    CHECK(out.pointer == NULL);
    OK(ccl->commWindowDeregister(comm, NULL));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, ccl->getStagedBuffer(comm, &out.pointer, 64, 0));
    CHECK(out.pointer == NULL);

    OK(ccl->commFinalize(comm));
    GIVES(flagcxInvalidUsage, ccl->allReduce(buffer, other_buffer, 1, flagcxDouble, flagcxSum, comm, good_stream));
    OK(ccl->commDestroy(comm));
    bad_comm("finalized and destroyed", comm);
    /* FlagCX destroys what was aborted, and frees its own part only if that succeeds. */
    comm = one_rank();
    OK(ccl->commAbort(comm));
    BAD(ccl->allReduce(buffer, other_buffer, 1, flagcxDouble, flagcxSum, comm, good_stream));
    BAD(ccl->commCount(comm, &number));
    OK(ccl->commDestroy(comm));
    bad_comm("aborted and destroyed", comm);
}

static void groups(void)
{
    flagcxInnerUniqueId id;
    flagcxInnerUniqueId_t place = &id;
    flagcxInnerComm_t comm = (flagcxInnerComm_t)0x55;
    int i;
    GIVES(flagcxInvalidUsage, ccl->groupEnd());
    OK(ccl->groupStart());
    OK(ccl->groupStart());
    OK(ccl->groupEnd());
    OK(ccl->groupEnd());
    for (i = 0; i < 3; i++) {
        OK(ccl->groupStart());
        BAD(ccl->allReduce(buffer, buffer, 1, i == 0 ? (flagcxDataType_t)10 : flagcxDouble,
                           i == 1 ? (flagcxRedOp_t)5 : flagcxSum, good_comm, i == 2 ? NULL : good_stream));
        BAD(ccl->groupEnd());
    }
    /* An init in a group is made at its end. */
    memset(&id, 0, sizeof id);
    OK(ccl->getUniqueId(&place));
    OK(ccl->groupStart());
    OK(ccl->commInitRank(&comm, 1, &id, 0, NULL));
    CHECK(comm == NULL);
    OK(ccl->groupEnd());
    CHECK(comm != NULL);
    OK(ccl->commDestroy(comm));
    still_works();
}

static int among(const char *name, const char *const *list)
{
    while (*list != NULL && strcmp(*list, name) != 0) {
        list++;
    }
    return *list != NULL;
}

typedef size_t (*wide)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);

/* What is not supported, whatever the arguments; the second list looks at its place for an answer first. */
static const char *const unsupported[] = {
    "streamWaitValue64", "streamWriteValue64", "ipcMemHandleGet", "ipcMemHandleClose", "launchKernel", "launchDeviceFunc",
    "launchHostFunc", "getHandleForAddressRange", NULL,
};
static const char *const unsupported_with_place[] = {
    "memHandleInit", "hostShareMemAlloc", "copyArgsInit", "ipcMemHandleCreate", "ipcMemHandleOpen", NULL,
};
/* Nothing to do without arguments, as in FlagCX. */
static const char *const nothing_to_do[] = {
    "deviceSynchronize", "deviceMemcpy", "deviceMemset", "deviceFree", "setDevice", "memHandleDestroy", "gdrMemFree",
    "hostShareMemFree", "streamDestroy", "streamFree", "streamSynchronize", "streamQuery", "streamWaitEvent",
    "eventDestroy", "eventRecord", "eventSynchronize", "eventQuery", "ipcMemHandleFree", "copyArgsFree", NULL,
};

static void call_device(int at, size_t argument, int expected)
{
    wide function;
    int result;
    *(void **)&function = device_field[at];
    result = (int)function(argument, argument, 8 * (argument != 0), 0, 0, 0, 0, 0, 0, 0, 0);
    if (result != expected || (result != flagcxSuccess && LAST_ERROR[0] == 0)) {
        FAIL("%s returned %d, not %d: %s", device_names[at], result, expected, LAST_ERROR);
    }
}

/* All arguments NULL or 0. */
static void device_with_nothing(void)
{
    int i;
    for (i = 0; i < device_fields; i++) {
        if (device_field[i] != NULL) {
            call_device(i, 0,
                        among(device_names[i], nothing_to_do) ? flagcxSuccess
                        : among(device_names[i], unsupported) ? flagcxNotSupported
                                                              : flagcxInvalidArgument);
        }
    }
}

static void device_numbers(void)
{
    static const int bad[] = { -1, 3, 99, INT_MAX, INT_MIN };
    struct flagcxDevProps props;
    char text[64];
    bool yes = true;
    size_t i;
    int number;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        out.pointer = (void *)0x55;
        BAD(device->deviceMalloc(&out.pointer, 8, (flagcxMemType_t)bad[i], NULL));
        CHECK(out.pointer == NULL);
        BAD(device->deviceMemcpy(buffer, other_buffer, 8, (flagcxMemcpyType_t)bad[i], NULL, NULL));
        BAD(device->deviceMemset(buffer, 0, 8, (flagcxMemType_t)bad[i], NULL));
        BAD(device->deviceFree(buffer, (flagcxMemType_t)bad[i], NULL));
        out.pointer = (void *)0x55;
        BAD(device->eventCreate((flagcxEvent_t *)&out.pointer, (flagcxEventType_t)bad[i]));
        CHECK(out.pointer == NULL);
        if (bad[i] != 3) {
            BAD(device->setDevice(bad[i]));
        }
    }
    out.pointer = (void *)0x55;
    BAD(device->gdrMemAlloc(&out.pointer, 0, NULL));
    CHECK(out.pointer == NULL);
    OK(device->gdrMemAlloc(&out.pointer, 64, NULL));
    OK(device->gdrMemFree(out.pointer, NULL));
    BAD(device->gdrMemFree(out.pointer, NULL));
    BAD(device->gdrMemFree(buffer, NULL));
    BAD(device->deviceFree(buffer, flagcxMemDevice, NULL));
    OK(device->dmaSupport(&yes));
    CHECK(!yes);
    for (i = 0; i < device_fields; i++) {
        if (among(device_names[i], unsupported) || among(device_names[i], unsupported_with_place)) {
            out.pointer = (void *)0x55;
            call_device((int)i, (size_t)&out.pointer, flagcxNotSupported);
            CHECK((out.pointer == NULL) == among(device_names[i], unsupported_with_place));
        }
    }
    memset(text, 0x55, sizeof text);
    OK(device->getVendor(text));
    CHECK(text[0] != 0 && strlen(text) < 32 && text[strlen(text) + 1] == 0x55);
    if (strcmp(text, "HOST") == 0) {
        GIVES(flagcxNotSupported, device->getDevicePciBusId(text, sizeof text, 0));
        CHECK(text[0] == 0);
        GIVES(flagcxNotSupported, device->getDeviceProperties(&props, 0));
        CHECK(props.name[0] == 0 && props.pciBusId == 0);
        number = 0x55;
        BAD(device->getDeviceByPciBusId(&number, "0000:00:00.0"));
        CHECK(number == 0);
    } else {
        char again[64];
        int devices = 0, d, found;
        unsigned domain, bus, slot;
        OK(device->getDeviceCount(&devices));
        for (d = 0; d < devices; d++) {
            OK(device->getDevicePciBusId(text, sizeof text, d));
            CHECK(sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3);
            found = -1;
            OK(device->getDeviceByPciBusId(&found, text));
            CHECK(found == d);
            /* As the vendors' tools write it. */
            snprintf(again, sizeof again, "%08X:%02X:%02X.0", domain, bus, slot);
            OK(device->getDeviceByPciBusId(&found, again));
            CHECK(found == d);
            OK(device->getDeviceProperties(&props, d));
            CHECK(props.name[0] != 0 && props.pciBusId == (int)bus && props.pciDomainId == (int)domain &&
                  props.pciDeviceId == (int)slot);
        }
        BAD(device->getDevicePciBusId(text, 3, 0));
        CHECK(text[0] == 0);
        BAD(device->getDevicePciBusId(text, sizeof text, devices));
        BAD(device->getDevicePciBusId(text, sizeof text, -1));
        BAD(device->getDeviceProperties(&props, 9999));
        CHECK(props.name[0] == 0);
        BAD(device->getDeviceByPciBusId(&found, "ffff:ff:1f.0"));
        CHECK(found == 0);
    }
    BAD(device->getDevicePciBusId(text, 0, 0));
    BAD(device->getDevicePciBusId(text, -1, 0));
    BAD(device->getDeviceByPciBusId(&number, ""));
    BAD(device->getDeviceByPciBusId(&number, "no address"));
}

static void stale_handles(void)
{
    struct { void *base; } own = { (void *)0x1234 };
    flagcxStream_t stream, copy, foreign = (flagcxStream_t)&own;
    flagcxEvent_t event, late;
    float ms = 5;
    int i, f;
    BAD(device->streamDestroy(foreign));
    BAD(device->streamFree(foreign));
    BAD(device->eventDestroy((flagcxEvent_t)foreign));
    BAD(device->eventRecord((flagcxEvent_t)foreign, good_stream));
    BAD(device->eventQuery((flagcxEvent_t)foreign));
    BAD(device->eventSynchronize((flagcxEvent_t)foreign));
    BAD(device->streamWaitEvent(good_stream, (flagcxEvent_t)foreign));
    CHECK(own.base == (void *)0x1234);
    OK(device->streamCreate(&stream));
    OK(device->streamCopy(&copy, *(void **)stream));
    CHECK(copy != stream && *(void **)copy == *(void **)stream);
    OK(device->streamFree(copy));
    OK(device->streamQuery(stream));
    OK(device->streamDestroy(stream));
    for (i = 0; i < 2; i++) {
        flagcxStream_t stale = i ? copy : stream;
        BAD(device->streamDestroy(stale));
        BAD(device->streamFree(stale));
        BAD(device->streamSynchronize(stale));
        BAD(device->streamQuery(stale));
        BAD(device->deviceMalloc(&out.pointer, 8, flagcxMemDevice, stale));
        BAD(device->deviceMemcpy(buffer, other_buffer, 8, flagcxMemcpyDeviceToDevice, stale, NULL));
        BAD(device->deviceMemset(buffer, 0, 8, flagcxMemDevice, stale));
        BAD(device->deviceFree(NULL, flagcxMemDevice, stale));
        for (f = 0; f < ccl_fields; f++) {
            refuse(&functions[f], 's', (size_t)stale, flagcxInvalidArgument);
        }
    }
    OK(device->eventCreate(&event, flagcxEventDefault));
    OK(device->eventCreate(&late, flagcxEventDefault));
    BAD(device->eventRecord(event, stream));
    OK(device->eventDestroy(event));
    BAD(device->eventDestroy(event));
    BAD(device->eventQuery(event));
    BAD(device->eventSynchronize(event));
    BAD(device->eventRecord(event, good_stream));
    BAD(device->streamWaitEvent(good_stream, event));
    BAD(device->eventElapsedTime(&ms, event, late));
    CHECK(ms == 0);
    OK(device->eventDestroy(late));
}

/* Before FlagCX has made anything. */
static void too_early(void)
{
    int i;
    for (i = 0; i < ccl_fields; i++) {
        refuse(&functions[i], 'c', 0, flagcxInvalidArgument);
        refuse(&functions[i], 'c', 0xdead0, flagcxInvalidArgument);
    }
    GIVES(flagcxInvalidUsage, ccl->groupEnd());
    OK(ccl->memFree(NULL));
}

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* FlagCX closes the library with its last user and opens it with the next. */
static void open_and_close(const char *path)
{
    struct { size_t size; uint64_t communicators, operations, device_calls; } before = { sizeof before, 0, 0, 0 }, after = before;
    int (*ask)(void *);
    const void *tables[2] = { ccl, device };
    void *library = take(path);
    int files = 0, threads = 0, i;
    *(void **)&ask = dlsym(library, "flagosGetPluginCounters");
    CHECK(ask != NULL && ask(&before) == 0);
    for (i = 0; i < 40; i++) {
        flagcxInnerComm_t comm;
        dlclose(library);
        dlclose(library); /* FlagCX has it open twice, once for each table */
        library = take(path);
        library = take(path);
        CHECK(tables[0] == ccl && tables[1] == device); /* it never went */
        comm = one_rank();
        OK(ccl->allReduce(NULL, NULL, 0, flagcxDouble, flagcxSum, comm, good_stream));
        OK(device->streamSynchronize(good_stream));
        OK(ccl->commDestroy(comm));
        if (i == 9) {
            files = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
    }
    for (i = 0; i < 200 && (entries("/proc/self/fd") > files || entries("/proc/self/task") > threads); i++) {
        struct timespec a_while = { 0, 10000000 };
        nanosleep(&a_while, NULL); /* a thread that ends is not gone at once */
    }
    CHECK(entries("/proc/self/fd") <= files);
    CHECK(entries("/proc/self/task") <= threads);
    CHECK(ask(&after) == 0);
    CHECK(after.communicators == before.communicators + 40 && after.operations == before.operations + 40);
    CHECK(after.device_calls == before.device_calls + 40);
    still_works();
    dlclose(library);
}

static void panics(void)
{
    int i;
    char name[96];
    wide call;
    for (i = 0; i < ccl_fields + device_fields; i++) {
        int of_ccl = i < ccl_fields;
        const char *field = of_ccl ? ccl_kinds[i].name : device_names[i - ccl_fields];
        size_t result;
        if (of_ccl) {
            *(entry *)&call = functions[i].call;
        } else {
            *(void **)&call = device_field[i - ccl_fields];
        }
        if (call == NULL) {
            continue;
        }
        snprintf(name, sizeof name, "%s%s", of_ccl ? "flagcxCCLAdaptorPlugin_v1." : "", field);
        setenv("FLAGOSCOMM_TEST_PANIC", name, 1);
        result = call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        unsetenv("FLAGOSCOMM_TEST_PANIC");
        if (strcmp(field, "getErrorString") == 0 || strcmp(field, "getLastError") == 0) {
            CHECK(strcmp((const char *)result, "internal error") == 0);
        } else if ((int)result != flagcxInternalError) {
            FAIL("%s returned %d", name, (int)result);
        }
        if (strstr(LAST_ERROR, field) == NULL || strstr(LAST_ERROR, "panic") == NULL) {
            FAIL("%s: the text is \"%s\"", name, LAST_ERROR);
        }
        OK(ccl->getVersion(&out.number));
    }
}

int main(int argc, char **argv)
{
    flagcxInnerComm_t stale;
    void *library;
    if (argc < 2) {
        return 2;
    }
    library = take(argv[1]);
    if (argc > 2) {
        panics();
        return failures != 0;
    }
    too_early();
    device_with_nothing();
    OK(device->streamCreate(&good_stream));
    good_comm = one_rank();
    still_works();
    inits();
    bad_comm("NULL", NULL);
    bad_comm("made up", (flagcxInnerComm_t)0xdeadbeef);
    bad_comm("a pointer", (flagcxInnerComm_t)buffer);
    bad_comm("all bits", (flagcxInnerComm_t)-1);
    stale = one_rank();
    OK(ccl->commDestroy(stale));
    bad_comm("destroyed", stale);
    numbers();
    communicators();
    device_with_nothing();
    device_numbers();
    stale_handles();
    groups();
    open_and_close(argv[1]);
    still_works();
    OK(ccl->commDestroy(good_comm));
    OK(device->streamDestroy(good_stream));
    dlclose(library);
    if (failures) {
        fprintf(stderr, "%d failures\n", failures);
    }
    return failures != 0;
}
