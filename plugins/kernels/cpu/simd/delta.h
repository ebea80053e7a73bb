// The gated delta rule (Yang et al., 2024, "Gated Delta Networks") for a few tokens on some columns of a
// state.
//
// A token's step S = a S + k (beta (v - a S^T k))^T, o = S^T q passes the state twice, and each number of it
// takes part in three multiplications. For some tokens together the passes are two in all: their products
// with the state as it was, corrections among themselves, and one update.
#pragma once

namespace {

using h2o::DeltaArgs;

constexpr int kDeltaVectors = 2, kDeltaTogether = 4;

// products[r] = factors[r] . state, for keys and queries alike.
inline void delta_project(const DeltaArgs& args) {
    using S = Simd;
    for (int64_t c = 0; c < args.columns; c += kDeltaVectors * kWidth) {
        for (int64_t r = 0; r < 2 * args.rows; r += kDeltaTogether) {
            const float* const factors = args.factors + r * args.d;
            S::Vec sum[kDeltaTogether][kDeltaVectors];
            for (auto& row : sum)
                for (S::Vec& each : row) each = S::zero();
            for (int64_t i = 0; i < args.d; ++i) {
                const float* const state = args.state + i * args.columns + c;
                const S::Vec first = S::load(state), second = S::load(state + kWidth);
#pragma GCC unroll 4
                for (int j = 0; j < kDeltaTogether; ++j) {
                    const S::Vec factor = S::set(factors[j * args.d + i]);
                    sum[j][0] = S::fma(factor, first, sum[j][0]);
                    sum[j][1] = S::fma(factor, second, sum[j][1]);
                }
            }
            for (int j = 0; j < kDeltaTogether; ++j)
                for (int v = 0; v < kDeltaVectors; ++v)
                    S::store(args.products + (r + j) * args.columns + c + v * kWidth, sum[j][v]);
        }
    }
}

inline float delta_dot(const float* a, const float* b, int64_t d) {
    Simd::Vec sum = Simd::zero();
    for (int64_t i = 0; i < d; i += kWidth) {
        const int some = part(i, d);
        sum = Simd::fma(Simd::load_some(a + i, some), Simd::load_some(b + i, some), sum);
    }
    return Simd::sum(sum);
}

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
            keys[j] = j < i ? -between[j] * delta_dot(key, other, args.d) : 0.0f;
            queries[j] = between[j] * delta_dot(query, other, args.d);
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

// state = keep state + sum over rows of k_j delta_j^T, delta being as much as is left of it at the last row.
inline void delta_update(const DeltaArgs& args) {
    using S = Simd;
    const float* const left = args.between + (args.rows - 1) * h2o::kDeltaRows;
    for (int64_t j = 0; j < args.rows; ++j)
        for (int64_t c = 0; c < args.columns; c += kWidth) {
            float* const delta = args.delta + j * args.columns + c;
            S::store(delta, S::mul(S::set(left[j]), S::load(delta)));
        }
    const S::Vec keep = S::set(args.since[args.rows - 1]);
    for (int64_t i = 0; i < args.d; i += kDeltaTogether) {
        for (int64_t c = 0; c < args.columns; c += kDeltaVectors * kWidth) {
            S::Vec sum[kDeltaTogether][kDeltaVectors];
            float* const state = args.state + i * args.columns + c;
            for (int r = 0; r < kDeltaTogether; ++r)
                for (int v = 0; v < kDeltaVectors; ++v)
                    sum[r][v] = S::mul(keep, S::load(state + r * args.columns + v * kWidth));
            for (int64_t j = 0; j < args.rows; ++j) {
                const float* const key = args.factors + j * args.d + i;
                const float* const delta = args.delta + j * args.columns + c;
                const S::Vec first = S::load(delta), second = S::load(delta + kWidth);
#pragma GCC unroll 4
                for (int r = 0; r < kDeltaTogether; ++r) {
                    sum[r][0] = S::fma(S::set(key[r]), first, sum[r][0]);
                    sum[r][1] = S::fma(S::set(key[r]), second, sum[r][1]);
                }
            }
            for (int r = 0; r < kDeltaTogether; ++r)
                for (int v = 0; v < kDeltaVectors; ++v)
                    S::store(state + r * args.columns + v * kWidth, sum[r][v]);
        }
    }
}

void delta(const DeltaArgs& args) {
    delta_project(args);
    delta_correct(args);
    delta_update(args);
}

}  // namespace
