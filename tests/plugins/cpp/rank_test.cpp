// The best of many candidates, against sorting them.
#include "rank.h"

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "support.h"

namespace h2o::test {
namespace {

std::vector<int32_t> sorted_best(const std::vector<uint32_t>& orders, int64_t best) {
    std::vector<int32_t> places(orders.size());
    std::iota(places.begin(), places.end(), 0);
    std::stable_sort(places.begin(), places.end(), [&](int32_t a, int32_t b) {
        return orders[static_cast<size_t>(a)] > orders[static_cast<size_t>(b)];
    });
    places.resize(static_cast<size_t>(best));
    std::sort(places.begin(), places.end());
    return places;
}

void expect_best(const std::vector<uint32_t>& orders) {
    const int64_t count = static_cast<int64_t>(orders.size());
    for (int64_t best : {int64_t{0}, int64_t{1}, count / 7, count / 2, count - 1, count}) {
        std::vector<uint32_t> scratch = orders;
        scratch.resize(static_cast<size_t>(take_room(count)));
        std::vector<int32_t> out(static_cast<size_t>(best));
        take_first_best(scratch.data(), count, best, out.data());
        EXPECT_EQ(out, sorted_best(orders, best)) << best << " of " << count;
    }
}

TEST(Rank, TheBestAreThoseOfSorting) {
    std::mt19937 draw(1);
    std::normal_distribution<float> normal;
    for (int count : {1, 2, 100, 5000}) {
        std::vector<uint32_t> scores, bounds, equal;
        for (int i = 0; i < count; ++i) {
            const float x = normal(draw), odd[] = {HUGE_VALF, -HUGE_VALF, NAN, -0.0f, 0.0f};
            scores.push_back(i % 97 == 5 ? UINT32_MAX : order(x));
            bounds.push_back(signed_order(i % 50 == 3 ? odd[i % 5] : 30.0f + x));
            equal.push_back(signed_order(-2.5f));
        }
        expect_best(scores);
        expect_best(bounds);
        expect_best(equal);
    }
}

TEST(Rank, SignedOrdersAreInTheOrderOfNumbers) {
    const float rising[] = {-HUGE_VALF, -3.0f, -1e-40f, 0.0f, 1e-40f, 2.0f, HUGE_VALF};
    for (size_t i = 1; i < std::size(rising); ++i)
        EXPECT_LT(signed_order(rising[i - 1]), signed_order(rising[i])) << rising[i];
    EXPECT_EQ(signed_order(-0.0f), signed_order(0.0f));
    EXPECT_LT(signed_order(NAN), signed_order(-HUGE_VALF));
}

}  // namespace
}  // namespace h2o::test
