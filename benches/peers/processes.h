/* Ranks without a launcher: processes forked before anything is initialised. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "pair.h"

enum { PROCESSES_MOST = 64 };

typedef struct {
    int rank, nranks;
    int pipe_read, pipe_write;
    pid_t others[PROCESSES_MOST]; /* Rank 0's. */
} processes;

static inline processes processes_start(int nranks) {
    processes p;
    memset(&p, 0, sizeof p);
    p.nranks = nranks;
    if (nranks < 1 || nranks > PROCESSES_MOST) pair_die("%d ranks are not between 1 and %d", nranks, PROCESSES_MOST);
    int ends[2];
    if (pipe(ends) != 0) pair_die("no pipe");
    p.pipe_read = ends[0];
    p.pipe_write = ends[1];
    const pid_t first = getpid();
    for (int rank = 1; rank < nranks; rank++) {
        p.others[rank] = fork();
        if (p.others[rank] < 0) pair_die("fork failed");
        if (p.others[rank] != 0) continue;
        /* None stays behind if rank 0 is killed. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != first) _exit(1);
        p.rank = rank;
        break;
    }
    return p;
}

/* What rank 0 has, on every rank; short enough that a pipe takes it in one piece. */
static inline void processes_share(const processes *p, void *bytes, size_t length) {
    if (p->rank != 0) {
        if (read(p->pipe_read, bytes, length) != (ssize_t)length) pair_die("the pipe is broken");
        return;
    }
    for (int rank = 1; rank < p->nranks; rank++)
        if (write(p->pipe_write, bytes, length) != (ssize_t)length) pair_die("the pipe is broken");
}

/* The library's communicator. */
static inline void processes_init(const processes *p, pair_library *library) {
    flagosUniqueId id;
    if (p->rank == 0 && library->get_unique_id(&id) != flagosSuccess)
        pair_die("flagosGetUniqueId: %s", library->ours.last_error(NULL));
    processes_share(p, &id, sizeof id);
    if (library->init_rank(&library->ours.comm, p->nranks, &id, p->rank) != flagosSuccess)
        pair_die("flagosCommInitRank: %s", library->ours.last_error(NULL));
}

/* Rank 0 waits for the others, and ends them if it has failed itself. The exit status. */
static inline int processes_end(const processes *p, int code) {
    fflush(stdout);
    if (p->rank != 0) return code;
    for (int rank = 1; rank < p->nranks; rank++) {
        int status = 0;
        if (code != 0) kill(p->others[rank], SIGKILL);
        if (waitpid(p->others[rank], &status, 0) != p->others[rank] || status != 0) code = 1;
    }
    return code;
}

#endif
