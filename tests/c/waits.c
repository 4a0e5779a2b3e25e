/*
 * HG-1: rank 0 of 2 waits for a rank that never comes. Ctrl-C must end the program: no signal is blocked
 * in its threads and no handler of ours swallows it.
 */
#include "flagos_comm.h"

#include <signal.h>
#include <stdio.h>

int main(void)
{
    sigset_t blocked;
    flagosUniqueId id;
    flagosComm_t comm = NULL;
    if (flagosGetUniqueId(&id) != flagosSuccess) {
        return 1;
    }
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    if (sigismember(&blocked, SIGINT)) {
        return 2;
    }
    printf("waiting\n");
    fflush(stdout);
    flagosCommInitRank(&comm, 2, &id, 0);
    fprintf(stderr, "%s\n", flagosGetLastError(NULL));
    return 3;
}
