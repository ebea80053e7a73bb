#include "product.h"
#include "simd_scalar.h"
// must come after the instruction set:
#include "bfloat16_scalar.h"

namespace {

struct Products {
    static constexpr int kFloatRows = 2;
    static constexpr int kPanels = 1;
};

}  // namespace

#include "product_bfloat16.h"

const h2o::FloatProducts* h2o::scalar_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
