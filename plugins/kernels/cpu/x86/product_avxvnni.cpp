#include <immintrin.h>

#include "product.h"
#include "x86/simd_avx2.h"

namespace {

struct Products {
    using Ints = __m256i;
    static constexpr const char* kName = "avxvnni";
    static constexpr int kRows = 2;  // 2 x 2 sums of integers, as many of floats, of 16 registers
    static constexpr int kPanels = 1;
    static constexpr int kFloatRows = 6;  // 6 x 2 of 16 registers, with a step's weights and a number of x
    static constexpr uint32_t kSurplus = 128;  // bias of a stored 8-bit weight
    static constexpr bool kUnrolls = true;
    static constexpr bool kJoinsHalves = false;

    static Ints set(int32_t x) { return _mm256_set1_epi32(x); }
    static Ints load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static Ints eight_bits(Ints x) { return x; }
    static Ints low_halves(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static Ints high_halves(Ints x) { return low_halves(_mm256_srli_epi16(x, 4)); }
    static Ints dot(Ints sum, Ints weights, Ints x) { return _mm256_dpbusd_avx_epi32(sum, weights, x); }
    static Simd::Vec floats(Ints x) { return _mm256_cvtepi32_ps(x); }
};

}  // namespace

#include "simd/product_tile.h"

const h2o_products* h2o::avxvnni_products() {
    return &kProducts;
}
