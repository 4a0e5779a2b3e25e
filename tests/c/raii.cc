/* The C++ wrapper on the host tier: one thread with two ranks, groups, streams, what frees itself. */
#include "flagos_comm.hpp"

#include <cstdio>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                   \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

static int run()
{
    int failures = 0;
    {
        std::vector<flagos::Communicator> ranks = flagos::init_all(2);
        float values[2] = { 1, 2 };
        CHECK(ranks.size() == 2 && ranks[1].rank() == 1 && ranks[0].size() == 2);
        CHECK(ranks[0].info().tier == flagosTierHost);
        CHECK(!ranks[0].name().empty());
        CHECK(ranks[0].async_error() == flagosSuccess);
        flagos::Group group;
        for (int i = 0; i < 2; i++) {
            ranks[i].all_reduce(&values[i], &values[i], 1, flagosFloat32, flagosSum);
        }
        CHECK(group.end());
        CHECK(values[0] == 3 && values[1] == 3);
        ranks[0].destroy();
        CHECK(!ranks[0]);
    }
    {
        const flagos::UniqueId id = flagos::UniqueId::make();
        flagos::Communicator ranks[2];
        flagos::Group group;
        ranks[0].init_in_group(2, id, 0);
        ranks[1].init_in_group(2, id, 1);
        CHECK(group.end());
        CHECK(ranks[0] && ranks[1]);
    }
    {
        flagos::Communicator one(1, flagos::UniqueId::make(), 0);
        flagos::Stream stream;
        flagos::Event event(FLAGOS_EVENT_DISABLE_TIMING);
        double value = 4;
        const flagos::Communicator::Agreement agreed = one.agree(-1, "no fabric");
        CHECK(agreed.lowest == -1 && agreed.levels == std::vector<int>{ -1 });
        CHECK(agreed.text.find("no fabric") != std::string::npos && one.agree(1).text.empty());
        CHECK(one.all_reduce(&value, &value, 1, flagosFloat64, flagosAvg, stream));
        event.record(stream);
        event.synchronize();
        CHECK(event.done());
        stream.synchronize();
        CHECK(stream.done() && value == 4);
        flagos::Communicator moved = std::move(one);
        CHECK(!one && moved.size() == 1);
    }
    return failures;
}

int main()
{
    try {
        return run() != 0;
    } catch (const flagos::Error &error) {
        std::fprintf(stderr, "%d: %s\n", error.code(), error.what());
        return 1;
    }
}
