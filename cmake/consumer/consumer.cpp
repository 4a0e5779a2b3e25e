// One rank sums in host memory, with an installed library and its C++ header.
#include <flagos_comm.hpp>

#include <array>
#include <exception>
#include <iostream>

int main() {
    try {
        flagosConfig_t config = FLAGOS_CONFIG_INITIALIZER;
        config.tiers = "host";
        flagos::Communicator comm(1, flagos::UniqueId::make(), 0, &config);

        const std::array<double, 3> send{1.5, -2.0, 1e300};
        std::array<double, 3> recv{};
        comm.all_reduce(send.data(), recv.data(), send.size(), flagosFloat64, flagosSum);
        if (recv != send) {
            std::cerr << "the sum over one rank is not what that rank gave\n";
            return 1;
        }
        comm.destroy();

        int version = 0;
        if (flagosGetVersion(&version) != flagosSuccess || version != FLAGOS_COMM_VERSION_CODE) {
            std::cerr << "the header is of version " << FLAGOS_COMM_VERSION_CODE << ", the library of " << version
                      << '\n';
            return 1;
        }
        std::cout << "version " << version << ": the sums are right\n";
        return 0;
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
