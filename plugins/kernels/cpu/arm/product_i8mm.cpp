#include <arm_neon.h>

#include "arm/simd_neon.h"
#include "product.h"

namespace {

// A single row of integers, with the dot product of unsigned and signed numbers that belongs to the same
// extension.
struct Products {
    using Ints = int32x4_t;
    static constexpr const char* kName = "i8mm";
    static constexpr int kRows = 1;
    static constexpr int kPanels = 1;
    static constexpr int kFloatRows = 6;       // 6 x 4 of 32 registers
    static constexpr uint32_t kSurplus = 128;  // bias of a stored 8-bit weight
    static constexpr bool kUnrolls = true;
    static constexpr bool kJoinsHalves = false;

    static Ints set(int32_t x) { return vdupq_n_s32(x); }
    static Ints load(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
    static Ints eight_bits(Ints x) { return x; }
    static Ints low_halves(Ints x) { return vandq_s32(x, vreinterpretq_s32_u8(vdupq_n_u8(15))); }
    static Ints high_halves(Ints x) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), 4)); }
    static Ints dot(Ints sum, Ints weights, Ints x) {
        return vusdotq_s32(sum, vreinterpretq_u8_s32(weights), vreinterpretq_s8_s32(x));
    }
    static Simd::Vec floats(Ints x) { return vcvtq_f32_s32(x); }
};

}  // namespace

#include "arm/product_pairs.h"

const h2o_products* h2o::i8mm_products() {
    static constexpr h2o_products kPairs = {
        Products::kName, kPairRows,      Products::kPanels,       Products::kSurplus,
        round_row,       multiply_pairs, kFloatProducts<Float32>, kFloatProducts<WideBFloat16>,
        rotate,
    };
    return &kPairs;
}
