// ChunkedIntraAttention: one launch over row blocks x key/value heads x chunks, and one for column sums.

#include "attention.h"
#include "checks.h"

using namespace h2o::cuda;

extern "C" h2o_status h2o_cuda_chunked_intra_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                                       int32_t n, int32_t chunk_size, const void* q,
                                                       const void* k, const void* v,
                                                       const h2o_cuda_state* state, float* colsum) {
    if (const h2o_status status = check_shape(shape); status != H2O_OK) return status;
    if (n <= 0 || chunk_size <= 0 || any_null(q, k, v) || !complete(state)) return H2O_BAD_ARGUMENT;

    if (const h2o_status status = check_tokens(*shape, n); status != H2O_OK) return status;

    const KeySource keys = token_major_keys(*shape, k, v, n, shape->kv_heads);
    AttentionArgs attention = attention_of(*shape, rows_of(*shape, q, n, shape->kv_heads), keys);
    attention.rows.chunk = chunk_size;
    attention.keys.causal = true;
    attention.o = state->o;
    attention.m = state->m;
    attention.l = state->l;
    const h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK || !colsum) return status;

    const int sets = own_heads(*shape);
    ColumnSumArgs sums =
        column_sums_of(*shape, rows_of(*shape, q, n, sets), token_major_keys(*shape, k, nullptr, n, sets));
    sums.rows.chunk = chunk_size;
    sums.keys.causal = true;
    sums.m = state->m;
    sums.l = state->l;
    sums.out = colsum;
    sums.key_stride = shape->score_heads;
    sums.set_stride = 1;
    return launch_column_sums(sums, stream);
}
