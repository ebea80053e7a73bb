// The ranking of candidates for a memory set: score first, then the lower position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

namespace h2o {

// So close to float32's minimum, engines differ in what they flush to zero.
constexpr float kNegligible = 1e-30f;

// A unique integer that is larger for a better candidate. Scores are sums of probabilities: negligible,
// negative or NaN scores count as zero, and the bits of positive floats order like their values. What is
// forced ranks above all.
inline uint64_t rank(float score, int64_t position, bool forced = false) {
    uint32_t order = 0;
    if (score >= kNegligible) std::memcpy(&order, &score, 4);
    if (forced) order = 0xffffffffu;
    return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
}

inline int32_t position_of(uint64_t rank) {
    return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

// The same for scores that may be negative: NaN ranks below all numbers.
inline uint64_t signed_rank(float score, int64_t position) {
    uint32_t bits = 0, order = 0;
    if (score == score) {
        score += 0.0f;  // -0 is 0
        std::memcpy(&bits, &score, 4);
        order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    }
    return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
}

// The same for candidates that come in order of position, without the position.
inline uint32_t order(float score) {
    uint32_t bits = 0;
    if (score >= kNegligible) std::memcpy(&bits, &score, 4);
    return bits;
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

// out [best] = places of the `best` highest of orders [0, count), in order; of equal ones the first.
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

// The size of the ranks array for `count` candidates; take_best uses the rest as scratch.
constexpr int64_t rank_room(int64_t count) {
    return 2 * count;
}

// out [best] = positions of the `best` highest of the ranks [0, count), in order of position. Sorting would
// take six times as long. Only the threshold matters, and few ranks share its leading bits.
inline void take_best(uint64_t* ranks, int64_t count, int64_t best, int32_t* out) {
    if (best == 0) return;
    constexpr int kLeading = 12;  // the sign, the exponent and three digits of a float
    constexpr int kRest = 64 - kLeading;
    uint32_t sharing[1 << kLeading] = {};
    for (int64_t i = 0; i < count; ++i) ++sharing[ranks[i] >> kRest];
    uint64_t leading = (1 << kLeading) - 1;
    int64_t wanted = best;
    for (; wanted > sharing[leading]; --leading) wanted -= sharing[leading];
    uint64_t *const near = ranks + count, *last = near;
    for (int64_t i = 0; i < count; ++i) {
        *last = ranks[i];
        last += ranks[i] >> kRest == leading;
    }
    std::nth_element(near, near + wanted - 1, last, std::greater<uint64_t>());
    const uint64_t cut = near[wanted - 1];
    for (int64_t i = 0, taken = 0; taken < best; ++i) {
        out[taken] = position_of(ranks[i]);
        taken += ranks[i] >= cut;
    }
}

}  // namespace h2o
