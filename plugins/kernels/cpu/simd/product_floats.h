// Products with weights that are floats, in words of one float or of two bfloat16. A tile keeps sums of some
// rows and panels in registers over the whole of K. In each step, the panels' vectors are loaded once for all
// rows, and each row's word once for all columns. A single row is bound by reading weights. It uses more
// panels at once, because additions to one sum wait for each other. Sums are added in the order of K in every
// tile, so a row's result does not depend on the others.
//
// Words says how many steps one word of weights takes, what is multiplied in each, and how a row of x becomes
// words, one a step.
#pragma once

#include "simd/product_rows.h"
#include "simd/product_store.h"

namespace {

using h2o::FloatTile;

// Words of one float, which need no rounding.
struct Float32 {
    static constexpr int kSteps = 1;
    static constexpr int kNumbers = 1;  // of a word of x
    static Simd::Vec weights(Simd::Vec word, int) { return word; }
    static Simd::Vec dot(Simd::Vec a, Simd::Vec b, Simd::Vec sum) { return Simd::fma(a, b, sum); }
    static void prepare(const RowOfX& row, float* words) {
        const float* const row_words = multiplied(row, norm_factor(row), 0, row.inputs, words);
        if (row_words != words)
            __builtin_memcpy(words, row_words, static_cast<size_t>(row.inputs) * sizeof(float));
    }
};

// Words of two bfloat16 that are neighbours in K, for rows of floats: only weights are rounded. For
// processors that multiply floats at least as fast as bfloat16, and read half as many bytes of weights.
struct WideBFloat16 : Float32 {
    static constexpr int kSteps = 2;
    static Simd::Vec weights(Simd::Vec word, int step) {
        return step == 0 ? Simd::low_halves(word) : Simd::high_halves(word);
    }
};

template <class Words, int kRows, int kPanels>
void multiply_float_tile(const FloatTile& tile) {
    constexpr int kColumns = kPanels * kVectors;
    Simd::Vec total[kRows][kColumns];
    clear_sums(total);
    for (int64_t k = 0; k < tile.words; ++k) {
#pragma GCC unroll 2
        for (int step = 0; step < Words::kSteps; ++step) {
            Simd::Vec weights[kColumns];
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) {
                const int64_t at =
                    (c / kVectors * tile.panel_words + k) * kPanel + c % kVectors * Simd::kWidth;
                weights[c] = Words::weights(Simd::load(tile.weights + at), step);
            }
#pragma GCC unroll 16
            for (int row = 0; row < kRows; ++row) {
                const Simd::Vec x = Simd::set(tile.x[row * tile.stride + k * Words::kSteps + step]);
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c) total[row][c] = Words::dot(weights[c], x, total[row][c]);
            }
        }
    }
    store_sums(tile.out, 1, total);
}

template <class Words, int kPanels, int kRows = Products::kFloatRows>
void multiply_float_rows(const FloatTile& tile, int64_t rows) {
    if constexpr (kRows > 0) {
        if (rows == kRows) {
            multiply_float_tile<Words, kRows, kPanels>(tile);
        } else {
            multiply_float_rows<Words, kPanels, kRows - 1>(tile, rows);
        }
    }
}

template <class Words>
void multiply_floats(const FloatTile& tile, int64_t rows, int64_t panels) {
    if (panels == h2o::kRowPanels) {
        multiply_float_tile<Words, 1, h2o::kRowPanels>(tile);
    } else if (panels == 1) {
        multiply_float_rows<Words, 1>(tile, rows);
    } else {
        multiply_float_rows<Words, Products::kPanels>(tile, rows);
    }
}

template <class Words>
constexpr h2o::FloatProducts kFloatProducts = {
    Products::kFloatRows, Products::kPanels, Words::kNumbers, Words::prepare, multiply_floats<Words>,
};

}  // namespace
