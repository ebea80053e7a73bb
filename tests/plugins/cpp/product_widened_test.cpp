// Products whose integer weights become bfloat16, as activations do, by tiles of AMX: against float64.
#include <cmath>
#include <cstring>

#include "product_support.h"

namespace h2o::test {
namespace {

// To the nearest, ties to even.
float rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// Columns that fill no panel; blocks of several sizes, an odd number of them; more inputs than become
// bfloat16 at once, and a rest of those.
const Case kCases[] = {
    {64, 48, 32, 8, 0, false},   {96, 75, 32, 4, 0, true},   {48, 5, 16, 8, 0, true},
    {1120, 33, 32, 8, 0, false}, {1040, 40, 80, 4, 0, true}, {768, 17, 256, 4, 0, false},
};

class WidenedProducts : public Products {
  protected:
    void SetUp() override {
        if (find(GetParam()) == nullptr) GTEST_SKIP() << "no AMX here";
    }

    // The weights [N, K] that products have, of rows that each pick one.
    Floats weights(const Matrix& matrix, const Case& c) const {
        Floats x(static_cast<size_t>(c.inputs * c.inputs), 0.0f),
            w(static_cast<size_t>(c.inputs * c.outputs));
        for (int64_t k = 0; k < c.inputs; ++k) x[static_cast<size_t>(k * c.inputs + k)] = 1.0f;
        const Floats y = multiply(matrix.c(), x);
        for (int64_t i = 0; i < c.inputs * c.outputs; ++i)
            w[static_cast<size_t>(i % c.outputs * c.inputs + i / c.outputs)] = y[static_cast<size_t>(i)];
        return w;
    }
};

TEST_P(WidenedProducts, RoundAWeightOnce) {
    for (const Case& c : kCases) {
        const Matrix matrix(c, 41);
        const Floats w = weights(matrix, c);
        for (int64_t i = 0; i < c.inputs * c.outputs; ++i) {
            const double exact = matrix.at(i / c.inputs, i % c.inputs);
            // What has an offset is a sum of float32, whose own rounding may move it to the next bfloat16.
            const double spare = c.offsets ? 1e-3 : 0.0;
            ASSERT_LE(std::fabs(static_cast<double>(w[static_cast<size_t>(i)]) - exact),
                      std::ldexp(std::fabs(exact), -8) * (1.0 + spare) + 1e-9 * spare);
            if (c.offsets) continue;
            ASSERT_EQ(w[static_cast<size_t>(i)], rounded(static_cast<float>(exact)));
        }
    }
}

TEST_P(WidenedProducts, AddInFloat32) {
    for (const Case& c : kCases) {
        const Matrix matrix(c, 42);
        const Floats w = weights(matrix, c);
        for (const int64_t n : {1, 7, 16, 33, 70}) {
            const Floats x = numbers(n * c.inputs, 43), there = numbers(n * c.outputs, 44);
            const Floats y = multiply(matrix.c(), x), both = multiply(matrix.c(), x, 40, 3, nullptr, there);
            for (int64_t i = 0; i < n * c.outputs; ++i) {
                const float* const row = x.data() + i / c.outputs * c.inputs;
                const float* const column = w.data() + i % c.outputs * c.inputs;
                double sum = 0.0, size = 0.0;
                for (int64_t k = 0; k < c.inputs; ++k) {
                    const double term = static_cast<double>(rounded(row[k])) * static_cast<double>(column[k]);
                    sum += term, size += std::fabs(term);
                }
                const size_t at = static_cast<size_t>(i);
                ASSERT_NEAR(static_cast<double>(y[at]), sum, 2e-6 * size) << c.inputs << " inputs, row " << n;
                ASSERT_NEAR(static_cast<double>(both[at]), sum + static_cast<double>(there[at]),
                            2e-6 * (size + std::fabs(static_cast<double>(there[at]))));
            }
        }
    }
}

TEST_P(WidenedProducts, OfARowDoNotDependOnRowsBeside) {
    for (const Case& c : kCases) {
        const Matrix matrix(c, 45);
        constexpr int64_t kAll = 70;
        const Floats x = numbers(kAll * c.inputs, 46), there = numbers(kAll * c.outputs, 47);
        const Floats whole = multiply(matrix.c(), x, 1000, 1000, nullptr, there);
        for (const int64_t rows : {1, 2, 15, 16, 31, 33}) {
            for (const int64_t panels : {1, 2, 3})
                ASSERT_EQ(multiply(matrix.c(), x, rows, panels, nullptr, there), whole);
            const Floats last(x.end() - rows * c.inputs, x.end());
            const Floats alone = multiply(matrix.c(), last, 1000, 1000, nullptr,
                                          Floats(there.end() - rows * c.outputs, there.end()));
            ASSERT_EQ(alone, Floats(whole.end() - rows * c.outputs, whole.end()));
        }
    }
}

TEST_P(WidenedProducts, OfARowThatIsNotFiniteAreNotFinite) {
    const Case c{96, 20, 32, 8, 0, false};
    const Matrix matrix(c, 48);
    Floats x = numbers(3 * c.inputs, 49);
    x[70] = NAN, x[static_cast<size_t>(c.inputs) + 33] = INFINITY;
    const Floats y = multiply(matrix.c(), x);
    for (size_t i = 0; i < 3 * 20; ++i) EXPECT_EQ(std::isfinite(y[i]), i >= 2 * 20) << i;
}

INSTANTIATE_TEST_SUITE_P(Isa, WidenedProducts, testing::Values("amx"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace h2o::test
