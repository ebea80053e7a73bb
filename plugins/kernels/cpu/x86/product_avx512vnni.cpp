#include <immintrin.h>

#include "product.h"
#include "x86/simd_avx512.h"

namespace {

struct Products {
    using Ints = __m512i;
    static constexpr const char* kName = "avx512vnni";
    static constexpr int kRows = 6;  // 6 x 2 sums of integers, as many of floats, of 32 registers
    static constexpr int kPanels = 2;
    static constexpr int kFloatRows = 14;      // 14 x 2 sums of floats, a step's weights, and a number of x
    static constexpr uint32_t kSurplus = 128;  // bias of a stored 8-bit weight
    static constexpr bool kUnrolls = true;
    static constexpr bool kJoinsHalves = false;

    static Ints set(int32_t x) { return _mm512_set1_epi32(x); }
    static Ints load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static Ints eight_bits(Ints x) { return x; }
    static Ints low_halves(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
    static Ints high_halves(Ints x) { return low_halves(_mm512_srli_epi16(x, 4)); }
    static Ints dot(Ints sum, Ints weights, Ints x) { return _mm512_dpbusd_epi32(sum, weights, x); }
    static Simd::Vec floats(Ints x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace

#include "simd/product_tile.h"
// clang-format off: uses the one before
#include "x86/product_round_avx512.h"
// clang-format on

const h2o_products* h2o::avx512vnni_products() {
    static constexpr h2o_products kFaster = [] {
        h2o_products products = kProducts;
        products.round = round_row_by_eights;
        return products;
    }();
    return &kFaster;
}
