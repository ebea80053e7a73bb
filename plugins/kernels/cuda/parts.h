// Kernels that combine partial results. Parts are always added in the same order.
#pragma once

#include <cuda_runtime.h>

#include "attention_args.h"
#include "h2o/status.h"

namespace h2o::cuda {

constexpr int kMostParts = 128;  // that outputs are put together from

// Combines the states of `parts` softmaxes over the same rows, [parts, rows] each, and their normalised
// float32 outputs [parts, rows, d] into o [rows, d] in the model's dtype.
h2o_status launch_combine_parts(const float* o, const float* m, const float* l, int parts, int64_t rows,
                                int head_size, h2o_dtype dtype, void* out, cudaStream_t stream);

// The same without outputs: m, l [parts, rows] become one state per row.
h2o_status launch_combine_states(const float* m, const float* l, int parts, int64_t rows, float* m_out,
                                 float* l_out, cudaStream_t stream);

}  // namespace h2o::cuda
