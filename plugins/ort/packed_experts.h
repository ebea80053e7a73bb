// PackedExperts: a mixture of experts, y[row] = addend[row] + the sum over slots of share[row][slot] times
// what expert chosen[row][slot] makes of x[row]. An expert is a gated MLP. An operator of domain h2o.cpu,
// which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// inputs      x float32 [n, K]; chosen int64 [n, slots]; shares float32, one for each of chosen
//             addend float32 [n, N], or none
//             of each expert those that GatedMlp::find names, without scales and offsets if there are none,
//             and those of find_biases
// outputs     order and scratch, uint8, for nobody; y float32 [n, N]
// attributes  those that GatedMlp::read names, of every expert; experts, how many; biased, whether they have
//             biases; threads, of the session
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_experts();

}  // namespace h2o::ort
