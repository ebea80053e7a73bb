// A matrix of 4-bit integers in blocks: its words as h2o/cuda.h describes them, and its products in float64.
#pragma once

#include "support.h"

namespace test {

struct BlockMatrix {
    int inputs, outputs;
    h2o_dtype dtype;
    std::vector<int> integers;  // [inputs, outputs], from -8 to 7
    std::vector<int32_t> words;
    std::vector<double> scales;  // [inputs / 32, outputs]

    template <class R>
    BlockMatrix(int inputs_, int outputs_, R& random)
        : inputs(inputs_),
          outputs(outputs_),
          dtype(H2O_F32),
          integers(size_t(inputs_) * outputs_),
          words(size_t(inputs_) * outputs_ / 8) {
        for (int& q : integers) q = std::uniform_int_distribution<int>(-8, 7)(random);
        for (int k = 0; k < inputs; ++k)
            for (int column = 0; column < outputs; ++column) {
                const int t = k % 32 / 8, i = k % 8 / 2 + 4 * (k % 2);
                const size_t four = (size_t(k / 32) * outputs + column / 4 * 4) * 4;
                int32_t& word = words[four + t * 4 + column % 4];
                const unsigned bits = static_cast<unsigned>(integers[size_t(k) * outputs + column] + 8);
                word = static_cast<int32_t>(static_cast<uint32_t>(word) | bits << (4 * i));
            }
    }

    // x [n, inputs] times the matrix, in float64; with `rounded`, the weights as float16 holds them.
    std::vector<double> times(const std::vector<double>& x, bool rounded) const {
        const size_t n = x.size() / inputs;
        std::vector<double> y(n * outputs);
        for (int k = 0; k < inputs; ++k)
            for (int column = 0; column < outputs; ++column) {
                double weight =
                    integers[size_t(k) * outputs + column] * scales[size_t(k / 32) * outputs + column];
                if (rounded) weight = round_half(weight);
                for (size_t row = 0; row < n; ++row)
                    y[row * outputs + column] += x[row * inputs + k] * weight;
            }
        if (rounded)
            for (double& value : y) value = round_half(value);
        return y;
    }
};

}  // namespace test
