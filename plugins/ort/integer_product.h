// IntegerProduct: MatMulNBits of ONNX Runtime, with our kernel for steps of few rows. An operator of domain
// h2o, which is in no file: h2o_runtime puts it in MatMulNBits' place as it loads graphs for a GPU.
//
// Inputs, as MatMulNBits has them: x float16 [..., K]; the integers, uint8 [N, K / block_size, bytes of a
// block]; their scales, float16 [N, K / block_size]. Output: y float16 [..., N]. Attributes: K, N, bits,
// block_size, accuracy_level.
//
// From 2 to 16 rows our kernel reads the integers once. MatMulNBits multiplies one row, and the many of a
// prompt: this operator calls it with the same tensors, so weights are in memory once. ONNX Runtime's own
// kernel for few rows came late, and ends at five rows of 8-bit integers; beyond it makes floats of the whole
// matrix first.
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* integer_product();

}  // namespace h2o::ort
