/*
 * The host side of NCCL's device API goes to the NCCL below (device_side.c), with NCCL's own communicator; its errors come back as
 * they are, with a text.
 */
#include "nccl.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    int ranks, rank, stride;
} team;
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *made);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const void *requirements, void *made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *made);
team ncclTeamWorld(ncclComm_t comm);
team ncclTeamLsa(ncclComm_t comm);
team ncclTeamRail(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, team t, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, team t, int rank);
ncclResult_t ncclLsaBarrierCreateRequirement(team t, int n, void *handle, void *requirement);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, team t, int n, void *handle, void *requirement);
int ncclLLA2ACalcSlots(int elements, int size);
ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirement);

static int failures;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, ncclGetLastError(NULL)); \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

int main(void)
{
    ncclComm_t comms[2];
    team t = {3, 0, 4};
    int i, requirements = 7, bad = -1, handle = 0, needed = 0;
    CHECK(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
    for (i = 0; i < 2 && !failures; i++) {
        int made = 0;
        CHECK(ncclDevCommCreate(comms[i], &requirements, &made) == ncclSuccess && made == 207 + 10 * i);
        CHECK(ncclDevCommDestroy(comms[i], &made) == ncclSuccess);
        made = 0;
        CHECK(pncclDevCommCreate(comms[i], &requirements, &made) == ncclSuccess && made == 207 + 10 * i);
        CHECK(ncclDevCommCreate(comms[i], &bad, &made) == ncclInvalidUsage);
        CHECK(strstr(ncclGetLastError(comms[i]), "ncclDevCommCreate") != NULL);
        CHECK(ncclTeamWorld(comms[i]).ranks == 2 && ncclTeamWorld(comms[i]).rank == i && ncclTeamWorld(comms[i]).stride == 1);
        CHECK(ncclTeamLsa(comms[i]).stride == 2 && ncclTeamLsa(comms[i]).rank == i);
        CHECK(ncclTeamRail(comms[i]).stride == 3 && ncclTeamRail(comms[i]).rank == i);
        CHECK(ncclTeamRankToWorld(comms[i], t, 1) == 241);
        CHECK(ncclTeamRankToLsa(comms[i], t, 2) == 2042);
        CHECK(ncclGinBarrierCreateRequirement(comms[i], t, 5, &handle, &needed) == ncclSuccess && handle == 2345 && needed == 6);
    }
    CHECK(ncclLsaBarrierCreateRequirement(t, 5, &handle, &needed) == ncclSuccess && handle == 345 && needed == 5);
    CHECK(ncclLLA2ACalcSlots(6, 7) == 42);
    CHECK(ncclLLA2ACreateRequirement(4, 2, &handle, &needed) == ncclSuccess && handle == 42 && needed == 8);
    for (i = 0; i < 2; i++) {
        CHECK(ncclCommDestroy(comms[i]) == ncclSuccess);
    }
    return failures != 0;
}
