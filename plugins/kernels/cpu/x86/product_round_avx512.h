// Rounds rows in blocks of 32 on AVX-512, eight blocks at a time: sums and maxima of eight vectors take a
// third of the shuffles that they take one by one. Results are those of product_round.h, bit by bit.
#pragma once

namespace {

constexpr int64_t kTogether = 8, kBlock = 32;

struct Largest {  // as integers: a number that is not finite is larger than all that are
    static __m512i join(__m512i a, __m512i b) { return _mm512_max_epu32(a, b); }
};
struct Total {
    static __m512i join(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
};

// out[i] = all lanes of x[i], joined.
template <class Operation>
inline __m256i join_lanes(const __m512i (&x)[kTogether]) {
    const auto join = Operation::join;
    __m512i two[4], four[2];
    for (int i = 0; i < 4; ++i)
        two[i] = join(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]),
                      _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 2; ++i)
        four[i] = join(_mm512_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                       _mm512_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
    // Quarters of a vector hold the same four sums: two of the first four blocks, then two of the others.
    const __m512i eight =
        join(_mm512_shuffle_i32x4(four[0], four[1], 0x44), _mm512_shuffle_i32x4(four[0], four[1], 0xee));
    const __m512i all = join(eight, _mm512_shuffle_i32x4(eight, eight, 0xb1));
    return _mm512_castsi512_si256(_mm512_shuffle_i32x4(all, all, 0x08));
}

// Up to eight blocks of prepared elements, which become blocks of `out`.
inline void round_eight(const float* x, int64_t blocks, uint32_t surplus, int8_t* q, float* scales,
                        int32_t* starts, float* sums) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i tops[kTogether], totals[kTogether];
    for (int64_t b = 0; b < kTogether; ++b) {
        tops[b] = totals[b] = _mm512_setzero_si512();
        if (b >= blocks) continue;
        const __m512i low = _mm512_castps_si512(_mm512_loadu_ps(x + b * kBlock));
        const __m512i high = _mm512_castps_si512(_mm512_loadu_ps(x + b * kBlock + 16));
        tops[b] = _mm512_max_epu32(_mm512_and_si512(low, magnitude), _mm512_and_si512(high, magnitude));
    }
    const __m256 largest = _mm256_castsi256_ps(join_lanes<Largest>(tops)), steps = _mm256_set1_ps(127.0f);
    const __m256 wrong = _mm256_mul_ps(largest, _mm256_setzero_ps());
    const __mmask8 there = _mm256_cmp_ps_mask(largest, _mm256_set1_ps(kTiny), _CMP_GT_OQ);
    alignas(32) float inverse[kTogether];
    _mm256_store_ps(inverse, _mm256_maskz_div_ps(there, steps, largest));
    for (int64_t b = 0; b < blocks; ++b) {
        const __m512 factor = _mm512_set1_ps(inverse[b]);
        const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + b * kBlock), factor));
        const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + b * kBlock + 16), factor));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + b * kBlock), _mm512_cvtsepi32_epi8(low));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + b * kBlock + 16), _mm512_cvtsepi32_epi8(high));
        totals[b] = _mm512_add_epi32(low, high);
    }
    const __m256i total = join_lanes<Total>(totals), bias = _mm256_set1_epi32(-static_cast<int32_t>(surplus));
    const __m256 scale = _mm256_add_ps(_mm256_div_ps(largest, steps), wrong);
    const __mmask8 used = static_cast<__mmask8>((1u << blocks) - 1u);
    _mm256_mask_storeu_ps(scales, used, scale);
    _mm256_mask_storeu_epi32(starts, used, _mm256_mullo_epi32(total, bias));
    _mm256_mask_storeu_ps(sums, used, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(total)));
}

void round_row_by_eights(const RowOfX& row, const Rounding& how, const Rounded& out) {
    if (how.block != kBlock || how.parts != 1) return round_row(row, how, out);
    const float factor = norm_factor(row);
    alignas(64) float values[kTogether * kBlock];
    for (int64_t b = 0, blocks; b * kBlock < row.inputs; b += blocks) {
        const int64_t at = b * kBlock;
        blocks = row.inputs / kBlock - b < kTogether ? row.inputs / kBlock - b : kTogether;
        const float* const x = multiplied(row, factor, at, blocks * kBlock, values);
        round_eight(x, blocks, static_cast<uint32_t>(how.surplus), out.q + at, out.scales + b, out.starts + b,
                    out.sums + b);
    }
}

}  // namespace
