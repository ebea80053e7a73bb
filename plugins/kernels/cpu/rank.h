// The ranking of candidates that come in order of position: score first, then the lower position.
#pragma once

#include <cstdint>
#include <cstring>

namespace h2o {

// So close to float32's minimum, engines differ in what they flush to zero.
constexpr float kNegligible = 1e-30f;

// A larger integer for a better candidate. Scores are sums of probabilities: negligible, negative or NaN
// scores count as zero, and the bits of positive floats order like their values. UINT32_MAX ranks above all.
inline uint32_t order(float score) {
    uint32_t bits = 0;
    if (score >= kNegligible) std::memcpy(&bits, &score, 4);
    return bits;
}

// The same for scores that may be negative: NaN ranks below all numbers.
inline uint32_t signed_order(float score) {
    uint32_t bits = 0;
    if (score != score) return 0;
    score += 0.0f;  // -0 is 0
    std::memcpy(&bits, &score, 4);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The size of the orders array for `count` candidates; take_first_best uses the rest as scratch.
constexpr int64_t take_room(int64_t count) {
    return 2 * count;
}

// The `wanted`-th highest of orders [0, count), and how many of those equal to it are among the first
// `wanted`. A digit at a time; `near` [count] has those that share all digits so far.
struct Cut {
    uint32_t order;
    int64_t equal;
};
inline Cut find_cut(const uint32_t* orders, int64_t count, int64_t wanted, uint32_t* near) {
    constexpr int kShifts[] = {20, 8, 0}, kBits[] = {12, 12, 8};
    uint32_t cut = 0;
    for (int digit = 0; digit < 3; ++digit) {
        uint32_t sharing[1 << 12] = {};
        const int shift = kShifts[digit];
        const uint32_t mask = (1u << kBits[digit]) - 1;
        for (int64_t i = 0; i < count; ++i) ++sharing[orders[i] >> shift & mask];
        uint32_t leading = mask;
        for (; wanted > sharing[leading]; --leading) wanted -= sharing[leading];
        cut |= leading << shift;
        uint32_t* last = near;
        for (int64_t i = 0; i < count; ++i) {  // in place from the second digit on
            const uint32_t one = orders[i];
            *last = one;
            last += (one >> shift & mask) == leading;
        }
        orders = near;
        count = last - near;
    }
    return {cut, wanted};
}

// out [best] = places of the `best` highest of orders [0, count), in order; of equal ones the first. Sorting
// would take six times as long: only the threshold matters, and few orders share its leading bits.
inline void take_first_best(uint32_t* orders, int64_t count, int64_t best, int32_t* out) {
    if (best == 0) return;
    const Cut cut = find_cut(orders, count, best, orders + count);
    int64_t equal = cut.equal;
    for (int64_t i = 0, taken = 0; taken < best; ++i) {
        out[taken] = static_cast<int32_t>(i);
        const bool tied = orders[i] == cut.order && equal > 0;
        equal -= tied;
        taken += tied || orders[i] > cut.order;
    }
}

}  // namespace h2o
