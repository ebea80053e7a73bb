// The conversion of float16 without instructions for it.
#include "support.h"

namespace h2o::test {
namespace {

TEST(Half, EveryHalfComesBack) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = half_to_float(static_cast<uint16_t>(bits));
        if (value != value) continue;  // NaN keeps being NaN, not its payload
        EXPECT_EQ(float_to_half(value), bits);
    }
}

TEST(Half, RoundsToNearestEven) {
    EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);  // a tie goes to the even neighbour
    EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);
    EXPECT_EQ(float_to_half(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
    EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
    EXPECT_EQ(float_to_half(65520.0f), 0x7c00);  // infinity
    EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
    EXPECT_EQ(float_to_half(0x1.8p-25f), 0x0001);
    EXPECT_EQ(float_to_half(-0x1p-24f), 0x8001);
}

}  // namespace
}  // namespace h2o::test
