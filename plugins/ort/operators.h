// The operators of both libraries. They live as long as the process.
#pragma once

#include <vector>

#include "interface.h"

namespace h2o::ort {

// Of the CPU.
const Operator* packed_product();
const Operator* packed_mlp();
const Operator* packed_experts();
const Operator* step_attention();

// Of the CUDA provider.
const Operator* integer_product();
const std::vector<const Operator*>& dense_operators();  // those of the table

}  // namespace h2o::ort
