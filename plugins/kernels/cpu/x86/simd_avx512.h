// 16 float lanes of AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
    using Vec = __m512;
    using Mask = __mmask16;
    static constexpr const char* kName = "avx512";
    static constexpr int kWidth = 16;
    static constexpr int kTileColumns = 8;    // 8 x 3 accumulators of 32 registers
    static constexpr int kDecodeVectors = 4;  // of each of four rows, held while the queries pass

    static Vec zero() { return _mm512_setzero_ps(); }
    static Vec set(float x) { return _mm512_set1_ps(x); }
    static Vec load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
    static Vec load_some(const float* p, int count) {
        return count == kWidth ? load(p) : _mm512_maskz_loadu_ps(low(count), p);
    }
    static void store_some(float* p, Vec x, int count) { _mm512_mask_storeu_ps(p, low(count), x); }
    static Vec load_half(const uint16_t* p, int count) {
        return _mm512_cvtph_ps(count == kWidth ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                                               : _mm256_maskz_loadu_epi16(low(count), p));
    }
    static void store_half(uint16_t* p, Vec x, int count) {
        _mm256_mask_storeu_epi16(p, low(count), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }

    static Vec load_int8(const int8_t* p, int count) {
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(count == kWidth ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                                                 : _mm_maskz_loadu_epi8(low(count), p)));
    }
    // To the nearest even; values out of range are clamped.
    static void store_int8(int8_t* p, Vec x, int count) {
        _mm_mask_storeu_epi8(p, low(count), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
    }

    // Of two bfloat16 in each lane, as floats.
    static Vec low_halves(Vec x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16));
    }
    static Vec high_halves(Vec x) {
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536)));
    }

    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
    static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
    static Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), no, yes);
    }

    // p * 2^n for whole n = biased - magic, or 0 where x < low.
    static Vec scale_or_zero(Vec p, Vec n, Vec, Vec x, Vec low) {
        return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), p, n);
    }

    static float sum(Vec x) {
        const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
        z = _mm_add_ps(z, _mm_movehl_ps(z, z));
        return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
    }

    static float largest(Vec x) { return _mm512_reduce_max_ps(x); }

    // p[i] = or += the sum of x[i].
    static void sum_four(const Vec* x, bool more, float* p) {
        const Vec ab = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const Vec cd = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const Vec abcd = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
        __m128 total = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
        if (more) total = _mm_add_ps(total, _mm_loadu_ps(p));
        _mm_storeu_ps(p, total);
    }

    __attribute__((always_inline)) static void prefetch(const void* p) {
        _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
    }

  private:
    static Mask low(int count) { return static_cast<Mask>((1u << count) - 1u); }
};

}  // namespace
