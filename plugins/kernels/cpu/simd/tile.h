// The softmax of one block of query rows over packed keys: the inner loop of every operator except decode.
//
// The rows of a block are the vector lanes. A group's query heads are rows like any others. So both products
// are one matrix product per key/value head, and maxima and sums need no work across lanes.
#pragma once

#include "simd/multiply.h"
#include "simd/vexp.h"

namespace {

using h2o::BlockArgs;
using h2o::kColsumLanes;
using h2o::kKeyStep;

// p = change(key, lane, p) for a panel's scores [kPanel][R]; lanes go by in vectors.
template <int kRows, class Change>
__attribute__((always_inline)) inline void change_panel(float* p, Change change) {
    for (int64_t key = 0; key < kPanel; ++key, p += kLanes) {
        for (int64_t lane = 0; lane < kRows; lane += kWidth)
            Simd::store(p + lane, change(key, lane, Simd::load(p + lane)));
    }
}

// Hides from each lane the keys at or after its `visible`.
template <int kRows>
inline void mask_panel(int64_t first_key, const float* visible, float* p) {
    using S = Simd;
    const S::Vec hidden = S::set(-__builtin_inff());
    change_panel<kRows>(p, [&](int64_t key, int64_t lane, S::Vec x) {
        return S::select_le(S::set(static_cast<float>(first_key + key + 1)), S::load(visible + lane), x,
                            hidden);
    });
}

// Hides from each lane the keys before its `first`.
template <int kRows>
inline void hide_panel(int64_t first_key, const float* first, float* p) {
    using S = Simd;
    const S::Vec hidden = S::set(-__builtin_inff());
    change_panel<kRows>(p, [&](int64_t key, int64_t lane, S::Vec x) {
        return S::select_le(S::load(first + lane), S::set(static_cast<float>(first_key + key)), x, hidden);
    });
}

// Caps the scores of a panel.
template <int kRows>
inline void cap_panel(float cap, float* p) {
    using S = Simd;
    const S::Vec most = S::set(cap), steep = S::set(-2.0f / cap);
    change_panel<kRows>(p, [&](int64_t, int64_t, S::Vec x) { return soft_capped(x, most, steep); });
}

template <int kRows>
inline void add_panel(const float* bias, float* p) {
    change_panel<kRows>(p, [&](int64_t key, int64_t lane, Simd::Vec x) {
        return Simd::add(x, Simd::load(bias + key * kLanes + lane));
    });
}

// Before scores: shapes of the tiles that AMX multiplies.
template <class Numbers>
inline void set_tiles_of_keys(const BlockArgs& args) {
    if constexpr (Numbers::kTiles) Numbers::set(Numbers::words_of(args.d / Numbers::kPair));
}

// After scores, before values.
template <class Numbers>
inline void set_tiles_of_values(const BlockArgs& args) {
    if constexpr (Numbers::kTiles) {
        const bool same = Numbers::words_of(args.d / Numbers::kPair) == Numbers::kMostWords;
        if (args.v != nullptr && !same) Numbers::set(Numbers::kMostWords);
    }
}

// scores [end - begin][R] = those of keys begin ... end - 1, and m = their running maximum. `begin` is the
// first key of a panel. Panels reach past `end`: these extra rows are never read.
template <class Numbers, int kRows, bool kPacked = true>
inline void score(const BlockArgs& args, int64_t begin, int64_t end, float* scores) {
    using S = Simd;
    constexpr int kCount = kRows / kWidth;
    S::Vec top[kCount];
    for (int v = 0; v < kCount; ++v) top[v] = S::load(args.m + v * kWidth);
    const int64_t depth = args.d / Numbers::kPair, words = depth + Numbers::kScales;
    for (int64_t key = begin; key < end; key += kPanel) {
        float* p = scores + (key - begin) * kLanes;
        if constexpr (Numbers::kTiles) {
            if ((key - begin) % (2 * kPanel) == 0)
                Numbers::template score<kRows>(depth, args.q, args.k + key * words, end - key, p);
        } else if constexpr (kPacked) {
            multiply_panel<Numbers, false, kRows>(depth, args.q, args.k + key * words, Packed{}, p);
        } else {
            // The very first keys have not been prefetched.
            const float* const keys = args.k + key * args.stride;
            const int64_t next = args.fresh && key + kPanel < end ? kPanel * args.stride : 0;
            const Keys form{{args.stride, reinterpret_cast<const char*>(keys + next), next / 16}};
            multiply_panel<Numbers, false, kRows>(depth, args.q, keys, form, p);
        }
        if (args.softcap > 0) cap_panel<kRows>(args.softcap, p);
        if (key + kPanel > args.unmasked) mask_panel<kRows>(key, args.visible, p);
        if (args.first != nullptr && key < args.hiding) hide_panel<kRows>(key, args.first, p);
        if (args.bias != nullptr) add_panel<kRows>(args.bias + key * kLanes, p);
        const int64_t rows = end - key < kPanel ? end - key : kPanel;
        for (int64_t i = 0; i < rows; ++i, p += kLanes) {
#pragma GCC unroll 12
            for (int v = 0; v < kCount; ++v) top[v] = S::max(S::load(p + v * kWidth), top[v]);
        }
    }
    for (int v = 0; v < kCount; ++v) S::store(args.m + v * kWidth, top[v]);
}

// p = exp(p - m) for keys [0, keys) of p, whose sums are added to l, in kCount vectors of lanes.
template <int kCount>
__attribute__((always_inline)) inline void exponentiate_tile(int64_t keys, const float* m, float* row,
                                                             float* l) {
    using S = Simd;
    S::Vec top[kCount], sum[kCount];
    for (int j = 0; j < kCount; ++j) {
        // A row that has seen no key yet has m = -inf; -inf - -inf must not become NaN.
        top[j] = S::max(S::load(m + j * kWidth), S::set(-3.0e38f));
        sum[j] = S::zero();
    }
    for (int64_t key = 0; key < keys; ++key, row += kLanes) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) {
            const S::Vec e = exp_nonpositive(S::sub(S::load(row + j * kWidth), top[j]));
            S::store(row + j * kWidth, e);
            sum[j] = S::add(sum[j], e);
        }
    }
    for (int j = 0; j < kCount; ++j) S::store(l + j * kWidth, S::add(S::load(l + j * kWidth), sum[j]));
}

// Three vectors at a time hide the latency of exp.
template <int kRows>
inline void exponentiate(int64_t keys, const float* m, float* p, float* l) {
    constexpr int kWhole = kRows / kTileLanes * kTileLanes, kRest = (kRows - kWhole) / kWidth;
    for (int64_t lane = 0; lane < kWhole; lane += kTileLanes)
        exponentiate_tile<kTileVectors>(keys, m + lane, p + lane, l + lane);
    if constexpr (kRest > 0) exponentiate_tile<kRest>(keys, m + kWhole, p + kWhole, l + kWhole);
}

// Rescales l and o from the old maximum to the new one.
template <int kRows>
inline void rescale(const BlockArgs& args, const float* old_m) {
    using S = Simd;
    for (int64_t lane = 0; lane < kRows; lane += kWidth) {
        const S::Vec top = S::max(S::load(args.m + lane), S::set(-3.0e38f));
        const S::Vec factor = exp_nonpositive(S::sub(S::load(old_m + lane), top));
        S::store(args.l + lane, S::mul(S::load(args.l + lane), factor));
        if (args.v == nullptr) continue;
        float* o = args.o + lane;
        for (int64_t c = 0; c < args.dv; ++c, o += kLanes) S::store(o, S::mul(S::load(o), factor));
    }
}

template <int kRows>
inline void start(const BlockArgs& args) {
    using S = Simd;
    for (int64_t lane = 0; lane < kRows; lane += kWidth) {
        S::store(args.m + lane, S::set(-__builtin_inff()));
        S::store(args.l + lane, S::zero());
    }
}

// colsum[key] += sum over rows of p[key][row] * weight[row], for `keys` keys, as kColsumLanes partial sums.
template <int kRows>
inline void add_weighted(int64_t keys, const float* p, const float* weight, float* colsum) {
    using S = Simd;
    constexpr int kSums = static_cast<int>(kColsumLanes) / kWidth, kShares = kRows / kWidth;
    S::Vec share[kShares];
    for (int v = 0; v < kShares; ++v) share[v] = S::load(weight + v * kWidth);
    for (int64_t key = 0; key < keys; ++key, p += kLanes, colsum += kColsumLanes) {
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) {
            S::Vec sum = S::load(colsum + s * kWidth);
#pragma GCC unroll 3
            for (int v = s; v < kShares; v += kSums) sum = S::fma(S::load(p + v * kWidth), share[v], sum);
            S::store(colsum + s * kWidth, sum);
        }
    }
}

// 1 / l of the rows in use, 0 of the others.
template <int kRows>
inline void invert(const BlockArgs& args, float* inverse) {
    for (int64_t r = 0; r < kRows; ++r) inverse[r] = r < args.lanes ? 1.0f / args.l[r] : 0.0f;
}

}  // namespace
