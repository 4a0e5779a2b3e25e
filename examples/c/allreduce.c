/* All-reduce over N processes, on accelerators if there are as many as ranks, else in host memory.
 *
 *     allreduce [N]          N ranks, default 2
 *
 * The ranks are forked before the library is used: no communicator, thread or driver may cross a fork.
 * Exit status 0 if every rank got the right sums.
 */
#include <flagos_comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        if ((call) != flagosSuccess) {                                                       \
            fprintf(stderr, "rank %d: %s: %s\n", rank, #call, flagosGetLastError(comm));     \
            return 1;                                                                        \
        }                                                                                    \
    } while (0)

enum { COUNT = 1000, MAX_RANKS = 64 };

/* One rank. Rank 0 makes the unique id and writes it into everybody's pipe. */
static int run(int rank, int nranks, int pipes[][2]) {
    flagosComm_t comm = NULL;
    flagosUniqueId id;
    if (rank == 0) {
        CHECK(flagosGetUniqueId(&id));
        for (int peer = 1; peer < nranks; peer++)
            if (write(pipes[peer][1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
    } else {
        if (read(pipes[rank][0], &id, sizeof id) != (ssize_t)sizeof id) {
            fprintf(stderr, "rank %d: no unique id from rank 0\n", rank);
            return 1;
        }
    }

    /* With a device for each rank take the rank's own; the library binds to the current one. */
    int devices = 0;
    CHECK(flagosGetDeviceCount(&devices));
    if (devices >= nranks) CHECK(flagosSetDevice(rank));
    CHECK(flagosCommInitRank(&comm, nranks, &id, rank));

    /* Memory and copies of the library work the same with and without an accelerator. */
    float host[COUNT];
    for (int i = 0; i < COUNT; i++) host[i] = (float)(rank + 1) * (float)(i % 10);
    void *buffer = NULL;
    flagosStream_t stream = NULL;
    CHECK(flagosMemAlloc(&buffer, sizeof host));
    CHECK(flagosStreamCreate(&stream));
    CHECK(flagosMemcpyAsync(buffer, host, sizeof host, flagosMemcpyHostToDevice, stream));
    CHECK(flagosAllReduce(buffer, buffer, COUNT, flagosFloat32, flagosSum, comm, stream));
    CHECK(flagosMemcpyAsync(host, buffer, sizeof host, flagosMemcpyDeviceToHost, stream));
    CHECK(flagosStreamSynchronize(stream));

    for (int i = 0; i < COUNT; i++) {
        float want = (float)(nranks * (nranks + 1) / 2) * (float)(i % 10);
        if (host[i] != want) {
            fprintf(stderr, "rank %d: element %d is %g, not %g\n", rank, i, host[i], want);
            return 1;
        }
    }
    CHECK(flagosStreamDestroy(stream));
    CHECK(flagosMemFree(buffer));
    CHECK(flagosCommDestroy(comm));
    printf("rank %d of %d: all %d sums are right\n", rank, nranks, COUNT);
    return 0;
}

int main(int argc, char **argv) {
    int nranks = argc > 1 ? atoi(argv[1]) : 2;
    if (nranks < 1 || nranks > MAX_RANKS) {
        fprintf(stderr, "the number of ranks must be 1 to %d\n", MAX_RANKS);
        return 2;
    }
    int pipes[MAX_RANKS][2];
    for (int rank = 0; rank < nranks; rank++)
        if (pipe(pipes[rank]) != 0) return perror("pipe"), 1;
    for (int rank = 0; rank < nranks; rank++) {
        pid_t pid = fork();
        if (pid < 0) return perror("fork"), 1;
        if (pid == 0) {
            /* Only rank 0 writes. If it dies, the others read an end of file instead of waiting. */
            for (int i = 0; i < nranks && rank != 0; i++) close(pipes[i][1]);
            exit(run(rank, nranks, pipes));
        }
    }
    for (int rank = 0; rank < nranks; rank++) {
        close(pipes[rank][0]);
        close(pipes[rank][1]);
    }
    int failed = 0, status;
    for (int rank = 0; rank < nranks; rank++)
        if (wait(&status) < 0 || status != 0) failed = 1;
    return failed;
}
