// Packs keys and queries into words of two 16-bit integers, neighbours of d. Behind the words of eight rows
// stand their scales: a row's length is 32,767 steps. So no sum of products leaves 31 bits: it is at most the
// product of both lengths.
#pragma once

namespace {

constexpr float kSteps = 32767.0f;

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

// Words [d / 2][stride] of eight rows from `first` on, or of fewer, and behind them their scales times
// `scale`.
inline void pack_eight(const RowList& rows, int64_t first, int64_t count, int64_t d, float scale, float* out,
                       int64_t stride) {
    alignas(64) float words[8][8], low[8], high[8];
    const float zeros[8] = {};
    float inverse[8];
    for (int64_t j = 0; j < count; ++j) {
        const float length = length_of(rows, first + j, d);
        inverse[j] = length > 0.0f ? kSteps / length : 0.0f;
        out[d / 2 * stride + j] = length / kSteps * scale;
    }
    for (int64_t c = 0; c < d; c += 16) {
        const bool half = d - c < 16;
        for (int64_t j = 0; j < count; ++j) {
            const int64_t row = first + j;
            const float* const rest = half ? zeros : eight(rows, row, c + 8, high);
            Int16::round(eight(rows, row, c, low), rest, inverse[j], words[j]);
        }
        turn(words, count, half ? 4 : 8, out + c / 2 * stride, stride);
    }
}

void pack_keys_int16(const RowList& rows, int64_t keys, int64_t d, float* out) {
    const int64_t words = (d / 2 + Int16::kScales) * kPanel;
    for (int64_t key = 0; key < keys; key += kPanel, out += words) {
        fetch_eight(rows, key, keys, d);
        const int64_t count = keys - key < kPanel ? keys - key : kPanel;
        if (count < kPanel) __builtin_memset(out, 0, static_cast<std::size_t>(words) * sizeof(float));
        pack_eight(rows, key, count, d, 1.0f, out, kPanel);
    }
}

void pack_queries_int16(const RowList& rows, int64_t lanes, int64_t d, float scale, float* out) {
    const int64_t words = (d / 2 + Int16::kScales) * kLanes;
    if (lanes < kLanes) __builtin_memset(out, 0, static_cast<std::size_t>(words) * sizeof(float));
    for (int64_t r = 0; r < lanes; r += 8) {
        fetch_eight(rows, r, lanes, d);
        pack_eight(rows, r, lanes - r < 8 ? lanes - r : 8, d, scale, out + r, kLanes);
    }
}

void attend_int16(const BlockArgs& args) {
    attend_form<Int16, true>(args);
}

constexpr h2o::BlockAttention kInt16 = {
    Int16::kPair,    Int16::kScales, Int16::Values::kPair, attend_int16,
    pack_keys_int16, pack_values,    pack_queries_int16,
};

}  // namespace
