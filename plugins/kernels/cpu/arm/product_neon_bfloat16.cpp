#include "arm/simd_neon.h"
#include "product.h"
// must come after the instruction set:
#include "arm/bfloat16_neon.h"

namespace {

using BFloat16 = BFloat16Pairs;

struct Products {
    static constexpr int kFloatRows = 6;  // 6 x 4 sums of 32 registers
    static constexpr int kPanels = 1;
};

}  // namespace

#include "simd/product_bfloat16.h"

const h2o::FloatProducts* h2o::neon_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
