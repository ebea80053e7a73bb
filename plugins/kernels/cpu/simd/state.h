// The products of a few tokens with a head's state [d][columns], which are those of every layer that has one.
#pragma once

#include "simd/pack.h"

namespace {

constexpr int kStateVectors = 2, kStateTogether = 4;

// out[r] = factors[r] . state, for `rows` rows and those up to a multiple of kStateTogether. factors
// [rows][d], out [rows][columns]; the state's rows are `stride` floats apart.
inline void read_state(const float* factors, int64_t rows, int64_t d, const float* state, int64_t stride,
                       int64_t columns, float* out) {
    using S = Simd;
    for (int64_t c = 0; c < columns; c += kStateVectors * kWidth) {
        for (int64_t r = 0; r < rows; r += kStateTogether) {
            const float* const some = factors + r * d;
            S::Vec sum[kStateTogether][kStateVectors];
            for (auto& row : sum)
                for (S::Vec& each : row) each = S::zero();
            for (int64_t i = 0; i < d; ++i) {
                const float* const row = state + i * stride + c;
                const S::Vec first = S::load(row), second = S::load(row + kWidth);
#pragma GCC unroll 4
                for (int j = 0; j < kStateTogether; ++j) {
                    const S::Vec factor = S::set(some[j * d + i]);
                    sum[j][0] = S::fma(factor, first, sum[j][0]);
                    sum[j][1] = S::fma(factor, second, sum[j][1]);
                }
            }
            for (int j = 0; j < kStateTogether; ++j)
                for (int v = 0; v < kStateVectors; ++v)
                    S::store(out + (r + j) * columns + c + v * kWidth, sum[j][v]);
        }
    }
}

// state = keep state + sum over rows j of factors[j] values[j]^T; factors [rows][d], values [rows][columns].
inline void write_state(float keep, const float* factors, const float* values, int64_t rows, int64_t d,
                        float* state, int64_t stride, int64_t columns) {
    using S = Simd;
    const S::Vec left = S::set(keep);
    for (int64_t i = 0; i < d; i += kStateTogether) {
        for (int64_t c = 0; c < columns; c += kStateVectors * kWidth) {
            S::Vec sum[kStateTogether][kStateVectors];
            float* const here = state + i * stride + c;
            for (int r = 0; r < kStateTogether; ++r)
                for (int v = 0; v < kStateVectors; ++v)
                    sum[r][v] = S::mul(left, S::load(here + r * stride + v * kWidth));
            for (int64_t j = 0; j < rows; ++j) {
                const float* const factor = factors + j * d + i;
                const float* const value = values + j * columns + c;
                const S::Vec first = S::load(value), second = S::load(value + kWidth);
#pragma GCC unroll 4
                for (int r = 0; r < kStateTogether; ++r) {
                    sum[r][0] = S::fma(S::set(factor[r]), first, sum[r][0]);
                    sum[r][1] = S::fma(S::set(factor[r]), second, sum[r][1]);
                }
            }
            for (int r = 0; r < kStateTogether; ++r)
                for (int v = 0; v < kStateVectors; ++v) S::store(here + r * stride + v * kWidth, sum[r][v]);
        }
    }
}

inline float state_dot(const float* a, const float* b, int64_t d) {
    Simd::Vec sum = Simd::zero();
    for (int64_t i = 0; i < d; i += kWidth) {
        const int some = part(i, d);
        sum = Simd::fma(Simd::load_some(a + i, some), Simd::load_some(b + i, some), sum);
    }
    return Simd::sum(sum);
}

}  // namespace
