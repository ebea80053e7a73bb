// ChunkedIntraAttention: one launch over row blocks x key/value heads x chunks, and one for column sums.

#include "attention.h"
#include "checks.h"

namespace h2o::cuda {
namespace {

// Column sums are of probabilities without sinks: they need the state that no sink has joined.
struct Scratch {
    float* m;  // [n, Hq] maxima of the scores
    float* l;  // [n, Hq] sums of exp(score - m)

    Scratch(const calls::ChunkedIntraAttention& call, Workspace& workspace) {
        const int64_t states =
            call.sinks && call.colsum ? static_cast<int64_t>(call.n) * call.shape.query_heads : 0;
        m = workspace.take<float>(states);
        l = workspace.take<float>(states);
    }
};

}  // namespace

h2o_status run(const calls::ChunkedIntraAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const State state{call.o, call.m, call.l};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.chunk_size <= 0 || any_null(call.q, call.k, call.v) || !complete(state))
        return H2O_BAD_ARGUMENT;

    if (const h2o_status status = check_tokens(call.shape, call.n); status != H2O_OK) return status;

    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call, pieces);
    if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    const KeySource keys = token_major_keys(call.shape, call.k, call.v, call.n, call.shape.kv_heads);
    AttentionArgs attention =
        attention_of(call.shape, rows_of(call.shape, call.q, call.n, call.shape.kv_heads), keys);
    attention.rows.chunk = call.chunk_size;
    attention.keys.causal = true;
    attention.o = state.o;
    attention.m = state.m;
    attention.l = state.l;
    attention.sinks = call.sinks;
    const bool joined = call.sinks && call.colsum;
    attention.own_m = joined ? scratch.m : nullptr;
    attention.own_l = joined ? scratch.l : nullptr;
    const h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK || !call.colsum) return status;

    const int sets = own_heads(call.shape);
    ColumnSumArgs sums = column_sums_of(call.shape, rows_of(call.shape, call.q, call.n, sets),
                                        token_major_keys(call.shape, call.k, nullptr, call.n, sets));
    sums.rows.chunk = call.chunk_size;
    sums.keys.causal = true;
    sums.m = joined ? scratch.m : state.m;
    sums.l = joined ? scratch.l : state.l;
    sums.out = call.colsum;
    sums.key_stride = call.shape.score_heads;
    sums.set_stride = 1;
    return launch_column_sums(sums, stream);
}

size_t workspace(const calls::ChunkedIntraAttention& call) {
    Workspace pieces;
    Scratch(call, pieces);
    return pieces.used();
}

}  // namespace h2o::cuda
