// Attention on blocks whose words hold two numbers: bfloat16, neighbours along d in keys and queries and
// along keys in values; or 16-bit integers, in keys and queries alone. Compiled once for each instruction set
// that multiplies them; as in kernels.h, all functions have internal linkage. What includes this has included
// one simd_*.h and one bfloat16_*.h, or ints_*.h and int16.h, before.
#pragma once

#include "simd/attend.h"
#include "simd/pack.h"

namespace {

constexpr float kSteps = 32767.0f;  // in a row's length, where numbers are integers

// The length of a row. Not a number, or infinite, where some element is.
inline float length_of(const RowList& rows, int64_t row, int64_t d) {
    Simd::Vec sum = Simd::zero();
    const Simd::Vec scale = Simd::set(rows.scales == nullptr ? 1.0f : rows.scales[row]);
    for (int64_t c = 0; c < d; c += kWidth) {
        const Simd::Vec x = Simd::mul(load_stored(rows.at[row], rows.dtype, c, part(c, d)), scale);
        sum = Simd::fma(x, x, sum);
    }
    return __builtin_sqrtf(Simd::sum(sum));
}

// Words [d / 2][stride] of eight rows from `first` on, or of fewer, times `scale`. Integers have it in the
// scales behind their words: as a row's length is kSteps, no sum of products leaves 31 bits. It is at most
// the product of both lengths.
template <class Numbers>
inline void pack_eight(const RowList& rows, int64_t first, int64_t count, int64_t d, float scale, float* out,
                       int64_t stride) {
    alignas(64) float words[8][8], low[8], high[8];
    const float zeros[8] = {};
    float factor[8];
    for (int64_t j = 0; j < count; ++j) {
        factor[j] = scale;
        if constexpr (Numbers::kScales > 0) {
            const float length = length_of(rows, first + j, d);
            factor[j] = length > 0.0f ? kSteps / length : 0.0f;
            out[d / 2 * stride + j] = length / kSteps * scale;
        }
    }
    for (int64_t c = 0; c < d; c += 16) {
        const bool half = d - c < 16;
        for (int64_t j = 0; j < count; ++j) {
            const int64_t row = first + j;
            const float* const rest = half ? zeros : eight(rows, row, c + 8, high);
            Numbers::round(eight(rows, row, c, low), rest, factor[j], words[j]);
        }
        turn(words, count, half ? 4 : 8, out + c / 2 * stride, stride);
    }
}

template <class Numbers>
void pack_keys_of(const RowList& rows, int64_t keys, int64_t d, float* out) {
    const int64_t words = (d / 2 + Numbers::kScales) * kPanel;
    for (int64_t key = 0; key < keys; key += kPanel, out += words) {
        fetch_eight(rows, key, keys, d);
        const int64_t count = keys - key < kPanel ? keys - key : kPanel;
        if (count < kPanel) __builtin_memset(out, 0, static_cast<std::size_t>(words) * sizeof(float));
        pack_eight<Numbers>(rows, key, count, d, 1.0f, out, kPanel);
    }
}

template <class Numbers>
void pack_queries_of(const RowList& rows, int64_t lanes, int64_t d, float scale, float* out) {
    const int64_t words = (d / 2 + Numbers::kScales) * kLanes;
    if (lanes < kLanes) __builtin_memset(out, 0, static_cast<std::size_t>(words) * sizeof(float));
    for (int64_t r = 0; r < lanes; r += 8) {
        fetch_eight(rows, r, lanes, d);
        pack_eight<Numbers>(rows, r, lanes - r < 8 ? lanes - r : 8, d, scale, out + r, kLanes);
    }
}

// Eight numbers of a value from column c on; zeros past the last column, and for the key behind the last of
// `keys`.
inline const float* eight_of_value(const RowList& rows, int64_t keys, int64_t d, int64_t key, int64_t c,
                                   float* buffer) {
    static constexpr float kZeros[8] = {};
    if (key == keys) return kZeros;
    return d - c < kPanel ? last_four(rows, key, c, buffer) : eight(rows, key, c, buffer);
}

// If the number of keys is odd, the last word's high half is 0.
template <class Numbers>
void pack_values_of(const RowList& rows, int64_t keys, int64_t d, int64_t v_keys, float* out) {
    if constexpr (Numbers::Values::kPair == 1) {
        pack_values(rows, keys, d, v_keys, out);
    } else {
        float buffers[2][8];
        for (int64_t key = 0; key < keys; key += 2) {
            if (key % 8 == 0) fetch_eight(rows, key, keys, d);
            for (int64_t c = 0; c < d; c += kPanel) {
                Numbers::join(eight_of_value(rows, keys, d, key, c, buffers[0]),
                              eight_of_value(rows, keys, d, key + 1, c, buffers[1]),
                              out + (c * v_keys + key * kPanel) / 2);
            }
        }
    }
}

template <class Numbers>
void attend_of(const BlockArgs& args) {
    attend_form<Numbers, true>(args);
}

template <class Numbers>
constexpr h2o::BlockAttention kBlocks = {
    Numbers::kPair,        Numbers::kScales,        Numbers::Values::kPair,   attend_of<Numbers>,
    pack_keys_of<Numbers>, pack_values_of<Numbers>, pack_queries_of<Numbers>,
};

}  // namespace
