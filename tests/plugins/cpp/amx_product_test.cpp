// Products with integer weights by AMX, where the machine or this program's stand-in has tiles: every bit as
// by vectors.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "amx_stand_in.h"
#include "h2o/products.h"
#include "pool.h"
#include "x86/processor.h"

namespace h2o::test {
namespace {

struct Case {
    int64_t inputs, outputs, block;
    int bits, parts;
    bool offsets;
};

// Any bytes are weights.
struct Matrix {
    Matrix(const Case& c, uint32_t seed) : given(c), draw(seed) {
        const int64_t elements = (c.outputs + 15) / 16 * 16 * c.inputs;
        std::uniform_int_distribution<int> byte(0, 255);
        for (int64_t i = 0; i < elements * c.bits / 8; ++i)
            weights.push_back(static_cast<uint8_t>(byte(draw)));
        scales = floats(elements / c.block);
        offsets = floats(c.offsets ? elements / c.block : 0);
    }
    std::vector<float> floats(int64_t count) {
        std::normal_distribution<float> normal;
        std::vector<float> made;
        for (int64_t i = 0; i < count; ++i) made.push_back(normal(draw));
        return made;
    }
    h2o_block_matrix c() const {
        return {given.inputs, given.outputs,  given.block,   given.bits,
                given.parts,  weights.data(), scales.data(), offsets.empty() ? nullptr : offsets.data()};
    }

    Case given;
    std::mt19937 draw;
    std::vector<uint8_t> weights;
    std::vector<float> scales, offsets;
};

// y [n, N] in pieces of so many rows and panels, on several threads.
std::vector<float> multiply(const h2o_products* kernels, const h2o_block_matrix& matrix,
                            const std::vector<float>& x, int64_t n, int64_t rows, int64_t panels,
                            const std::vector<float>& addend) {
    const h2o_activations given{x.data(), nullptr, nullptr, 0.0f, {}, nullptr};
    std::vector<float> memory(h2o_products_scratch_bytes(kernels, &matrix, n) / sizeof(float) + 16);
    char* const begin = reinterpret_cast<char*>(memory.data());
    char* const scratch = begin + (64 - reinterpret_cast<uintptr_t>(begin) % 64) % 64;
    h2o_products_prepare(kernels, &matrix, n, &given, 0, n, scratch);
    std::vector<float> y(static_cast<size_t>(n * matrix.outputs), NAN);
    const int64_t down = (n + rows - 1) / rows, across = (matrix.outputs + 16 * panels - 1) / (16 * panels);
    Pool pool(3);
    pool.each(down * across, [&](int64_t piece, int) {
        const int64_t row = piece / across * rows, count = std::min(rows, n - row);
        h2o_products_multiply(kernels, &matrix, n, scratch, row, count, piece % across * panels, panels,
                              addend.empty() ? nullptr : addend.data(), y.data());
        EXPECT_FALSE(stand_in::thread.configured);
    });
    return y;
}

const h2o_products* find(const char* isa) {
    const h2o_products* found = nullptr;
    h2o_products_find(isa, &found);
    return found;
}

class AmxProducts : public testing::Test {
  protected:
    void SetUp() override {
        if (find("avx512bf16") == nullptr || !has_amx(kAmxInt8 | kAmxBFloat16)) {
            GTEST_SKIP() << "no AMX here, or no AVX-512 with VNNI and bfloat16 beside it";
        }
    }
};

TEST_F(AmxProducts, AreChosenHere) {
    ASSERT_NE(find("amx"), nullptr);
    EXPECT_EQ(find(nullptr), find("amx"));
    EXPECT_STREQ(h2o_products_isa(find(nullptr)), "amx");
    EXPECT_TRUE(amx_int8_is_right());
    EXPECT_TRUE(amx_bfloat16_is_right());
    EXPECT_NE(h2o_products_can_widen(find("amx")), 0);
}

// Blocks of one step, of several, and of steps that fill no tile; an odd number of blocks; columns that fill
// no panel; one and two tiles of rows, whole and not.
TEST_F(AmxProducts, HaveEveryBitOfVectors) {
    const Case cases[] = {
        {96, 75, 32, 8, 1, true},    {96, 75, 32, 4, 1, false},   {64, 33, 32, 8, 2, true},
        {192, 48, 64, 4, 2, true},   {48, 40, 16, 8, 1, false},   {160, 31, 80, 4, 1, true},
        {320, 16, 160, 8, 1, true},  {352, 40, 176, 4, 2, false}, {512, 33, 256, 8, 1, false},
        {768, 24, 256, 4, 1, false}, {224, 17, 112, 8, 2, true},  {240, 64, 48, 8, 1, true},
    };
    uint32_t seed = 0;
    for (const Case& c : cases) {
        Matrix matrix(c, ++seed);
        for (const int64_t n : {7, 16, 17, 32, 45, 70}) {
            const std::vector<float> x = matrix.floats(n * c.inputs);
            const std::vector<float> addend =
                n % 2 == 0 ? std::vector<float>() : matrix.floats(n * c.outputs);
            const auto vectors = multiply(find("avx512vnni"), matrix.c(), x, n, n, 100, addend);
            for (const int64_t rows : {n, int64_t{32}, int64_t{12}}) {
                const auto tiles = multiply(find("amx"), matrix.c(), x, n, rows, rows == n ? 2 : 3, addend);
                ASSERT_EQ(std::memcmp(tiles.data(), vectors.data(), tiles.size() * sizeof(float)), 0)
                    << c.bits << " bits, block " << c.block << ", " << n << " rows, pieces of " << rows;
            }
        }
    }
}

}  // namespace
}  // namespace h2o::test
