// PackedMlp: a whole gated MLP with its norm and its residual, y = addend + down(f(gate(x)) * up(x)),
// where f is the h2o_gate that the attribute `gate` names.
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* packed_mlp();

}  // namespace h2o::ort
