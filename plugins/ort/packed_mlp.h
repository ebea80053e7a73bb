// PackedMlp: a whole gated MLP with its norm and its residual, y = addend + down(silu(gate(x)) * up(x)).
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_mlp();

}  // namespace h2o::ort
