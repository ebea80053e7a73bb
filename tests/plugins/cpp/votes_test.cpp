// Votes by tiles of AMX, where the machine or this program's stand-in has them: every bit as by vectors,
// which the Python tests compare with float64.
#include "int8_keys.h"
#include "support.h"

namespace h2o::test {
namespace {

struct Case {
    int64_t d, keys, lanes, visible;  // keys that the first query sees; each further query sees one more
    bool listed;
};

template <class Number>
std::vector<Number> whole_numbers(int64_t count, int from, int to, uint32_t seed) {
    std::mt19937 draw(seed);
    std::uniform_int_distribution<int> any(from, to);
    std::vector<Number> made(static_cast<size_t>(count));
    for (Number& one : made) one = static_cast<Number>(any(draw));
    return made;
}

Floats votes_of(const Case& one, void (*vote)(const VoteArgs& args)) {
    const int64_t cached = 2 * one.keys, room = round_up(one.keys, kPanel);
    const auto k = whole_numbers<int8_t>(cached * one.d, -127, 127, 1);
    const auto q = whole_numbers<uint8_t>(one.d * kLanes, 1, 255, 2);
    const auto rows = whole_numbers<int32_t>(one.keys, 0, static_cast<int>(cached) - 1, 3);
    std::vector<KeyScale> key_scales(static_cast<size_t>(cached));
    for (int64_t row = 0; row < cached; ++row) {
        int32_t sum = 0;
        for (int64_t c = 0; c < one.d; ++c) sum += k[static_cast<size_t>(row * one.d + c)];
        key_scales[static_cast<size_t>(row)] = {1e-4f * static_cast<float>(1 + row % 5), 128 * sum};
    }
    Floats scales(kLanes, 0.0f), visible(kLanes), m(kLanes), l(kLanes), sums(static_cast<size_t>(room));
    for (int64_t lane = 0; lane < kLanes; ++lane) {
        const auto at = static_cast<size_t>(lane);
        if (lane < one.lanes) scales[at] = 0.5f + 0.01f * static_cast<float>(lane);
        visible[at] = static_cast<float>(std::min(one.visible + std::min(lane, one.lanes - 1), one.keys));
    }
    Floats p(static_cast<size_t>(room * kLanes));
    Floats tops(static_cast<size_t>(round_up(one.keys, kKeyStep) / kKeyStep * kLanes));
    VoteArgs args{};
    args.d = one.d;
    args.keys = one.keys;
    args.unmasked = one.visible;
    args.visible = visible.data();
    args.rows = one.listed ? rows.data() : nullptr;
    args.lanes = one.lanes;
    args.q = q.data();
    args.scales = scales.data();
    args.k = k.data();
    args.k_scales = key_scales.data();
    args.p = p.data();
    args.m = m.data();
    args.l = l.data();
    args.tops = tops.data();
    args.sums = sums.data();
    vote(args);
    sums.resize(static_cast<size_t>(one.keys));
    return sums;
}

TEST(AmxVotes, AreThoseOfVectors) {
    if (!h2o_cpu_supports("amx", H2O_BFLOAT16)) GTEST_SKIP() << "no AMX here";
    EXPECT_EQ(int8_votes(make(1, "amx", H2O_BFLOAT16).get()), amx_votes());
    EXPECT_EQ(int8_votes(make(1, "avx512", H2O_BFLOAT16).get()), avx512_votes());
    // Sizes that fill tiles, that steps divide, and less; queries of one, two and three vectors; keys that
    // leave 1 to 16 for the last tile.
    for (const int64_t d : {8, 24, 64, 72, 128, 136, 576}) {
        for (const int64_t lanes : {7, 16, 32, 48}) {
            for (const int64_t keys : {1, 16, 145, 300}) {
                const Case one{d, keys, lanes, keys > 60 ? keys - 30 : keys, keys != 145};
                const Floats tiles = votes_of(one, amx_votes()), vectors = votes_of(one, avx512_votes());
                ASSERT_EQ(tiles, vectors) << "d " << d << ", " << lanes << " queries, " << keys << " keys";
                float all = 0.0f;
                for (const float sum : vectors) all += sum;
                ASSERT_NEAR(all, static_cast<float>(lanes), 1e-3f * static_cast<float>(lanes));
            }
        }
    }
}

}  // namespace
}  // namespace h2o::test
