/*
 * Groups of messages of a rank to itself on the host tier: 100 groups of 32 sends and 32 receives of 8 bytes.
 */
#include "flagos_comm.h"

#include <stdio.h>

enum { groups = 100, messages = 32 };

static int check(flagosResult_t result)
{
    if (result != flagosSuccess) {
        fprintf(stderr, "%s\n", flagosGetLastError(NULL));
    }
    return result != flagosSuccess;
}

int main(void)
{
    static float sent[messages][2], received[messages][2];
    flagosUniqueId id;
    flagosComm_t comm;
    int wrong = check(flagosGetUniqueId(&id)) || check(flagosCommInitRank(&comm, 1, &id, 0));
    for (int group = 0; !wrong && group < groups; group++) {
        wrong |= check(flagosGroupStart());
        for (int i = 0; i < messages; i++) wrong |= check(flagosSend(sent[i], 2, flagosFloat32, 0, comm, NULL));
        for (int i = 0; i < messages; i++) wrong |= check(flagosRecv(received[i], 2, flagosFloat32, 0, comm, NULL));
        wrong |= check(flagosGroupEnd());
    }
    return wrong || check(flagosCommDestroy(comm));
}
