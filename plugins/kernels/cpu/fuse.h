// Combines two partial softmaxes: the weights of their outputs, and the joint state.
#pragma once

#include <cmath>

#include "isa.h"

namespace h2o {

struct Fused {
    float m, l;                // maximum of the scores, and sum of exp(score - m)
    float weight_a, weight_b;  // of the normalised outputs; they sum to 1 unless both states are empty
};

// An empty state (l = 0, m = -inf) leaves the other unchanged; two empty states give an empty one.
inline Fused fuse(float m_a, float l_a, float m_b, float l_b) {
    if (!(l_b > 0.0f)) return {m_a, l_a, l_a > 0.0f ? 1.0f : 0.0f, 0.0f};
    if (!(l_a > 0.0f)) return {m_b, l_b, 0.0f, 1.0f};
    const float m = m_a > m_b ? m_a : m_b;
    const float w_a = l_a * std::exp(m_a - m), w_b = l_b * std::exp(m_b - m);
    const float l = w_a + w_b;
    return {m, l, w_a / l, w_b / l};
}

// States of row r in `count` runs become one: run 0's output takes those of the others, in order. m, l
// [count][rows] and o [count][rows][round_up(d, 16)], outputs not divided by l.
inline Fused join_runs(const KernelTable& kernels, int64_t count, int64_t rows, int64_t r, int64_t d,
                       const float* m, const float* l, float* o) {
    const int64_t width = round_up(d, 16);
    Fused sum{m[r], l[r], 1.0f, 0.0f};
    for (int64_t at = rows + r; at < count * rows; at += rows) {
        const Fused next = fuse(sum.m, sum.l, m[at], l[at]);
        const float add = l[at] > 0.0f ? std::exp(m[at] - next.m) : 0.0f;
        kernels.blend_row(H2O_F32, d, std::exp(sum.m - next.m), o + r * width, add, o + at * width,
                          o + r * width);
        sum = next;
    }
    return sum;
}

}  // namespace h2o
