/*
 * Calls one operation 1000 times, through the drop-in or (with -DNATIVE) the native library, for callgrind to count.
 *
 * usage: cost OPERATION
 */
#ifdef NATIVE
#include "flagos_comm.h"
#define NAME(x) flagos##x
#define STREAM flagosStream_t
#else
#include "nccl.h"
#define NAME(x) nccl##x
#define STREAM cudaStream_t
#endif

#include <stdio.h>
#include <string.h>

static double a[8], b[8];

int main(int argc, char **argv)
{
    NAME(Comm_t) comm;
    STREAM stream = NULL;
    const char *op = argc > 1 ? argv[1] : "";
    int i, result = (int)NAME(CommInitAll)(&comm, 1, NULL);
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
