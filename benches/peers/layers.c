/* flagosAllReduce between machines in layers against the flat way, in the same processes.
 *     layers FOLDER SIZES PAIRS BLOCK_SECONDS PER_MACHINE (MACHINES | NAMESPACE ADDRESS ...)
 *
 * FOLDER has two copies of the library: each is an engine of its own, and reads its environment once. Machines are network
 * namespaces, or if there is only their number, ranks told that they are on different ones.
 */
#include "machines.h"
#include "processes.h"

static pair_library load(const processes *p, const char *folder, const char *name, const char *hierarchy) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    setenv("FLAGOSCOMM_HOST_HIERARCHY", hierarchy, 1);
    pair_library library = pair_load(path);
    processes_init(p, &library);
    return library;
}

int main(int argc, char **argv) {
    if (argc < 7) pair_die("usage: layers FOLDER SIZES PAIRS BLOCK_SECONDS PER_MACHINE (MACHINES | NAMESPACE ADDRESS ...)");
    const processes p = processes_start(machine_ranks(argv + 5));
    machine_enter(p.rank, atoi(argv[5]), argv + 6);
    pair_library layers = load(&p, argv[1], "layers", "1");
    pair_library flat = load(&p, argv[1], "flat", "0");
    if (p.rank == 0) printf("{\"peer\":\"the flat way\"}\n");
    pair_run(pair_ours_allreduce, &layers.ours, "flat", pair_ours_allreduce, &flat.ours, p.rank, p.nranks, argv[2],
             atoi(argv[3]), atof(argv[4]));
    layers.destroy(layers.ours.comm);
    flat.destroy(flat.ours.comm);
    return processes_end(&p, 0);
}
