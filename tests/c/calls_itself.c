/*
 * LD-7: makes a stand-in of NCCL that calls its own public ncclGetVersion from a constructor and from
 * ncclCommDestroy, through the PLT, as a real library may. Compiled together with the stand-in, whose own
 * ncclCommDestroy is renamed. If another library in the process exported the name, the call would land there.
 */
#include "abi/nccl.h"

#include <stdio.h>
#include <stdlib.h>

ncclResult_t stand_in_destroy(ncclComm_t comm);
__attribute__((visibility("default"))) ncclResult_t ncclCommDestroy(ncclComm_t comm);

static void ask_itself(const char *from)
{
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version != 23203) {
        fprintf(stderr, "%s: ncclGetVersion landed elsewhere (%d)\n", from, version);
        abort();
    }
    fprintf(stderr, "%s asked itself\n", from);
}

/* With CALLS_ITSELF_LATE it is opened behind such a library, by somebody who doesn't know of that one. */
__attribute__((constructor)) static void at_load(void)
{
    if (getenv("CALLS_ITSELF_LATE") == NULL) ask_itself("constructor");
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ask_itself("ncclCommDestroy");
    return stand_in_destroy(comm);
}
