// The thread pool: every item once, and an end to every round and every pool.
#include "pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace h2o::test {
namespace {

TEST(Pool, RunsEveryItemOnce) {
    for (int threads = 1; threads <= 5; ++threads) {
        Pool pool(threads);
        EXPECT_EQ(pool.size(), threads);
        std::vector<int> calls(64);
        for (int64_t round = 0; round < 500; ++round) {
            pool.each(round % 65, [&](int64_t item, int thread) {
                EXPECT_LT(thread, threads);
                ++calls[static_cast<size_t>(item)];
            });
        }
        for (size_t item = 0; item < 64; ++item) {
            int64_t expected = 0;
            for (int64_t round = 0; round < 500; ++round) expected += round % 65 > static_cast<int64_t>(item);
            EXPECT_EQ(calls[item], expected) << item;
        }
    }
}

TEST(Pool, SharesOutToOthers) {
    const auto backwards = [](void*, int count, void (*work)(void*, size_t), void* data) {
        for (int i = count; i-- > 0;) work(data, static_cast<size_t>(i));
    };
    Pool pool(h2o_executor{nullptr, 3, backwards});
    EXPECT_EQ(pool.size(), 3);
    EXPECT_TRUE(pool.awake());
    std::vector<int> calls(20);
    pool.each(20, [&](int64_t item, int thread) {
        EXPECT_LT(thread, 3);
        ++calls[static_cast<size_t>(item)];
    });
    EXPECT_EQ(calls, std::vector<int>(20, 1));
}

TEST(Pool, NeedsAnExecutor) {
    h2o_cpu* context = nullptr;
    const h2o_executor none{nullptr, 2, nullptr};
    EXPECT_EQ(h2o_cpu_create_on(&none, nullptr, &context), H2O_BAD_ARGUMENT);
    EXPECT_EQ(h2o_cpu_create_on(nullptr, nullptr, &context), H2O_BAD_ARGUMENT);
    EXPECT_EQ(context, nullptr);
}

// A worker that wakes up late must see that the pool ends, whatever it missed.
TEST(Pool, EndsRightAfterARound) {
    for (int i = 0; i < 500; ++i) {
        Pool pool(4);
        std::atomic<int> sum{0};
        for (int round = 0; round < i % 4; ++round)
            pool.each(3, [&](int64_t item, int) { sum += static_cast<int>(item); });
        EXPECT_EQ(sum, 3 * (i % 4));
    }
}

}  // namespace
}  // namespace h2o::test
