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

// out [best] = positions of the `best` highest of the ranks [begin, end), sorted. Reorders the ranks.
inline void take_best(uint64_t* begin, uint64_t* end, int64_t best, int32_t* out) {
    if (best < end - begin) std::nth_element(begin, begin + best, end, std::greater<uint64_t>());
    std::transform(begin, begin + best, out, position_of);
    std::sort(out, out + best);
}

}  // namespace h2o
