// Attention of one block of query rows to packed keys and values, and sums of its probabilities.
#pragma once

#include "simd/fetch.h"
#include "simd/sample.h"

namespace {

// A step's probabilities in words of two keys, [keys / 2, rounded up][R]. Sums are over unrounded values, and
// p is unchanged unless `kKeep`.
template <class Numbers, int kCount, bool kKeep>
__attribute__((always_inline)) inline void exponentiate_pairs_tile(int64_t keys, const float* m, float* row,
                                                                   float* l, float* words) {
    using S = Simd;
    S::Vec top[kCount], sum[kCount];
    for (int j = 0; j < kCount; ++j) {
        top[j] = S::max(S::load(m + j * kWidth), S::set(-3.0e38f));
        sum[j] = S::zero();
    }
    for (int64_t key = 0; key < keys; key += 2, row += 2 * kLanes, words += kLanes) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) {
            const S::Vec first = exp_to_round(S::sub(S::load(row + j * kWidth), top[j]));
            S::Vec second = S::zero();
            if (key + 1 < keys) second = exp_to_round(S::sub(S::load(row + kLanes + j * kWidth), top[j]));
            if constexpr (kKeep) {
                S::store(row + j * kWidth, first);
                if (key + 1 < keys) S::store(row + kLanes + j * kWidth, second);
            }
            S::store(words + j * kWidth, Numbers::join(first, second));
            sum[j] = S::add(sum[j], S::add(first, second));
        }
    }
    for (int j = 0; j < kCount; ++j) S::store(l + j * kWidth, S::add(S::load(l + j * kWidth), sum[j]));
}

template <class Numbers, int kRows, bool kKeep>
inline void exponentiate_pairs(int64_t keys, const float* m, float* p, float* l, float* words) {
    constexpr int kWhole = kRows / kTileLanes * kTileLanes, kRest = (kRows - kWhole) / kWidth;
    for (int64_t lane = 0; lane < kWhole; lane += kTileLanes)
        exponentiate_pairs_tile<Numbers, kTileVectors, kKeep>(keys, m + lane, p + lane, l + lane,
                                                              words + lane);
    if constexpr (kRest > 0)
        exponentiate_pairs_tile<Numbers, kRest, kKeep>(keys, m + kWhole, p + kWhole, l + kWhole,
                                                       words + kWhole);
}

// One step's probabilities in the layout of the second product.
template <class Numbers, int kRows>
struct Weights {
    static constexpr bool kRounded = Numbers::kPair > 1;
    alignas(64) float words[kRounded ? kKeyStep / 2 * kLanes : 1];

    const float* make(const BlockArgs& args, float* p, int64_t keys) {
        if constexpr (kRounded) {
            if (args.v != nullptr && args.colsum == nullptr) {
                exponentiate_pairs<Numbers, kRows, false>(keys, args.m, p, args.l, words);
                return words;
            }
            if (args.v != nullptr) {
                exponentiate_pairs<Numbers, kRows, true>(keys, args.m, p, args.l, words);
                return words;
            }
        }
        exponentiate<kRows>(keys, args.m, p, args.l);
        return p;
    }
};

// o (+)= values weighted with `weights`, for `keys` keys from `key` on.
template <class Numbers, bool kAdd, int kRows, bool kPacked>
inline void weigh(const BlockArgs& args, const float* weights, int64_t key, int64_t keys) {
    constexpr int kPair = Numbers::kPair;
    const int64_t depth = (keys + kPair - 1) / kPair;
    if constexpr (Numbers::kTiles) {
        return Numbers::template weigh<kAdd, kRows>(depth, weights, args.v + key / kPair, args.v_keys / kPair,
                                                    h2o::round_up(args.dv, kPanel), args.o);
    }
    for (int64_t c = 0; c < args.dv; c += kPanel) {
        float* const o = args.o + c * kLanes;
        if constexpr (kPacked) {
            const float* const panel = args.v + (c * args.v_keys + key * kPanel) / kPair;
            multiply_panel<Numbers, kAdd, kRows>(depth, weights, panel, Packed{}, o);
        } else {
            const int64_t lines = args.ahead_bytes * kPanel / (args.dv * 64);
            const Values form{{args.stride, args.ahead + c / kPanel * lines * 64, lines}};
            multiply_panel<Numbers, kAdd, kRows>(depth, weights, args.v + key * args.stride + c, form, o);
        }
    }
}

// The rows that will be written are rarely in the first caches: each of `steps` asks for some of them.
__attribute__((always_inline)) inline void fetch_out(const BlockArgs& args, int64_t step, int64_t steps) {
    if (args.out == nullptr) return;
    const int64_t end = args.lanes * (step + 1) / steps;
    for (int64_t row = args.lanes * step / steps; row < end; ++row) fetch(args.out[row], args.out_bytes);
}

template <class Numbers, int kRows, bool kPacked>
inline void attend_rows(const BlockArgs& args) {
    if constexpr (kPacked) {
        if (args.votes != nullptr) return vote<Numbers, kRows>(args);
    }
    float old_m[kRows];
    if (args.fresh) {
        start<kRows>(args);
    } else {
        __builtin_memcpy(old_m, args.m, sizeof old_m);
    }
    set_tiles_of_keys<Numbers>(args);
    score<Numbers, kRows, kPacked>(args, 0, args.keys, args.p);
    set_tiles_of_values<Numbers>(args);
    if (!args.fresh) rescale<kRows>(args, old_m);
    using Values = typename Numbers::Values;
    Weights<Values, kRows> weights;
    for (int64_t key = 0; key < args.keys; key += kKeyStep) {
        const int64_t step = args.keys - key < kKeyStep ? args.keys - key : kKeyStep;
        fetch_out(args, key / kKeyStep, (args.keys + kKeyStep - 1) / kKeyStep);
        const float* const weighed = weights.make(args, args.p + key * kLanes, step);
        if (args.v == nullptr) continue;
        if (args.fresh && key == 0) {
            weigh<Values, false, kRows, kPacked>(args, weighed, key, step);
        } else {
            weigh<Values, true, kRows, kPacked>(args, weighed, key, step);
        }
    }
    if (args.colsum == nullptr) return;
    float inverse[kRows];
    invert<kRows>(args, inverse);
    add_weighted<kRows>(args.keys, args.p, inverse, args.colsum);
}

template <class Numbers, bool kPacked>
inline void attend_form(const BlockArgs& args) {
    if (args.rows == 16) {
        attend_rows<Numbers, 16, kPacked>(args);
    } else if (args.rows == 32) {
        attend_rows<Numbers, 32, kPacked>(args);
    } else {
        attend_rows<Numbers, static_cast<int>(kLanes), kPacked>(args);
    }
}

// columns[key] = sum over r of weight[r] * p[key][r]; the same values are added to distances[r - key].
template <int kRows>
inline void line_sums_of(const float* p, int64_t keys, const float* weight, float* columns,
                         float* distances) {
    using S = Simd;
    constexpr int kCount = kRows / kWidth;
    S::Vec share[kCount];
    for (int v = 0; v < kCount; ++v) share[v] = S::load(weight + v * kWidth);
    for (int64_t key = 0; key < keys; ++key, p += kLanes, --distances) {
        S::Vec sum = S::zero();
#pragma GCC unroll 12
        for (int v = 0; v < kCount; ++v) {
            const S::Vec x = S::mul(S::load(p + v * kWidth), share[v]);
            S::store(distances + v * kWidth, S::add(S::load(distances + v * kWidth), x));
            sum = S::add(sum, x);
        }
        columns[key] = S::sum(sum);
    }
}

inline void line_sums(const float* p, int64_t keys, int64_t rows, const float* weight, float* columns,
                      float* distances) {
    if (rows == 16) {
        line_sums_of<16>(p, keys, weight, columns, distances);
    } else if (rows == 32) {
        line_sums_of<32>(p, keys, weight, columns, distances);
    } else {
        line_sums_of<static_cast<int>(kLanes)>(p, keys, weight, columns, distances);
    }
}

}  // namespace
