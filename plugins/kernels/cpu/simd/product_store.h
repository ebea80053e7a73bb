// The beginning and end of a tile: sums in registers, which become elements of y.
#pragma once

namespace {

using h2o::kPanel;
using h2o::TileOfY;

constexpr int kVectors = static_cast<int>(kPanel) / Simd::kWidth;  // of a panel

template <int kRows, int kColumns>
__attribute__((always_inline)) inline void clear_sums(Simd::Vec (&total)[kRows][kColumns]) {
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) total[row][c] = Simd::zero();
    }
}

// The last panel may have fewer columns.
template <int kColumns>
inline void store_some(const TileOfY& out, int64_t row, const Simd::Vec (&sums)[kColumns]) {
    float last[kColumns * Simd::kWidth];
    for (int c = 0; c < kColumns; ++c) Simd::store(last + c * Simd::kWidth, sums[c]);
    const int64_t at = row * out.stride;
    for (int64_t c = 0; c < out.columns; ++c) {
        out.y[at + c] = out.addend == nullptr ? last[c] : last[c] + out.addend[at + c];
    }
}

// Sums of kParts rows are one row of y.
template <int kParts, int kRows, int kColumns>
__attribute__((always_inline)) inline void store_sums(const TileOfY& out,
                                                      Simd::Vec (&total)[kRows][kColumns]) {
    const bool whole = out.columns == kColumns / kVectors * kPanel;
#pragma GCC unroll 16
    for (int row = 0; row < kRows; row += kParts) {
        if constexpr (kParts == 2) {
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) total[row][c] = Simd::add(total[row][c], total[row + 1][c]);
        }
        if (!whole) {
            store_some(out, row / kParts, total[row]);
            continue;
        }
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            const int64_t at = row / kParts * out.stride + c * Simd::kWidth;
            const Simd::Vec sum =
                out.addend == nullptr ? total[row][c] : Simd::add(total[row][c], Simd::load(out.addend + at));
            Simd::store(out.y + at, sum);
        }
    }
}

}  // namespace
