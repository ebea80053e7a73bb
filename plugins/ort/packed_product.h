// PackedProduct: y = x w for one or more matrices w, as h2o/products.h has them, which are given the same x.
// An operator of domain h2o.cpu, which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// inputs      x float32 [..., K] or [..., heads, K / heads]
//             weights uint8, scales float32: those of all matrices, one after the other; floats have no
//             scales offsets float32, alike, or left out up float32, as x, or left out: silu(x) * up takes
//             the place of x norm float32 [K], or left out: x / sqrt(mean of x^2 + epsilon) * norm takes its
//             place addend float32, as y, or left out: is added to y; with one matrix alone cos, sin float32
//             [n, size / 2], or left out: the first `rotated` of y are turned by them
// outputs     scratch uint8, for nobody: so ONNX Runtime's arena has the memory
//             y float32 [..., N] or [..., heads, N / heads], one a matrix
// attributes  K, block, bits, parts, epsilon, rotated; of each matrix N, and heads, 0 where y has none
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_product();

}  // namespace h2o::ort
