// The order in which candidates for a memory win: score first, then the lower position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

namespace h2o {

// So close to float32's end, engines differ in what they round to zero.
constexpr float kNegligible = 1e-30f;

// A whole number that is larger the better the candidate is, all different. Scores are sums of probabilities:
// what is negligible, negative or NaN counts as zero, and the bits of positive floats are in the order of
// their values. A sink is above all.
inline uint64_t rank(float score, int64_t position, bool sink) {
    uint32_t order = 0;
    if (score >= kNegligible) std::memcpy(&order, &score, 4);
    if (sink) order = 0xffffffffu;
    return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
}

inline int32_t position_of(uint64_t rank) {
    return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

// The same where scores may be below zero: NaN is below all numbers.
inline uint64_t signed_rank(float score, int64_t position) {
    uint32_t bits = 0, order = 0;
    if (score == score) {
        score += 0.0f;  // -0 is 0
        std::memcpy(&bits, &score, 4);
        order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    }
    return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(position));
}

// How many ranks an array must have room for when `count` candidates are in it: take_best works in the rest.
constexpr int64_t rank_room(int64_t count) {
    return 2 * count;
}

// out [best] = positions of the `best` highest of the ranks [0, count), in the order in which they stand,
// which is that of their positions. Sorting would take six times as long: only where the cut falls matters,
// and ranks that share their leading bits with it are few.
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
