// flagosAllReduce against gloo::allreduce in the same processes.
//     gloo LIBRARY SIZES PAIRS BLOCK_SECONDS FOLDER PER_MACHINE (MACHINES | NAMESPACE ADDRESS ...)
// Processes that are forked before anything is initialised, so many on each machine; gloo meets in a file store in FOLDER and
// talks TCP, as it does in every program that uses it, also between ranks of one machine.
#include <gloo/allreduce.h>
#include <gloo/math.h>

#include <exception>
#include <memory>

#include "gloo_mesh.h"
#include "machines.h"
#include "processes.h"

namespace {

void gloo_allreduce(void* context, const float* send, float* recv, size_t count) {
    gloo::AllreduceOptions options(*static_cast<std::shared_ptr<gloo::Context>*>(context));
    options.setInput(const_cast<float*>(send), count);
    options.setOutput(recv, count);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

int run(const processes& p, char** argv) {
    const machine here = machine_enter(p.rank, atoi(argv[6]), argv + 7);
    std::shared_ptr<gloo::Context> peer = gloo_mesh::make(p.rank, p.nranks, here.address, argv[5]);
    if (p.rank == 0) printf("{\"peer\":\"gloo tcp\"}\n");
    pair_library library = pair_load(argv[1]);
    processes_init(&p, &library);
    pair_run(pair_ours_allreduce, &library.ours, "gloo::allreduce", gloo_allreduce, &peer, p.rank, p.nranks, argv[2],
             atoi(argv[3]), atof(argv[4]));
    library.destroy(library.ours.comm);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 8)
        pair_die("usage: gloo LIBRARY SIZES PAIRS BLOCK_SECONDS FOLDER PER_MACHINE (MACHINES | NAMESPACE ADDRESS ...)");
    const processes p = processes_start(machine_ranks(argv + 6));
    int code = 1;
    try {
        code = run(p, argv);
    } catch (const std::exception& error) {
        fprintf(stderr, "%s\n", error.what());
    }
    code = processes_end(&p, code);
    // gloo's threads may still be running; nothing of theirs is needed any more.
    fflush(NULL);
    _exit(code);
}
