// Words of two bfloat16 values on AArch64 with BF16: pairwise products, added in float32.
#pragma once

namespace {

struct BFloat16Pairs {
    static constexpr int kPair = 2;

    static float32x4_t dot(float32x4_t a, float32x4_t b, float32x4_t sum) {
        return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
    }

    // Lane by lane: first is the word's low half.
    static float32x4_t join(float32x4_t first, float32x4_t second) {
        const uint16x8_t low = halves(first), high = halves(second);
        return vreinterpretq_f32_u16(vzip1q_u16(low, high));
    }

    // Eight words from eight pairs of neighbouring elements of two rows, times `scale`.
    static void round(const float* low, const float* high, float scale, float* words) {
        round_eight(low, scale, words);
        round_eight(high, scale, words + 4);
    }

    // Eight words: one element of each row per word.
    static void join(const float* first, const float* second, float* words) {
        for (int i = 0; i < 8; i += 4)
            vst1q_f32(words + i, join(vld1q_f32(first + i), vld1q_f32(second + i)));
    }

  private:
    static void round_eight(const float* in, float scale, float* words) {
        const float32x4_t low = vmulq_n_f32(vld1q_f32(in), scale);
        const float32x4_t high = vmulq_n_f32(vld1q_f32(in + 4), scale);
        vst1q_f32(words, vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high)));
    }
    static uint16x8_t halves(float32x4_t x) { return vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x)); }
};

}  // namespace
