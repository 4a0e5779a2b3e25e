/*
 * Every function of FlagCX's API with bad arguments: NULL, numbers out of range, handles that are stale, made up, or
 * another library's. An error of FlagCX's set, a text, out-parameters NULL or 0, no crash; and afterwards the good
 * communicator still works.
 *
 * AV-1, AV-3, AV-5, AB-2.
 *
 * usage: misuse [LIBFLAGOS_COMM COPY_OF_LIBFLAGCX]; with them on a machine without a driver only
 */
#include "flagcx.h"

#include <dlfcn.h>

#define LAST_ERROR flagcxGetLastError(NULL)
#define COMM flagcxComm_t
#include "misuse.h"

typedef struct flagcxDevComm *flagcxDevComm_t;
typedef struct flagcxDevMem *flagcxDevMem_t;
flagcxResult_t flagcxDevCommCreate(flagcxComm_t comm, const void *reqs, flagcxDevComm_t *devComm);
flagcxResult_t flagcxDevCommDestroy(flagcxComm_t comm, flagcxDevComm_t devComm);
flagcxResult_t flagcxDevMemCreate(flagcxComm_t comm, void *buff, size_t size, flagcxWindow_t win, flagcxDevMem_t *devMem);
flagcxResult_t flagcxDevMemDestroy(flagcxComm_t comm, flagcxDevMem_t devMem);
flagcxResult_t flagcxDevCommGetDevicePtr(flagcxDevComm_t devComm, void **devPtr);
flagcxResult_t flagcxDevCommFreeDevicePtr(flagcxDevComm_t devComm);
flagcxResult_t flagcxDevMemGetDevicePtr(flagcxDevMem_t devMem, void **devPtr);
flagcxResult_t flagcxDevMemFreeDevicePtr(flagcxDevMem_t devMem);

static const struct function with_comm[] = {
    FUNCTION(flagcxIsHomoComm, "ci"),
    FUNCTION(flagcxCommFinalize, "c"),
    FUNCTION(flagcxCommDestroy, "c"),
    FUNCTION(flagcxCommAbort, "c"),
    FUNCTION(flagcxCommResume, "c"),
    FUNCTION(flagcxCommSuspend, "c"),
    FUNCTION(flagcxCommGetAsyncError, "ci"),
    FUNCTION(flagcxCommCount, "ci"),
    FUNCTION(flagcxCommGetDeviceNumber, "ci"),
    FUNCTION(flagcxCommUserRank, "ci"),
    FUNCTION(flagcxBarrier, "cs"),
    FUNCTION(flagcxReduce, "bbndorcs"),
    FUNCTION(flagcxGather, "bbndrcs"),
    FUNCTION(flagcxScatter, "bbndrcs"),
    FUNCTION(flagcxBroadcast, "bbndrcs"),
    FUNCTION(flagcxAllReduce, "bbndocs"),
    FUNCTION(flagcxReduceScatter, "bbndocs"),
    FUNCTION(flagcxAllGather, "bbndcs"),
    FUNCTION(flagcxAlltoAll, "bbndcs"),
    FUNCTION(flagcxAlltoAllv, "bAAbAAdcs"),
    FUNCTION(flagcxSend, "bndrcs"),
    FUNCTION(flagcxRecv, "bndrcs"),
    FUNCTION(flagcxCommRegister, "cbnpa"),
    FUNCTION(flagcxCommDeregister, "cka"),
    FUNCTION(flagcxCommWindowRegister, "cbnwna"),
    FUNCTION(flagcxCommWindowDeregister, "cka"),
    FUNCTION(flagcxOneSideRegister, "cbn"),
    FUNCTION(flagcxOneSideSignalRegister, "cbnn"),
    FUNCTION(flagcxOneSideStagingRegister, "cbn"),
    FUNCTION(flagcxOneSideStagingDeregister, "c"),
    FUNCTION(flagcxGet, "crnnnnn"),
    FUNCTION(flagcxPut, "crnnnnn"),
    FUNCTION(flagcxBatchPut, "crAAAAAn"),
    FUNCTION(flagcxPutSignal, "bndrknncs"),
    FUNCTION(flagcxSignal, "rncs"),
    FUNCTION(flagcxWaitSignal, "nAcs"),
    FUNCTION(flagcxReadCounter, "cq"),
    FUNCTION(flagcxWaitCounter, "cn"),
    FUNCTION(flagcxDevCommCreate, "cAp"),
    FUNCTION(flagcxDevCommDestroy, "ck"),
    FUNCTION(flagcxDevMemCreate, "cbnkp"),
    FUNCTION(flagcxDevMemDestroy, "ck"),
};
enum { functions = sizeof with_comm / sizeof with_comm[0] };

static flagcxDeviceHandle_t device;

static void bad_comm(const char *what, flagcxComm_t comm)
{
    int i;
    flagcxComm_t group_word = comm;
    for (i = 0; i < functions; i++) {
        const struct function *f = &with_comm[i];
        if (comm == NULL && (is(f, "flagcxCommRegister") || is(f, "flagcxCommDeregister"))) {
            continue; /* legal, below */
        }
        refuse(f, 'c', (size_t)comm, flagcxInvalidArgument);
    }
    /* Groups don't care. */
    GIVES(flagcxSuccess, flagcxGroupStart(group_word));
    GIVES(flagcxSuccess, flagcxGroupEnd(group_word));
    CHECK(flagcxGetLastError(comm) != NULL);
    if (failures) {
        fprintf(stderr, "(communicator: %s)\n", what);
    }
}

static flagcxComm_t one_rank(void)
{
    flagcxUniqueId id;
    flagcxComm_t comm = NULL;
    OK(flagcxGetUniqueId(&id));
    OK(flagcxCommInitRank(&comm, 1, &id, 0));
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
    OK(device->deviceMemcpy(pair[0], &in, sizeof in, flagcxMemcpyHostToDevice, good_stream));
    OK(flagcxAllReduce(pair[0], pair[1], 1, flagcxDouble, flagcxSum, good_comm, good_stream));
    OK(device->deviceMemcpy(&result, pair[1], sizeof in, flagcxMemcpyDeviceToHost, good_stream));
    OK(device->streamSynchronize(good_stream));
    CHECK(result == 3);
    for (i = 0; i < 2; i++) {
        OK(device->deviceFree(pair[i], flagcxMemDevice, NULL));
    }
}

static void inits(void)
{
    static const int ranks[][2] = { { 0, 0 }, { -1, 0 }, { 1, 1 }, { 1, -1 }, { 2, 2 }, { INT_MIN, 0 }, { INT_MAX, 0 } };
    flagcxUniqueId id, zero;
    flagcxComm_t comm;
    size_t i;
    memset(&zero, 0, sizeof zero);
    BAD(flagcxGetUniqueId(NULL));
    OK(flagcxGetUniqueId(&id));
    for (i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        comm = (flagcxComm_t)0x55;
        BAD(flagcxCommInitRank(&comm, ranks[i][0], &id, ranks[i][1]));
        CHECK(comm == NULL);
    }
    BAD(flagcxCommInitRank(NULL, 1, &id, 0));
    comm = (flagcxComm_t)0x55;
    BAD(flagcxCommInitRank(&comm, 1, NULL, 0));
    CHECK(comm == NULL);
    comm = (flagcxComm_t)0x55;
    BAD(flagcxCommInitRank(&comm, 1, &zero, 0));
    CHECK(comm == NULL);
    /* Callers that have room for NCCL's id only: what is behind is whatever was there. */
    memset(id.internal + 128, 0xa5, 128);
    OK(flagcxCommInitRank(&comm, 1, &id, 0));
    OK(flagcxCommDestroy(comm));
}

static void numbers(void)
{
    static const int types[] = { -1, 10, 11, 99, INT_MAX, INT_MIN };
    static const int ops[] = { -1, 5, 6, 99, 1000, INT_MAX, INT_MIN };
    static const int roots[] = { -1, 1, 99, INT_MAX, INT_MIN };
    static const int allocators[] = { -1, 2, 99, INT_MAX };
    size_t n;
    int i;
    for (i = 0; i < functions; i++) {
        const struct function *f = &with_comm[i];
        int collective = strchr(f->kinds, 's') && !strstr(f->name, "Signal");
        for (n = 0; collective && n < sizeof types / sizeof types[0]; n++) {
            refuse(f, 'd', (size_t)types[n], flagcxInvalidArgument);
        }
        for (n = 0; n < sizeof ops / sizeof ops[0]; n++) {
            refuse(f, 'o', (size_t)ops[n], flagcxInvalidArgument);
        }
        for (n = 0; collective && n < sizeof roots / sizeof roots[0]; n++) {
            refuse(f, 'r', (size_t)roots[n], flagcxInvalidArgument);
        }
        for (n = 0; n < sizeof allocators / sizeof allocators[0]; n++) {
            refuse(f, 'a', (size_t)allocators[n], flagcxInvalidArgument);
        }
        if (collective) {
            refuse(f, 's', 0, flagcxInvalidArgument);
            if (!is(f, "flagcxAlltoAllv")) { /* its counts are 0 here */
                refuse(f, 'b', 0, flagcxInvalidArgument);
            }
            refuse(f, 'A', 0, flagcxInvalidArgument);
        }
        if (!is(f, "flagcxWaitSignal") && !strstr(f->name, "Dev")) {
            refuse(f, 'i', 0, flagcxInvalidArgument);
            refuse(f, 'q', 0, flagcxInvalidArgument);
            refuse(f, 'p', 0, flagcxInvalidArgument);
            refuse(f, 'w', 0, flagcxInvalidArgument);
        }
    }
    for (n = 0; n < sizeof types / sizeof types[0]; n++) {
        CHECK(getFlagcxDataTypeSize((flagcxDataType_t)types[n]) == 0);
        CHECK(flagcxGetErrorString((flagcxResult_t)types[n])[0] != 0);
        out.pointer = (void *)0x55;
        BAD(device->deviceMalloc(&out.pointer, 8, (flagcxMemType_t)(types[n] | 16), NULL));
        CHECK(out.pointer == NULL);
        BAD(device->deviceMemcpy(buffer, other_buffer, 8, (flagcxMemcpyType_t)(types[n] | 16), NULL));
        BAD(device->deviceMemset(buffer, 0, 8, (flagcxMemType_t)(types[n] | 16), NULL));
        BAD(device->deviceFree(buffer, (flagcxMemType_t)(types[n] | 16), NULL));
        out.pointer = (void *)0x55;
        BAD(device->eventCreate((flagcxEvent_t *)&out.pointer, (flagcxEventType_t)(types[n] | 16)));
        CHECK(out.pointer == NULL);
    }
    for (n = 0; n < sizeof allocators / sizeof allocators[0]; n++) {
        out.pointer = (void *)0x55;
        BAD(flagcxMemAlloc(&out.pointer, 8, (flagcxMemAllocator_t)allocators[n]));
        CHECK(out.pointer == NULL);
        BAD(flagcxMemFree(buffer, (flagcxMemAllocator_t)allocators[n]));
    }
    /* A count that no memory can hold. */
    BAD(flagcxAllReduce(buffer, other_buffer, SIZE_MAX / 4, flagcxDouble, flagcxSum, good_comm, good_stream));
    /* What FlagCX says is allowed. */
    OK(flagcxAllReduce(NULL, NULL, 0, flagcxDouble, flagcxSum, good_comm, good_stream));
    OK(device->streamSynchronize(good_stream));
}

/* What FlagCX answers on a homogeneous communicator. */
static void one_sided(void)
{
    flagcxWaitSignalDesc_t desc = { 1, 0 };
    uint64_t counter = 7;
    int homo = 0;
    OK(flagcxIsHomoComm(good_comm, &homo));
    CHECK(homo == 1);
    BAD(flagcxGet(good_comm, 0, 0, 0, 8, 0, 0));
    BAD(flagcxPut(good_comm, 0, 0, 0, 8, 0, 0));
    BAD(flagcxBatchPut(good_comm, 0, NULL, NULL, NULL, NULL, NULL, 1));
    BAD(flagcxPutSignal(buffer, 1, flagcxFloat, 0, NULL, 0, 0, good_comm, good_stream));
    BAD(flagcxSignal(0, 0, good_comm, good_stream));
    BAD(flagcxWaitSignal(1, &desc, good_comm, good_stream));
    OK(flagcxWaitSignal(0, NULL, NULL, NULL));
    BAD(flagcxReadCounter(good_comm, &counter));
    CHECK(counter == 0);
    BAD(flagcxWaitCounter(good_comm, 1));
    GIVES(flagcxNotSupported, flagcxOneSideRegister(good_comm, buffer, 8));
    OK(flagcxOneSideSignalRegister(good_comm, buffer, 8, 0));
    OK(flagcxOneSideStagingRegister(good_comm, buffer, 8));
    GIVES(flagcxInternalError, flagcxOneSideStagingDeregister(good_comm));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, flagcxDevCommCreate(good_comm, NULL, (flagcxDevComm_t *)&out.pointer));
    CHECK(out.pointer == NULL);
    GIVES(flagcxNotSupported, flagcxDevCommDestroy(good_comm, NULL));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, flagcxDevMemCreate(good_comm, buffer, 8, NULL, (flagcxDevMem_t *)&out.pointer));
    CHECK(out.pointer == NULL);
    GIVES(flagcxNotSupported, flagcxDevMemDestroy(good_comm, NULL));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, flagcxDevCommGetDevicePtr((flagcxDevComm_t)0xdead0, &out.pointer));
    CHECK(out.pointer == NULL);
    GIVES(flagcxNotSupported, flagcxDevCommFreeDevicePtr((flagcxDevComm_t)0xdead0));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, flagcxDevMemGetDevicePtr((flagcxDevMem_t)0xdead0, &out.pointer));
    CHECK(out.pointer == NULL);
    GIVES(flagcxNotSupported, flagcxDevMemFreeDevicePtr((flagcxDevMem_t)0xdead0));
}

static void memory(void)
{
    void *p = (void *)0x55, *h1, *h2;
    flagcxWindow_t win;
    flagcxComm_t second = one_rank();
    BAD(flagcxMemAlloc(NULL, 8, flagcxMemCCL));
    BAD(flagcxMemAlloc(&p, 0, flagcxMemCCL));
    CHECK(p == NULL);
    p = (void *)0x55;
    GIVES(flagcxNotSupported, flagcxMemAlloc(&p, 8, flagcxMemSHMEM));
    CHECK(p == NULL);
    OK(flagcxMemAlloc(&p, 4096, flagcxMemCCL));
    OK(flagcxMemFree(NULL, flagcxMemCCL));
    OK(flagcxMemFree(NULL, flagcxMemSHMEM));
    BAD(flagcxMemFree(buffer, flagcxMemCCL));
    BAD(device->deviceFree(buffer, flagcxMemDevice, NULL));

    /* Without a communicator it is noted only. */
    OK(flagcxCommRegister(NULL, p, 4096, &h1, flagcxMemCCL));
    CHECK(h1 != NULL);
    BAD(flagcxCommDeregister(good_comm, h1, flagcxMemCCL));
    OK(flagcxCommDeregister(NULL, h1, flagcxMemCCL));
    BAD(flagcxCommDeregister(NULL, h1, flagcxMemCCL));
    BAD(flagcxCommRegister(NULL, NULL, 8, &h1, flagcxMemCCL));
    BAD(flagcxCommRegister(NULL, p, 0, &h1, flagcxMemCCL));
    CHECK(h1 == NULL);
    /* Twice is counted. */
    OK(flagcxCommRegister(good_comm, p, 4096, &h1, flagcxMemCCL));
    OK(flagcxCommRegister(good_comm, p, 4096, &h2, flagcxMemCCL));
    CHECK(h1 == h2);
    OK(flagcxCommDeregister(good_comm, NULL, flagcxMemCCL));
    BAD(flagcxCommDeregister(NULL, h1, flagcxMemCCL));
    BAD(flagcxCommDeregister(second, h1, flagcxMemCCL));
    OK(flagcxCommDeregister(good_comm, h1, flagcxMemCCL));
    OK(flagcxCommDeregister(good_comm, h1, flagcxMemCCL));
    BAD(flagcxCommDeregister(good_comm, h1, flagcxMemCCL));
    /* SHMEM registers nothing. */
    OK(flagcxCommRegister(good_comm, p, 4096, &h1, flagcxMemSHMEM));
    OK(flagcxCommDeregister(good_comm, h1, flagcxMemSHMEM));

    win = (flagcxWindow_t)0x55;
    BAD(flagcxCommWindowRegister(good_comm, p, 4096, &win, 0, flagcxMemCCL));
    CHECK(win == (flagcxWindow_t)0x55); /* it may be a live one: not touched */
    win = NULL;
    OK(flagcxCommWindowRegister(good_comm, p, 4096, &win, 0, flagcxMemSHMEM));
    CHECK(win == NULL);
    OK(flagcxCommWindowRegister(good_comm, p, 4096, &win, 0, flagcxMemCCL));
    CHECK(win != NULL || getenv("NOT_EVERYTHING")); /* NCCL has none on some machines */
    OK(flagcxCommWindowDeregister(good_comm, NULL, flagcxMemCCL));
    if (win != NULL) {
        BAD(flagcxCommWindowDeregister(second, win, flagcxMemCCL));
        BAD(flagcxCommWindowDeregister(NULL, win, flagcxMemCCL));
        OK(flagcxCommWindowDeregister(good_comm, win, flagcxMemCCL));
        BAD(flagcxCommWindowDeregister(good_comm, win, flagcxMemCCL));
    }

    /* A communicator takes its registrations with it. */
    OK(flagcxCommRegister(second, p, 4096, &h1, flagcxMemCCL));
    OK(flagcxCommDestroy(second));
    BAD(flagcxCommDeregister(second, h1, flagcxMemCCL));
    BAD(flagcxCommDeregister(good_comm, h1, flagcxMemCCL));

    OK(flagcxMemFree(p, flagcxMemCCL));
    BAD(flagcxMemFree(p, flagcxMemCCL));
}

static void streams_and_events(void)
{
    flagcxStream_t stream, copy;
    flagcxEvent_t event, late;
    float ms = 5;
    int i;
    struct { void *base; } own = { (void *)0x1234 };
    flagcxStream_t foreign = (flagcxStream_t)&own;
    BAD(device->streamCreate(NULL));
    BAD(device->streamCopy(NULL, NULL));
    BAD(device->eventCreate(NULL, flagcxEventDefault));
    BAD(device->getDevice(NULL));
    BAD(device->getDeviceCount(NULL));
    BAD(device->getVendor(NULL));
    BAD(device->deviceMalloc(NULL, 8, flagcxMemDevice, NULL));
    BAD(device->setDevice(-1));
    BAD(device->setDevice(9999));
    BAD(device->hostGetDevicePointer(NULL, buffer));
    BAD(device->deviceMemcpy(NULL, buffer, 8, flagcxMemcpyHostToDevice, NULL));
    BAD(device->deviceMemcpy(buffer, NULL, 8, flagcxMemcpyHostToDevice, NULL));
    BAD(device->deviceMemset(NULL, 0, 8, flagcxMemDevice, NULL));
    OK(device->deviceMemcpy(NULL, NULL, 0, flagcxMemcpyHostToDevice, NULL));
    OK(device->deviceMemset(NULL, 0, 0, flagcxMemDevice, NULL));
    /* NULL is nothing to do, as in FlagCX. */
    OK(device->streamDestroy(NULL));
    OK(device->streamFree(NULL));
    OK(device->streamSynchronize(NULL));
    OK(device->streamQuery(NULL));
    OK(device->streamWaitEvent(NULL, NULL));
    OK(device->eventDestroy(NULL));
    OK(device->eventRecord(NULL, NULL));
    OK(device->eventSynchronize(NULL));
    OK(device->eventQuery(NULL));
    OK(device->deviceFree(NULL, flagcxMemDevice, NULL));
    OK(device->ipcMemHandleFree(NULL));

    /* Somebody else's wrapper is left alone. */
    BAD(device->streamDestroy(foreign));
    BAD(device->streamFree(foreign));
    CHECK(own.base == (void *)0x1234);
    BAD(device->eventDestroy((flagcxEvent_t)foreign));
    BAD(device->eventRecord((flagcxEvent_t)foreign, good_stream));
    BAD(device->eventQuery((flagcxEvent_t)foreign));
    BAD(device->eventSynchronize((flagcxEvent_t)foreign));
    BAD(device->streamWaitEvent(good_stream, (flagcxEvent_t)foreign));
    CHECK(own.base == (void *)0x1234);

    /* Stale ones. */
    OK(device->streamCreate(&stream));
    OK(device->streamCopy(&copy, *(void **)stream));
    CHECK(copy != stream && *(void **)copy == *(void **)stream);
    OK(device->streamFree(copy));
    OK(device->streamQuery(stream)); /* the stream itself lives */
    OK(device->streamDestroy(stream));
    for (i = 0; i < 2; i++) {
        flagcxStream_t stale = i ? copy : stream;
        int f;
        BAD(device->streamDestroy(stale));
        BAD(device->streamFree(stale));
        BAD(device->streamSynchronize(stale));
        BAD(device->streamQuery(stale));
        BAD(device->deviceMalloc(&out.pointer, 8, flagcxMemDevice, stale));
        BAD(device->deviceMemcpy(buffer, other_buffer, 8, flagcxMemcpyDeviceToDevice, stale));
        for (f = 0; f < functions; f++) {
            if (!strstr(with_comm[f].name, "Signal")) {
                refuse(&with_comm[f], 's', (size_t)stale, flagcxInvalidArgument);
            }
        }
    }
    OK(device->eventCreate(&event, flagcxEventDefault));
    OK(device->eventCreate(&late, flagcxEventDefault));
    BAD(device->eventElapsedTime(NULL, event, late));
    BAD(device->eventElapsedTime(&ms, NULL, late));
    CHECK(ms == 0);
    BAD(device->eventRecord(event, stream));
    OK(device->eventDestroy(event));
    BAD(device->eventDestroy(event));
    BAD(device->eventQuery(event));
    BAD(device->eventSynchronize(event));
    BAD(device->eventRecord(event, good_stream));
    ms = 5;
    BAD(device->eventElapsedTime(&ms, event, late));
    CHECK(ms == 0);
    BAD(device->streamWaitEvent(good_stream, event));
    OK(device->eventDestroy(late));

    out.pointer = (void *)0x55;
    array[0] = 0x55;
    GIVES(flagcxNotSupported, device->ipcMemHandleCreate((flagcxIpcMemHandle_t *)&out.pointer, array));
    CHECK(out.pointer == NULL && array[0] == 0);
    BAD(device->ipcMemHandleCreate(NULL, NULL));
    GIVES(flagcxNotSupported, device->ipcMemHandleGet(NULL, buffer));
    out.pointer = (void *)0x55;
    GIVES(flagcxNotSupported, device->ipcMemHandleOpen(NULL, &out.pointer));
    CHECK(out.pointer == NULL);
    GIVES(flagcxNotSupported, device->ipcMemHandleClose(buffer));
    GIVES(flagcxNotSupported, device->ipcMemHandleFree((flagcxIpcMemHandle_t)0xdead0));
    memset(array, 0, sizeof array);
}

static void handles(void)
{
    flagcxDeviceHandle_t h[100], stale;
    flagcxHandlerGroup_t group = NULL;
    char vendor[64];
    size_t i;
    BAD(flagcxDeviceHandleInit(NULL));
    OK(flagcxDeviceHandleFree(NULL));
    BAD(flagcxDeviceHandleFree((flagcxDeviceHandle_t)buffer));
    /* LC-5: as often as you like, and nothing of the first is lost. */
    for (i = 0; i < 100; i++) {
        OK(flagcxDeviceHandleInit(&h[i]));
        OK(h[i]->getDeviceCount(&out.number));
        CHECK(out.number >= 1);
    }
    for (i = 0; i < 100; i++) {
        OK(flagcxDeviceHandleFree(h[i]));
    }
    for (i = 0; i < 100; i++) {
        OK(flagcxDeviceHandleInit(&h[0]));
        OK(flagcxDeviceHandleFree(h[0]));
    }
    BAD(flagcxDeviceHandleFree(h[0]));
    BAD(flagcxHandleInit(NULL));
    OK(flagcxHandleFree(NULL));
    BAD(flagcxHandleFree((flagcxHandlerGroup_t)buffer));
    OK(flagcxHandleInit(&group));
    CHECK(group->uniqueId == NULL && group->comm == NULL && group->devHandle != NULL);
    OK(group->devHandle->getDeviceCount(&out.number));
    OK(flagcxHandleFree(group));
    BAD(flagcxHandleFree(group));
    OK(flagcxHandleInit(&group));
    stale = group->devHandle;
    OK(flagcxDeviceHandleFree(stale)); /* by somebody who did not know */
    OK(flagcxHandleFree(group));
    BAD(flagcxDeviceHandleFree(stale));

    /* No slot is NULL. */
    for (i = 0; i < sizeof *device / sizeof(void *); i++) {
        CHECK(((void **)device)[i] != NULL);
    }
    /* The name and its zero are written, no more. */
    memset(vendor, 0x55, sizeof vendor);
    OK(device->getVendor(vendor));
    for (i = strlen(vendor) + 1; i < sizeof vendor; i++) {
        CHECK(vendor[i] == 0x55);
    }
    CHECK(vendor[0] != 0 && strlen(vendor) < 64);
    BAD(flagcxGetVersion(NULL));
    OK(flagcxGetVersion(&out.number));
    CHECK(out.number == 10000);
}

static void groups(void)
{
    /* AB-2: with no argument at all, which leaves whatever the register has. */
    void (*start)(void) = (void (*)(void))flagcxGroupStart;
    flagcxResult_t (*bare)(void) = (flagcxResult_t (*)(void))start;
    flagcxResult_t (*end)(void) = (flagcxResult_t (*)(void))(void (*)(void))flagcxGroupEnd;
    double in[2] = { 5, 6 }, got[2] = { 0, 0 };
    double *a, *b;
    int i;
    OK(device->deviceMalloc((void **)&a, sizeof in, flagcxMemDevice, NULL));
    OK(device->deviceMalloc((void **)&b, sizeof in, flagcxMemDevice, NULL));
    OK(device->deviceMemcpy(a, in, sizeof in, flagcxMemcpyHostToDevice, NULL));
    for (i = 0; i < 2; i++) {
        OK(bare());
        OK(flagcxAllReduce(a, b, 1, flagcxDouble, flagcxSum, good_comm, good_stream));
        OK(flagcxAllReduce(a + 1, b + 1, 1, flagcxDouble, flagcxSum, good_comm, good_stream));
        OK(end());
    }
    OK(device->streamSynchronize(good_stream));
    OK(device->deviceMemcpy(got, b, sizeof got, flagcxMemcpyDeviceToHost, NULL));
    CHECK(got[0] == 5 && got[1] == 6);
    OK(device->deviceFree(a, flagcxMemDevice, NULL));
    OK(device->deviceFree(b, flagcxMemDevice, NULL));
    GIVES(flagcxInvalidUsage, flagcxGroupEnd(good_comm));
    GIVES(flagcxInvalidUsage, flagcxGroupEnd(NULL));
    /* A call that the skin itself refuses makes the group fail, as any other. */
    for (i = 0; i < 3; i++) {
        OK(flagcxGroupStart(good_comm));
        BAD(flagcxAllReduce(buffer, buffer, 1, i == 0 ? (flagcxDataType_t)10 : flagcxDouble,
                            i == 1 ? (flagcxRedOp_t)5 : flagcxSum, good_comm, i == 2 ? NULL : good_stream));
        BAD(flagcxGroupEnd(good_comm));
    }
    OK(flagcxGroupStart(good_comm));
    GIVES(flagcxInvalidUsage, flagcxBarrier(good_comm, good_stream));
    GIVES(flagcxInvalidUsage, flagcxGroupEnd(good_comm));
    OK(device->streamSynchronize(good_stream));
}

/* Handles of another library and of another copy of this one mean nothing here, and the other way round. */
static void foreign(const char *native, const char *other)
{
    void *lib = dlopen(native, RTLD_NOW | RTLD_LOCAL);
    void *twin = dlopen(other, RTLD_NOW | RTLD_LOCAL);
    void *comm = NULL, *stream = NULL;
    flagcxComm_t twins = NULL;
    flagcxUniqueId id;
    struct { void *base; } wrapper;
    flagcxStream_t twin_stream;
    flagcxDeviceHandle_t twin_device;
    void *registration;
    if (lib == NULL || twin == NULL) {
        FAIL("%s", dlerror());
        return;
    }
#define OF(library, type, name) ((type)(size_t)dlsym(library, name))
    CHECK(OF(lib, int (*)(void **, int, const int *), "flagosCommInitAll")(&comm, 1, NULL) == 0);
    bad_comm("the native library's", comm);
    CHECK(OF(lib, int (*)(void *, int *), "flagosCommCount")(good_comm, &out.number) == flagcxInvalidArgument);
    CHECK(OF(lib, int (*)(void **), "flagosStreamCreate")(&stream) == 0);
    wrapper.base = stream;
    BAD(flagcxAllReduce(buffer, buffer, 1, flagcxDouble, flagcxSum, good_comm, (flagcxStream_t)&wrapper));
    BAD(device->streamSynchronize((flagcxStream_t)&wrapper));
    CHECK(OF(lib, int (*)(void *), "flagosStreamSynchronize")(stream) == 0);
    CHECK(OF(lib, int (*)(void *), "flagosStreamDestroy")(stream) == 0);
    CHECK(OF(lib, int (*)(void *), "flagosCommDestroy")(comm) == 0);

    CHECK(OF(twin, __typeof__(&flagcxGetUniqueId), "flagcxGetUniqueId")(&id) == 0);
    CHECK(OF(twin, __typeof__(&flagcxCommInitRank), "flagcxCommInitRank")(&twins, 1, &id, 0) == 0);
    bad_comm("another copy's", twins);
    CHECK(OF(twin, __typeof__(&flagcxCommCount), "flagcxCommCount")(good_comm, &out.number) == flagcxInvalidArgument);
    CHECK(OF(twin, __typeof__(&flagcxDeviceHandleInit), "flagcxDeviceHandleInit")(&twin_device) == 0);
    CHECK(twin_device->streamCreate(&twin_stream) == 0);
    BAD(device->streamDestroy(twin_stream));
    BAD(device->streamSynchronize(twin_stream));
    BAD(flagcxAllReduce(buffer, buffer, 1, flagcxDouble, flagcxSum, good_comm, twin_stream));
    CHECK(twin_device->streamDestroy(good_stream) == flagcxInvalidArgument);
    CHECK(OF(twin, __typeof__(&flagcxCommRegister), "flagcxCommRegister")(twins, buffer, 8, &registration, flagcxMemCCL) == 0);
    BAD(flagcxCommDeregister(good_comm, registration, flagcxMemCCL));
    BAD(flagcxDeviceHandleFree(twin_device));
    CHECK(twin_device->streamDestroy(twin_stream) == 0);
    CHECK(OF(twin, __typeof__(&flagcxDeviceHandleFree), "flagcxDeviceHandleFree")(twin_device) == 0);
    CHECK(OF(twin, __typeof__(&flagcxCommDestroy), "flagcxCommDestroy")(twins) == 0);
}

int main(int argc, char **argv)
{
    flagcxComm_t stale;
    OK(flagcxDeviceHandleInit(&device));
    OK(device->streamCreate(&good_stream));
    good_comm = one_rank();
    still_works();
    inits();
    bad_comm("NULL", NULL);
    bad_comm("made up", (flagcxComm_t)0xdeadbeef);
    bad_comm("a pointer", (flagcxComm_t)buffer);
    bad_comm("all bits", (flagcxComm_t)-1);
    bad_comm("1", (flagcxComm_t)1);
    stale = one_rank();
    OK(flagcxCommDestroy(stale));
    bad_comm("destroyed", stale);
    stale = one_rank();
    OK(flagcxCommAbort(stale));
    bad_comm("aborted", stale);
    stale = one_rank();
    OK(flagcxCommFinalize(stale));
    OK(flagcxCommDestroy(stale));
    bad_comm("finalized", stale);
    numbers();
    one_sided();
    memory();
    streams_and_events();
    handles();
    groups();
    if (argc == 3) {
        foreign(argv[1], argv[2]);
    }
    still_works();
    OK(flagcxCommDestroy(good_comm));
    OK(device->streamDestroy(good_stream));
    OK(flagcxDeviceHandleFree(device));
    if (failures) {
        fprintf(stderr, "%d failures\n", failures);
    }
    return failures != 0;
}
