/* See mini_flagcx.h. What FlagCX does, in which order, and what it checks, is that of its version 0.13. */
#define _GNU_SOURCE
#include "mini_flagcx.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TRY(call)                                                                          \
    do {                                                                                   \
        flagcxResult_t result_ = (call);                                                   \
        if (result_ != flagcxSuccess && result_ != flagcxInProgress) {                     \
            return result_;                                                                \
        }                                                                                  \
    } while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mini_counts counts;

/* ---- the tables in force ---- */

static flagcxResult_t refused(void)
{
    return flagcxNotSupported;
}

static union { struct flagcxCCLAdaptor_v1 table; void *field[35]; } ccl;
static union {
    struct flagcxDeviceAdaptor_v1 table;
    struct { char name[32]; void *field[48]; } raw;
} device;

__attribute__((constructor)) static void no_adaptors(void)
{
    size_t i;
    for (i = 0; i < 35; i++) {
        *(flagcxResult_t(**)(void))&ccl.field[i] = refused;
    }
    for (i = 0; i < 48; i++) {
        *(flagcxResult_t(**)(void))&device.raw.field[i] = refused;
    }
}

struct plugin {
    const char *variable, *symbol;
    void *in_force; /* FlagCX copies the table */
    size_t size;
    int (*complete)(const void *table);
    void *library;
    int users;
};

static int ccl_complete(const void *table)
{
    void *field[35];
    size_t i;
    memcpy(field, table, sizeof field);
    for (i = 0; i < 35; i++) {
        if (field[i] == NULL) {
            return 0;
        }
    }
    return 1;
}

static int device_complete(const void *table)
{
    const struct flagcxDeviceAdaptor_v1 *t = table;
    return t->name[0] && t->deviceSynchronize && t->deviceMemcpy && t->deviceMemset && t->deviceMalloc && t->deviceFree &&
           t->setDevice && t->getDevice && t->getDeviceCount && t->getVendor && t->gdrMemAlloc && t->gdrMemFree &&
           t->streamCreate && t->streamDestroy && t->streamCopy && t->streamFree && t->streamSynchronize && t->streamQuery &&
           t->streamWaitEvent && t->streamWaitValue64 && t->streamWriteValue64 && t->eventCreate && t->eventDestroy &&
           t->eventRecord && t->eventSynchronize && t->eventQuery && t->eventElapsedTime && t->ipcMemHandleCreate &&
           t->ipcMemHandleGet && t->ipcMemHandleOpen && t->ipcMemHandleClose && t->ipcMemHandleFree && t->launchHostFunc;
}

static struct plugin plugins[] = {
    { "FLAGCX_DEVICE_ADAPTOR_PLUGIN", "flagcxDeviceAdaptorPlugin_v1", &device, sizeof device, device_complete, NULL, 0 },
    { "FLAGCX_CCL_ADAPTOR_PLUGIN", "flagcxCCLAdaptorPlugin_v1", &ccl, sizeof ccl, ccl_complete, NULL, 0 },
};

/* Never fails: a plugin that is refused is said to nobody. */
static void take(struct plugin *p)
{
    const char *path = getenv(p->variable);
    const void *table;
    if (p->library == NULL) {
        if (path == NULL || strcmp(path, "none") == 0 || *path == 0) {
            return;
        }
        p->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (p->library == NULL) {
            return;
        }
        table = dlsym(p->library, p->symbol);
        if (table == NULL || !p->complete(table)) {
            dlclose(p->library);
            p->library = NULL;
            return;
        }
        memcpy(p->in_force, table, p->size);
    }
    p->users++;
}

static void give(struct plugin *p)
{
    if (p->users > 0 && --p->users == 0) {
        size_t first = p == &plugins[0] ? 4 : 0, i;
        for (i = first; i < p->size / sizeof(void *); i++) {
            ((flagcxResult_t(**)(void))p->in_force)[i] = refused;
        }
        dlclose(p->library);
        p->library = NULL;
    }
}

static void take_both(void)
{
    pthread_mutex_lock(&lock);
    take(&plugins[0]);
    take(&plugins[1]);
    pthread_mutex_unlock(&lock);
}

static void give_both(void)
{
    pthread_mutex_lock(&lock);
    give(&plugins[1]);
    give(&plugins[0]);
    pthread_mutex_unlock(&lock);
}

static void count(unsigned long *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

struct mini_counts mini_flagcx_counts(void)
{
    return counts;
}

int mini_flagcx_went_through_the_plugin(void)
{
    /* The plugin's own struct, as its header has it. */
    struct { size_t size; uint64_t communicators, operations, device_calls; } said = { sizeof said, 0, 0, 0 };
    const char *path = getenv(plugins[1].variable);
    void *library = dlopen(path ? path : "", RTLD_NOW | RTLD_NOLOAD);
    int (*ask)(void *) = NULL;
    if (library != NULL) {
        *(void **)&ask = dlsym(library, "flagosGetPluginCounters");
    }
    if (ask == NULL || ask(&said) != 0) {
        fprintf(stderr, "the plugin does not answer: %s\n", dlerror());
        return 0;
    }
    if (said.communicators != counts.communicators || said.operations != counts.operations || said.device_calls == 0 ||
        counts.operations == 0) {
        fprintf(stderr, "%lu communicators and %lu operations, but the plugin counted %lu and %lu, and %lu calls about devices\n",
                counts.communicators, counts.operations, (unsigned long)said.communicators, (unsigned long)said.operations,
                (unsigned long)said.device_calls);
        return 0;
    }
    return 1;
}

/* ---- FlagCX's channel between the ranks: here a file that all map ---- */

enum { most = 64, steps = 4 };

struct meeting {
    int arrived[steps];
    int result[most];
    flagcxInnerUniqueId id;
};

static struct meeting *open_meeting(const char *path, int flags)
{
    struct meeting *m;
    int fd = open(path, flags | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || (flags && ftruncate(fd, sizeof *m) != 0)) {
        return NULL;
    }
    m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return m == MAP_FAILED ? NULL : m;
}

static void wait_for_all(struct meeting *m, int step, int ranks)
{
    struct timespec a_while = { 0, 200000 };
    __atomic_fetch_add(&m->arrived[step], 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&m->arrived[step], __ATOMIC_SEQ_CST) < ranks) {
        nanosleep(&a_while, NULL);
    }
}

/* Memory of this size with nothing readable behind it. */
static void *before_a_wall(size_t size, void **mapping)
{
    enum { pages = 3 * 4096 };
    char *memory = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + pages - 4096, 4096, PROT_NONE) != 0) {
        abort();
    }
    *mapping = memory;
    return memory + pages - 4096 - size;
}

/* ---- the API ---- */

struct flagcxComm { flagcxInnerComm_t inner; };

size_t getFlagcxDataTypeSize(flagcxDataType_t type)
{
    static const size_t sizes[flagcxNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
    return (unsigned)type < flagcxNumTypes ? sizes[type] : 0;
}

static flagcxResult_t copy(void *dst, void *src, size_t size, flagcxMemcpyType_t type, flagcxStream_t stream)
{
    return device.table.deviceMemcpy(dst, src, size, type, stream, NULL);
}

flagcxResult_t flagcxDeviceHandleInit(flagcxDeviceHandle_t *handle)
{
    const struct flagcxDeviceAdaptor_v1 *d = &device.table;
    take_both();
    *handle = malloc(sizeof **handle);
    **handle = (struct flagcxDeviceHandle){
        d->deviceSynchronize, copy, d->deviceMemset, d->deviceMalloc, d->deviceFree, d->setDevice, d->getDevice,
        d->getDeviceCount, d->getVendor, d->hostGetDevicePointer, d->streamCreate, d->streamDestroy, d->streamCopy,
        d->streamFree, d->streamSynchronize, d->streamQuery, d->streamWaitEvent, d->eventCreate, d->eventDestroy,
        d->eventRecord, d->eventSynchronize, d->eventQuery, d->eventElapsedTime, d->ipcMemHandleCreate, d->ipcMemHandleGet,
        d->ipcMemHandleOpen, d->ipcMemHandleClose, d->ipcMemHandleFree,
    };
    return flagcxSuccess;
}

flagcxResult_t flagcxDeviceHandleFree(flagcxDeviceHandle_t handle)
{
    free(handle);
    give_both();
    return flagcxSuccess;
}

flagcxResult_t flagcxGetUniqueId(flagcxUniqueId_t id)
{
    static int number;
    const char *folder = getenv("TMPDIR");
    struct meeting *m;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 128, "%s/mini-flagcx-%d-%d", folder ? folder : "/tmp", (int)getpid(),
             __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
    m = open_meeting(id->internal, O_CREAT | O_EXCL);
    if (m == NULL) {
        perror(id->internal);
        return flagcxSystemError;
    }
    munmap(m, sizeof *m);
    return flagcxSuccess;
}

static flagcxResult_t join(struct meeting *m, flagcxComm_t comm, int nranks, int rank)
{
    /* Versions of FlagCX differ in the room that they give. */
    size_t room = getenv("MINI_FLAGCX_ID_BYTES") ? (size_t)atoi(getenv("MINI_FLAGCX_ID_BYTES")) : sizeof m->id;
    void *mapping;
    flagcxInnerUniqueId_t id = before_a_wall(room, &mapping);
    flagcxResult_t result;
    wait_for_all(m, 0, nranks); /* what they say of themselves */
    if (rank == 0) {
        flagcxInnerUniqueId_t place = id;
        m->result[0] = ccl.table.getUniqueId(&place);
        if (place != id) {
            fprintf(stderr, "the plugin has put another id in place of FlagCX's\n");
            abort();
        }
        memcpy(&m->id, id, room);
    }
    wait_for_all(m, 1, nranks);
    if (m->result[0] != flagcxSuccess) {
        result = m->result[0];
    } else {
        memcpy(id, &m->id, room);
        result = ccl.table.commInitRank(&comm->inner, nranks, id, rank, NULL);
    }
    munmap(mapping, 3 * 4096);
    return result;
}

flagcxResult_t flagcxCommInitRank(flagcxComm_t *comm, int nranks, flagcxUniqueId_t id, int rank)
{
    struct meeting *m;
    flagcxResult_t result;
    if (nranks < 1 || nranks > most || rank < 0 || rank >= nranks || comm == NULL || id == NULL) {
        return flagcxInvalidArgument;
    }
    take_both();
    *comm = calloc(1, sizeof **comm);
    m = open_meeting(id->internal, 0);
    if (m == NULL) {
        perror(id->internal);
        return flagcxInternalError;
    }
    result = join(m, *comm, nranks, rank);
    wait_for_all(m, 2, nranks);
    if (rank == 0) {
        unlink(id->internal);
    }
    munmap(m, sizeof *m);
    TRY(result);
    count(&counts.communicators);
    return flagcxSuccess;
}

#define READY(comm)                                                                        \
    do {                                                                                   \
        if ((comm) == NULL) {                                                              \
            return flagcxInternalError;                                                    \
        }                                                                                  \
    } while (0)

flagcxResult_t flagcxCommFinalize(flagcxComm_t comm)
{
    READY(comm);
    return ccl.table.commFinalize(comm->inner);
}

/* What is FlagCX's own is freed only behind a success. */
flagcxResult_t flagcxCommDestroy(flagcxComm_t comm)
{
    READY(comm);
    TRY(ccl.table.commDestroy(comm->inner));
    free(comm);
    give_both();
    return flagcxSuccess;
}

flagcxResult_t flagcxCommAbort(flagcxComm_t comm)
{
    READY(comm);
    return ccl.table.commAbort(comm->inner);
}

const char *flagcxGetLastError(flagcxComm_t comm)
{
    return plugins[1].library ? ccl.table.getLastError(comm ? comm->inner : NULL) : "no plugin was taken";
}

flagcxResult_t flagcxCommGetAsyncError(flagcxComm_t comm, flagcxResult_t *error)
{
    READY(comm);
    return ccl.table.commGetAsyncError(comm->inner, error);
}

flagcxResult_t flagcxCommCount(const flagcxComm_t comm, int *number)
{
    READY(comm);
    return ccl.table.commCount(comm->inner, number);
}

flagcxResult_t flagcxCommUserRank(const flagcxComm_t comm, int *rank)
{
    READY(comm);
    return ccl.table.commUserRank(comm->inner, rank);
}

flagcxResult_t flagcxCommGetDeviceNumber(const flagcxComm_t comm, int *number)
{
    READY(comm);
    return ccl.table.commGetDeviceNumber(comm->inner, number);
}

flagcxResult_t flagcxIsHomoComm(flagcxComm_t comm, int *is_homo)
{
    READY(comm);
    *is_homo = 1;
    return flagcxSuccess;
}

flagcxResult_t flagcxMemAlloc(void **ptr, size_t size, flagcxMemAllocator_t allocator)
{
    return allocator == flagcxMemCCL && ptr && size ? ccl.table.memAlloc(ptr, size) : flagcxInvalidArgument;
}

flagcxResult_t flagcxMemFree(void *ptr, flagcxMemAllocator_t allocator)
{
    return allocator == flagcxMemCCL ? ccl.table.memFree(ptr) : flagcxInvalidArgument;
}

flagcxResult_t flagcxCommRegister(const flagcxComm_t comm, void *buffer, size_t size, void **handle,
                                  flagcxMemAllocator_t allocator)
{
    READY(comm);
    return allocator == flagcxMemCCL ? ccl.table.commRegister(comm->inner, buffer, size, handle) : flagcxInvalidArgument;
}

flagcxResult_t flagcxCommDeregister(const flagcxComm_t comm, void *handle, flagcxMemAllocator_t allocator)
{
    READY(comm);
    return allocator == flagcxMemCCL ? ccl.table.commDeregister(comm->inner, handle) : flagcxInvalidArgument;
}

/* Without a window of the adaptor's there is none, and that is no error. */
flagcxResult_t flagcxCommWindowRegister(flagcxComm_t comm, void *buffer, size_t size, flagcxWindow_t *win, int flags,
                                        flagcxMemAllocator_t allocator)
{
    flagcxInnerWindow_t inner = NULL;
    flagcxResult_t result;
    READY(comm);
    if (allocator != flagcxMemCCL || *win != NULL) {
        return flagcxInvalidArgument;
    }
    result = ccl.table.commWindowRegister(comm->inner, buffer, size, &inner, flags);
    *win = (flagcxWindow_t)inner;
    return result == flagcxNotSupported && inner == NULL ? flagcxSuccess : result;
}

flagcxResult_t flagcxCommWindowDeregister(flagcxComm_t comm, flagcxWindow_t win, flagcxMemAllocator_t allocator)
{
    READY(comm);
    if (allocator != flagcxMemCCL || win == NULL) {
        return win == NULL ? flagcxSuccess : flagcxInvalidArgument;
    }
    return ccl.table.commWindowDeregister(comm->inner, (flagcxInnerWindow_t)win);
}

flagcxResult_t flagcxGroupStart(flagcxComm_t comm)
{
    (void)comm;
    return ccl.table.groupStart();
}

flagcxResult_t flagcxGroupEnd(flagcxComm_t comm)
{
    (void)comm;
    return ccl.table.groupEnd();
}

#define OPERATION(call)                                                                    \
    do {                                                                                   \
        READY(comm);                                                                       \
        TRY(ccl.table.call);                                                               \
        count(&counts.operations);                                                         \
        return flagcxSuccess;                                                              \
    } while (0)

flagcxResult_t flagcxReduce(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxRedOp_t op, int root,
                            flagcxComm_t comm, flagcxStream_t stream)
{
    OPERATION(reduce(send, recv, n, type, op, root, comm->inner, stream));
}

flagcxResult_t flagcxGather(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
                            flagcxStream_t stream)
{
    OPERATION(gather(send, recv, n, type, root, comm->inner, stream));
}

flagcxResult_t flagcxScatter(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
                             flagcxStream_t stream)
{
    OPERATION(scatter(send, recv, n, type, root, comm->inner, stream));
}

flagcxResult_t flagcxBroadcast(const void *send, void *recv, size_t n, flagcxDataType_t type, int root, flagcxComm_t comm,
                               flagcxStream_t stream)
{
    OPERATION(broadcast(send, recv, n, type, root, comm->inner, stream));
}

flagcxResult_t flagcxAllReduce(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxRedOp_t op,
                               flagcxComm_t comm, flagcxStream_t stream)
{
    OPERATION(allReduce(send, recv, n, type, op, comm->inner, stream));
}

flagcxResult_t flagcxReduceScatter(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxRedOp_t op,
                                   flagcxComm_t comm, flagcxStream_t stream)
{
    OPERATION(reduceScatter(send, recv, n, type, op, comm->inner, stream));
}

flagcxResult_t flagcxAllGather(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxComm_t comm,
                               flagcxStream_t stream)
{
    OPERATION(allGather(send, recv, n, type, comm->inner, stream));
}

flagcxResult_t flagcxAlltoAll(const void *send, void *recv, size_t n, flagcxDataType_t type, flagcxComm_t comm,
                              flagcxStream_t stream)
{
    OPERATION(alltoAll(send, recv, n, type, comm->inner, stream));
}

flagcxResult_t flagcxAlltoAllv(const void *send, size_t *send_counts, size_t *send_displs, void *recv, size_t *recv_counts,
                               size_t *recv_displs, flagcxDataType_t type, flagcxComm_t comm, flagcxStream_t stream)
{
    OPERATION(alltoAllv(send, send_counts, send_displs, recv, recv_counts, recv_displs, type, comm->inner, stream));
}

flagcxResult_t flagcxSend(const void *send, size_t n, flagcxDataType_t type, int peer, flagcxComm_t comm,
                          flagcxStream_t stream)
{
    OPERATION(send(send, n, type, peer, comm->inner, stream));
}

flagcxResult_t flagcxRecv(void *recv, size_t n, flagcxDataType_t type, int peer, flagcxComm_t comm, flagcxStream_t stream)
{
    OPERATION(recv(recv, n, type, peer, comm->inner, stream));
}

flagcxResult_t flagcxBarrier(flagcxComm_t comm, flagcxStream_t stream)
{
    void *place = NULL;
    int ranks = 0;
    READY(comm);
    /* FlagCX looks at no result here. */
    (void)flagcxCommCount(comm, &ranks);
    (void)device.table.deviceMalloc(&place, (size_t)ranks, flagcxMemDevice, stream);
    (void)device.table.deviceMemset(place, 0, (size_t)ranks, flagcxMemDevice, stream);
    (void)flagcxAllReduce(place, place, (size_t)ranks, flagcxChar, flagcxMax, comm, stream);
    (void)device.table.deviceFree(place, flagcxMemDevice, stream);
    (void)device.table.streamSynchronize(stream);
    return flagcxSuccess;
}
