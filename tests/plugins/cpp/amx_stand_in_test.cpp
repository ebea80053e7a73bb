// The stand-in of AMX: it computes what the manual says, and refuses what a processor refuses.
#include "amx_stand_in.h"

#include <gtest/gtest.h>

namespace h2o::test {
namespace {

// What the manual says of numbers too small, and of the order of sums.
TEST(AmxStandIn, FlushesAndAddsAsTheManualSays) {
    const auto product = [](float a0, float a1, float b0, float b1, float sum) {
        const auto high = [](float x) {
            uint32_t bits;
            std::memcpy(&bits, &x, 4);
            return bits >> 16;
        };
        uint8_t shapes[64] = {1};
        for (const int tile : {0, 1, 2}) shapes[48 + tile] = 1, shapes[16 + 2 * tile] = 4;
        const uint32_t a = high(a0) | high(a1) << 16, b = high(b0) | high(b1) << 16;
        stand_in::load_config(shapes);
        stand_in::load(0, &sum, 4);
        stand_in::load(1, &a, 4);
        stand_in::load(2, &b, 4);
        stand_in::multiply_bfloat16(0, 1, 2);
        stand_in::store(0, &sum, 4);
        stand_in::release();
        return sum;
    };
    EXPECT_EQ(product(3.0f, 5.0f, 2.0f, -1.5f, 10.0f), 8.5f);
    EXPECT_EQ(product(std::ldexp(1.0f, -130), 0.0f, std::ldexp(1.0f, 100), 0.0f, 0.0f), 0.0f);
    EXPECT_EQ(product(std::ldexp(1.0f, -70), 0.0f, std::ldexp(1.0f, -70), 0.0f, 0.0f), 0.0f);
    EXPECT_EQ(product(0.0f, 0.0f, 0.0f, 0.0f, std::ldexp(1.0f, -130)), 0.0f);
    // Both halves are added before what was there: 1 alone would be lost in 2^24.
    EXPECT_EQ(product(1.0f, 1.0f, 1.0f, 1.0f, std::ldexp(1.0f, 24)), std::ldexp(1.0f, 24) + 2.0f);
}

TEST(AmxStandIn, RefusesMistakes) {
    uint8_t shapes[64] = {1};
    int32_t memory[16][16] = {};
    const auto shape = [&](int tile, int rows, int bytes) {
        shapes[48 + tile] = static_cast<uint8_t>(rows);
        shapes[16 + 2 * tile] = static_cast<uint8_t>(bytes);
    };
    EXPECT_DEATH(_tile_zero(0), "before LDTILECFG");
    shape(0, 17, 64);
    EXPECT_DEATH(_tile_loadconfig(shapes), "a shape that no tile has");
    shape(0, 16, 68);
    EXPECT_DEATH(_tile_loadconfig(shapes), "a shape that no tile has");
    shape(0, 16, 64), shape(1, 16, 32), shape(2, 8, 64), shape(3, 12, 32), shape(4, 16, 64);
    _tile_loadconfig(shapes);
    EXPECT_DEATH(_tile_loadd(5, memory, 64), "without a shape");
    EXPECT_DEATH(_tile_dpbsud(0, 1, 1), "with itself");
    EXPECT_DEATH(_tile_dpbsud(0, 3, 2), "differ in rows");
    EXPECT_DEATH(_tile_dpbsud(0, 4, 2), "differ in depth");
    EXPECT_DEATH(_tile_dpbsud(1, 0, 4), "differ in columns");
    _tile_release();
    EXPECT_DEATH(_tile_stored(0, memory, 64), "after TILERELEASE");
}

}  // namespace
}  // namespace h2o::test
