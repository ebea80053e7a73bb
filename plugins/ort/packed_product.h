// PackedProduct: y = x w for one or more matrices w, as h2o/products.h has them, which are given the same x.
// An operator of domain h2o.cpu, which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// Inputs, of which all behind the weights may be left out:
//
// x        float32 [..., K] or [..., heads, K / heads]
//
// weights  uint8, those of all matrices, one after the other
//
// scales   float32, of integers, likewise; offsets float32, likewise
//
// up       float32, as x: gate(x) * up takes the place of x
//
// norm     float32 [K]: x / sqrt(mean of x^2 + epsilon) * norm takes its place
//
// addend   float32, as y: is added to y; with one matrix alone
//
// cos, sin float32 [n, size / 2]: the first `rotated` of y are turned by them
//
// Outputs: scratch uint8, for nobody, so that ONNX Runtime's arena has the memory; y float32 [..., N] or
// [..., heads, N / heads], one a matrix.
//
// Attributes: K, block, bits, parts, epsilon, rotated; gate, an h2o_gate; of each matrix N, and heads, 0
// where y has none.
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_product();

}  // namespace h2o::ort
