#include "attention.h"

namespace h2o::cuda {

// The launches below choose the same way.
int attention_tile_rows(int packed_rows, h2o_dtype dtype) {
    return packed_rows <= 16 ? 16 : dtype == H2O_F16 ? 128 : 64;
}

h2o_status launch_attention(const AttentionArgs& args, int head_size, h2o_dtype dtype, cudaStream_t stream) {
    return dtype == H2O_F16 ? launch_attention_f16(args, head_size, stream)
                            : launch_attention_f32(args, head_size, stream);
}

h2o_status launch_column_sums(const ColumnSumArgs& args, int head_size, h2o_dtype dtype,
                              cudaStream_t stream) {
    return dtype == H2O_F16 ? launch_column_sums_f16(args, head_size, stream)
                            : launch_column_sums_f32(args, head_size, stream);
}

}  // namespace h2o::cuda
