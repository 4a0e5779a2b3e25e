/*
 * Makes a stand-in of NCCL that has the host side of NCCL's device API: nothing but what shows that a call has come through,
 * with the stand-in's own communicator. Compiled together with the stand-in.
 */
#include "abi/nccl.h"

#define PUBLIC __attribute__((visibility("default")))

typedef struct {
    int ranks, rank, stride;
} team;

static int of(ncclComm_t comm, int *rank)
{
    int ranks = 0;
    /* The stand-in refuses what is no communicator of its own. */
    return ncclCommCount(comm, &ranks) == ncclSuccess && ncclCommUserRank(comm, rank) == ncclSuccess ? ranks : 0;
}

static team team_of(ncclComm_t comm, int stride)
{
    team t = {0, -1, stride};
    t.ranks = of(comm, &t.rank);
    return t;
}

PUBLIC team ncclTeamWorld(ncclComm_t comm) { return team_of(comm, 1); }
PUBLIC team ncclTeamLsa(ncclComm_t comm) { return team_of(comm, 2); }
PUBLIC team ncclTeamRail(ncclComm_t comm) { return team_of(comm, 3); }

PUBLIC int ncclTeamRankToWorld(ncclComm_t comm, team t, int rank)
{
    int own = 0;
    return of(comm, &own) * 100 + t.stride * 10 + rank;
}

PUBLIC int ncclTeamRankToLsa(ncclComm_t comm, team t, int rank)
{
    int own = 0;
    return of(comm, &own) * 1000 + t.stride * 10 + rank;
}

PUBLIC ncclResult_t ncclDevCommCreate(ncclComm_t comm, const int *requirements, int *made)
{
    int rank = 0, ranks = of(comm, &rank);
    if (ranks == 0) return ncclInvalidArgument;
    if (*requirements < 0) return ncclInvalidUsage;
    *made = ranks * 100 + rank * 10 + *requirements;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const int *made)
{
    int rank = 0, ranks = of(comm, &rank);
    return ranks != 0 && *made == ranks * 100 + rank * 10 + 7 ? ncclSuccess : ncclInvalidArgument;
}

PUBLIC ncclResult_t ncclLsaBarrierCreateRequirement(team t, int n, int *handle, int *requirement)
{
    *handle = t.ranks * 100 + t.stride * 10 + n;
    *requirement = 5;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, team t, int n, int *handle, int *requirement)
{
    int rank = 0;
    *handle = of(comm, &rank) * 1000 + t.ranks * 100 + t.stride * 10 + n;
    *requirement = 6;
    return ncclSuccess;
}

PUBLIC int ncclLLA2ACalcSlots(int elements, int size) { return elements * size; }

PUBLIC ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, int *handle, int *requirement)
{
    *handle = blocks * 10 + slots;
    *requirement = 8;
    return ncclSuccess;
}
