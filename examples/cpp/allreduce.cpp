// All-reduce over N threads of one process, with the RAII header.
//
//     allreduce [N]          N ranks, default 2
//
// A rank can be a thread as well as a process. Exit status 0 if every rank got the right sums.
#include <flagos_comm.hpp>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t count = 1000;

void run(int rank, int nranks, const flagos::UniqueId& id) {
    // Vectors are host memory, so the host tier is asked for: it needs no accelerator.
    flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
    config.tiers = "host";
    flagos::Communicator comm(nranks, id, rank, &config);

    std::vector<float> send(count), recv(count);
    for (std::size_t i = 0; i < count; i++) send[i] = static_cast<float>((rank + 1) * static_cast<int>(i % 10));

    // Without a stream the call returns when the sums are there.
    comm.all_reduce(send.data(), recv.data(), count, flagosFloat32, flagosSum);

    for (std::size_t i = 0; i < count; i++) {
        const float want = static_cast<float>(nranks * (nranks + 1) / 2 * static_cast<int>(i % 10));
        if (recv[i] != want)
            throw std::runtime_error("element " + std::to_string(i) + " is " + std::to_string(recv[i]) + ", not " +
                                     std::to_string(want));
    }
    comm.destroy();  // the destructor would do, but could not tell of an error
}

}  // namespace

int main(int argc, char** argv) {
    const int nranks = argc > 1 ? std::atoi(argv[1]) : 2;
    if (nranks < 1 || nranks > 64) {
        std::cerr << "the number of ranks must be 1 to 64\n";
        return 2;
    }
    try {
        const flagos::UniqueId id = flagos::UniqueId::make();
        std::atomic<int> failed{0};
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < nranks; rank++)
            ranks.emplace_back([&, rank] {
                try {
                    run(rank, nranks, id);
                    std::cout << "rank " + std::to_string(rank) + " of " + std::to_string(nranks) + ": all " +
                                     std::to_string(count) + " sums are right\n";
                } catch (const std::exception& error) {
                    std::cerr << "rank " + std::to_string(rank) + ": " + error.what() + "\n";
                    failed++;
                }
            });
        for (auto& rank : ranks) rank.join();
        return failed == 0 ? 0 : 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
