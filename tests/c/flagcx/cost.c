/*
 * Calls one operation 1000 times, through the skin or (with -DNATIVE) the native library, for callgrind to count.
 *
 * usage: cost OPERATION
 */
#ifdef NATIVE
#include "flagos_comm.h"
#define NAME(x) flagos##x
#else
#include "flagcx.h"
#define NAME(x) flagcx##x
#endif

#include <stdio.h>
#include <string.h>

static double a[8], b[8];

int main(int argc, char **argv)
{
    NAME(Comm_t) comm;
    NAME(Stream_t) stream;
    const char *op = argc > 1 ? argv[1] : "";
    int i, result;
#ifdef NATIVE
    result = flagosCommInitAll(&comm, 1, NULL) || flagosStreamCreate(&stream);
#else
    flagcxDeviceHandle_t device;
    flagcxUniqueId id;
    result = flagcxGetUniqueId(&id) || flagcxCommInitRank(&comm, 1, &id, 0) || flagcxDeviceHandleInit(&device) ||
             device->streamCreate(&stream);
#endif
#define CASE(x, ...)                                                                       \
    else if (strcmp(op, #x) == 0) {                                                        \
        for (i = 0; i < 1000 && !result; i++) {                                            \
            result = (int)NAME(x)(__VA_ARGS__, comm, stream);                              \
        }                                                                                  \
    }
    if (result) {
        i = 0;
    }
    CASE(AllReduce, a, b, 8, NAME(Float64), NAME(Sum))
    CASE(Reduce, a, b, 8, NAME(Float64), NAME(Sum), 0)
    CASE(ReduceScatter, a, b, 8, NAME(Float64), NAME(Sum))
    CASE(AllGather, a, b, 8, NAME(Float64))
    CASE(Broadcast, a, b, 8, NAME(Float64), 0)
    CASE(Gather, a, b, 8, NAME(Float64), 0)
    CASE(Scatter, a, b, 8, NAME(Float64), 0)
    CASE(AlltoAll, a, b, 8, NAME(Float64))
    CASE(Send, a, 8, NAME(Float64), 0)
    CASE(Recv, b, 8, NAME(Float64), 0)
    else {
        result = 1;
    }
    if (result) {
        fprintf(stderr, "%s: %s\n", op, NAME(GetLastError)(NULL));
    }
    return result;
}
