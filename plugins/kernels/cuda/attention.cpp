#include "attention.h"

#include "tiles.h"

namespace h2o::cuda {

h2o_status launch_attention(const AttentionArgs& args, int head_size, h2o_dtype dtype, cudaStream_t stream) {
    return dtype == H2O_F16 ? launch_attention_f16(args, head_size, stream)
                            : launch_attention_f32(args, head_size, stream);
}

int attention_blocks_at_once(int64_t packed_rows, int head_size, h2o_dtype dtype) {
    const bool small = small_tile(packed_rows);
    return dtype == H2O_F16 ? attention_blocks_at_once_f16(small, head_size)
                            : attention_blocks_at_once_f32(small, head_size);
}

h2o_status launch_column_sums(const ColumnSumArgs& args, int head_size, h2o_dtype dtype,
                              cudaStream_t stream) {
    return dtype == H2O_F16 ? launch_column_sums_f16(args, head_size, stream)
                            : launch_column_sums_f32(args, head_size, stream);
}

}  // namespace h2o::cuda
