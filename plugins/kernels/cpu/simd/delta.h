// The gated delta rule (Yang et al., 2024, "Gated Delta Networks") for a few tokens on some columns of a
// state.
//
// A token's step S = a S + k (beta (v - a S^T k))^T, o = S^T q passes the state twice, and each number of it
// takes part in three multiplications. For some tokens together the passes are two in all: their products
// with the state as it was, corrections among themselves, and one update.
#pragma once

#include "simd/state.h"

namespace {

using h2o::DeltaArgs;

// delta_i = beta_i (v_i - since_i products_i - sum over j < i of between_ij (k_i . k_j) delta_j), and o
// alike.
inline void delta_correct(const DeltaArgs& args) {
    using S = Simd;
    const int64_t n = args.rows;
    for (int64_t i = 0; i < n; ++i) {
        const float* const key = args.factors + i * args.d;
        const float* const query = args.factors + (n + i) * args.d;
        const float* const between = args.between + i * h2o::kDeltaRows;
        float keys[h2o::kDeltaRows], queries[h2o::kDeltaRows];
        for (int64_t j = 0; j <= i; ++j) {
            const float* const other = args.factors + j * args.d;
            keys[j] = j < i ? -between[j] * state_dot(key, other, args.d) : 0.0f;
            queries[j] = between[j] * state_dot(query, other, args.d);
        }
        const S::Vec since = S::set(args.since[i]), beta = S::set(args.beta[i]);
        for (int64_t c = 0; c < args.columns; c += kWidth) {
            const S::Vec known = S::load(args.products + i * args.columns + c);
            S::Vec delta = S::sub(S::load(args.v + i * args.columns + c), S::mul(since, known));
            S::Vec out = S::mul(since, S::load(args.products + (n + i) * args.columns + c));
            for (int64_t j = 0; j < i; ++j) {
                const S::Vec other = S::load(args.delta + j * args.columns + c);
                delta = S::fma(S::set(keys[j]), other, delta);
                out = S::fma(S::set(queries[j]), other, out);
            }
            delta = S::mul(beta, delta);
            S::store(args.delta + i * args.columns + c, delta);
            S::store(args.o + i * args.columns + c, S::fma(S::set(queries[i]), delta, out));
        }
    }
}

void delta(const DeltaArgs& args) {
    using S = Simd;
    read_state(args.factors, 2 * args.rows, args.d, args.state, args.columns, args.columns, args.products);
    delta_correct(args);
    const float* const left = args.between + (args.rows - 1) * h2o::kDeltaRows;  // of a delta at the last row
    for (int64_t j = 0; j < args.rows; ++j)
        for (int64_t c = 0; c < args.columns; c += kWidth) {
            float* const delta = args.delta + j * args.columns + c;
            S::store(delta, S::mul(S::set(left[j]), S::load(delta)));
        }
    write_state(args.since[args.rows - 1], args.factors, args.delta, args.rows, args.d, args.state,
                args.columns, args.columns);
}

}  // namespace
