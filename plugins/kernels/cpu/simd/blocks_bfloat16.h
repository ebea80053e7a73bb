// Packs rows into words of two bfloat16 values: along d for keys and queries, along keys for values.
#pragma once

namespace {

// Words [d / 2][stride] of eight rows from `first` on, or of fewer.
inline void pack_eight(const RowList& rows, int64_t first, int64_t count, int64_t d, float scale, float* out,
                       int64_t stride) {
    alignas(64) float words[8][8], low[8], high[8];
    const float zeros[8] = {};
    for (int64_t c = 0; c < d; c += 16) {
        const bool half = d - c < 16;
        for (int64_t j = 0; j < count; ++j) {
            const int64_t row = first + j;
            const float* const rest = half ? zeros : eight(rows, row, c + 8, high);
            BFloat16::round(eight(rows, row, c, low), rest, scale, words[j]);
        }
        turn(words, count, half ? 4 : 8, out + c / 2 * stride, stride);
    }
}

void pack_keys_bfloat16(const RowList& rows, int64_t keys, int64_t d, float* out) {
    const int64_t words = d / 2 * kPanel;
    for (int64_t key = 0; key < keys; key += kPanel, out += words) {
        fetch_eight(rows, key, keys, d);
        const int64_t count = keys - key < kPanel ? keys - key : kPanel;
        if (count < kPanel) __builtin_memset(out, 0, static_cast<std::size_t>(words) * sizeof(float));
        pack_eight(rows, key, count, d, 1.0f, out, kPanel);
    }
}

void pack_queries_bfloat16(const RowList& rows, int64_t lanes, int64_t d, float scale, float* out) {
    if (lanes < kLanes) __builtin_memset(out, 0, static_cast<std::size_t>(d / 2 * kLanes) * sizeof(float));
    for (int64_t r = 0; r < lanes; r += 8) {
        fetch_eight(rows, r, lanes, d);
        pack_eight(rows, r, lanes - r < 8 ? lanes - r : 8, d, scale, out + r, kLanes);
    }
}

// If the number of keys is odd, the last word's high half is 0.
void pack_values_bfloat16(const RowList& rows, int64_t keys, int64_t d, int64_t v_keys, float* out) {
    float buffers[2][8];
    const float zeros[8] = {};
    const auto columns = [&](int64_t key, int64_t c, float* buffer) {
        if (key == keys) return zeros;
        return d - c < kPanel ? last_four(rows, key, c, buffer) : eight(rows, key, c, buffer);
    };
    for (int64_t key = 0; key < keys; key += 2) {
        if (key % 8 == 0) fetch_eight(rows, key, keys, d);
        for (int64_t c = 0; c < d; c += kPanel) {
            BFloat16::join(columns(key, c, buffers[0]), columns(key + 1, c, buffers[1]),
                           out + (c * v_keys + key * kPanel) / 2);
        }
    }
}

void attend_bfloat16(const BlockArgs& args) {
    attend_form<BFloat16, true>(args);
}

constexpr h2o::BlockAttention kBFloat16 = {BFloat16::kPair,      BFloat16::kScales,  BFloat16::kPair,
                                           attend_bfloat16,      pack_keys_bfloat16, pack_values_bfloat16,
                                           pack_queries_bfloat16};

}  // namespace
