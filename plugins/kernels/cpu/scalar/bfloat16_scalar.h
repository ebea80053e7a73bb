// Words of two bfloat16 values in portable C++.
#pragma once

namespace {

// To the nearest, ties to even.
inline uint16_t round_to_bfloat16(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);  // stays NaN
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct BFloat16 {
    static constexpr int kPair = 2;
    static constexpr bool kMatrices = false;
    static constexpr bool kTiles = false;
    static constexpr int kScales = 0;
    using Values = BFloat16;

    static Simd::Vec dot(Simd::Vec a, Simd::Vec b, Simd::Vec sum) {
        for (int i = 0; i < Simd::kWidth; ++i) {
            const uint32_t x = bits(a.lane[i]), y = bits(b.lane[i]);
            sum.lane[i] += number(x << 16) * number(y << 16) + number(x & kHigh) * number(y & kHigh);
        }
        return sum;
    }

    static float word(float low, float high) {
        return number(uint32_t{round_to_bfloat16(high)} << 16 | round_to_bfloat16(low));
    }

    // Lane by lane: first is the word's low half.
    static Simd::Vec join(Simd::Vec first, Simd::Vec second) {
        Simd::Vec words;
        join_all(first.lane, second.lane, Simd::kWidth, words.lane);
        return words;
    }

    // Eight words from eight pairs of neighbouring elements of two rows, times `scale`.
    static void round(const float* low, const float* high, float scale, float* words) {
        for (int i = 0; i < 4; ++i) {
            words[i] = word(low[2 * i] * scale, low[2 * i + 1] * scale);
            words[4 + i] = word(high[2 * i] * scale, high[2 * i + 1] * scale);
        }
    }

    // Eight words: one element of each row per word.
    static void join(const float* first, const float* second, float* words) {
        join_all(first, second, 8, words);
    }

  private:
    static constexpr uint32_t kHigh = 0xffff0000u;

    static uint32_t bits(float x) {
        uint32_t wide;
        __builtin_memcpy(&wide, &x, 4);
        return wide;
    }
    static float number(uint32_t bits) {
        float wide;
        __builtin_memcpy(&wide, &bits, 4);
        return wide;
    }
    static void join_all(const float* first, const float* second, int count, float* words) {
        for (int i = 0; i < count; ++i) words[i] = word(first[i], second[i]);
    }
};

}  // namespace
