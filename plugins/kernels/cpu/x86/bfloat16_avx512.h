// Words of two bfloat16 values on AVX-512 with BF16: pairwise products, added in float32.
#pragma once

namespace {

struct BFloat16 {
    static constexpr int kPair = 2;
    static constexpr bool kMatrices = false;
    static constexpr bool kTiles = false;
    static constexpr int kScales = 0;
    using Values = BFloat16;

    static __m512 dot(__m512 a, __m512 b, __m512 sum) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }

    // Lane by lane: first is the word's low half.
    static __m512 join(__m512 first, __m512 second) {
        const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
        const __m512i low_first = _mm512_permutexvar_epi16(interleave(), halves);
        return _mm512_castsi512_ps(low_first);
    }

    // Eight words from eight pairs of neighbouring elements of two rows, times `scale`.
    static void round(const float* low, const float* high, float scale, float* words) {
        const __m256 factor = _mm256_set1_ps(scale);
        const __m256 a = _mm256_mul_ps(_mm256_loadu_ps(low), factor);
        const __m256 b = _mm256_mul_ps(_mm256_loadu_ps(high), factor);
        _mm256_storeu_ps(words, reinterpret_cast<__m256>(_mm256_cvtne2ps_pbh(b, a)));
    }

    // Eight words: one element of each row per word.
    static void join(const float* first, const float* second, float* words) {
        const __m128i low = reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(_mm256_loadu_ps(first)));
        const __m128i high = reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(_mm256_loadu_ps(second)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm_unpacklo_epi16(low, high));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4), _mm_unpackhi_epi16(low, high));
    }

  private:
    static __m512i interleave() {
        const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        // 0, 16, 1, 17, …: the high half of every word is 16 places behind its low one.
        return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
    }
};

}  // namespace
