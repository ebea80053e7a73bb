// The row-wise work around a product: RMSNorm or the gate of an MLP before it, rotations after it.
#pragma once

namespace {

using h2o::RowOfX;

// For the gate x / (1 + exp(-z)): z is x for SiLU; for GELU, (1 + tanh(z / 2)) / 2 is 1 / (1 + exp(-z)).
template <h2o_gate kGate>
inline Simd::Vec steepness(Simd::Vec x) {
    using S = Simd;
    if constexpr (kGate == H2O_SILU) return x;
    constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    return S::mul(x, S::fma(S::mul(x, x), S::set(kTwice * 0.044715f), S::set(kTwice)));
}

// gate(x) * up.
template <h2o_gate kGate>
inline void gate_block(const float* gate, const float* up, int64_t count, float* out) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec x = S::load(gate + i), z = steepness<kGate>(x), negative = S::sub(S::zero(), z);
        const S::Vec e = exp_nonpositive(S::sub(S::zero(), S::max(z, negative)));
        const S::Vec numerator = S::select_le(x, S::zero(), S::mul(x, e), x);
        const S::Vec made = S::div(numerator, S::add(S::set(1.0f), e));
        S::store(out + i, S::mul(made, S::load(up + i)));
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
    if (row.up != nullptr && row.gate == H2O_GELU) {
        gate_block<H2O_GELU>(row.x + at, row.up + at, count, values);
    } else if (row.up != nullptr) {
        gate_block<H2O_SILU>(row.x + at, row.up + at, count, values);
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
