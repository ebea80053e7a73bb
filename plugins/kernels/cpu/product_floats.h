// Products with weights that are floats. A tile keeps sums of some rows and panels in registers over the
// whole of K. In each step, the panels' vectors are loaded once for all rows, and each row's element once for
// all columns. A single row is bound by reading weights. It uses more panels at once, because additions to
// one sum wait for each other. Sums are added in the order of K in every tile, so a row's result does not
// depend on the others.
#pragma once

namespace {

using h2o::FloatTile;

template <int kRows, int kPanels>
void multiply_float_tile(const FloatTile& tile) {
    constexpr int kColumns = kPanels * kVectors;
    Simd::Vec total[kRows][kColumns];
    clear_sums(total);
    for (int64_t k = 0; k < tile.inputs; ++k) {
        Simd::Vec weights[kColumns];
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            const int64_t at = (c / kVectors * tile.inputs + k) * kPanel + c % kVectors * Simd::kWidth;
            weights[c] = Simd::load(tile.weights + at);
        }
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
            const Simd::Vec x = Simd::set(tile.x[row * tile.stride + k]);
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) total[row][c] = Simd::fma(weights[c], x, total[row][c]);
        }
    }
    store_sums<1>(tile.out, total);
}

template <int kPanels, int kRows = Products::kFloatRows>
void multiply_float_rows(const FloatTile& tile, int64_t rows) {
    if constexpr (kRows > 0) {
        if (rows == kRows) {
            multiply_float_tile<kRows, kPanels>(tile);
        } else {
            multiply_float_rows<kPanels, kRows - 1>(tile, rows);
        }
    }
}

void multiply_floats(const FloatTile& tile, int64_t rows, int64_t panels) {
    if (panels == h2o::kRowPanels) {
        multiply_float_tile<1, h2o::kRowPanels>(tile);
    } else if (panels == 1) {
        multiply_float_rows<1>(tile, rows);
    } else {
        multiply_float_rows<Products::kPanels>(tile, rows);
    }
}

}  // namespace
