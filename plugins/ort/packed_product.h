// PackedProduct: y = x w for one or more matrices w, as h2o/products.h has them, which are given the same x.
// An operator of domain h2o.cpu, which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// inputs      x float32 [..., K]
//             weights uint8, scales float32: those of all matrices, one after the other
//             offsets float32, alike, or left out
//             up float32, as x, or left out: silu(x) * up takes the place of x
//             addend float32, as y, or left out: is added to y; with one matrix alone
// outputs     scratch uint8, for nobody: so ONNX Runtime's arena has the memory
//             y float32 [..., N], one a matrix
// attributes  K, block, bits, parts; N, of each matrix
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_product();

}  // namespace h2o::ort
