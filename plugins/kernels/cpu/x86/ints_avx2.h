// Pairs of 16-bit integers, and fours of bytes, on AVX2.
#pragma once

namespace {

struct Ints {
    using Vec = __m256i;
    using Word [[gnu::may_alias, gnu::aligned(1)]] = int32_t;

    static Vec zero() { return _mm256_setzero_si256(); }
    static Vec set(int32_t x) { return _mm256_set1_epi32(x); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_epi32(a, b); }
    static Vec load(const void* words) { return _mm256_loadu_si256(static_cast<const __m256i*>(words)); }
    static Vec word(const void* from) { return set(*static_cast<const Word*>(from)); }
    static Simd::Vec floats(Vec x) { return _mm256_cvtepi32_ps(x); }
    __attribute__((always_inline)) static void add_products(Vec& sum, Vec a, Vec b) {
        // As an intrinsic, GCC 12 copies every sum.
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
    }

    // The first bytes are unsigned; of neighbours, two products must fit 16 bits.
    __attribute__((always_inline)) static void add_bytes(Vec& sum, Vec a, Vec b) {
        const Vec pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pairs));
    }

    // Eight words of 16 consecutive numbers, times `factor`.
    static void round(const float* low, const float* high, float factor, float* words) {
        const __m256 times = _mm256_set1_ps(factor);
        const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(low), times));
        const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(high), times));
        // Lanes of 128 bits are packed by themselves: their quarters are put in order.
        const __m256i whole = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), whole);
    }
};

}  // namespace
