// Products with integers in the layout of ONNX Runtime's MatMulNBits, on a GPU.
#pragma once

#include <stdint.h>

#include "h2o/status.h"

namespace h2o::cuda {

// y = x w, for at most 16 rows. An output's integers are in the order of its inputs, each plus 8 or 128; of 4
// bits the first is in a byte's low half. `block` inputs of an output share a scale.
struct IntegerProduct {
    const void* x = nullptr;         // float16 [rows, inputs]
    const void* integers = nullptr;  // [outputs, inputs * bits / 8] bytes
    const void* scales = nullptr;    // float16 [outputs, inputs / block]
    void* y = nullptr;               // float16 [rows, outputs]
    int64_t rows = 0, inputs = 0, outputs = 0;
    int64_t bits = 0;   // 4 or 8
    int64_t block = 0;  // a power of two, at least 32
};

// Enqueues the product on a CUDA stream. All pointers are multiples of 16 bytes. H2O_UNSUPPORTED: other sizes
// than these, or a matrix of more than 2^31 blocks of 32 inputs.
h2o_status run(const IntegerProduct& product, void* stream);

}  // namespace h2o::cuda
