// The best of many ranks, against sorting them.
#include "rank.h"

#include <cmath>
#include <random>
#include <vector>

#include "support.h"

namespace h2o::test {
namespace {

std::vector<int32_t> sorted_best(std::vector<uint64_t> ranks, int64_t best) {
    std::sort(ranks.begin(), ranks.end(), std::greater<uint64_t>());
    std::vector<int32_t> out(static_cast<size_t>(best));
    std::transform(ranks.begin(), ranks.begin() + best, out.begin(), position_of);
    std::sort(out.begin(), out.end());
    return out;
}

void expect_best(const std::vector<uint64_t>& ranks) {
    const int64_t count = static_cast<int64_t>(ranks.size());
    for (int64_t best : {int64_t{0}, int64_t{1}, count / 7, count / 2, count - 1, count}) {
        std::vector<uint64_t> scratch = ranks;
        scratch.resize(static_cast<size_t>(rank_room(count)));
        std::vector<int32_t> out(static_cast<size_t>(best));
        take_best(scratch.data(), count, best, out.data());
        EXPECT_EQ(out, sorted_best(ranks, best)) << best << " of " << count;
    }
}

TEST(Rank, TheBestAreThoseOfSorting) {
    std::mt19937 draw(1);
    std::normal_distribution<float> normal;
    for (int count : {1, 2, 100, 5000}) {
        std::vector<uint64_t> scores, bounds, equal;
        for (int i = 0; i < count; ++i) {
            const float x = normal(draw), odd[] = {HUGE_VALF, -HUGE_VALF, NAN, -0.0f, 0.0f};
            scores.push_back(rank(x, i, i % 97 == 5));
            bounds.push_back(signed_rank(i % 50 == 3 ? odd[i % 5] : 30.0f + x, i));
            equal.push_back(signed_rank(-2.5f, i));
        }
        expect_best(scores);
        expect_best(bounds);
        expect_best(equal);
    }
}

TEST(Rank, SignedRanksAreInTheOrderOfNumbers) {
    const float rising[] = {-HUGE_VALF, -3.0f, -1e-40f, 0.0f, 1e-40f, 2.0f, HUGE_VALF};
    for (size_t i = 1; i < std::size(rising); ++i)
        EXPECT_LT(signed_rank(rising[i - 1], 0), signed_rank(rising[i], 9)) << rising[i];
    EXPECT_GT(signed_rank(-0.0f, 3), signed_rank(0.0f, 4));  // equal: the lower position
    EXPECT_LT(signed_rank(NAN, 0), signed_rank(-HUGE_VALF, 9));
}

}  // namespace
}  // namespace h2o::test
