// flagosAllReduce against gloo::allreduce in the same processes.
//     gloo LIBRARY SIZES PAIRS BLOCK_SECONDS FOLDER [NAMESPACE ADDRESS NAMESPACE ADDRESS]
// Two processes, forked before anything is initialised; gloo meets in a file store in FOLDER and talks TCP
// over the loopback interface, as on one host it does in every program that uses it. With network namespaces
// each process goes into its own, where it has that address: two hosts.
#include <gloo/allreduce.h>
#include <gloo/math.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <string>

#include "gloo_mesh.h"
#include "pair.h"

namespace {

void gloo_allreduce(void* context, const float* send, float* recv, size_t count) {
    gloo::AllreduceOptions options(*static_cast<std::shared_ptr<gloo::Context>*>(context));
    options.setInput(const_cast<float*>(send), count);
    options.setOutput(recv, count);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

void enter(const char* name) {
    const std::string path = std::string("/var/run/netns/") + name;
    const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) pair_die("%s can't be entered", path.c_str());
    close(space);
}

int run(int rank, int pipe_read, int pipe_write, char** argv) {
    const int nranks = 2;
    if (argv[6] != nullptr) enter(argv[6 + 2 * rank]);
    const char* address = argv[6] == nullptr ? "127.0.0.1" : argv[7 + 2 * rank];
    std::shared_ptr<gloo::Context> peer = gloo_mesh::make(rank, nranks, address, argv[5]);
    if (rank == 0) printf("{\"peer\":\"gloo tcp\"}\n");

    pair_library library = pair_load(argv[1]);
    flagosUniqueId id;
    if (rank == 0) {
        if (library.get_unique_id(&id) != flagosSuccess)
            pair_die("flagosGetUniqueId: %s", library.ours.last_error(NULL));
        if (write(pipe_write, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) pair_die("the pipe is broken");
    } else if (read(pipe_read, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
        pair_die("the pipe is broken");
    }
    if (library.init_rank(&library.ours.comm, nranks, &id, rank) != flagosSuccess)
        pair_die("flagosCommInitRank: %s", library.ours.last_error(NULL));

    pair_run(pair_ours_allreduce, &library.ours, "gloo::allreduce", gloo_allreduce, &peer, rank, nranks, argv[2],
             atoi(argv[3]), atof(argv[4]));
    library.destroy(library.ours.comm);
    fflush(stdout);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6 && argc != 10)
        pair_die("usage: gloo LIBRARY SIZES PAIRS BLOCK_SECONDS FOLDER [NAMESPACE ADDRESS NAMESPACE ADDRESS]");
    int ends[2];
    if (pipe(ends) != 0) pair_die("no pipe");
    const pid_t other = fork();
    if (other < 0) pair_die("fork failed");
    int code = 1;
    try {
        code = run(other == 0 ? 1 : 0, ends[0], ends[1], argv);
    } catch (const std::exception& error) {
        fprintf(stderr, "%s\n", error.what());
    }
    if (other != 0) {
        int status = 0;
        if (code != 0) kill(other, SIGKILL);
        if (waitpid(other, &status, 0) != other || status != 0) code = 1;
    }
    // gloo's threads may still be running; nothing of theirs is needed any more.
    fflush(NULL);
    _exit(code);
}
