// ChunkedIntraAttention: one launch over row blocks x key/value heads x chunks, and one for column sums.

#include "attention.h"
#include "checks.h"

namespace h2o::cuda {

h2o_status run(const calls::ChunkedIntraAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const State state{call.o, call.m, call.l};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.chunk_size <= 0 || any_null(call.q, call.k, call.v) || !complete(state))
        return H2O_BAD_ARGUMENT;

    if (const h2o_status status = check_tokens(call.shape, call.n); status != H2O_OK) return status;

    const KeySource keys = token_major_keys(call.shape, call.k, call.v, call.n, call.shape.kv_heads);
    AttentionArgs attention =
        attention_of(call.shape, rows_of(call.shape, call.q, call.n, call.shape.kv_heads), keys);
    attention.rows.chunk = call.chunk_size;
    attention.keys.causal = true;
    attention.o = state.o;
    attention.m = state.m;
    attention.l = state.l;
    const h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK || !call.colsum) return status;

    const int sets = own_heads(call.shape);
    ColumnSumArgs sums = column_sums_of(call.shape, rows_of(call.shape, call.q, call.n, sets),
                                        token_major_keys(call.shape, call.k, nullptr, call.n, sets));
    sums.rows.chunk = call.chunk_size;
    sums.keys.causal = true;
    sums.m = state.m;
    sums.l = state.l;
    sums.out = call.colsum;
    sums.key_stride = call.shape.score_heads;
    sums.set_stride = 1;
    return launch_column_sums(sums, stream);
}

size_t workspace(const calls::ChunkedIntraAttention&) {
    return 0;
}

}  // namespace h2o::cuda
