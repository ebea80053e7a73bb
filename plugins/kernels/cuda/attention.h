// Host entry points of the attention and column-sum kernels, float16 and float32 alike.
#pragma once

#include <cuda_runtime.h>

#include "attention_args.h"
#include "h2o/status.h"

namespace h2o::cuda {

h2o_status launch_attention(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_column_sums(const ColumnSumArgs& args, cudaStream_t stream);

// The blocks of a launch_attention: packed rows of each, and how many a multiprocessor runs at once.
struct BlockForm {
    int rows;
    int at_once;
};

// Over `packed_rows` rows, with keys that are not gathered. The device is asked once: all devices of a
// process are taken to be alike.
BlockForm block_form(int64_t packed_rows, int head_size, int value_size, h2o_dtype dtype, bool latent);

// The device's multiprocessors, or many if it cannot be asked: only the speed depends on it.
int multiprocessors();

// Whether a launch_attention of one token, whose keys `group` query heads share, appends its row and combines
// its parts itself; and the first of these alone, for all others.
bool step_in_one(int group, int head_size, int value_size, h2o_dtype dtype, bool latent);
h2o_status launch_append_last_row(const AttentionArgs& args, cudaStream_t stream);

// out [count] = the sum of `splits` parts, in order.
h2o_status launch_sum_of_parts(const float* parts, int splits, int64_t count, float* out,
                               cudaStream_t stream);

h2o_status launch_attention_f16(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_attention_f32(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_latent_f16(const AttentionArgs& args, cudaStream_t stream);
h2o_status launch_attention_any(const AttentionArgs& args, cudaStream_t stream);
BlockForm block_form_f16(bool small, int head_size, int value_size);
BlockForm block_form_f32(bool small, int head_size);
BlockForm block_form_latent(int64_t packed_rows);
BlockForm block_form_any(h2o_dtype dtype);
h2o_status launch_column_sums_f16(const ColumnSumArgs& args, cudaStream_t stream);
h2o_status launch_column_sums_f32(const ColumnSumArgs& args, cudaStream_t stream);
h2o_status launch_column_sums_any(const ColumnSumArgs& args, cudaStream_t stream);

}  // namespace h2o::cuda
