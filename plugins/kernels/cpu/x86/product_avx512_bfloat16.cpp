#include "product.h"
#include "x86/simd_avx512.h"
// must come after the instruction set:
#include "x86/bfloat16_avx512.h"
// and after both:
#include "x86/product_widen_avx512.h"

namespace {

struct Products {
    static constexpr int kFloatRows = 14;  // 14 x 2 sums, a step's weights, and a word of x, of 32 registers
    static constexpr int kPanels = 2;
    static constexpr auto kWiden = widen;
};

}  // namespace

#include "simd/product_bfloat16.h"

const h2o::FloatProducts* h2o::avx512_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
