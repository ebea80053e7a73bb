#include <immintrin.h>

#include "product.h"
#include "x86/simd_avx2.h"

namespace {

// Without instructions for sums of four. VPMADDUBSW adds products of unsigned and signed bytes in pairs, with
// 16 bits: so 8-bit weights are made positive, and x takes their signs. A pair is then at most 2 * 128 * 127,
// and does not saturate. 4-bit weights are positive as they are, and two pairs fit.
struct Products {
    using Ints = __m256i;
    static constexpr const char* kName = "avx2";
    static constexpr int kRows = 4;  // 4 x 2 sums of integers of 16 registers; those of floats wait in L1
    static constexpr int kPanels = 1;
    static constexpr int kFloatRows = 6;     // 6 x 2 of 16 registers, with a step's weights and a number of x
    static constexpr uint32_t kSurplus = 0;  // bias of a stored 8-bit weight, once its highest bit is flipped
    static constexpr bool kUnrolls = true;
    static constexpr bool kJoinsHalves = true;

    static Ints set(int32_t x) { return _mm256_set1_epi32(x); }
    static Ints load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static Ints eight_bits(Ints x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
    static Ints low_halves(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static Ints high_halves(Ints x) { return low_halves(_mm256_srli_epi16(x, 4)); }
    static Ints dot(Ints sum, Ints weights, Ints x) {
        return add_pairs(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights)));
    }
    // The sum of two dots with weights of 4 bits.
    static Ints dot_halves(Ints sum, Ints low, Ints x, Ints high, Ints far) {
        return add_pairs(sum,
                         _mm256_add_epi16(_mm256_maddubs_epi16(low, x), _mm256_maddubs_epi16(high, far)));
    }
    static Simd::Vec floats(Ints x) { return _mm256_cvtepi32_ps(x); }

  private:
    static Ints add_pairs(Ints sum, Ints pairs) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
};

}  // namespace

#include "simd/product_tile.h"

const h2o_products* h2o::avx2_products() {
    return &kProducts;
}
