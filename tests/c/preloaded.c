/*
 * LD-7: a program into which the library was preloaded makes a communicator on a vendor's tier and
 * destroys it. The library's names are in the global scope, the vendor's are not.
 */
#include "flagos_comm.h"

#include <dlfcn.h>
#include <stdio.h>

#define FIND(name) (*(void **)&name##_ = dlsym(RTLD_DEFAULT, #name))

int main(void)
{
    flagosResult_t (*flagosCommInitAll_)(flagosComm_t *, int, const int *);
    flagosResult_t (*flagosCommGetInfo_)(flagosComm_t, flagosCommInfo_t *);
    flagosResult_t (*flagosCommDestroy_)(flagosComm_t);
    const char *(*flagosGetLastError_)(flagosComm_t);
    flagosCommInfo_t info = FLAGOS_COMM_INFO_INITIALIZER;
    flagosComm_t comm = NULL;
    if (!FIND(flagosCommInitAll) || !FIND(flagosCommGetInfo) || !FIND(flagosCommDestroy)
        || !FIND(flagosGetLastError)) {
        fprintf(stderr, "the library is not preloaded\n");
        return 2;
    }
    if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != NULL) {
        fprintf(stderr, "a name of the vendor is in the global scope\n");
        return 3;
    }
    if (flagosCommInitAll_(&comm, 1, NULL) != flagosSuccess
        || flagosCommGetInfo_(comm, &info) != flagosSuccess || info.tier != flagosTierNative
        || flagosCommDestroy_(comm) != flagosSuccess) {
        fprintf(stderr, "tier %d: %s\n", (int)info.tier, flagosGetLastError_(NULL));
        return 1;
    }
    if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != NULL) {
        return 4;
    }
    return 0;
}
