// Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs", section 6) for a few tokens on some columns of a state.
//
// A token's step S = a S + b (dt x)^T, o = S^T c + skip x passes the state once. For some tokens together the
// passes are two in all: their products with the state as it was and among themselves, and one update.
#pragma once

#include "simd/state.h"

namespace {

using h2o::kMamba2Rows;
using h2o::Mamba2Args;

void mamba2_pairs(const float* b, const float* c, int64_t rows, int64_t d, float* pairs) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < kMamba2Rows; ++j)
            pairs[i * kMamba2Rows + j] = j <= i ? state_dot(c + i * d, b + j * d, d) : 0.0f;
}

// What o_i has of x_j: (c_i . b_j) decayed from j to i, times j's step, and the skip where j is i.
inline void mamba2_weights(const Mamba2Args& args) {
    using S = Simd;
    for (int64_t i = 0; i < args.rows; ++i) {
        const int64_t row = i * kMamba2Rows;
        for (int64_t j = 0; j < kMamba2Rows; j += kWidth) {
            const S::Vec left = exp_nonpositive(S::load(args.between + row + j));
            const S::Vec weight = S::mul(S::mul(left, S::load(args.step + j)), S::load(args.pairs + row + j));
            S::store(args.weights + row + j, weight);
        }
        args.weights[row + i] += args.skip[i];
    }
}

// o_i = since_i c_i . state, which is there already but for the decay, + sum over j <= i of weights_ij x_j.
inline void mamba2_outputs(const Mamba2Args& args, const float* since) {
    using S = Simd;
    for (int64_t i = 0; i < args.rows; ++i) {
        const float* const weights = args.weights + i * kMamba2Rows;
        for (int64_t c = 0; c < args.columns; c += kStateVectors * kWidth) {
            float* const o = args.o + i * args.columns + c;
            S::Vec first = S::mul(S::set(since[i]), S::load(o));
            S::Vec second = S::mul(S::set(since[i]), S::load(o + kWidth));
            for (int64_t j = 0; j <= i; ++j) {
                const float* const x = args.x + j * args.columns + c;
                first = S::fma(S::set(weights[j]), S::load(x), first);
                second = S::fma(S::set(weights[j]), S::load(x + kWidth), second);
            }
            S::store(o, first);
            S::store(o + kWidth, second);
        }
    }
}

// added_j = x_j times its step, as much as is left of it at the last row.
inline void mamba2_added(const Mamba2Args& args) {
    using S = Simd;
    const float* const between = args.between + (args.rows - 1) * kMamba2Rows;
    float left[kMamba2Rows];
    for (int64_t j = 0; j < kMamba2Rows; j += kWidth)
        S::store(left + j, S::mul(exp_nonpositive(S::load(between + j)), S::load(args.step + j)));
    for (int64_t j = 0; j < args.rows; ++j)
        for (int64_t c = 0; c < args.columns; c += kWidth) {
            const int64_t at = j * args.columns + c;
            S::store(args.added + at, S::mul(S::set(left[j]), S::load(args.x + at)));
        }
}

// One token on kVectors vectors of columns: the state is read and written once.
template <int kVectors>
inline void mamba2_step(const Mamba2Args& args, float keep, int64_t column) {
    using S = Simd;
    const S::Vec left = S::set(keep), step = S::set(args.step[0]), skip = S::set(args.skip[0]);
    S::Vec added[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const S::Vec x = S::load(args.x + column + v * kWidth);
        added[v] = S::mul(step, x);
        sum[v] = S::mul(skip, x);
    }
    for (int64_t i = 0; i < args.d; ++i) {
        float* const state = args.state + i * args.stride + column;
        const S::Vec b = S::set(args.b[i]), c = S::set(args.c[i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const S::Vec next = S::fma(b, added[v], S::mul(left, S::load(state + v * kWidth)));
            S::store(state + v * kWidth, next);
            sum[v] = S::fma(c, next, sum[v]);
        }
    }
    for (int v = 0; v < kVectors; ++v) S::store(args.o + column + v * kWidth, sum[v]);
}

void mamba2(const Mamba2Args& args) {
    float since[kMamba2Rows];
    for (int64_t j = 0; j < kMamba2Rows; j += kWidth)
        Simd::store(since + j, exp_nonpositive(Simd::load(args.since + j)));
    if (args.rows == 1) {
        constexpr int kMany = 2 * kStateVectors;
        int64_t column = 0;
        for (; column + kMany * kWidth <= args.columns; column += kMany * kWidth)
            mamba2_step<kMany>(args, since[0], column);
        for (; column < args.columns; column += kStateVectors * kWidth)
            mamba2_step<kStateVectors>(args, since[0], column);
        return;
    }
    mamba2_weights(args);
    read_state(args.c, args.rows, args.d, args.state, args.stride, args.columns, args.o);
    mamba2_outputs(args, since);
    mamba2_added(args);
    write_state(since[args.rows - 1], args.b, args.added, args.rows, args.d, args.state, args.stride,
                args.columns);
}

}  // namespace
