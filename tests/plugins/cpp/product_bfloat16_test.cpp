// Products with weights in bfloat16, and activations in bfloat16 or float32: every instruction set, against
// float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "h2o/products.h"

namespace h2o::test {
namespace {

using Floats = std::vector<float>;

std::vector<const h2o_products*> all_kernels() {
    std::vector<const h2o_products*> found;
    for (const char* isa :
         {"scalar", "avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx", "dotprod", "i8mm"}) {
        const h2o_products* one = nullptr;
        if (h2o_products_find(isa, &one) == H2O_OK) found.push_back(one);
    }
    return found;
}

// Numbers of 8 bits, which bfloat16 has.
Floats short_numbers(int64_t count, uint32_t seed) {
    std::mt19937 draw(seed);
    std::uniform_int_distribution<int> whole(-255, 255), exponent(-9, -5);
    Floats x;
    for (int64_t i = 0; i < count; ++i)
        x.push_back(std::ldexp(static_cast<float>(whole(draw)), exponent(draw)));
    return x;
}

// w [N, K] in panels; columns past N are no numbers.
std::vector<uint16_t> packed(const Floats& w, int64_t inputs, int64_t outputs) {
    std::vector<uint16_t> out(static_cast<size_t>((outputs + 15) / 16 * 16 * inputs), 0x7fc0);
    for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t k = 0; k < inputs; ++k) {
            uint32_t bits = 0;
            std::memcpy(&bits, &w[static_cast<size_t>(n * inputs + k)], sizeof bits);
            out[static_cast<size_t>(((n / 16 * inputs / 2 + k / 2) * 16 + n % 16) * 2 + k % 2)] =
                static_cast<uint16_t>(bits >> 16);
        }
    }
    return out;
}

Floats multiply(const h2o_products* kernels, const h2o_block_matrix& matrix, const Floats& x, int64_t rows) {
    const int64_t n = static_cast<int64_t>(x.size()) / matrix.inputs;
    const h2o_activations given{x.data(), nullptr, nullptr, 0.0f, {}, nullptr};
    EXPECT_EQ(h2o_products_check(&matrix), H2O_OK);
    EXPECT_EQ(h2o_products_as_it_is(&matrix, &given), 0);
    std::vector<float> memory(h2o_products_scratch_bytes(kernels, &matrix, n) / sizeof(float) + 16);
    char* const at = reinterpret_cast<char*>(memory.data());
    char* const scratch = at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64;
    Floats y(static_cast<size_t>(n * matrix.outputs), NAN);
    for (int64_t first = 0; first < n; first += rows) {
        const int64_t count = std::min(rows, n - first);
        h2o_products_prepare(kernels, &matrix, n, &given, first, count, scratch);
        h2o_products_multiply(kernels, &matrix, n, scratch, first, count, 0, 100, nullptr, y.data());
    }
    return y;
}

TEST(BFloat16Products, OfShortNumbersHaveTheErrorOfTheirSums) {
    for (const h2o_products* kernels : all_kernels()) {
        for (int64_t inputs : {16, 48, 304, 2048}) {
            for (int64_t outputs : {5, 32, 70}) {
                const Floats w = short_numbers(inputs * outputs, 1), x = short_numbers(17 * inputs, 2);
                const auto weights = packed(w, inputs, outputs);
                const h2o_block_matrix matrix{inputs, outputs, 0, 16, 1, weights.data(), nullptr, nullptr};
                const Floats y = multiply(kernels, matrix, x, 1000);
                for (int64_t i = 0; i < 17 * outputs; ++i) {
                    double sum = 0.0, size = 0.0;
                    for (int64_t k = 0; k < inputs; ++k) {
                        const double term =
                            static_cast<double>(x[static_cast<size_t>(i / outputs * inputs + k)]) *
                            static_cast<double>(w[static_cast<size_t>(i % outputs * inputs + k)]);
                        sum += term, size += std::fabs(term);
                    }
                    ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(i)]), sum, 2e-6 * size)
                        << h2o_products_isa(kernels) << " " << inputs << " x " << outputs;
                }
                for (int64_t rows : {1, 3, 14}) ASSERT_EQ(multiply(kernels, matrix, x, rows), y);
                for (int64_t rows : {1, 2, 3, 6, 7, 16}) {  // alone, as the last of them
                    const Floats some(x.end() - rows * inputs, x.end());
                    ASSERT_EQ(multiply(kernels, matrix, some, rows),
                              Floats(y.end() - rows * outputs, y.end()));
                }
            }
        }
    }
}

TEST(BFloat16Products, RoundActivationsToTheNearestOrNotAtAll) {
    for (const h2o_products* kernels : all_kernels()) {
        Floats w(16, 0.0f), x(16, 0.0f);
        w[3] = 1.0f;
        const auto weights = packed(w, 16, 1);
        const h2o_block_matrix matrix{16, 1, 0, 16, 1, weights.data(), nullptr, nullptr};
        const float step = 1.0f / 128.0f;  // of numbers from 1 to 2
        for (const auto& [given, nearest] : {std::pair{1.0f + 0.4f * step, 1.0f},
                                             {1.0f + 0.6f * step, 1.0f + step},
                                             {1.0f + 0.5f * step, 1.0f},
                                             {1.0f + 1.5f * step, 1.0f + 2.0f * step}}) {
            x[3] = given;
            const bool rounds = h2o_products_multiply_bfloat16(kernels) != 0;
            EXPECT_EQ(multiply(kernels, matrix, x, 1)[0], rounds ? nearest : given);
        }
    }
}

TEST(BFloat16Products, HaveNoRestAndWholePairs) {
    for (const h2o_block_matrix& bad : {h2o_block_matrix{40, 3, 0, 16, 1, nullptr, nullptr, nullptr},
                                        h2o_block_matrix{48, 3, 0, 16, 2, nullptr, nullptr, nullptr}})
        EXPECT_EQ(h2o_products_check(&bad), H2O_BAD_ARGUMENT);
}

}  // namespace
}  // namespace h2o::test
