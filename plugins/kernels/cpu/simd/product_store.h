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

// The sums of any tile, [rows][width]: `parts` rows are one of y, and the last panel may have fewer columns.
// One function for all tiles: inlined, it would be most of their code.
__attribute__((noinline)) void store_some(const TileOfY& out, int64_t parts, const float* sums, int64_t rows,
                                          int64_t width) {
    const float* const second = parts == 2 ? sums + width : nullptr;
    for (int64_t row = 0; row < rows / parts; ++row) {
        const int64_t at = row * out.stride, from = row * parts * width;
        int64_t c = 0;
        for (; c + Simd::kWidth <= out.columns; c += Simd::kWidth) {
            Simd::Vec sum = Simd::load(sums + from + c);
            if (second != nullptr) sum = Simd::add(sum, Simd::load(second + from + c));
            if (out.addend != nullptr) sum = Simd::add(sum, Simd::load(out.addend + at + c));
            Simd::store(out.y + at + c, sum);
        }
        for (; c < out.columns; ++c) {
            const float sum = second != nullptr ? sums[from + c] + second[from + c] : sums[from + c];
            out.y[at + c] = out.addend != nullptr ? sum + out.addend[at + c] : sum;
        }
    }
}

template <int kRows, int kColumns>
__attribute__((always_inline)) inline void store_sums(const TileOfY& out, int64_t parts,
                                                      const Simd::Vec (&total)[kRows][kColumns]) {
    constexpr int kWidth = kColumns * Simd::kWidth;
    const auto each = [&total](int64_t stride, auto store) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) store(row * stride + c * Simd::kWidth, total[row][c]);
        }
    };
    if (out.columns != kWidth || parts != 1) {
        alignas(64) float sums[kRows * kWidth];
        each(kWidth, [&](int64_t at, Simd::Vec sum) { Simd::store(sums + at, sum); });
        store_some(out, parts, sums, kRows, kWidth);
    } else if (out.addend == nullptr) {
        each(out.stride, [&](int64_t at, Simd::Vec sum) { Simd::store(out.y + at, sum); });
    } else {
        each(out.stride, [&](int64_t at, Simd::Vec sum) {
            Simd::store(out.y + at, Simd::add(sum, Simd::load(out.addend + at)));
        });
    }
}

}  // namespace
