// The row-wise work around a product: RMSNorm or the gate of an MLP before it, rotations after it.
#pragma once

#include "simd/vexp.h"

namespace {

using h2o::RowOfX;

// Not a number stays one: an instruction for the maximum returns its second operand then.
inline Simd::Vec at_least(Simd::Vec x, float limit) {
    return Simd::max(Simd::set(limit), x);
}

inline Simd::Vec at_most(Simd::Vec x, float limit) {
    using S = Simd;
    return S::sub(S::zero(), at_least(S::sub(S::zero(), x), -limit));
}

// For the gate x / (1 + exp(-z)): z is x for SiLU; for GELU, (1 + tanh(z / 2)) / 2 is 1 / (1 + exp(-z)).
template <h2o_gate_function kGate>
inline Simd::Vec steepness(Simd::Vec x, float gain) {
    using S = Simd;
    if constexpr (kGate == H2O_SILU) return x;
    if constexpr (kGate == H2O_CLAMPED) return S::mul(x, S::set(gain));
    constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    return S::mul(x, S::fma(S::mul(x, x), S::set(kTwice * 0.044715f), S::set(kTwice)));
}

template <h2o_gate_function kGate>
inline void gate_block(const float* gate, const float* up, const h2o_gate& how, int64_t count, float* out) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        S::Vec x = S::load(gate + i), factor = S::load(up + i);
        if constexpr (kGate == H2O_CLAMPED) {
            x = at_most(x, how.limit);
            factor = S::add(at_least(at_most(factor, how.limit), -how.limit), S::set(1.0f));
        }
        const S::Vec z = steepness<kGate>(x, how.gain), negative = S::sub(S::zero(), z);
        const S::Vec e = exp_nonpositive(S::sub(S::zero(), S::max(z, negative)));
        const S::Vec numerator = S::select_le(x, S::zero(), S::mul(x, e), x);
        const S::Vec gate_factor = S::div(numerator, S::add(S::set(1.0f), e));
        S::store(out + i, S::mul(gate_factor, factor));
    }
}

// 1 / sqrt(mean of x^2 + epsilon), or 1 without a norm.
inline float norm_factor(const RowOfX& row) {
    using S = Simd;
    if (row.norm == nullptr) return 1.0f;
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < row.inputs; i += S::kWidth) {
        const S::Vec x = S::load(row.x + i);
        sum = S::fma(x, x, sum);
    }
    return 1.0f / __builtin_sqrtf(S::sum(sum) / static_cast<float>(row.inputs) + row.epsilon);
}

inline void norm_block(const float* x, const float* norm, float factor, int64_t count, float* out) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        S::store(out + i, S::mul(S::mul(S::load(x + i), S::set(factor)), S::load(norm + i)));
    }
}

// The prepared elements at ... at + count of a row: in place, or in `values`.
inline const float* multiplied(const RowOfX& row, float factor, int64_t at, int64_t count, float* values) {
    if (row.up != nullptr) {
        const auto gate_some = row.gate.function == H2O_GELU      ? gate_block<H2O_GELU>
                               : row.gate.function == H2O_CLAMPED ? gate_block<H2O_CLAMPED>
                                                                  : gate_block<H2O_SILU>;
        gate_some(row.x + at, row.up + at, row.gate, count, values);
    } else if (row.norm != nullptr) {
        norm_block(row.x + at, row.norm + at, factor, count, values);
    } else {
        return row.x + at;
    }
    return values;
}

inline void rotate(int64_t heads, int64_t half, const float* cos, const float* sin, float* row) {
    using S = Simd;
    for (int64_t head = 0; head < heads; ++head) {
        float* const a = row + 2 * head * half;
        float* const b = a + half;
        for (int64_t i = 0; i < half; i += S::kWidth) {
            const S::Vec c = S::load(cos + i), s = S::load(sin + i), x = S::load(a + i), y = S::load(b + i);
            S::store(a + i, S::fms(x, c, S::mul(y, s)));
            S::store(b + i, S::fma(y, c, S::mul(x, s)));
        }
    }
}

}  // namespace
