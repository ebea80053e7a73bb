#include "product.h"
#include "simd_avx512.h"
// must come after the instruction set:
#include "bfloat16_avx512.h"

namespace {

struct Products {
    static constexpr int kFloatRows = 14;  // 14 x 2 sums, a step's weights, and a word of x, of 32 registers
    static constexpr int kPanels = 2;
};

}  // namespace

#include "product_bfloat16.h"

const h2o::FloatProducts* h2o::avx512_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
