/*
 * Calls one operation 1000 times for callgrind to count: through FlagCX's API, through its plugin (-DPLUGIN) or through the
 * native library (-DNATIVE).
 *
 * usage: cost OPERATION [LIBRARY_WITH_THE_PLUGIN]
 */
#ifdef NATIVE
#include "flagos_comm.h"
#define NAME(x) flagos##x
#define LAST_ERROR flagosGetLastError(NULL)
#elif defined PLUGIN
#include "flagcx_adaptor.h"
#include <dlfcn.h>
#define NAME(x) flagcx##x
#define LAST_ERROR table->getLastError(NULL)
#else
#include "flagcx.h"
#define NAME(x) flagcx##x
#define LAST_ERROR flagcxGetLastError(NULL)
#endif

#include <stdio.h>
#include <string.h>

static double a[8], b[8];

int main(int argc, char **argv)
{
#ifdef PLUGIN
    const struct flagcxCCLAdaptor_v1 *table;
    const struct flagcxDeviceAdaptor_v1 *device;
    flagcxInnerComm_t comm = NULL;
    flagcxInnerUniqueId id;
    flagcxInnerUniqueId_t place = &id;
    void *library;
#else
    NAME(Comm_t) comm;
#endif
    NAME(Stream_t) stream;
    const char *op = argc > 1 ? argv[1] : "";
    int i, result;
#ifdef NATIVE
    result = flagosCommInitAll(&comm, 1, NULL) || flagosStreamCreate(&stream);
#elif defined PLUGIN
    library = dlopen(argc > 2 ? argv[2] : "", RTLD_NOW | RTLD_LOCAL);
    table = library ? dlsym(library, "flagcxCCLAdaptorPlugin_v1") : NULL;
    device = library ? dlsym(library, "flagcxDeviceAdaptorPlugin_v1") : NULL;
    if (table == NULL || device == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    memset(&id, 0, sizeof id);
    result = table->getUniqueId(&place) || table->commInitRank(&comm, 1, &id, 0, NULL) || device->streamCreate(&stream);
#else
    flagcxDeviceHandle_t device;
    flagcxUniqueId id;
    result = flagcxGetUniqueId(&id) || flagcxCommInitRank(&comm, 1, &id, 0) || flagcxDeviceHandleInit(&device) ||
             device->streamCreate(&stream);
#endif
#ifdef PLUGIN
#define CALL(x, field) table->field
#else
#define CALL(x, field) NAME(x)
#endif
#define CASE(x, field, ...)                                                                \
    else if (strcmp(op, #x) == 0) {                                                        \
        for (i = 0; i < 1000 && !result; i++) {                                            \
            result = (int)CALL(x, field)(__VA_ARGS__, comm, stream);                       \
        }                                                                                  \
    }
    if (result) {
        i = 0;
    }
    CASE(AllReduce, allReduce, a, b, 8, NAME(Float64), NAME(Sum))
    CASE(Reduce, reduce, a, b, 8, NAME(Float64), NAME(Sum), 0)
    CASE(ReduceScatter, reduceScatter, a, b, 8, NAME(Float64), NAME(Sum))
    CASE(AllGather, allGather, a, b, 8, NAME(Float64))
    CASE(Broadcast, broadcast, a, b, 8, NAME(Float64), 0)
    CASE(Gather, gather, a, b, 8, NAME(Float64), 0)
    CASE(Scatter, scatter, a, b, 8, NAME(Float64), 0)
    CASE(AlltoAll, alltoAll, a, b, 8, NAME(Float64))
    CASE(Send, send, a, 8, NAME(Float64), 0)
    CASE(Recv, recv, b, 8, NAME(Float64), 0)
    else {
        result = 1;
    }
    if (result) {
        fprintf(stderr, "%s: %s\n", op, LAST_ERROR);
    }
    return result;
}
