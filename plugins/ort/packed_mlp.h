// PackedMlp: a whole gated MLP with its norm and its residual, y = addend + down(f(gate(x), up(x))), where f
// is an h2o_gate. Inputs and attributes are those of gated_mlp.h, and x, norm and addend as PackedProduct has
// them.
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_mlp();

}  // namespace h2o::ort
