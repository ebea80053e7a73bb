// The instructions of AVX-512 and AVX-VNNI that kernels use, by two of AVX2 or in C++, in place of the
// compiler's: what Intel's manual says of them. A masked load or store goes number by number, so
// AddressSanitizer sees what it touches outside of an array; one that must be aligned and is not ends the
// program. Compilers read this file before a kernel's source (`-include`).
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define H2O_X86_STAND_IN 1  // kernels write no assembler then

namespace h2o::stand_in {

#define H2O_INLINE __attribute__((always_inline)) inline

// A vector of half the size.
template <class Vec>
struct HalfOf;
template <>
struct HalfOf<__m512> {
    using Type = __m256;
};
template <>
struct HalfOf<__m512i> {
    using Type = __m256i;
};
template <class Vec>
using Half = typename HalfOf<Vec>::Type;

template <class To, class From>
H2O_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class Vec>
H2O_INLINE Half<Vec> half(Vec x, int which) {
    Half<Vec> part;
    std::memcpy(&part, reinterpret_cast<const char*>(&x) + 32 * which, sizeof part);
    return part;
}

template <class Vec>
H2O_INLINE Vec join(Half<Vec> low, Half<Vec> high) {
    Vec x;
    std::memcpy(&x, &low, sizeof low);
    std::memcpy(reinterpret_cast<char*>(&x) + sizeof low, &high, sizeof high);
    return x;
}

// operation() of both halves of all inputs.
template <class Out, class Operation, class... In>
H2O_INLINE Out by_halves(Operation operation, In... in) {
    return join<Out>(operation(half(in, 0)...), operation(half(in, 1)...));
}

// Numbers of one type in a vector, in the order of memory.
template <class Number, class Vec>
struct Numbers {
    static constexpr int kCount = sizeof(Vec) / sizeof(Number);
    Number at[kCount] = {};

    Numbers() = default;
    explicit Numbers(Vec x) { std::memcpy(at, &x, sizeof at); }
    Vec vector() const { return bits_as<Vec>(*this); }
};

template <class Vec>
H2O_INLINE Vec load(const void* from) {
    Vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class Vec>
H2O_INLINE void store(void* to, Vec x) {
    std::memcpy(to, &x, sizeof x);
}

inline void* aligned(const void* at) {
    if (reinterpret_cast<uintptr_t>(at) % 64 == 0) return const_cast<void*>(at);
    std::fprintf(stderr, "AVX-512 stand-in: an address that is not a multiple of 64\n");
    std::abort();
}

template <class Number, class Vec>
H2O_INLINE Vec load_some(uint64_t mask, const void* from) {
    Numbers<Number, Vec> x;
    for (int i = 0; i < x.kCount; ++i) {
        if ((mask >> i & 1) != 0) std::memcpy(x.at + i, static_cast<const Number*>(from) + i, sizeof(Number));
    }
    return x.vector();
}

template <class Number, class Vec>
H2O_INLINE void store_some(void* to, uint64_t mask, Vec vector) {
    const Numbers<Number, Vec> x(vector);
    for (int i = 0; i < x.kCount; ++i) {
        if ((mask >> i & 1) != 0) std::memcpy(static_cast<Number*>(to) + i, x.at + i, sizeof(Number));
    }
}

// With `mask` a bit a number: of `yes` where it is set.
H2O_INLINE __m512 blend(uint32_t mask, __m512 no, __m512 yes) {
    Numbers<uint32_t, __m512> out(no);
    const Numbers<uint32_t, __m512> other(yes);
    for (int i = 0; i < 16; ++i) out.at[i] = (mask >> i & 1) != 0 ? other.at[i] : out.at[i];
    return out.vector();
}

template <int kPredicate>
H2O_INLINE __mmask16 compare(__m512 x, __m512 y) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(half(x, 0), half(y, 0), kPredicate));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(half(x, 1), half(y, 1), kPredicate));
    return static_cast<__mmask16>(low | high << 8);
}

// x 2^floor(n), rounded once.
inline float scaled(float x, float n) {
    const float whole = std::floor(n);
    if (std::isnan(x) || std::isnan(n)) return x + n;
    if (std::isinf(whole)) return whole > 0 ? x * HUGE_VALF : x / HUGE_VALF;  // 0 and infinity: NaN
    const int power = static_cast<int>(std::fmin(std::fmax(whole, -500.0f), 500.0f));
    return static_cast<float>(std::ldexp(static_cast<double>(x), power));
}

H2O_INLINE __m512 scale_some(uint32_t mask, __m512 x, __m512 n) {
    Numbers<float, __m512> out(x);
    const Numbers<float, __m512> powers(n);
    for (int i = 0; i < 16; ++i) out.at[i] = (mask >> i & 1) != 0 ? scaled(out.at[i], powers.at[i]) : 0.0f;
    return out.vector();
}

H2O_INLINE __m256 divide_some(uint32_t mask, __m256 x, __m256 y) {
    Numbers<float, __m256> out(x);
    const Numbers<float, __m256> by(y);
    for (int i = 0; i < 8; ++i) out.at[i] = (mask >> i & 1) != 0 ? out.at[i] / by.at[i] : 0.0f;
    return out.vector();
}

// Two of the four lanes of `x`, then two of `y`.
template <int kOrder>
H2O_INLINE __m512i shuffle_lanes(__m512i x, __m512i y) {
    const Numbers<__m128i, __m512i> first(x), second(y);
    Numbers<__m128i, __m512i> out;
    for (int i = 0; i < 4; ++i) out.at[i] = (i < 2 ? first : second).at[kOrder >> 2 * i & 3];
    return out.vector();
}

H2O_INLINE __m512i permute_words(__m512i order, __m512i x) {
    const Numbers<uint16_t, __m512i> from(order), words(x);
    Numbers<uint16_t, __m512i> out;
    for (int i = 0; i < 32; ++i) out.at[i] = words.at[from.at[i] & 31];
    return out.vector();
}

// Integers of 32 bits as smaller ones, saturated.
template <class Small, class Vec>
H2O_INLINE Vec narrow(__m512i x) {
    const Numbers<int32_t, __m512i> wide(x);
    Numbers<Small, Vec> out;
    constexpr int32_t kTop = (1 << (8 * sizeof(Small) - 1)) - 1;
    for (int i = 0; i < 16; ++i) {
        const int32_t n = wide.at[i];
        out.at[i] = static_cast<Small>(n > kTop ? kTop : n < -kTop - 1 ? -kTop - 1 : n);
    }
    return out.vector();
}

// The largest of 16, in the order of the compiler's reduction: it matters to NaN and to zeros.
H2O_INLINE float largest(__m512 x) {
    const __m256 of_8 = _mm256_max_ps(half(x, 1), half(x, 0));
    const __m128 of_4 = _mm_max_ps(_mm256_extractf128_ps(of_8, 1), _mm256_castps256_ps128(of_8));
    const __m128 of_2 = _mm_max_ps(of_4, _mm_movehl_ps(of_4, of_4));
    return _mm_cvtss_f32(_mm_max_ss(of_2, _mm_shuffle_ps(of_2, of_2, 1)));
}

// Four products of unsigned bytes of `x` and signed ones of `y` to each sum; 16 bits hold no sum of two.
H2O_INLINE __m256i add_bytes(__m256i sum, __m256i x, __m256i y) {
    const __m256i even = _mm256_and_si256(x, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(x, 8);
    const __m256i even_y = _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8), odd_y = _mm256_srai_epi16(y, 8);
    const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(even, even_y), _mm256_madd_epi16(odd, odd_y));
    return _mm256_add_epi32(sum, both);
}

H2O_INLINE __m512i add_bytes(__m512i sum, __m512i x, __m512i y) {
    return join<__m512i>(add_bytes(half(sum, 0), half(x, 0), half(y, 0)),
                         add_bytes(half(sum, 1), half(x, 1), half(y, 1)));
}

H2O_INLINE __m256i add_words(__m256i sum, __m256i x, __m256i y) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
}

H2O_INLINE __m512i add_words(__m512i sum, __m512i x, __m512i y) {
    return join<__m512i>(add_words(half(sum, 0), half(x, 0), half(y, 0)),
                         add_words(half(sum, 1), half(x, 1), half(y, 1)));
}

// To the nearest bfloat16, of two the even one. Denormal numbers become zeros.
H2O_INLINE uint16_t bfloat16(float x) {
    const uint32_t bits = bits_as<uint32_t>(x), size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    if (size < 0x00800000u) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Those of `low`, then those of `high`.
template <class Out, class In>
H2O_INLINE Out bfloat16s(In high, In low) {
    constexpr int kCount = sizeof(In) / sizeof(float);
    const Numbers<float, In> first(low), second(high);
    Numbers<uint16_t, Out> out;
    for (int i = 0; i < kCount; ++i) {
        out.at[i] = bfloat16(first.at[i]);
        out.at[kCount + i] = bfloat16(second.at[i]);
    }
    return out.vector();
}

H2O_INLINE __m128bh bfloat16s(__m256 x) {
    __m128bh low;
    const __m256bh twice = bfloat16s<__m256bh>(x, x);
    std::memcpy(&low, &twice, sizeof low);
    return low;
}

H2O_INLINE __m256 without_denormals(__m256 x) {
    const __m256 size = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
    const __m256 whole = _mm256_cmp_ps(size, _mm256_set1_ps(1.17549435e-38f), _CMP_NLT_UQ);
    const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
    return _mm256_and_ps(x, _mm256_or_ps(whole, sign));
}

// VDPBF16PS: fused multiply-adds, of the high halves of each word first.
H2O_INLINE __m256 add_half_bfloat16s(__m256 sum, __m256i x, __m256i y) {
    const auto high = [](__m256i words) {
        return without_denormals(_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536))));
    };
    const auto low = [](__m256i words) {
        return without_denormals(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
    };
    const __m256 first = without_denormals(_mm256_fmadd_ps(high(x), high(y), without_denormals(sum)));
    return without_denormals(_mm256_fmadd_ps(low(x), low(y), first));
}

H2O_INLINE __m512 add_bfloat16s(__m512 sum, __m512bh x, __m512bh y) {
    const __m512i first = bits_as<__m512i>(x), second = bits_as<__m512i>(y);
    return join<__m512>(add_half_bfloat16s(half(sum, 0), half(first, 0), half(second, 0)),
                        add_half_bfloat16s(half(sum, 1), half(first, 1), half(second, 1)));
}

#undef H2O_INLINE

}  // namespace h2o::stand_in

#include "avx512_stand_in_names.h"
