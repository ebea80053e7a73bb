// Activations as integers: a block's scale is 1/127 of its largest magnitude. The rounding error is at most
// half a step, and is rounded again with 1/127 of that.
#pragma once

#include "simd/product_rows.h"

namespace {

using h2o::Rounded;
using h2o::Rounding;

constexpr float kTiny = 1e-30f;  // smaller values count as 0
constexpr float kRest = 254.0f;  // steps of the second part in one step of the first
constexpr int64_t kMostBlock = 256;

// `wrong` is 0, or NaN if x is not finite.
inline float largest_of(const float* x, int64_t count, float* wrong) {
    using S = Simd;
    S::Vec top = S::zero(), sum = S::zero();
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec value = S::load(x + i);
        top = S::max(top, S::max(value, S::sub(S::zero(), value)));
        sum = S::fma(value, S::zero(), sum);
    }
    *wrong = S::sum(sum);
    return S::largest(top);
}

// Returns the sum of the integers.
inline float round_block(const float* x, int64_t count, float inverse, int8_t* q) {
    using S = Simd;
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < count; i += S::kWidth) {
        S::store_int8(q + i, S::mul(S::load(x + i), S::set(inverse)), S::kWidth);
        sum = S::add(sum, S::load_int8(q + i, S::kWidth));
    }
    return S::sum(sum);
}

// The rounding error of `q`.
inline void leave_block(const float* x, int64_t count, float scale, const int8_t* q, float* rest) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec kept = S::load_int8(q + i, S::kWidth);
        S::store(rest + i, S::fma(kept, S::set(-scale), S::load(x + i)));
    }
}

void round_row(const RowOfX& row, const Rounding& how, const Rounded& out) {
    const int64_t blocks = row.inputs / how.block;
    const float factor = norm_factor(row);
    float values[kMostBlock];
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = b * how.block;
        const float* const x = multiplied(row, factor, at, how.block, values);
        float wrong;
        const float largest = largest_of(x, how.block, &wrong);
        const float scale = largest / 127.0f, inverse = largest > kTiny ? 127.0f / largest : 0.0f;
        const auto keep = [&](int64_t to, float step, float sum) {
            out.scales[to] = step + wrong;
            out.starts[to] = -static_cast<int32_t>(sum) * how.surplus;
            out.sums[to] = (step + wrong) * sum;
        };
        keep(b, scale, round_block(x, how.block, inverse, out.q + at));
        if (how.parts == 2) {
            leave_block(x, how.block, scale, out.q + at, values);
            int8_t* const q = out.q + row.inputs + at;
            keep(blocks + b, scale / kRest, round_block(values, how.block, kRest * inverse, q));
        }
    }
}

}  // namespace
