// 8 float lanes of AVX2 with FMA and F16C. Head sizes are multiples of 8, value sizes of 4: a vector is whole
// or half.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Simd {
    using Vec = __m256;
    static constexpr const char* kName = "avx2";
    static constexpr int kWidth = 8;
    static constexpr int kTileColumns = 4;    // 4 x 3 accumulators of 16 registers
    static constexpr int kDecodeVectors = 2;  // of each of four rows, held while the queries pass

    static Vec zero() { return _mm256_setzero_ps(); }
    static Vec set(float x) { return _mm256_set1_ps(x); }
    static Vec load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
    static Vec load_some(const float* p, int count) {
        return count == kWidth ? load(p) : _mm256_zextps128_ps256(_mm_loadu_ps(p));
    }
    static void store_some(float* p, Vec x, int count) {
        if (count == kWidth) return store(p, x);
        _mm_storeu_ps(p, _mm256_castps256_ps128(x));
    }
    static Vec load_half(const uint16_t* p, int count) {
        const __m128i* const from = reinterpret_cast<const __m128i*>(p);
        return _mm256_cvtph_ps(count == kWidth ? _mm_loadu_si128(from) : _mm_loadl_epi64(from));
    }
    static void store_half(uint16_t* p, Vec x, int count) {
        __m128i* const to = reinterpret_cast<__m128i*>(p);
        const __m128i halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        if (count == kWidth) return _mm_storeu_si128(to, halves);
        _mm_storel_epi64(to, halves);
    }

    static Vec load_int8(const int8_t* p, int count) {
        __m128i eight = _mm_setzero_si128();
        __builtin_memcpy(&eight, p, count == kWidth ? 8 : 4);
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    }
    // To the nearest even; values out of range are clamped.
    static void store_int8(int8_t* p, Vec x, int count) {
        const __m256i wide = _mm256_cvtps_epi32(x);
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        const __m128i bytes = _mm_packs_epi16(words, words);
        __builtin_memcpy(p, &bytes, count == kWidth ? 8 : 4);
    }

    // Of two bfloat16 in each lane, as floats.
    static Vec low_halves(Vec x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16));
    }
    static Vec high_halves(Vec x) {
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(-65536)));
    }

    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
    static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
    static Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
    }

    // p * 2^n for whole n = biased - magic, or 0 where x < low.
    static Vec scale_or_zero(Vec p, Vec, Vec biased, Vec x, Vec low) {
        const __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(biased), 23);
        const Vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
        return _mm256_and_ps(scaled, _mm256_cmp_ps(x, low, _CMP_NLT_UQ));
    }

    static float sum(Vec x) {
        __m128 z = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        z = _mm_add_ps(z, _mm_movehl_ps(z, z));
        return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
    }

    static float largest(Vec x) {
        __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        z = _mm_max_ps(z, _mm_movehl_ps(z, z));
        return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
    }

    // p[i] = or += the sum of x[i].
    static void sum_four(const Vec* x, bool more, float* p) {
        const Vec ab = add(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
        const Vec cd = add(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
        const Vec abcd = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
        __m128 total = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
        if (more) total = _mm_add_ps(total, _mm_loadu_ps(p));
        _mm_storeu_ps(p, total);
    }

    __attribute__((always_inline)) static void prefetch(const void* p) {
        _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
    }
};

}  // namespace
