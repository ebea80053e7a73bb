// Pairs of 16-bit integers, and fours of bytes, on AVX-512 with VNNI.
#pragma once

namespace {

struct Ints {
    using Vec = __m512i;
    using Word [[gnu::may_alias, gnu::aligned(1)]] = int32_t;

    static Vec zero() { return _mm512_setzero_si512(); }
    static Vec set(int32_t x) { return _mm512_set1_epi32(x); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_epi32(a, b); }
    static Vec load(const void* words) { return _mm512_loadu_si512(words); }
    static Vec word(const void* from) { return set(*static_cast<const Word*>(from)); }
    static Simd::Vec floats(Vec x) { return _mm512_cvtepi32_ps(x); }

    // Sums of two products of words, and of four of bytes of which the first are unsigned. As intrinsics, GCC
    // 12 copies every sum.
#ifdef H2O_X86_STAND_IN
    static void add_products(Vec& sum, Vec a, Vec b) { sum = _mm512_dpwssd_epi32(sum, a, b); }
    static void add_bytes(Vec& sum, Vec a, Vec b) { sum = _mm512_dpbusd_epi32(sum, a, b); }
#else
    __attribute__((always_inline)) static void add_products(Vec& sum, Vec a, Vec b) {
        asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
    __attribute__((always_inline)) static void add_bytes(Vec& sum, Vec a, Vec b) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
#endif

    // Eight words of 16 consecutive numbers, times `factor`.
    static void round(const float* low, const float* high, float factor, float* words) {
        const __m512 x =
            _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(factor)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm512_cvtsepi32_epi16(whole));
    }
};

}  // namespace
