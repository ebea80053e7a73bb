// Products with integer weights in blocks: every instruction set, against float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "product_support.h"

namespace h2o::test {
namespace {

std::vector<std::string> product_instructions() {
    std::vector<std::string> found;
    for (const char* isa :
         {"scalar", "avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx", "dotprod", "i8mm"}) {
        if (find(isa) != nullptr) found.emplace_back(isa);
    }
    return found;
}

// Whole numbers with 127 in every block are integers as they are.
Floats whole_numbers(int64_t count, int64_t block, uint32_t seed) {
    std::mt19937 draw(seed);
    std::uniform_int_distribution<int> whole(-127, 127);
    Floats x;
    for (int64_t i = 0; i < count; ++i)
        x.push_back(i % block == 5 ? 127.0f : static_cast<float>(whole(draw)));
    return x;
}

const Case kCases[] = {
    {64, 48, 32, 8, 1, false},   {96, 33, 32, 4, 1, true},    {128, 16, 16, 4, 2, false},
    {352, 16, 32, 8, 1, true},   {64, 5, 16, 8, 1, true},     {192, 80, 64, 8, 2, true},
    {512, 31, 256, 4, 1, false}, {512, 17, 256, 8, 1, false}, {64, 64, 32, 4, 2, true},
};

TEST_P(Products, OfWholeNumbersAreExact) {
    for (const Case& c : kCases) {
        const Matrix matrix(c, 1);
        for (int64_t n : {1, 2, 3, 5, 6, 7, 8, 13}) {
            const Floats x = whole_numbers(n * c.inputs, c.block, 2), y = multiply(matrix.c(), x);
            for (int64_t i = 0; i < n * c.outputs; ++i) {
                double sum = 0.0, size = 0.0;
                for (int64_t k = 0; k < c.inputs; ++k) {
                    const double term =
                        static_cast<double>(x[static_cast<size_t>(i / c.outputs * c.inputs + k)]) *
                        matrix.at(i % c.outputs, k);
                    sum += term;
                    size += std::fabs(term);
                }
                ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(i)]), sum, 1e-6 * size)
                    << c.bits << " bits, block " << c.block << ", n " << n << ", at " << i;
            }
        }
    }
}

// A number is at most half a step from its integer; with two parts, half a step of the second.
TEST_P(Products, LoseNoMoreThanRounding) {
    for (const Case& c : kCases) {
        const Matrix matrix(c, 3);
        const int64_t n = 3;
        const Floats x = numbers(n * c.inputs, 4), y = multiply(matrix.c(), x);
        for (int64_t i = 0; i < n * c.outputs; ++i) {
            const float* row = x.data() + i / c.outputs * c.inputs;
            double sum = 0.0, bound = 1e-6;
            for (int64_t block = 0; block < c.inputs; block += c.block) {
                double largest = 0.0, weights = 0.0;
                for (int64_t k = block; k < block + c.block; ++k) {
                    const double weight = matrix.at(i % c.outputs, k);
                    sum += static_cast<double>(row[k]) * weight;
                    weights += std::fabs(weight);
                    largest = std::fmax(largest, std::fabs(static_cast<double>(row[k])));
                }
                bound += (c.parts == 2 ? 1.001 / 254.0 : 1.001) * largest / 254.0 * weights;
            }
            ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(i)]), sum, bound);
        }
    }
}

TEST_P(Products, AddWhatIsThere) {
    const Case c{64, 40, 32, 4, 2, false};
    const Matrix matrix(c, 7);
    const Floats x = numbers(5 * c.inputs, 8), there = numbers(5 * c.outputs, 9);
    const Floats alone = multiply(matrix.c(), x), both = multiply(matrix.c(), x, 2, 1, nullptr, there);
    for (size_t i = 0; i < both.size(); ++i) EXPECT_FLOAT_EQ(both[i], alone[i] + there[i]);
}

double gated(const h2o_gate& gate, double x, double up) {
    if (gate.function == H2O_SILU) return x / (1.0 + std::exp(-x)) * up;
    if (gate.function == H2O_GELU) {
        return x * (1.0 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))) / 2.0 * up;
    }
    const double limit = static_cast<double>(gate.limit), most = std::min(x, limit);
    const double opened = most / (1.0 + std::exp(-static_cast<double>(gate.gain) * most));
    return opened * (std::clamp(up, -limit, limit) + 1.0);
}

TEST_P(Products, OfAGate) {
    const Case c{64, 16, 32, 8, 2, false};
    const Matrix matrix(c, 10);
    Floats gate = numbers(3 * c.inputs, 11), up = numbers(3 * c.inputs, 12);
    for (float& x : gate) x *= 6.0f;
    gate[0] = 0.0f, gate[1] = 90.0f, gate[2] = -90.0f;
    for (const h2o_gate& function : {h2o_gate{H2O_SILU, 0.0f, 0.0f}, h2o_gate{H2O_GELU, 0.0f, 0.0f},
                                     h2o_gate{H2O_CLAMPED, 1.5f, 1.7f}}) {
        Floats made;
        for (size_t i = 0; i < gate.size(); ++i) {
            made.push_back(static_cast<float>(
                gated(function, static_cast<double>(gate[i]), static_cast<double>(up[i]))));
        }
        const h2o_activations x{gate.data(), up.data(), nullptr, 0.0f, function, nullptr};
        const Floats found = multiply(matrix.c(), x, 3, 2, 1), expected = multiply(matrix.c(), made);
        for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-4f);
    }
}

// x / sqrt(mean(x^2) + epsilon) * norm.
Floats normed(const Floats& x, const Floats& norm, float epsilon) {
    Floats out;
    const size_t width = norm.size();
    for (size_t row = 0; row < x.size(); row += width) {
        double sum = 0.0;
        for (size_t k = 0; k < width; ++k)
            sum += static_cast<double>(x[row + k]) * static_cast<double>(x[row + k]);
        const double root = std::sqrt(sum / static_cast<double>(width) + static_cast<double>(epsilon));
        for (size_t k = 0; k < width; ++k) {
            out.push_back(
                static_cast<float>(static_cast<double>(x[row + k]) / root * static_cast<double>(norm[k])));
        }
    }
    return out;
}

TEST_P(Products, OfANorm) {
    for (const Case& c : {Case{64, 16, 32, 8, 2, false}, Case{96, 40, 32, 4, 1, true}}) {
        const Matrix matrix(c, 15);
        const Floats x = numbers(3 * c.inputs, 16), norm = numbers(c.inputs, 17);
        const Floats found =
            multiply(matrix.c(), {x.data(), nullptr, norm.data(), 0.3f, {}, nullptr}, 3, 2, 1);
        const Floats expected = multiply(matrix.c(), normed(x, norm, 0.3f));
        for (size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i], expected[i], c.parts == 2 ? 1e-4f : 0.02f);
    }
}

TEST_P(Products, OfRowsInAnotherOrder) {
    const std::vector<int64_t> order = {3, 0, 3, 1};
    for (const int bits : {8, 4}) {
        const Case c{64, 40, 32, bits, 1, false};
        const Matrix matrix(c, 18);
        const Floats x = numbers(4 * c.inputs, 19), in_order = multiply(matrix.c(), x);
        const h2o_activations given{x.data(), nullptr, nullptr, 0.0f, {}, order.data()};
        const Floats found = multiply(matrix.c(), given, 4, 3, 1);
        for (size_t i = 0; i < found.size(); ++i) {
            const size_t row = i / 40;
            EXPECT_EQ(found[i], in_order[static_cast<size_t>(order[row]) * 40 + i % 40]);
        }
    }
}

// Weights as they are: [panels][K][16], columns past N are not numbers.
class FloatMatrix {
  public:
    FloatMatrix(int64_t inputs, int64_t outputs, uint32_t seed)
        : inputs_(inputs), outputs_(outputs), of_columns_(numbers(inputs * outputs, seed)) {
        packed_.assign(static_cast<size_t>((outputs + 15) / 16 * 16 * inputs), NAN);
        for (int64_t n = 0; n < outputs; ++n) {
            for (int64_t k = 0; k < inputs; ++k) {
                packed_[static_cast<size_t>((n / 16 * inputs + k) * 16 + n % 16)] = at(n, k);
            }
        }
    }
    float at(int64_t n, int64_t k) const { return of_columns_[static_cast<size_t>(n * inputs_ + k)]; }
    h2o_block_matrix c() const { return {inputs_, outputs_, 0, 32, 1, packed_.data(), nullptr, nullptr}; }

    // y [n, N] in double precision.
    Floats multiply(const Floats& x) const {
        Floats y;
        for (size_t row = 0; row < x.size(); row += static_cast<size_t>(inputs_)) {
            for (int64_t n = 0; n < outputs_; ++n) {
                double sum = 0.0;
                for (int64_t k = 0; k < inputs_; ++k) {
                    sum +=
                        static_cast<double>(x[row + static_cast<size_t>(k)]) * static_cast<double>(at(n, k));
                }
                y.push_back(static_cast<float>(sum));
            }
        }
        return y;
    }

  private:
    int64_t inputs_, outputs_;
    Floats of_columns_, packed_;
};

TEST_P(Products, OfFloats) {
    for (int64_t outputs : {5, 16, 31, 33, 96}) {
        const FloatMatrix matrix(48, outputs, 18);
        for (int64_t n : {1, 2, 6, 7, 13, 14, 15, 31}) {
            const Floats x = numbers(n * 48, 19), up = numbers(n * 48, 20), norm = numbers(48, 21);
            const Floats whole = multiply(matrix.c(), x), expected = matrix.multiply(x);
            for (size_t i = 0; i < whole.size(); ++i)
                ASSERT_NEAR(whole[i], expected[i], 3e-5f) << outputs << ", " << n;
            const Floats there = numbers(n * outputs, 22),
                         both = multiply(matrix.c(), x, 5, 3, nullptr, there);
            for (size_t i = 0; i < both.size(); ++i) ASSERT_NEAR(both[i], expected[i] + there[i], 3e-5f);
            const Floats of_norm =
                multiply(matrix.c(), {x.data(), nullptr, norm.data(), 0.1f, {}, nullptr}, n, 4, 2);
            const Floats by_hand = matrix.multiply(normed(x, norm, 0.1f));
            for (size_t i = 0; i < of_norm.size(); ++i) ASSERT_NEAR(of_norm[i], by_hand[i], 1e-4f);
            const Floats of_gate = multiply(matrix.c(), x, 4, 2, up.data());
            Floats gated;
            for (size_t i = 0; i < x.size(); ++i) gated.push_back(x[i] / (1.0f + std::exp(-x[i])) * up[i]);
            const Floats gate_by_hand = matrix.multiply(gated);
            for (size_t i = 0; i < of_gate.size(); ++i) ASSERT_NEAR(of_gate[i], gate_by_hand[i], 1e-4f);
        }
    }
}

// A row's bits, also where they make one tile, the remainder of a tile, or pieces of threads.
TEST_P(Products, OfARowDoNotDependOnRowsBeside) {
    constexpr int64_t kAll = 1024, kInputs = 192;
    const Matrix integers[] = {{{kInputs, 40, 32, 8, 1, false}, 31}, {{kInputs, 40, 32, 8, 2, true}, 32},
                               {{kInputs, 33, 32, 4, 1, true}, 33},  {{kInputs, 33, 32, 4, 2, false}, 34},
                               {{kInputs, 17, 48, 8, 1, true}, 35},  {{kInputs, 17, 64, 4, 1, false}, 36}};
    const FloatMatrix floats(kInputs, 70, 37);
    std::vector<h2o_block_matrix> matrices{floats.c()};
    for (const Matrix& matrix : integers) matrices.push_back(matrix.c());
    const Floats x = numbers(kAll * kInputs, 38), norm = numbers(kInputs, 39);
    for (const h2o_block_matrix& matrix : matrices) {
        const auto rows = [&](int64_t first, int64_t count) {
            return multiply(matrix, {x.data() + first * kInputs, nullptr, norm.data(), 0.1f, {}, nullptr},
                            count);
        };
        const Floats all = rows(0, kAll);
        for (int64_t count : {1, 2, 3, 6, 7, 16, 17, 128}) {
            for (int64_t first : {int64_t{0}, int64_t{5}, kAll - count}) {
                const Floats some = rows(first, count);
                const size_t bytes = some.size() * sizeof(float);
                EXPECT_EQ(std::memcmp(some.data(), all.data() + first * matrix.outputs, bytes), 0)
                    << matrix.bits << " bits, " << count << " rows from " << first;
            }
        }
    }
}

// Rows of so many numbers have gaps between them once they are prepared, or are copied to get some.
TEST_P(Products, OfRowsThatAreWholePages) {
    constexpr int64_t kInputs = 2048, kOutputs = 33;
    const FloatMatrix matrix(kInputs, kOutputs, 25);
    for (int64_t n : {1, 3, 15}) {
        const Floats x = numbers(n * kInputs, 26), norm = numbers(kInputs, 27);
        const Floats plain = multiply(matrix.c(), x, 4, 2), expected = matrix.multiply(x);
        for (size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(plain[i], expected[i], 3e-4f);
        const Floats of_norm =
            multiply(matrix.c(), {x.data(), nullptr, norm.data(), 0.1f, {}, nullptr}, n, 4, 2);
        const Floats by_hand = matrix.multiply(normed(x, norm, 0.1f));
        for (size_t i = 0; i < of_norm.size(); ++i) ASSERT_NEAR(of_norm[i], by_hand[i], 3e-4f);
    }
}

TEST_P(Products, TurnTheirRows) {
    constexpr int64_t kRows = 5, kHeads = 3, kSize = 64;
    const Floats before = numbers(kRows * kHeads * kSize, 23), angle = numbers(kRows * kSize / 2, 24);
    Floats cos, sin, y = before;
    for (float x : angle) cos.push_back(std::cos(x)), sin.push_back(std::sin(x));
    h2o_products_rotate(find(GetParam()), kHeads, kSize, cos.data(), sin.data(), 1, 3, y.data());
    for (int64_t i = 0; i < kRows * kHeads * kSize; ++i) {
        const int64_t row = i / (kHeads * kSize), in = i % kSize, half = kSize / 2;
        const size_t at = static_cast<size_t>(i), table = static_cast<size_t>(row * half + in % half);
        const size_t other = static_cast<size_t>(in < half ? i + half : i - half);
        const float turned =
            before[at] * cos[table] + (in < half ? -1.0f : 1.0f) * before[other] * sin[table];
        EXPECT_NEAR(y[at], row < 1 || row > 3 ? before[at] : turned, 1e-6f);
    }
}

// Rows of nothing are nothing, and what is not finite stays in its row.
TEST_P(Products, OfOddNumbers) {
    for (int parts : {1, 2}) {
        const Case c{64, 20, 32, 8, parts, true};
        const Matrix matrix(c, 13);
        for (float odd : {NAN, HUGE_VALF, -HUGE_VALF}) {
            Floats x = numbers(4 * c.inputs, 14);
            const Floats before = multiply(matrix.c(), x);
            for (int64_t k = 0; k < c.inputs; ++k)
                x[static_cast<size_t>(3 * c.inputs + k)] = k % 2 ? 1e-38f : 0.0f;
            x[static_cast<size_t>(c.inputs + 40)] = odd;
            const Floats y = multiply(matrix.c(), x);
            for (int64_t column = 0; column < c.outputs; ++column) {
                const auto at = [&](int64_t row) { return static_cast<size_t>(row * c.outputs + column); };
                EXPECT_EQ(y[at(0)], before[at(0)]);
                EXPECT_FALSE(std::isfinite(y[at(1)]));
                EXPECT_EQ(y[at(2)], before[at(2)]);
                EXPECT_NEAR(y[at(3)], 0.0f, 1e-30f);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, Products, testing::ValuesIn(product_instructions()),
                         [](const auto& info) { return info.param; });

TEST(ProductArguments, AreChecked) {
    const h2o_block_matrix good{64, 3, 32, 8, 1, nullptr, nullptr, nullptr};
    EXPECT_EQ(h2o_products_check(&good), H2O_OK);
    EXPECT_EQ(h2o_products_check(nullptr), H2O_BAD_ARGUMENT);
    const auto refused = [&](auto change) {
        h2o_block_matrix bad = good;
        change(bad);
        EXPECT_EQ(h2o_products_check(&bad), H2O_BAD_ARGUMENT);
    };
    refused([](h2o_block_matrix& m) { m.inputs = 65; });
    refused([](h2o_block_matrix& m) { m.inputs = 0; });
    refused([](h2o_block_matrix& m) { m.outputs = 0; });
    refused([](h2o_block_matrix& m) { m.block = 8; });
    refused([](h2o_block_matrix& m) { m.inputs = m.block = 512; });
    refused([](h2o_block_matrix& m) { m.bits = 3; });
    refused([](h2o_block_matrix& m) { m.parts = 3; });
    refused([](h2o_block_matrix& m) { m.bits = 32, m.parts = 0; });
    refused([](h2o_block_matrix& m) { m.bits = 32, m.inputs = 72; });
    refused([](h2o_block_matrix& m) { m.bits = 32, m.parts = 2; });
    const h2o_products* found = nullptr;
    EXPECT_EQ(h2o_products_find("sse", &found), H2O_UNSUPPORTED);
    EXPECT_EQ(h2o_products_find(nullptr, nullptr), H2O_BAD_ARGUMENT);
}

}  // namespace
}  // namespace h2o::test
