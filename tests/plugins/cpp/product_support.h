// What tests of products share: random matrices as the kernels read them, and products in pieces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "h2o/products.h"

namespace h2o::test {
namespace {

const h2o_products* find(const std::string& isa) {
    const h2o_products* found = nullptr;
    h2o_products_find(isa.c_str(), &found);
    return found;
}

struct Case {
    int64_t inputs, outputs, block;
    int bits, parts;
    bool offsets = false;
};

// A matrix [N, K] of small integers as the kernels read it, and what it is exactly.
class Matrix {
  public:
    Matrix(const Case& c, uint32_t seed) : case_(c), draw_(seed) {
        const int64_t rows = (c.outputs + 15) / 16 * 16;
        std::uniform_int_distribution<int> whole(c.bits == 8 ? -128 : -8, c.bits == 8 ? 127 : 7);
        std::normal_distribution<float> normal;
        packed_.assign(static_cast<size_t>(rows * c.inputs * c.bits / 8), 0);
        scales_.resize(static_cast<size_t>(rows * c.inputs / c.block));
        offsets_.resize(c.offsets ? scales_.size() : 0);
        for (float& scale : scales_) scale = 0.01f * normal(draw_);
        for (float& offset : offsets_) offset = 0.1f * normal(draw_);
        for (int64_t n = 0; n < rows; ++n) {
            for (int64_t k = 0; k < c.inputs; ++k) {
                q_.push_back(whole(draw_));
                put(n, k, q_.back());
            }
        }
    }

    double at(int64_t n, int64_t k) const {
        const size_t i =
            static_cast<size_t>((n / 16 * (case_.inputs / case_.block) + k / case_.block) * 16 + n % 16);
        const double value = q_[static_cast<size_t>(n * case_.inputs + k)] * static_cast<double>(scales_[i]);
        return offsets_.empty() ? value : value + static_cast<double>(offsets_[i]);
    }

    h2o_block_matrix c() const {
        return {case_.inputs, case_.outputs,  case_.block,    case_.bits,
                case_.parts,  packed_.data(), scales_.data(), offsets_.empty() ? nullptr : offsets_.data()};
    }

  private:
    void put(int64_t n, int64_t k, int value) {
        const int64_t panel = n / 16 * case_.inputs * 16 * case_.bits / 8, column = n % 16;
        if (case_.bits == 8) {
            packed_[static_cast<size_t>(panel + (k / 4 * 16 + column) * 4 + k % 4)] =
                static_cast<uint8_t>(value + 128);
            return;
        }
        const int64_t half = case_.block / 2, inside = k % case_.block % half;
        const int64_t step = k / case_.block * (half / 4) + inside / 4;
        const int shift = k % case_.block >= half ? 4 : 0;
        packed_[static_cast<size_t>(panel + (step * 16 + column) * 4 + inside % 4)] |=
            static_cast<uint8_t>((value + 8) << shift);
    }

    Case case_;
    std::mt19937 draw_;
    std::vector<int> q_;
    std::vector<uint8_t> packed_;
    std::vector<float> scales_, offsets_;
};

using Floats = std::vector<float>;

class Products : public testing::TestWithParam<std::string> {
  protected:
    // y [n, N], made in pieces of `rows` and `panels`.
    Floats multiply(const h2o_block_matrix& matrix, const Floats& x, int64_t rows = 1000,
                    int64_t panels = 1000, const float* up = nullptr, const Floats& addend = {}) const {
        return multiply(matrix, h2o_activations{x.data(), up, nullptr, 0.0f, {}, nullptr},
                        static_cast<int64_t>(x.size()) / matrix.inputs, rows, panels, addend);
    }

    Floats multiply(const h2o_block_matrix& matrix, const h2o_activations& x, int64_t n, int64_t rows = 1000,
                    int64_t panels = 1000, const Floats& addend = {}) const {
        const h2o_products* kernels = find(GetParam());
        EXPECT_EQ(h2o_products_check(&matrix), H2O_OK);
        const size_t bytes = h2o_products_scratch_bytes(kernels, &matrix, n);
        std::vector<char> memory(bytes + 128, 0x55);
        char* scratch = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
        Floats y(static_cast<size_t>(n * matrix.outputs), NAN);
        if (!addend.empty()) y = addend;
        const bool as_it_is = h2o_products_as_it_is(&matrix, &x) != 0;
        for (int64_t first = 0; first < n && !as_it_is; first += rows) {
            h2o_products_prepare(kernels, &matrix, n, &x, first, std::min(rows, n - first), scratch);
        }
        const void* const prepared = as_it_is ? static_cast<const void*>(x.x) : scratch;
        for (int64_t first = 0; first < n; first += rows) {
            for (int64_t panel = 0; panel * 16 < matrix.outputs; panel += panels) {
                h2o_products_multiply(kernels, &matrix, n, prepared, first, std::min(rows, n - first), panel,
                                      panels, addend.empty() ? nullptr : y.data(), y.data());
            }
        }
        for (size_t i = bytes + 64; i < memory.size(); ++i) EXPECT_EQ(memory[i], 0x55);
        return y;
    }
};

Floats numbers(int64_t count, uint32_t seed) {
    std::mt19937 draw(seed);
    std::normal_distribution<float> normal;
    Floats x;
    for (int64_t i = 0; i < count; ++i) x.push_back(normal(draw));
    return x;
}

}  // namespace
}  // namespace h2o::test
