#include "product.h"
#include "scalar/simd_scalar.h"
// must come after the instruction set:
#include "scalar/bfloat16_scalar.h"

namespace {

struct Products {
    static constexpr int kFloatRows = 2;
    static constexpr int kPanels = 1;
};

}  // namespace

#include "simd/product_bfloat16.h"

const h2o::FloatProducts* h2o::scalar_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
