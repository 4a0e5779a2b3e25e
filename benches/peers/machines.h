/* Ranks on several machines, which are network namespaces, or are told apart by FLAGOSCOMM_HOSTID alone. */
#ifndef MACHINES_H
#define MACHINES_H

#include <fcntl.h>
#include <sched.h>

#include "pair.h"

/* A namespace and this rank's address there; NULL in the only namespace. */
typedef struct {
    const char *name, *address;
} machine;

/* The machine of a rank, of which each has `per_machine`: `words` has NAMESPACE ADDRESS for each, or one number: how many
 * there are. The rank goes into it, before anything is initialised. */
static inline machine machine_enter(int rank, int per_machine, char **words) {
    const int number = rank / per_machine;
    char path[256];
    if (!words[1]) {
        snprintf(path, sizeof path, "machine-%d", number);
        setenv("FLAGOSCOMM_HOSTID", path, 1);
        const machine here = {NULL, "127.0.0.1"};
        return here;
    }
    const machine there = {words[2 * number], words[2 * number + 1]};
    snprintf(path, sizeof path, "/var/run/netns/%s", there.name);
    const int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) pair_die("%s can't be entered", path);
    close(space);
    return there;
}

/* How many ranks there are: the words begin with how many each machine has. */
static inline int machine_ranks(char **words) {
    const int per_machine = atoi(words[0]);
    int machines = 0;
    if (per_machine < 1) pair_die("%s ranks of a machine", words[0]);
    if (!words[2]) return per_machine * atoi(words[1]);
    while (words[1 + 2 * machines] && words[2 + 2 * machines]) machines++;
    return per_machine * machines;
}

#endif
