/* flagos-comm against MPI in the same processes; built once for each MPI.
 *     mpirun -n RANKS mpi LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE
 */
#include <mpi.h>

#include "operations.h"

/* MPI ends the job itself on an error. */

static void mpi_all_reduce(void *context, const float *send, float *recv, size_t count) {
    (void)context;
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void mpi_all_gather(void *context, const float *send, float *recv, size_t part) {
    (void)context;
    MPI_Allgather(send, (int)part, MPI_FLOAT, recv, (int)part, MPI_FLOAT, MPI_COMM_WORLD);
}

static void mpi_reduce_scatter(void *context, const float *send, float *recv, size_t part) {
    (void)context;
    MPI_Reduce_scatter_block(send, recv, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void mpi_all_to_all(void *context, const float *send, float *recv, size_t part) {
    (void)context;
    MPI_Alltoall(send, (int)part, MPI_FLOAT, recv, (int)part, MPI_FLOAT, MPI_COMM_WORLD);
}

static void mpi_broadcast(void *context, float *buffer, size_t count, int root) {
    (void)context;
    MPI_Bcast(buffer, (int)count, MPI_FLOAT, root, MPI_COMM_WORLD);
}

static void mpi_send(void *context, const float *buffer, size_t count, int peer) {
    (void)context;
    MPI_Send(buffer, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void mpi_recv(void *context, float *buffer, size_t count, int peer) {
    (void)context;
    MPI_Recv(buffer, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void mpi_send_window(void *context, const float *buffer, size_t count, int messages, int peer) {
    MPI_Request requests[OPERATIONS_WINDOW];
    (void)context;
    for (int i = 0; i < messages; i++)
        MPI_Isend(buffer + (size_t)i * count, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
}

static void mpi_recv_window(void *context, float *buffer, size_t count, int messages, int peer) {
    MPI_Request requests[OPERATIONS_WINDOW];
    (void)context;
    for (int i = 0; i < messages; i++)
        MPI_Irecv(buffer + (size_t)i * count, (int)count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 7) pair_die("usage: mpi LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE");
    int rank, nranks, length;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    /* "Open MPI v4.1.4, …"; MPICH has a table of lines with tabs between. */
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\"\\")] = 0;
    for (char *c = version; *c; c++)
        if (*c == '\t') *c = ' ';
    if (rank == 0) printf("{\"peer\":\"%s\"}\n", version);

    pair_library library = pair_load(argv[1]);
    flagosUniqueId id;
    if (rank == 0 && library.get_unique_id(&id) != flagosSuccess)
        pair_die("flagosGetUniqueId: %s", library.ours.last_error(NULL));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (library.init_rank(&library.ours.comm, nranks, &id, rank) != flagosSuccess)
        pair_die("flagosCommInitRank: %s", library.ours.last_error(NULL));

    const operations_side mpi = {
        .name = version,
        .context = NULL,
        .all_reduce = mpi_all_reduce,
        .all_gather = mpi_all_gather,
        .reduce_scatter = mpi_reduce_scatter,
        .all_to_all = mpi_all_to_all,
        .broadcast = mpi_broadcast,
        .send = mpi_send,
        .recv = mpi_recv,
        .send_window = mpi_send_window,
        .recv_window = mpi_recv_window,
    };
    operations_ours context;
    const operations_side ours = operations_load(&library, &context);
    const operations_options options = operations_arguments(argv + 1);
    operations_run(&options, &ours, &mpi, rank, nranks);
    library.destroy(library.ours.comm);
    MPI_Finalize();
    return 0;
}
