// flagos-comm against gloo in the same processes of one host.
//     gloo RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE FOLDER
// gloo talks TCP over the loopback interface, as on one host it does in every program that uses it.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>

#include <exception>
#include <memory>
#include <vector>

#include "gloo_mesh.h"
#include "operations.h"
#include "processes.h"

namespace {

using Mesh = std::shared_ptr<gloo::Context>;

const Mesh& mesh_of(void* context) { return *static_cast<Mesh*>(context); }

void gloo_all_reduce(void* context, const float* send, float* recv, size_t count) {
    gloo::AllreduceOptions options(mesh_of(context));
    options.setInput(const_cast<float*>(send), count);
    options.setOutput(recv, count);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

void gloo_all_gather(void* context, const float* send, float* recv, size_t part) {
    gloo::AllgatherOptions options(mesh_of(context));
    options.setInput(const_cast<float*>(send), part);
    options.setOutput(recv, part * static_cast<size_t>(mesh_of(context)->size));
    gloo::allgather(options);
}

void gloo_all_to_all(void* context, const float* send, float* recv, size_t part) {
    const size_t all = part * static_cast<size_t>(mesh_of(context)->size);
    gloo::AlltoallOptions options(mesh_of(context));
    options.setInput(const_cast<float*>(send), all);
    options.setOutput(recv, all);
    gloo::alltoall(options);
}

void gloo_broadcast(void* context, float* buffer, size_t count, int root) {
    gloo::BroadcastOptions options(mesh_of(context));
    options.setOutput(buffer, count);
    options.setRoot(root);
    gloo::broadcast(options);
}

// Slots that none of its collectives uses.
uint64_t slot(int message) { return uint64_t{0xff} << 56 | static_cast<uint64_t>(message); }

void gloo_send_window(void* context, const float* buffer, size_t count, int messages, int peer) {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> pending;
    for (int i = 0; i < messages; i++) {
        float* message = const_cast<float*>(buffer) + static_cast<size_t>(i) * count;
        pending.push_back(mesh_of(context)->createUnboundBuffer(message, count * sizeof(float)));
        pending.back()->send(peer, slot(i));
    }
    for (auto& message : pending) message->waitSend();
}

void gloo_recv_window(void* context, float* buffer, size_t count, int messages, int peer) {
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> pending;
    for (int i = 0; i < messages; i++) {
        float* message = buffer + static_cast<size_t>(i) * count;
        pending.push_back(mesh_of(context)->createUnboundBuffer(message, count * sizeof(float)));
        pending.back()->recv(peer, slot(i));
    }
    for (auto& message : pending) message->waitRecv();
}

void gloo_send(void* context, const float* buffer, size_t count, int peer) {
    gloo_send_window(context, buffer, count, 1, peer);
}

void gloo_recv(void* context, float* buffer, size_t count, int peer) {
    gloo_recv_window(context, buffer, count, 1, peer);
}

int run(const processes& p, char** argv) {
    Mesh mesh = gloo_mesh::make(p.rank, p.nranks, "127.0.0.1", argv[8]);
    if (p.rank == 0) printf("{\"peer\":\"gloo (TCP)\"}\n");
    pair_library library = pair_load(argv[2]);
    processes_init(&p, &library);

    operations_side gloo;
    memset(&gloo, 0, sizeof gloo);
    gloo.name = "gloo";
    gloo.context = &mesh;
    gloo.all_reduce = gloo_all_reduce;
    gloo.all_gather = gloo_all_gather;
    // gloo has a reduce-scatter only as a class of its old algorithms, which programs no longer use.
    gloo.all_to_all = gloo_all_to_all;
    gloo.broadcast = gloo_broadcast;
    gloo.send = gloo_send;
    gloo.recv = gloo_recv;
    gloo.send_window = gloo_send_window;
    gloo.recv_window = gloo_recv_window;
    operations_ours context;
    const operations_side ours = operations_load(&library, &context);
    const operations_options options = operations_arguments(argv + 2);
    operations_run(&options, &ours, &gloo, p.rank, p.nranks);
    library.destroy(library.ours.comm);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 9) pair_die("usage: gloo RANKS LIBRARY OPERATIONS SIZES PAIRS BLOCK_SECONDS LINE_FILE FOLDER");
    const processes p = processes_start(atoi(argv[1]));
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
