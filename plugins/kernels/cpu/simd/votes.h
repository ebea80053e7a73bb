// Column sums by int8 products. A key's numbers stay in its row, so that gathering keys is naming them; the
// queries are the lanes, as in tile.h. What includes this has included one simd_*.h and one ints_*.h before.
#pragma once

#include "simd/sample.h"

namespace {

using h2o::VoteArgs;

// Vectors of lanes that are held together.
template <int kVectors>
constexpr int kTogether = kVectors % 3 == 0 ? 3
                          : kVectors == 1   ? 1
                                            : 2;

// p [lanes] = scores of a key, whose products are `dot`, and `top` = their running maximum. kMasked: some
// queries do not see it.
template <int kVectors, bool kMasked>
__attribute__((always_inline)) inline void score_seen(const VoteArgs& args, int64_t key, int64_t row,
                                                      const Ints::Vec* dot, float* p, Simd::Vec* top) {
    const Simd::Vec hidden = Simd::set(-__builtin_inff());
    const h2o::KeyScale& key_scale = args.k_scales[row];
    const Ints::Vec excess = Ints::set(key_scale.excess);
    const Simd::Vec scale = Simd::set(key_scale.scale);
    const Simd::Vec seen_by = Simd::set(static_cast<float>(key + 1));  // queries that see so many
#pragma GCC unroll 6
    for (int j = 0; j < kVectors; ++j) {
        const Simd::Vec product = Ints::floats(Ints::sub(dot[j], excess));
        Simd::Vec x = Simd::mul(Simd::mul(product, scale), Simd::load(args.scales + j * kWidth));
        if constexpr (kMasked) x = Simd::select_le(seen_by, Simd::load(args.visible + j * kWidth), x, hidden);
        top[j] = Simd::max(top[j], x);
        Simd::store(p + j * kWidth, x);
    }
}

template <int kVectors>
__attribute__((always_inline)) inline void score_key(const VoteArgs& args, int64_t key, int64_t row,
                                                     const Ints::Vec* dot, float* p, Simd::Vec* top) {
    if (key < args.unmasked) return score_seen<kVectors, false>(args, key, row, dot, p, top);
    score_seen<kVectors, true>(args, key, row, dot, p, top);
}

inline int64_t row_of(const VoteArgs& args, int64_t key) {
    return args.rows == nullptr ? key : args.rows[key];
}

// Adds exp(p - m) to l, as exact as int8 scores deserve.
template <int kVectors>
inline void exponentiate_votes(int64_t keys, const float* m, const float* p, float* l) {
    constexpr int kTile = kTogether<kVectors>;
    for (int64_t lane = 0; lane < kVectors * kWidth; lane += kTile * kWidth) {
        Simd::Vec top[kTile], sum[kTile];
        for (int j = 0; j < kTile; ++j) {
            top[j] = Simd::load(m + lane + j * kWidth);
            sum[j] = Simd::load(l + lane + j * kWidth);
        }
        const float* row = p + lane;
        for (int64_t key = 0; key < keys; ++key, row += kVectors * kWidth) {
#pragma GCC unroll 3
            for (int j = 0; j < kTile; ++j)
                sum[j] = Simd::add(sum[j], exp_to_round(Simd::sub(Simd::load(row + j * kWidth), top[j])));
        }
        for (int j = 0; j < kTile; ++j) Simd::store(l + lane + j * kWidth, sum[j]);
    }
}

// `Products` scores up to kKeys keys at a time.
template <class Products, int kRows>
inline void vote_rows(const VoteArgs& args) {
    constexpr int kVectors = kRows / kWidth;
    BlockArgs block{};
    block.keys = args.keys;
    block.voted = args.voted;
    block.lanes = args.lanes;
    block.m = args.m;
    block.l = args.l;
    vote_by_sample<kRows>(
        block,
        [&](int64_t begin, int64_t end) {
            Simd::Vec top[kVectors];
            for (int j = 0; j < kVectors; ++j) top[j] = Simd::load(args.m + j * kWidth);
            for (int64_t key = begin; key < end; key += Products::kKeys)
                Products::template score<kVectors>(args, key, earlier(end - key, Products::kKeys),
                                                   args.p + (key - begin) * kRows, top);
            for (int j = 0; j < kVectors; ++j) Simd::store(args.m + j * kWidth, top[j]);
            return end - begin;
        },
        [&](int64_t rows) { exponentiate_votes<kVectors>(rows, args.m, args.p, args.l); },
        [&](int64_t begin, int64_t keys, const float* offset) {
            add_votes<kRows, kRows>(keys, args.p, offset, args.sums + begin, exp_to_round);
        });
}

template <class Products>
inline void vote(const VoteArgs& args) {
    if (args.lanes <= 16) return vote_rows<Products, 16>(args);
    if (args.lanes <= 32) return vote_rows<Products, 32>(args);
    vote_rows<Products, static_cast<int>(kLanes)>(args);
}

}  // namespace
