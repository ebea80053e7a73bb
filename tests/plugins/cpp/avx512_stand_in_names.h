// The compiler's names of the instructions, for those of avx512_stand_in.h.
#pragma once

#include "avx512_stand_in.h"

#define H2O_HALVES(out, call, ...)                                                                    \
    ::h2o::stand_in::by_halves<out>([](auto... half) __attribute__((always_inline)) { return call; }, \
                                    __VA_ARGS__)

#define H2O_JOIN(out, half) ::h2o::stand_in::join<out>(half, half)

#undef _mm512_add_ps
#define _mm512_add_ps(x, y) H2O_HALVES(__m512, _mm256_add_ps(half...), x, y)
#undef _mm512_sub_ps
#define _mm512_sub_ps(x, y) H2O_HALVES(__m512, _mm256_sub_ps(half...), x, y)
#undef _mm512_mul_ps
#define _mm512_mul_ps(x, y) H2O_HALVES(__m512, _mm256_mul_ps(half...), x, y)
#undef _mm512_div_ps
#define _mm512_div_ps(x, y) H2O_HALVES(__m512, _mm256_div_ps(half...), x, y)
#undef _mm512_min_ps
#define _mm512_min_ps(x, y) H2O_HALVES(__m512, _mm256_min_ps(half...), x, y)
#undef _mm512_max_ps
#define _mm512_max_ps(x, y) H2O_HALVES(__m512, _mm256_max_ps(half...), x, y)
#undef _mm512_unpacklo_ps
#define _mm512_unpacklo_ps(x, y) H2O_HALVES(__m512, _mm256_unpacklo_ps(half...), x, y)
#undef _mm512_unpackhi_ps
#define _mm512_unpackhi_ps(x, y) H2O_HALVES(__m512, _mm256_unpackhi_ps(half...), x, y)
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps(x, y, z) H2O_HALVES(__m512, _mm256_fmadd_ps(half...), x, y, z)
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps(x, y, z) H2O_HALVES(__m512, _mm256_fmsub_ps(half...), x, y, z)
#undef _mm512_shuffle_ps
#define _mm512_shuffle_ps(x, y, order) H2O_HALVES(__m512, _mm256_shuffle_ps(half..., order), x, y)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) H2O_HALVES(__m512, _mm256_cvtepi32_ps(half...), x)
#undef _mm512_add_epi32
#define _mm512_add_epi32(x, y) H2O_HALVES(__m512i, _mm256_add_epi32(half...), x, y)
#undef _mm512_sub_epi32
#define _mm512_sub_epi32(x, y) H2O_HALVES(__m512i, _mm256_sub_epi32(half...), x, y)
#undef _mm512_max_epu32
#define _mm512_max_epu32(x, y) H2O_HALVES(__m512i, _mm256_max_epu32(half...), x, y)
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32(x, y) H2O_HALVES(__m512i, _mm256_unpacklo_epi32(half...), x, y)
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32(x, y) H2O_HALVES(__m512i, _mm256_unpackhi_epi32(half...), x, y)
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64(x, y) H2O_HALVES(__m512i, _mm256_unpacklo_epi64(half...), x, y)
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64(x, y) H2O_HALVES(__m512i, _mm256_unpackhi_epi64(half...), x, y)
#undef _mm512_and_si512
#define _mm512_and_si512(x, y) H2O_HALVES(__m512i, _mm256_and_si256(half...), x, y)
#undef _mm512_or_si512
#define _mm512_or_si512(x, y) H2O_HALVES(__m512i, _mm256_or_si256(half...), x, y)
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(x, bits) H2O_HALVES(__m512i, _mm256_slli_epi32(half..., bits), x)
#undef _mm512_srli_epi32
#define _mm512_srli_epi32(x, bits) H2O_HALVES(__m512i, _mm256_srli_epi32(half..., bits), x)
#undef _mm512_srli_epi16
#define _mm512_srli_epi16(x, bits) H2O_HALVES(__m512i, _mm256_srli_epi16(half..., bits), x)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) H2O_HALVES(__m512i, _mm256_cvtps_epi32(half...), x)
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, x, y) ::h2o::stand_in::add_bytes(sum, x, y)
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32(sum, x, y) ::h2o::stand_in::add_words(sum, x, y)
#undef _mm512_setzero_ps
#define _mm512_setzero_ps() (__m512{})
#undef _mm512_setzero_si512
#define _mm512_setzero_si512() (__m512i{})
#undef _mm512_set1_ps
#define _mm512_set1_ps(x) H2O_JOIN(__m512, _mm256_set1_ps(x))
#undef _mm512_set1_epi32
#define _mm512_set1_epi32(x) H2O_JOIN(__m512i, _mm256_set1_epi32(x))
#undef _mm512_set1_epi8
#define _mm512_set1_epi8(x) H2O_JOIN(__m512i, _mm256_set1_epi8(x))
#undef _mm512_set_epi32
#define _mm512_set_epi32(p, o, n, m, l, k, j, i, h, g, f, e, d, c, b, a)     \
    ::h2o::stand_in::join<__m512i>(_mm256_set_epi32(h, g, f, e, d, c, b, a), \
                                   _mm256_set_epi32(p, o, n, m, l, k, j, i))
#undef _mm512_loadu_ps
#define _mm512_loadu_ps(from) ::h2o::stand_in::load<__m512>(from)
#undef _mm512_loadu_si512
#define _mm512_loadu_si512(from) ::h2o::stand_in::load<__m512i>(from)
#undef _mm512_load_si512
#define _mm512_load_si512(from) ::h2o::stand_in::load<__m512i>(::h2o::stand_in::aligned(from))
#undef _mm512_storeu_ps
#define _mm512_storeu_ps(to, x) ::h2o::stand_in::store(to, x)
#undef _mm512_store_si512
#define _mm512_store_si512(to, x) ::h2o::stand_in::store(::h2o::stand_in::aligned(to), x)
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8(mask, from) (::h2o::stand_in::load_some<uint8_t, __m128i>(mask, from))
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(mask, from) (::h2o::stand_in::load_some<uint16_t, __m256i>(mask, from))
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8(mask, from) (::h2o::stand_in::load_some<uint8_t, __m512i>(mask, from))
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, from) (::h2o::stand_in::load_some<float, __m512>(mask, from))
#undef _mm_mask_storeu_epi8
#define _mm_mask_storeu_epi8(to, mask, x) ::h2o::stand_in::store_some<uint8_t>(to, mask, x)
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16(to, mask, x) ::h2o::stand_in::store_some<uint16_t>(to, mask, x)
#undef _mm256_mask_storeu_epi32
#define _mm256_mask_storeu_epi32(to, mask, x) ::h2o::stand_in::store_some<uint32_t>(to, mask, x)
#undef _mm256_mask_storeu_ps
#define _mm256_mask_storeu_ps(to, mask, x) ::h2o::stand_in::store_some<float>(to, mask, x)
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(to, mask, x) ::h2o::stand_in::store_some<float>(to, mask, x)
#undef _mm512_castps_si512
#define _mm512_castps_si512(x) ::h2o::stand_in::bits_as<__m512i>(x)
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps(x) ::h2o::stand_in::bits_as<__m512>(x)
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256(x) ::h2o::stand_in::half(x, 0)
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256(x) ::h2o::stand_in::half(x, 0)
#undef _mm512_castps256_ps512
#define _mm512_castps256_ps512(x) ::h2o::stand_in::join<__m512>(x, _mm256_set1_ps(NAN))
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(x, which) ::h2o::stand_in::half(x, which)
#undef _mm512_insertf32x8
#define _mm512_insertf32x8(x, part, which)                                             \
    ::h2o::stand_in::join<__m512>((which) == 0 ? (part) : ::h2o::stand_in::half(x, 0), \
                                  (which) == 0 ? ::h2o::stand_in::half(x, 1) : (part))
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(x, y, predicate) ::h2o::stand_in::compare<predicate>(x, y)
#undef _mm256_cmp_ps_mask
#define _mm256_cmp_ps_mask(x, y, predicate) \
    static_cast<__mmask8>(_mm256_movemask_ps(_mm256_cmp_ps(x, y, predicate)))
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps(mask, no, yes) ::h2o::stand_in::blend(mask, no, yes)
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps(mask, x, n) ::h2o::stand_in::scale_some(mask, x, n)
#undef _mm256_maskz_div_ps
#define _mm256_maskz_div_ps(mask, x, y) ::h2o::stand_in::divide_some(mask, x, y)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(x, y, order) ::h2o::stand_in::shuffle_lanes<order>(x, y)
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16(order, x) ::h2o::stand_in::permute_words(order, x)
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps(x) ::h2o::stand_in::largest(x)
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(x) \
    ::h2o::stand_in::join<__m512i>(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))
#undef _mm512_cvtsepi32_epi8
#define _mm512_cvtsepi32_epi8(x) (::h2o::stand_in::narrow<int8_t, __m128i>(x))
#undef _mm512_cvtsepi32_epi16
#define _mm512_cvtsepi32_epi16(x) (::h2o::stand_in::narrow<int16_t, __m256i>(x))
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(x)                                                    \
    ::h2o::stand_in::join<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), \
                                  _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)))
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding)                                         \
    _mm256_set_m128i(_mm256_cvtps_ph(::h2o::stand_in::half(x, 1), rounding), \
                     _mm256_cvtps_ph(::h2o::stand_in::half(x, 0), rounding))
#undef _mm256_cvtneps_pbh
#define _mm256_cvtneps_pbh(x) ::h2o::stand_in::bfloat16s(x)
#undef _mm256_cvtne2ps_pbh
#define _mm256_cvtne2ps_pbh(high, low) ::h2o::stand_in::bfloat16s<__m256bh>(high, low)
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh(high, low) ::h2o::stand_in::bfloat16s<__m512bh>(high, low)
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps(sum, x, y) ::h2o::stand_in::add_bfloat16s(sum, x, y)
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32(sum, x, y) ::h2o::stand_in::add_bytes(sum, x, y)
