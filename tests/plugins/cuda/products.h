// Matrices of integers in blocks, their words as the operators read them, and their products in float64.
#pragma once

#include "h2o/integer_product.h"
#include "support.h"

namespace test {

// As ONNX Runtime's MatMulNBits stores it: an output's integers in the order of its inputs, from a word's
// lowest bits up, each plus 8 or 128.
struct IntegerMatrix {
    int inputs, outputs, block;
    std::vector<int> integers;   // [outputs, inputs]
    std::vector<int32_t> words;  // [outputs, inputs * bits / 32]
    std::vector<double> scales;  // [outputs, inputs / block]

    template <class R>
    IntegerMatrix(int bits, int block_, int inputs_, int outputs_, R& random)
        : inputs(inputs_),
          outputs(outputs_),
          block(block_),
          integers(size_t(inputs_) * outputs_),
          words(size_t(inputs_) * outputs_ * bits / 32) {
        const int middle = 1 << (bits - 1), in_word = 32 / bits;
        std::uniform_int_distribution<int> any(-middle, middle - 1);
        for (size_t i = 0; i < integers.size(); ++i) {
            integers[i] = any(random);
            const auto stored = static_cast<uint32_t>(integers[i] + middle);
            int32_t& word = words[i / in_word];
            word = static_cast<int32_t>(static_cast<uint32_t>(word) | stored << (i % in_word * bits));
        }
    }

    // x [n, inputs] times the matrix, in float64; with `rounded`, the weights as float16 holds them.
    std::vector<double> times(const std::vector<double>& x, bool rounded) const {
        const size_t n = x.size() / inputs;
        std::vector<double> y(n * outputs);
        for (int column = 0; column < outputs; ++column)
            for (int k = 0; k < inputs; ++k) {
                const size_t at = size_t(column) * inputs + k;
                double weight = integers[at] * scales[at / block];
                if (rounded) weight = round_half(weight);
                for (size_t row = 0; row < n; ++row)
                    y[row * outputs + column] += x[row * inputs + k] * weight;
            }
        if (rounded)
            for (double& value : y) value = round_half(value);
        return y;
    }
};

inline h2o_status multiply_integers(int32_t bits, int32_t block, int32_t n, int32_t inputs, int32_t outputs,
                                    const void* x, const void* integers, const void* scales, void* y) {
    h2o::cuda::IntegerProduct product;
    product.x = x, product.integers = integers, product.scales = scales, product.y = y;
    product.rows = n, product.inputs = inputs, product.outputs = outputs;
    product.bits = bits, product.block = block;
    return h2o::cuda::run(product, nullptr);
}

}  // namespace test
