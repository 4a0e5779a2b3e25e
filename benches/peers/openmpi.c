/* flagosAllReduce against MPI_Allreduce in the same processes.
 *     mpirun -n 2 openmpi LIBRARY SIZES PAIRS BLOCK_SECONDS
 */
#include <mpi.h>

#include "pair.h"

static void mpi_allreduce(void *context, const float *send, float *recv, size_t count) {
    (void)context;
    /* Open MPI ends the job itself on an error. */
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 5) pair_die("usage: openmpi LIBRARY SIZES PAIRS BLOCK_SECONDS");
    int rank, nranks, length;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\"\\")] = 0;
    if (rank == 0) printf("{\"peer\":\"%s\"}\n", version);

    pair_library library = pair_load(argv[1]);
    flagosUniqueId id;
    if (rank == 0 && library.get_unique_id(&id) != flagosSuccess)
        pair_die("flagosGetUniqueId: %s", library.ours.last_error(NULL));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (library.init_rank(&library.ours.comm, nranks, &id, rank) != flagosSuccess)
        pair_die("flagosCommInitRank: %s", library.ours.last_error(NULL));

    pair_run(pair_ours_allreduce, &library.ours, "MPI_Allreduce", mpi_allreduce, NULL, rank, nranks, argv[2],
             atoi(argv[3]), atof(argv[4]));
    library.destroy(library.ours.comm);
    MPI_Finalize();
    return 0;
}
