// The stand-in of AVX-512: what the manual says where C++ would say something else.
#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace h2o::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Number, class Vec>
auto numbers(Vec x) {
    std::array<Number, sizeof(Vec) / sizeof(Number)> at;
    std::memcpy(at.data(), &x, sizeof x);
    return at;
}

TEST(Avx512StandIn, ScalesByThePowerBelow) {
    const float x[16] = {3, 3, 3, 0, 0, kInfinity, kInfinity, 1e-30f, 1, 1, -3, 3, 1, 1, 1, 1};
    const float n[16] = {2.9f, -1.1f, 200, 7,   kInfinity, -kInfinity, 4, -60,
                         -149, -151,  200, 200, 0,         0,          0, 0};
    const auto y = numbers<float>(_mm512_maskz_scalef_ps(0xf7ff, _mm512_loadu_ps(x), _mm512_loadu_ps(n)));
    EXPECT_EQ(y[0], 12);
    EXPECT_EQ(y[1], 0.75f);
    EXPECT_EQ(y[2], kInfinity);
    EXPECT_EQ(y[3], 0);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_EQ(y[6], kInfinity);
    EXPECT_EQ(y[7], 0);
    EXPECT_EQ(y[8], std::numeric_limits<float>::denorm_min());
    EXPECT_EQ(y[9], 0);
    EXPECT_EQ(y[10], -kInfinity);
    EXPECT_EQ(y[11], 0) << "its bit of the mask is not set";
}

TEST(Avx512StandIn, MultipliesUnsignedBytesBySigned) {
    const __m512i sums =
        _mm512_dpbusd_epi32(_mm512_set1_epi32(5), _mm512_set1_epi8(-1), _mm512_set1_epi8(-128));
    for (const int32_t sum : numbers<int32_t>(sums)) EXPECT_EQ(sum, 5 - 4 * 255 * 128);
}

TEST(Avx512StandIn, RoundsAndAddsBFloat16) {
    const float denormal = std::numeric_limits<float>::min() / 2;
    const float high[8] = {1 + 0x1p-8f, 1 + 0x3p-8f, -denormal, kInfinity, 1 + 0x1.1p-8f, NAN, 0, 0},
                low[8] = {2};
    const auto words = numbers<uint16_t>(_mm256_cvtne2ps_pbh(_mm256_loadu_ps(high), _mm256_loadu_ps(low)));
    EXPECT_EQ(words[0], 0x4000);  // the second vector's numbers come first
    EXPECT_EQ(words[8], 0x3f80) << "of two nearest the even one";
    EXPECT_EQ(words[9], 0x3f82) << "of two nearest the even one";
    EXPECT_EQ(words[10], 0x8000) << "a denormal number is a zero";
    EXPECT_EQ(words[11], 0x7f80);
    EXPECT_EQ(words[12], 0x3f81);
    EXPECT_EQ(words[13] & 0x7fc0, 0x7fc0) << "a quiet NaN";

    // The high halves are added first: with them last, 1 would be lost.
    const __m512i pair = _mm512_set1_epi32(0x4b80'3f80);  // 2^24 above 1
    const __m512i minus = _mm512_set1_epi32(static_cast<int32_t>(0xbf80'3f80u));
    const __m512 sum = _mm512_dpbf16_ps(_mm512_set1_ps(0x1p24f), reinterpret_cast<__m512bh>(pair),
                                        reinterpret_cast<__m512bh>(minus));
    for (const float x : numbers<float>(sum)) EXPECT_EQ(x, 1);
}

TEST(Avx512StandIn, ShufflesAsTheManualSays) {
    int32_t x[16], y[16];
    for (int i = 0; i < 16; ++i) x[i] = i, y[i] = 16 + i;
    const __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(y);
    const auto lanes = numbers<int32_t>(_mm512_shuffle_i32x4(first, second, 0x4e));
    EXPECT_EQ(lanes, (std::array<int32_t, 16>{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
    const auto low = numbers<int32_t>(_mm512_unpacklo_epi32(first, second));
    EXPECT_EQ(low, (std::array<int32_t, 16>{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29}));
    const auto bytes = numbers<int8_t>(_mm512_cvtsepi32_epi8(_mm512_slli_epi32(first, 4)));
    EXPECT_EQ(bytes[7], 112);
    EXPECT_EQ(bytes[8], 127) << "saturated";
}

TEST(Avx512StandIn, TouchesWhatTheMaskNames) {
    const uint8_t from[3] = {1, 2, 3};
    const auto read = numbers<uint8_t>(_mm512_maskz_loadu_epi8(0b111, from));
    EXPECT_EQ(read[2], 3);
    EXPECT_EQ(read[3], 0);
    float to[2] = {7, 7};
    _mm512_mask_storeu_ps(to, 0b01, _mm512_set1_ps(1));
    EXPECT_EQ(to[0], 1);
    EXPECT_EQ(to[1], 7);
    alignas(64) char bytes[128];
    EXPECT_DEATH(_mm512_store_si512(bytes + 32, _mm512_setzero_si512()), "not a multiple of 64");
}

}  // namespace
}  // namespace h2o::test
