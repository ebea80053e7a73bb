// 4 float lanes of AArch64 NEON.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace {

struct Simd {
    using Vec = float32x4_t;
    static constexpr const char* kName = "neon";
    static constexpr int kWidth = 4;
    static constexpr int kTileColumns = 8;    // 8 x 3 accumulators of 32 registers
    static constexpr int kDecodeVectors = 4;  // of each of four rows, held while the queries pass

    static Vec zero() { return vdupq_n_f32(0.0f); }
    static Vec set(float x) { return vdupq_n_f32(x); }
    static Vec load(const float* p) { return vld1q_f32(p); }
    static void store(float* p, Vec x) { vst1q_f32(p, x); }
    static Vec load_some(const float* p, int) { return load(p); }
    static void store_some(float* p, Vec x, int) { store(p, x); }
    static Vec load_half(const uint16_t* p, int) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
    static void store_half(uint16_t* p, Vec x, int) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

    static Vec load_int8(const int8_t* p, int) {
        int32_t four;
        __builtin_memcpy(&four, p, 4);
        const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
    }
    // To the nearest even; values out of range are clamped.
    static void store_int8(int8_t* p, Vec x, int) {
        const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(x));
        const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
        const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
        __builtin_memcpy(p, &four, 4);
    }

    // Of two bfloat16 in each lane, as floats.
    static Vec low_halves(Vec x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 16)); }
    static Vec high_halves(Vec x) {
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000u)));
    }

    static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
    static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
    static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
    static Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
    static Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    static Vec fms(Vec a, Vec b, Vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
    static Vec select_le(Vec a, Vec b, Vec yes, Vec no) { return vbslq_f32(vcleq_f32(a, b), yes, no); }

    // p * 2^n for whole n = biased - magic, or 0 where x < low.
    static Vec scale_or_zero(Vec p, Vec, Vec biased, Vec x, Vec low) {
        const int32x4_t shift = vshlq_n_s32(vreinterpretq_s32_f32(biased), 23);
        const int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p), shift);
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(scaled), vcltq_f32(x, low)));
    }

    static float sum(Vec x) { return vaddvq_f32(x); }

    static float largest(Vec x) { return vmaxvq_f32(x); }

    // p[i] = or += the sum of x[i].
    static void sum_four(const Vec* x, bool more, float* p) {
        float32x4_t total = vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
        if (more) total = vaddq_f32(total, vld1q_f32(p));
        vst1q_f32(p, total);
    }

    __attribute__((always_inline)) static void prefetch(const void* p) { __builtin_prefetch(p); }
};

}  // namespace
