// Products with weights and activations in bfloat16, for the instruction set whose Simd, BFloat16 and
// Products are defined before. All functions have internal linkage, as in kernels.h.
#pragma once

#include "simd/product_floats.h"

namespace {

// Words of two neighbours of K. A row's number is rounded once, after its norm or gate.
struct BFloat16Words : BFloat16 {
    static constexpr int kSteps = 1;
    static constexpr int kNumbers = 2;
    static Simd::Vec weights(Simd::Vec word, int) { return word; }
    static void prepare(const RowOfX& row, float* words) {
        constexpr int64_t kSome = 256, kRounded = 16;
        const float factor = norm_factor(row);
        float values[kSome];
        for (int64_t at = 0; at < row.inputs; at += kSome) {
            const int64_t count = row.inputs - at < kSome ? row.inputs - at : kSome;
            const float* const x = multiplied(row, factor, at, count, values);
            for (int64_t i = 0; i < count; i += kRounded) {
                BFloat16::round(x + i, x + i + kRounded / 2, 1.0f, words + (at + i) / kPair);
            }
        }
    }
};

}  // namespace
