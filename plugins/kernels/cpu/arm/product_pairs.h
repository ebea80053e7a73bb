// Products with integer weights by an instruction that multiplies matrices: eight numbers of two columns with
// eight of two rows. Includes product_tile.h, which multiplies single rows.
//
// A tile takes half a panel at a time, so that sums of four pairs of rows stay in registers. The layout of
// weights has four numbers of four columns side by side: one interleaving of two steps yields eight numbers
// of two. Sums of integers are exact, and those of blocks are added as in product_tile.h. Therefore a row has
// the same result in either tile.
#pragma once

#include "simd/product_tile.h"

namespace {

constexpr int kPairRows = 8;
constexpr int64_t kEight = 8;              // numbers of a row and of a column that meet in one instruction
constexpr int kHalf = kVectors / 2;        // vectors of half a panel
constexpr int kHalfPairs = 2 * kHalf;      // pairs of columns
constexpr int64_t kStep = kPanel * kFour;  // bytes of four numbers of all columns

// Weights of half a panel: [pair][2 columns][8].
struct ColumnPairs {
    uint8x16_t of[kHalfPairs];

    // `at` has four numbers of each column, and kStep bytes on, the next four.
    static ColumnPairs load(const uint8_t* at) {
        ColumnPairs pairs;
        for (int v = 0; v < kHalf; ++v) {
            const uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(at + 16 * v));
            const uint32x4_t next = vreinterpretq_u32_u8(vld1q_u8(at + kStep + 16 * v));
            pairs.of[2 * v] = vreinterpretq_u8_u32(vzip1q_u32(first, next));
            pairs.of[2 * v + 1] = vreinterpretq_u8_u32(vzip2q_u32(first, next));
        }
        return pairs;
    }
    ColumnPairs low_halves() const {
        ColumnPairs pairs;
        for (int i = 0; i < kHalfPairs; ++i) pairs.of[i] = vandq_u8(of[i], vdupq_n_u8(15));
        return pairs;
    }
    ColumnPairs high_halves() const {
        ColumnPairs pairs;
        for (int i = 0; i < kHalfPairs; ++i) pairs.of[i] = vshrq_n_u8(of[i], 4);
        return pairs;
    }
};

// Of some rows and half a panel. A vector has two columns of two rows: the sums of column 0, then of
// column 1.
template <int kRows>
struct PairSums {
    static constexpr int kPairs = (kRows + 1) / 2;
    int32x4_t of[kPairs][kHalfPairs];

    // The second row of a pair: an odd number of rows has its last one twice.
    static constexpr int second(int pair) { return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair; }

    __attribute__((always_inline)) void start(const int32_t* starts, int64_t blocks) {
#pragma GCC unroll 4
        for (int pair = 0; pair < kPairs; ++pair) {
            const int32x2_t first = vdup_n_s32(starts[2 * pair * blocks]);
            const int32x2_t both = vset_lane_s32(starts[second(pair) * blocks], first, 1);
#pragma GCC unroll 4
            for (int c = 0; c < kHalfPairs; ++c) of[pair][c] = vcombine_s32(both, both);
        }
    }
    // `q` is the first row's.
    __attribute__((always_inline)) void add(const ColumnPairs& weights, const int8_t* q, int64_t stride) {
#pragma GCC unroll 4
        for (int pair = 0; pair < kPairs; ++pair) {
            const int8x16_t x =
                vcombine_s8(vld1_s8(q + 2 * pair * stride), vld1_s8(q + second(pair) * stride));
#pragma GCC unroll 4
            for (int c = 0; c < kHalfPairs; ++c) of[pair][c] = vusmmlaq_s32(of[pair][c], weights.of[c], x);
        }
    }
    // Four columns of a row.
    __attribute__((always_inline)) Simd::Vec row(int which, int vector) const {
        const int32x4_t a = of[which / 2][2 * vector], b = of[which / 2][2 * vector + 1];
        return vcvtq_f32_s32(which % 2 == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b));
    }
};

template <int kBits, int kRows>
__attribute__((always_inline)) inline void add_pairs(const ProductTile& tile, int64_t block, int64_t half,
                                                     PairSums<kRows>& sums) {
    const int64_t bytes = tile.block * kPanel * kBits / 8;
    const uint8_t* weights = tile.weights + block * bytes + half * kStep / 2;
    const uint8_t* const end = weights + bytes;
    const int8_t* q = tile.x.q + block * tile.block;
    for (; weights < end; weights += 2 * kStep, q += kEight) {
        const ColumnPairs columns = ColumnPairs::load(weights);
        if constexpr (kBits == 4) {
            sums.add(columns.low_halves(), q, tile.inputs);
            sums.add(columns.high_halves(), q + tile.block / 2, tile.inputs);
        } else {
            sums.add(columns, q, tile.inputs);
        }
    }
}

template <int kBits, int kRows>
void multiply_pairs_tile(const ProductTile& tile) {
    Simd::Vec total[kRows][kVectors];
    clear_sums(total);
    for (int half = 0; half < 2; ++half) {
        for (int64_t block = 0; block < tile.blocks; ++block) {
            PairSums<kRows> sums;
            sums.start(tile.x.starts + block, tile.blocks);
            add_pairs<kBits>(tile, block, half, sums);
            for (int v = 0; v < kHalf; ++v) {
                const int c = half * kHalf + v;
                const int64_t at = block * kPanel + c * Simd::kWidth;
                const Simd::Vec scale = Simd::load(tile.scales + at);
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const float x = tile.x.scales[row * tile.blocks + block];
                    total[row][c] =
                        Simd::fma(sums.row(row, v), Simd::mul(scale, Simd::set(x)), total[row][c]);
                }
                if (tile.offsets == nullptr) continue;
                const Simd::Vec offset = Simd::load(tile.offsets + at);
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const float sum = tile.x.sums[row * tile.blocks + block];
                    total[row][c] = Simd::fma(offset, Simd::set(sum), total[row][c]);
                }
            }
        }
    }
    store_sums(tile.out, tile.parts, total);
}

template <int kBits, int kRows = kPairRows>
void multiply_pairs_rows(const ProductTile& tile, int64_t rows) {
    if constexpr (kRows > 1) {
        if (rows == kRows) {
            multiply_pairs_tile<kBits, kRows>(tile);
        } else {
            multiply_pairs_rows<kBits, kRows - 1>(tile, rows);
        }
    }
}

void multiply_pairs(const ProductTile& tile, int bits, int64_t rows, int64_t panels) {
    if (rows == 1) return multiply(tile, bits, rows, panels);
    bits == 4 ? multiply_pairs_rows<4>(tile, rows) : multiply_pairs_rows<8>(tile, rows);
}

}  // namespace
