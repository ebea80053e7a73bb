// Words of two 16-bit integers on AVX-512 with VNNI: pairwise products, added in int32.
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
    __attribute__((always_inline)) static void multiply(int64_t depth, const float* __restrict rows,
                                                        const float* __restrict columns,
                                                        float* __restrict out) {
        static_assert(!kAdd, "scores are never added to others");
        __m512i sum[kPanel][kCount];
#pragma GCC unroll 8
        for (int i = 0; i < kPanel; ++i) {
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) sum[i][j] = _mm512_setzero_si512();
        }
        for (int64_t k = 0; k < depth; ++k, rows += kLanes, columns += kPanel) {
            __m512i row[kCount];
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) row[j] = _mm512_loadu_si512(rows + j * kWidth);
#pragma GCC unroll 8
            for (int i = 0; i < kPanel; ++i) {
                const __m512i word = _mm512_castps_si512(_mm512_set1_ps(columns[i]));
#pragma GCC unroll 3
                for (int j = 0; j < kCount; ++j) {
                    // As an intrinsic, GCC 12 copies every sum.
                    asm("vpdpwssd %2, %1, %0" : "+v"(sum[i][j]) : "v"(row[j]), "v"(word));
                }
            }
        }
        __m512 scale[kCount];
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) scale[j] = _mm512_loadu_ps(rows + j * kWidth);
#pragma GCC unroll 8
        for (int i = 0; i < kPanel; ++i) {
            const __m512 of_key = _mm512_set1_ps(columns[i]);
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) {
                const __m512 dot = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][j]), of_key);
                _mm512_storeu_ps(out + i * kLanes + j * kWidth, _mm512_mul_ps(dot, scale[j]));
            }
        }
    }

    // Eight words of 16 consecutive numbers, times `factor`.
    static void round(const float* low, const float* high, float factor, float* words) {
        const __m512 x =
            _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(factor)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm512_cvtsepi32_epi16(whole));
    }
};

}  // namespace
