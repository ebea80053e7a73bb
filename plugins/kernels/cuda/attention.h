// Host entry points of the attention and column-sum kernels, float16 and float32 alike.
#pragma once

#include <cuda_runtime.h>

#include "attention_args.h"
#include "h2o/status.h"

namespace h2o::cuda {

h2o_status launch_attention(const AttentionArgs& args, int head_size, h2o_dtype dtype, cudaStream_t stream);
h2o_status launch_column_sums(const ColumnSumArgs& args, int head_size, h2o_dtype dtype, cudaStream_t stream);

// Blocks that a multiprocessor runs at once of launch_attention over `packed_rows` rows, with keys that are
// not gathered. The device is asked once: all devices of a process are taken to be alike.
int attention_blocks_at_once(int64_t packed_rows, int head_size, h2o_dtype dtype);

// out [count] = the sum of `splits` parts, in order.
h2o_status launch_sum_of_parts(const float* parts, int splits, int64_t count, float* out,
                               cudaStream_t stream);

h2o_status launch_attention_f16(const AttentionArgs& args, int head_size, cudaStream_t stream);
h2o_status launch_attention_f32(const AttentionArgs& args, int head_size, cudaStream_t stream);
int attention_blocks_at_once_f16(bool small, int head_size);
int attention_blocks_at_once_f32(bool small, int head_size);
h2o_status launch_column_sums_f16(const ColumnSumArgs& args, int head_size, cudaStream_t stream);
h2o_status launch_column_sums_f32(const ColumnSumArgs& args, int head_size, cudaStream_t stream);

}  // namespace h2o::cuda
