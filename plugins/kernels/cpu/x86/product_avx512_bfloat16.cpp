// Products of words of two bfloat16 on AVX-512 with BF16; and integer weights of a panel as such words, for
// tiles of AMX.
#include "product.h"
#include "x86/simd_avx512.h"
// must come after the instruction set:
#include "x86/bfloat16_avx512.h"

namespace {

struct Products {
    static constexpr int kFloatRows = 14;  // 14 x 2 sums, a step's weights, and a word of x, of 32 registers
    static constexpr int kPanels = 2;
};

}  // namespace

#include "simd/product_bfloat16.h"

namespace {

struct BlockScales {
    __m512 scale, bias, offset;  // a number is (stored * scale + bias) + offset; bias is exact

    BlockScales(const h2o::IntegerPanel& panel, int64_t block, float surplus)
        : scale(_mm512_loadu_ps(panel.scales + block * h2o::kPanel)),
          bias(_mm512_mul_ps(scale, _mm512_set1_ps(-surplus))),
          offset(panel.offsets == nullptr ? _mm512_setzero_ps()
                                          : _mm512_loadu_ps(panel.offsets + block * h2o::kPanel)) {}

    __m512 number(__m512i stored) const {
        return _mm512_add_ps(_mm512_fmadd_ps(_mm512_cvtepi32_ps(stored), scale, bias), offset);
    }
};

// Bytes of four inputs [16][4], which become two rows of words.
inline void widen_four(__m512i bytes, const BlockScales& by, float* words) {
    const __m512i low = _mm512_set1_epi32(255);
    const __m512 numbers[4] = {by.number(_mm512_and_si512(bytes, low)),
                               by.number(_mm512_and_si512(_mm512_srli_epi32(bytes, 8), low)),
                               by.number(_mm512_and_si512(_mm512_srli_epi32(bytes, 16), low)),
                               by.number(_mm512_srli_epi32(bytes, 24))};
    _mm512_storeu_ps(words, BFloat16::join(numbers[0], numbers[1]));
    _mm512_storeu_ps(words + h2o::kPanel, BFloat16::join(numbers[2], numbers[3]));
}

// A vector of weights has four inputs of 16 columns: two vectors of words. That takes some 24 instructions,
// so one panel should serve many rows.
void widen(const h2o::IntegerPanel& panel, int bits, float* words) {
    constexpr int64_t kFour = 4;
    const int64_t words_of_four = kFour / 2 * h2o::kPanel, bytes_of_four = kFour * h2o::kPanel;
    const uint8_t* at = panel.weights;
    const int64_t stored = panel.block * bits / 8,
                  half = panel.block / 4 * h2o::kPanel;  // words of half a block
    const __m512i low = _mm512_set1_epi8(15);
    for (int64_t block = 0; block < panel.blocks; ++block) {
        const BlockScales by(panel, block, bits == 4 ? 8.0f : 128.0f);
        for (int64_t k = 0; k < stored; k += kFour, at += bytes_of_four, words += words_of_four) {
            const __m512i bytes = _mm512_loadu_si512(at);
            if (bits == 8) {
                widen_four(bytes, by, words);
            } else {
                widen_four(_mm512_and_si512(bytes, low), by, words);
                widen_four(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), low), by, words + half);
            }
        }
        if (bits == 4) words += half;
    }
}

}  // namespace

const h2o::FloatProducts* h2o::avx512_bfloat16_products() {
    static constexpr FloatProducts kWidening = [] {
        FloatProducts products = kFloatProducts<BFloat16Words>;
        products.widen = widen;
        return products;
    }();
    return &kWidening;
}
