// Words of two 16-bit integers in portable C++.
#pragma once

namespace {

struct Int16 {
    static constexpr int kPair = 2;
    static constexpr bool kMatrices = true;
    static constexpr bool kTiles = false;
    static constexpr int kScales = 1;
    using Values = Float32;

    // Scores of eight keys: their integers' products times both scales, which follow the numbers.
    template <bool kAdd, int kCount>
    static void multiply(int64_t depth, const float* rows, const float* columns, float* out) {
        static_assert(!kAdd, "scores are never added to others");
        const float* const row_scales = rows + depth * kLanes;
        const float* const column_scales = columns + depth * kPanel;
        for (int64_t i = 0; i < Simd::kTileColumns; ++i) {
            for (int64_t lane = 0; lane < kCount * kWidth; ++lane) {
                int32_t sum = 0;
                for (int64_t k = 0; k < depth; ++k)
                    sum += dot(rows[k * kLanes + lane], columns[k * kPanel + i]);
                out[i * kLanes + lane] = static_cast<float>(sum) * column_scales[i] * row_scales[lane];
            }
        }
    }

    // Eight words of 16 consecutive numbers, times `factor`.
    static void round(const float* low, const float* high, float factor, float* words) {
        int16_t whole[16];
        for (int i = 0; i < 8; ++i) {
            whole[i] = nearest(low[i] * factor);
            whole[8 + i] = nearest(high[i] * factor);
        }
        __builtin_memcpy(words, whole, sizeof whole);
    }

  private:
    static int32_t dot(float a, float b) {
        int16_t x[2], y[2];
        __builtin_memcpy(x, &a, 4);
        __builtin_memcpy(y, &b, 4);
        return x[0] * y[0] + x[1] * y[1];
    }
    // To the nearest even; of a number that is not finite, something.
    static int16_t nearest(float x) {
        return x >= -32767.0f && x <= 32767.0f ? static_cast<int16_t>(__builtin_rintf(x)) : int16_t{0};
    }
};

}  // namespace
