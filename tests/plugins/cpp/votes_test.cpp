// Votes by int8 products, of AVX2 and AVX-512 beside float64; those by tiles of AMX, where the machine or
// this program's stand-in has them, every bit as by vectors of AVX-512.
#include "int8_keys.h"
#include "support.h"

namespace h2o::test {
namespace {

struct Case {
    int64_t d, keys, lanes;
    int64_t voted;    // keys that get sums
    int64_t visible;  // keys that the first query sees; each further query sees one more
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

struct Numbers {
    std::vector<int8_t> k;      // [cached][d]
    std::vector<uint8_t> q;     // [d/4][R][4], kQueryExcess too large
    std::vector<int32_t> rows;  // [keys] of k
    std::vector<KeyScale> key_scales;
    Floats scales, visible;

    explicit Numbers(const Case& one)
        : k(whole_numbers<int8_t>(2 * one.keys * one.d, -127, 127, 1)),
          q(whole_numbers<uint8_t>(one.d * kLanes, 1, 127, 2)),
          rows(whole_numbers<int32_t>(one.keys, 0, static_cast<int>(2 * one.keys) - 1, 3)) {
        for (int64_t row = 0; row < 2 * one.keys; ++row) {
            int32_t sum = 0;
            for (int64_t c = 0; c < one.d; ++c) sum += k[static_cast<size_t>(row * one.d + c)];
            key_scales.push_back({1e-4f * static_cast<float>(1 + row % 5), kQueryExcess * sum});
        }
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            scales.push_back(lane < one.lanes ? 0.5f + 0.01f * static_cast<float>(lane) : 0.0f);
            const int64_t last = one.visible + std::min(lane, one.lanes - 1);
            visible.push_back(static_cast<float>(std::min(last, one.keys)));
        }
    }
};

Floats votes_of(const Case& one, Int8Votes by) {
    const Numbers numbers(one);
    Floats m(kLanes), l(kLanes), sums(static_cast<size_t>(round_up(one.voted, kPanel)));
    Floats p(static_cast<size_t>(kKeyStep * kLanes));
    VoteArgs args{};
    args.d = one.d;
    args.keys = one.keys;
    args.voted = one.voted;
    args.unmasked = one.visible;
    args.visible = numbers.visible.data();
    args.rows = one.listed ? numbers.rows.data() : nullptr;
    args.lanes = one.lanes;
    args.q = numbers.q.data();
    args.scales = numbers.scales.data();
    args.k = numbers.k.data();
    args.k_scales = numbers.key_scales.data();
    args.p = p.data();
    args.m = m.data();
    args.l = l.data();
    args.sums = sums.data();
    by(args);
    sums.resize(static_cast<size_t>(one.voted));
    return sums;
}

// How often a key counts in the denominator.
double weight(const Case& one, int64_t key) {
    if (key < 128 || key >= one.voted) return 1.0;
    return key % 128 >= 56 && key % 128 < 72 ? 8.0 : 0.0;
}

// In float64.
std::vector<double> exact_votes(const Case& one) {
    const Numbers numbers(one);
    std::vector<double> sums(static_cast<size_t>(one.voted), 0.0);
    for (int64_t lane = 0; lane < one.lanes; ++lane) {
        const auto at = static_cast<size_t>(lane);
        std::vector<double> e;
        double all = 0.0;
        for (int64_t key = 0; key < static_cast<int64_t>(numbers.visible[at]); ++key) {
            const int64_t row = one.listed ? numbers.rows[static_cast<size_t>(key)] : key;
            int64_t dot = 0;
            for (int64_t c = 0; c < one.d; ++c) {
                dot += (numbers.q[static_cast<size_t>((c / 4 * kLanes + lane) * 4 + c % 4)] - kQueryExcess) *
                       numbers.k[static_cast<size_t>(row * one.d + c)];
            }
            const double scale = numbers.key_scales[static_cast<size_t>(row)].scale;
            e.push_back(std::exp(static_cast<double>(dot) * scale * numbers.scales[at]));
            all += weight(one, key) * e.back();
        }
        for (size_t key = 0; key < sums.size(); ++key) sums[key] += std::min(e[key] / all, 1.0);
    }
    return sums;
}

void expect_formula(const Case& one, const Floats& votes) {
    const std::vector<double> exact = exact_votes(one);
    for (size_t key = 0; key < exact.size(); ++key) {
        ASSERT_NEAR(votes[key], exact[key], 1e-3 * exact[key] + 1e-6)
            << "key " << key << ", d " << one.d << ", " << one.lanes << " queries, " << one.keys << " keys";
    }
}

// Sizes that fill tiles, that steps divide, and less; queries of one, two and three vectors; keys that leave
// 1 to 16 for the last tile.
template <class Check>
void each_case(Check&& check) {
    for (const int64_t d : {8, 24, 64, 72, 128, 136, 576}) {
        for (const int64_t lanes : {7, 16, 32, 48}) {
            for (const int64_t keys : {1, 16, 145, 300, 460}) {
                const int64_t own = keys > 60 ? 30 : 0;  // that the first query does not see
                check(Case{d, keys, lanes, keys - own - own / 6, keys - own, keys != 145});
            }
        }
    }
}

TEST(Avx2Votes, AreTheFormula) {
    if (!h2o_cpu_supports("avx2", H2O_INT16)) GTEST_SKIP() << "no AVX2 here";
    EXPECT_EQ(int8_votes(make(1, "avx2", H2O_INT16).get()), avx2_votes());
    EXPECT_EQ(int8_votes(make(1, "avx2", H2O_FLOAT32).get()), nullptr);
    each_case([](const Case& one) { expect_formula(one, votes_of(one, avx2_votes())); });
}

TEST(Avx512Votes, AreTheFormula) {
    if (!h2o_cpu_supports("avx512", H2O_BFLOAT16)) GTEST_SKIP() << "no AVX-512 here";
    if (!has_avx512_vnni()) GTEST_SKIP() << "no VNNI here";
    EXPECT_EQ(int8_votes(make(1, "avx512", H2O_BFLOAT16).get()), avx512_votes());
    each_case([](const Case& one) { expect_formula(one, votes_of(one, avx512_votes())); });
}

TEST(AmxVotes, AreThoseOfVectors) {
    if (!h2o_cpu_supports("amx", H2O_BFLOAT16)) GTEST_SKIP() << "no AMX here";
    EXPECT_EQ(int8_votes(make(1, "amx", H2O_BFLOAT16).get()), amx_votes());
    each_case([](const Case& one) {
        const Floats tiles = votes_of(one, amx_votes()), vectors = votes_of(one, avx512_votes());
        ASSERT_EQ(tiles, vectors) << "d " << one.d << ", " << one.lanes << " queries, " << one.keys
                                  << " keys";
    });
}

}  // namespace
}  // namespace h2o::test
