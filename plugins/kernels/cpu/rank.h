// The order in which candidates for a memory win: score first, then the lower position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>

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

// Leaves little more than the `best` highest; returns their end. They are counted by shares of their range,
// which neither compares two ranks nor guesses a branch.
inline uint64_t* keep_best(uint64_t* begin, uint64_t* end, int64_t best) {
    constexpr int kBits = 11;
    uint64_t low = ~uint64_t{0}, high = 0;
    for (const uint64_t* rank = begin; rank != end; ++rank) {
        low = std::min(low, *rank);
        high = std::max(high, *rank);
    }
    int shift = 0;
    while ((high - low) >> shift >> kBits != 0) ++shift;
    uint32_t counts[1 << kBits] = {};
    for (const uint64_t* rank = begin; rank != end; ++rank) ++counts[(*rank - low) >> shift];
    uint64_t edge = std::size(counts);
    for (int64_t kept = 0; kept < best;) kept += counts[--edge];
    const uint64_t least = low + (edge << shift);
    uint64_t* kept = begin;
    for (const uint64_t* rank = begin; rank != end; ++rank) {
        const uint64_t here = *rank;
        *kept = here;
        kept += here >= least ? 1 : 0;
    }
    return kept;
}

// out [best] = positions of the `best` highest of the ranks [begin, end), sorted. Overwrites the ranks.
inline void take_best(uint64_t* begin, uint64_t* end, int64_t best, int32_t* out) {
    if (best < end - begin) {
        end = keep_best(begin, end, best);
        std::nth_element(begin, begin + best, end, std::greater<uint64_t>());
    }
    std::transform(begin, begin + best, out, position_of);
    std::sort(out, out + best);
}

}  // namespace h2o
