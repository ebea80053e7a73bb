// Host entry points of the attention and column-sum kernels, for float16 and float32.
#pragma once

#include <cuda_runtime.h>

#include "attention_args.h"
#include "h2o/status.h"

namespace h2o::cuda {

h2o_status launch_attention(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_column_sums(const ColumnSumArgs& args, cudaStream_t stream);

// The blocks of a launch_attention: packed rows per block, and blocks that run at once on a multiprocessor.
struct BlockForm {
    int rows;
    int at_once;
};

// For `packed_rows` rows whose keys are not gathered. The device is asked once: all devices of a process are
// assumed to be alike.
BlockForm block_form(int64_t packed_rows, int head_size, int value_size, h2o_dtype dtype, bool latent);

// The number of multiprocessors, or a large number if the query fails: only speed depends on it.
int multiprocessors();

// Whether a launch_attention of one token appends its row and combines its parts itself, where `group` query
// heads share the keys. The second function answers only whether it appends.
bool step_in_one(int group, int head_size, int value_size, h2o_dtype dtype, bool latent);
h2o_status launch_append_last_row(const AttentionArgs& args, cudaStream_t stream);

// out [count] = the sum of `splits` parts, added in order.
h2o_status launch_sum_of_parts(const float* parts, int splits, int64_t count, float* out,
                               cudaStream_t stream);

h2o_status launch_attention_f16(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_latent_f16(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_attention_any(const AttentionArgs& args, cudaStream_t stream);
BlockForm block_form_f16(bool small, int head_size, int value_size);
BlockForm block_form_latent(int64_t packed_rows);
BlockForm block_form_any(h2o_dtype dtype);
h2o_status launch_column_sums_f16(const ColumnSumArgs& args, cudaStream_t stream);
h2o_status launch_column_sums_any(const ColumnSumArgs& args, cudaStream_t stream);

}  // namespace h2o::cuda
