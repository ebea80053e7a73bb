// Combines two partial softmaxes: the weights of their outputs, and the joint state.
#pragma once

#include <cmath>

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

}  // namespace h2o
