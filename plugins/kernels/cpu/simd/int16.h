// Words of two 16-bit integers: pairwise products, added in int32 by the `Ints` of an instruction set.
#pragma once

#include "simd/multiply.h"

namespace {

struct Int16 : Ints {
    static constexpr int kPair = 2;
    static constexpr bool kMatrices = true;
    static constexpr bool kTiles = false;
    static constexpr int kScales = 1;
    using Values = Float32;

    // Scores of a tile's keys: their integers' products times both scales, which follow the numbers.
    template <bool kAdd, int kCount>
    __attribute__((always_inline)) static void multiply(int64_t depth, const float* __restrict rows,
                                                        const float* __restrict columns,
                                                        float* __restrict out) {
        static_assert(!kAdd, "scores are never added to others");
        using S = Simd;
        constexpr int kColumns = S::kTileColumns;
        Ints::Vec sum[kColumns][kCount];
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) sum[i][j] = Ints::zero();
        }
        for (int64_t k = 0; k < depth; ++k, rows += kLanes, columns += kPanel) {
            Ints::Vec row[kCount];
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) row[j] = Ints::load(rows + j * kWidth);
#pragma GCC unroll 8
            for (int i = 0; i < kColumns; ++i) {
                const Ints::Vec word = Ints::word(columns + i);
#pragma GCC unroll 3
                for (int j = 0; j < kCount; ++j) Ints::add_products(sum[i][j], row[j], word);
            }
        }
        S::Vec scale[kCount];
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) scale[j] = S::load(rows + j * kWidth);
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i) {
            const S::Vec of_key = S::set(columns[i]);
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) {
                const S::Vec dot = S::mul(Ints::floats(sum[i][j]), of_key);
                S::store(out + i * kLanes + j * kWidth, S::mul(dot, scale[j]));
            }
        }
    }
};

}  // namespace
