/* The C++ wrapper as far as it needs no communicator: what fails is thrown, with code and text. */
#include "flagos_comm.hpp"

#include <cstdio>
#include <type_traits>

static int failures;

template <typename Call>
static void throws(int line, flagosResult_t code, Call call)
{
    try {
        call();
        std::fprintf(stderr, "line %d: nothing was thrown\n", line);
    } catch (const flagos::Error &error) {
        if (error.code() == code && error.what()[0] != 0) {
            return;
        }
        std::fprintf(stderr, "line %d: %d, \"%s\"\n", line, error.code(), error.what());
    }
    failures++;
}

#define THROWS(code, expression) throws(__LINE__, code, [&] { expression; })

int main()
{
    static_assert(!std::is_copy_constructible<flagos::Communicator>::value, "owns a handle");
    static_assert(std::is_nothrow_move_constructible<flagos::Communicator>::value, "moves");
    static_assert(!std::is_copy_constructible<flagos::Stream>::value, "owns a handle");
    static_assert(flagos::UniqueId::size() == sizeof(flagosUniqueId), "is one");
    static_assert(sizeof(flagos::Communicator) == sizeof(flagosComm_t), "is a handle");

    const char zeros[FLAGOS_UNIQUE_ID_BYTES] = {};
    const flagos::Communicator none;
    float value = 0;
    if (flagos::version() != FLAGOS_COMM_VERSION_CODE || none) {
        failures++;
    }
    THROWS(flagosInvalidArgument, (flagos::Communicator(1, flagos::UniqueId::from_bytes(zeros), 0)));
    THROWS(flagosInvalidArgument, none.all_reduce(&value, &value, 1, flagosFloat32, flagosSum));
    THROWS(flagosInvalidArgument, none.size());
    THROWS(flagosInvalidArgument, none.info());
    THROWS(flagosInvalidArgument, none.name());
    THROWS(flagosInvalidArgument, none.agree(1));
    THROWS(flagosInvalidArgument, flagos::init_all(0));
    THROWS(flagosInvalidArgument, flagos::Event(17));
    flagos::load_report();
    return failures != 0;
}
