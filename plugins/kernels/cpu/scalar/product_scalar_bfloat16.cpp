#include "product.h"
#include "scalar/simd_scalar.h"
// must come after the instruction set:
#include "scalar/bfloat16_scalar.h"

namespace {

// The integer of input k and a column, as h2o/products.h has it.
int integer_at(const h2o::IntegerPanel& panel, int bits, int64_t k, int64_t column) {
    if (bits == 8) return panel.weights[(k / 4 * h2o::kPanel + column) * 4 + k % 4] - 128;
    const int64_t half = panel.block / 2, inside = k % panel.block;
    const int64_t four = k / panel.block * (half / 4) + inside % half / 4;
    const int both = panel.weights[(four * h2o::kPanel + column) * 4 + inside % 4];
    return (inside < half ? both & 15 : both >> 4) - 8;
}

void widen(const h2o::IntegerPanel& panel, int bits, float* words) {
    for (int64_t k = 0; k < panel.block * panel.blocks; k += 2) {
        for (int64_t column = 0; column < h2o::kPanel; ++column) {
            const int64_t at = k / panel.block * h2o::kPanel + column;
            const float offset = panel.offsets == nullptr ? 0.0f : panel.offsets[at];
            const auto number = [&](int64_t input) {
                return static_cast<float>(integer_at(panel, bits, input, column)) * panel.scales[at] + offset;
            };
            words[k / 2 * h2o::kPanel + column] = BFloat16::word(number(k), number(k + 1));
        }
    }
}

struct Products {
    static constexpr int kFloatRows = 2;
    static constexpr int kPanels = 1;
    static constexpr auto kWiden = widen;
};

}  // namespace

#include "simd/product_bfloat16.h"

const h2o::FloatProducts* h2o::scalar_bfloat16_products() {
    return &kFloatProducts<BFloat16Words>;
}
