// Kernels that combine partial results. Parts are always added in the same order.
#pragma once

#include <cuda_runtime.h>

#include "attention_args.h"
#include "checks.h"
#include "h2o/status.h"

namespace h2o::cuda {

constexpr int kMostParts = 128;  // that outputs are put together from

// Gives a launch whose keys are split room for the states of its parts.
inline h2o_status take_parts(AttentionArgs& args, Workspace& pieces) {
    const int64_t rows = static_cast<int64_t>(args.rows.tokens) * args.rows.heads;
    args.partial_o = pieces.take<float>(args.splits * rows * args.value_size);
    args.partial_m = pieces.take<float>(args.splits * rows);
    args.partial_l = pieces.take<float>(args.splits * rows);
    return pieces.enough() ? H2O_OK : H2O_OUT_OF_WORKSPACE;
}

// Combines these states, and their normalised float32 outputs, into o [tokens, heads, dv] of args.dtype.
h2o_status launch_combine_parts(const AttentionArgs& args, void* o, cudaStream_t stream);

// States alone: m, l [parts, rows] become one state per row.
h2o_status launch_combine_states(const float* m, const float* l, int parts, int64_t rows, float* m_out,
                                 float* l_out, cudaStream_t stream);

}  // namespace h2o::cuda
