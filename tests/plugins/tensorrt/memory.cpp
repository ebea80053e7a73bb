// Attention inside chunks, to a memory, and to a whole cache.
#include "checks.h"

namespace conformance {
namespace {

using test::Reference;

// The denominators of a state are at least 1.
void make_denominators(Trial& t, size_t input) {
    test::Numbers& l = *t.floats[input];
    for (size_t e = 0; e < l.exact.size(); ++e) {
        l.exact[e] = std::fabs(l.exact[e]) + 1;
        test::store(l.buffer.host(), e, H2O_F32, l.exact[e]);
    }
    l.buffer.reset();
}

Reference state_at(const Trial& t, size_t input) {
    return {t.in(input), t.in(input + 1), t.in(input + 2), {}};
}

}  // namespace

void check_chunked_intra_attention(Trial& t) {
    t.run();
    const auto [exact, low] =
        both(t.c, t.in(0), kN, kN, TokenMajor{t.in(1)}, TokenMajor{t.in(2), nullptr, kDV},
             [](int i, int j) { return j <= i && j / 8 == i / 8; });
    t.compare("o", 0, exact.o, low.o);
    t.compare("m", 1, exact.m, low.m);
    t.compare("l", 2, exact.l, low.l);
    t.compare("colsum", 3, test::token_major(exact.colsum, kKvHeads, kN),
              test::token_major(low.colsum, kKvHeads, kN));
}

void check_memory_gather(Trial& t) {
    t.set(2, t.memory);
    t.run();
    for (size_t i = 0; i < 2; ++i) {
        std::vector<double> expected;
        for (int set = 0; set < kKvHeads; ++set)
            for (int j = 0; j < kSlots; ++j) {
                const int d = i ? kDV : kD;
                const double* row = TokenMajor{t.in(i), &t.memory, d}(set, j);
                expected.insert(expected.end(), row, row + d);
            }
        EXPECT(t.out(i) == expected);
    }
}

void check_memory_attention(Trial& t) {
    t.run();
    const auto [exact, low] =
        both(t.c, t.in(0), kN, kSlots, SetMajor{t.in(1)}, SetMajor{t.in(2), kDV}, always);
    t.compare("o", 0, exact.o, low.o);
    t.compare("m", 1, exact.m, low.m);
    t.compare("l", 2, exact.l, low.l);
    t.compare("colsum", 3, exact.colsum, low.colsum);
}

void check_online_softmax_fusion(Trial& t) {
    make_denominators(t, 2);
    make_denominators(t, 5);
    t.run();
    const Reference exact = test::fuse(state_at(t, 0), state_at(t, 3), kDV, test::Precision::kExact);
    const Reference low = test::fuse(state_at(t, 0), state_at(t, 3), kDV, test::yardstick(t.c));
    t.compare("o", 0, exact.o, low.o);
    t.compare("m", 1, exact.m, low.m);
    t.compare("l", 2, exact.l, low.l);
}

void check_memory_fused_attention(Trial& t) {
    make_denominators(t, 6);
    t.set(3, t.memory);
    t.run();
    const auto [exact, low] = both(t.c, t.in(0), kN, kSlots, TokenMajor{t.in(1), &t.memory},
                                   TokenMajor{t.in(2), &t.memory, kDV}, always);
    t.compare("o", 0, test::fuse(state_at(t, 4), exact, kDV, test::Precision::kExact).o,
              test::fuse(state_at(t, 4), low, kDV, test::yardstick(t.c)).o);
    t.compare("colsum", 1, exact.colsum, low.colsum);
}

void check_cached_attention(Trial& t) {
    t.set(3, std::vector<int64_t>{71});
    t.run();
    const auto [exact, low] =
        both(t.c, t.in(0), 1, 71, TokenMajor{t.in(1)}, TokenMajor{t.in(2), nullptr, kDV}, always);
    t.compare("o", 0, exact.o, low.o);
}

}  // namespace conformance
