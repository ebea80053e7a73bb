#include "attention.h"

namespace h2o::cuda {

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
