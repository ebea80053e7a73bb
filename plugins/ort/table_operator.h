// Operators of the table h2o_runtime/operators.py for ONNX Runtime's CUDA provider: one code for all of them.
#pragma once

#include <vector>

#include "interface.h"

namespace h2o::ort {

// Those of dense graphs. They live as long as the process.
const std::vector<const Operator*>& dense_operators();

}  // namespace h2o::ort
