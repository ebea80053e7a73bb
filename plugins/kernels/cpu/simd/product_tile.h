// Products with integer weights in blocks, for the instruction set whose Simd and Products are defined
// before. All functions have internal linkage, as in kernels.h.
//
// A tile keeps sums of some rows and panels in registers: per block as integers, over all blocks as floats.
// Weights are read once for all rows, and a row's four integers once for all columns. 8 of 12 instructions
// multiply: a block of 32 has 8 steps of four, then one conversion, one product of scales, one addition, and
// one initialization.
#pragma once

#include "simd/product_floats.h"
#include "simd/product_round.h"

namespace {

using h2o::ProductTile;

constexpr int64_t kFour = 4;  // weights of a column side by side
constexpr int kUnrolled = 8;  // steps of a block of 32

inline int32_t four(const int8_t* q) {
    int32_t word;
    __builtin_memcpy(&word, q, sizeof word);
    return word;
}

template <int kRows, int kColumns>
struct Sums {
    Products::Ints of[kRows][kColumns];

    // One step of four along K: `q` is the first row's.
    __attribute__((always_inline)) void add(const Products::Ints* weights, const int8_t* q, int64_t stride) {
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
            const Products::Ints x = Products::set(four(q + row * stride));
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) of[row][c] = Products::dot(of[row][c], weights[c], x);
        }
    }

    // Two steps, `apart` along K, whose weights are the low and the high halves of bytes. Kind: Products,
    // which need not have dot_halves.
    template <class Kind>
    __attribute__((always_inline)) void add_halves(const Products::Ints* packed, const int8_t* q,
                                                   int64_t apart, int64_t stride) {
        Products::Ints low[kColumns], high[kColumns];
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            low[c] = Products::low_halves(packed[c]);
            high[c] = Products::high_halves(packed[c]);
        }
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
            const Products::Ints x = Products::set(four(q + row * stride));
            const Products::Ints far = Products::set(four(q + row * stride + apart));
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c)
                of[row][c] = Kind::dot_halves(of[row][c], low[c], x, high[c], far);
        }
    }
};

template <int kColumns>
__attribute__((always_inline)) inline void load_step(const uint8_t* at, int64_t panel_bytes,
                                                     Products::Ints* weights) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
        weights[c] = Products::load(at + c / kVectors * panel_bytes + c % kVectors * Simd::kWidth * kFour);
    }
}

template <int kRows, int kColumns>
__attribute__((always_inline)) inline void add_eight_bits(const ProductTile& tile, int64_t block,
                                                          int64_t step, Sums<kRows, kColumns>& sums) {
    Products::Ints weights[kColumns];
    const int64_t k = block * tile.block + step * kFour;
    load_step<kColumns>(tile.weights + k * kPanel, tile.panel_bytes, weights);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) weights[c] = Products::eight_bits(weights[c]);
    sums.add(weights, tile.x.q + k, tile.inputs);
}

// A byte holds weights of both halves of a block.
template <int kRows, int kColumns>
__attribute__((always_inline)) inline void add_four_bits(const ProductTile& tile, int64_t block, int64_t step,
                                                         Sums<kRows, kColumns>& sums) {
    Products::Ints packed[kColumns], weights[kColumns];
    const int64_t half = tile.block / 2, k = block * tile.block + step * kFour;
    load_step<kColumns>(tile.weights + (block * half + step * kFour) * kPanel, tile.panel_bytes, packed);
    if constexpr (Products::kJoinsHalves) {
        sums.template add_halves<Products>(packed, tile.x.q + k, half, tile.inputs);
    } else {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) weights[c] = Products::low_halves(packed[c]);
        sums.add(weights, tile.x.q + k, tile.inputs);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) weights[c] = Products::high_halves(packed[c]);
        sums.add(weights, tile.x.q + k + half, tile.inputs);
    }
}

template <int kBits, int kSteps, int kRows, int kColumns>
__attribute__((always_inline)) inline void add_block(const ProductTile& tile, int64_t block,
                                                     Sums<kRows, kColumns>& sums) {
    const auto add = [&](int64_t step) __attribute__((always_inline)) {
        if constexpr (kBits == 4) {
            add_four_bits(tile, block, step, sums);
        } else {
            add_eight_bits(tile, block, step, sums);
        }
    };
    if constexpr (kSteps > 0) {
#pragma GCC unroll 8
        for (int64_t step = 0; step < kSteps; ++step) add(step);
    } else {
        const int64_t steps = tile.block / (kBits == 4 ? 2 * kFour : kFour);
        for (int64_t step = 0; step < steps; ++step) add(step);
    }
}

template <int kBits, int kSteps, bool kOffsets, int kRows, int kPanels>
__attribute__((always_inline)) inline void multiply_blocks(const ProductTile& tile) {
    constexpr int kColumns = kPanels * kVectors;
    Simd::Vec total[kRows][kColumns];
    clear_sums(total);
    for (int64_t block = 0; block < tile.blocks; ++block) {
        Sums<kRows, kColumns> sums;
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
            const Products::Ints start = Products::set(tile.x.starts[row * tile.blocks + block]);
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) sums.of[row][c] = start;
        }
        add_block<kBits, kSteps>(tile, block, sums);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            const int64_t at = (c / kVectors * tile.blocks + block) * kPanel + c % kVectors * Simd::kWidth;
            const Simd::Vec scale = Simd::load(tile.scales + at);
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) {
                const Simd::Vec both = Simd::mul(scale, Simd::set(tile.x.scales[row * tile.blocks + block]));
                total[row][c] = Simd::fma(Products::floats(sums.of[row][c]), both, total[row][c]);
            }
            if constexpr (kOffsets) {
                const Simd::Vec offset = Simd::load(tile.offsets + at);
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const Simd::Vec sum = Simd::set(tile.x.sums[row * tile.blocks + block]);
                    total[row][c] = Simd::fma(offset, sum, total[row][c]);
                }
            }
        }
    }
    store_sums(tile.out, tile.parts, total);
}

template <int kBits, bool kOffsets, int kRows, int kPanels>
void multiply_tile(const ProductTile& tile) {
    if constexpr (Products::kUnrolls) {
        constexpr int kSteps = kBits == 4 ? kUnrolled / 2 : kUnrolled;
        if (tile.block == kUnrolled * kFour) {
            return multiply_blocks<kBits, kSteps, kOffsets, kRows, kPanels>(tile);
        }
    }
    multiply_blocks<kBits, 0, kOffsets, kRows, kPanels>(tile);
}

template <int kBits, int kPanels, int kRows = Products::kRows>
void multiply_rows(const ProductTile& tile, int64_t rows) {
    if constexpr (kRows > 0) {
        if (rows == kRows) {
            tile.offsets != nullptr ? multiply_tile<kBits, true, kRows, kPanels>(tile)
                                    : multiply_tile<kBits, false, kRows, kPanels>(tile);
        } else {
            multiply_rows<kBits, kPanels, kRows - 1>(tile, rows);
        }
    }
}

template <int kBits>
void multiply_panels(const ProductTile& tile, int64_t rows, int64_t panels) {
    if (panels == 1) {
        multiply_rows<kBits, 1>(tile, rows);
    } else {
        multiply_rows<kBits, Products::kPanels>(tile, rows);
    }
}

void multiply(const ProductTile& tile, int bits, int64_t rows, int64_t panels) {
    bits == 4 ? multiply_panels<4>(tile, rows, panels) : multiply_panels<8>(tile, rows, panels);
}

constexpr h2o_products kProducts = {
    Products::kName, Products::kRows, Products::kPanels,       Products::kSurplus,
    round_row,       multiply,        kFloatProducts<Float32>, kFloatProducts<WideBFloat16>,
    rotate,
};

}  // namespace
