// MemoryAttention and MemoryFusedAttention: attention to M rows per memory set, gathered or read in place.

#include "attention.h"
#include "checks.h"
#include "tiles.h"

using namespace h2o::cuda;

namespace {

// Column sums over few keys and many rows: the rows are split into parts to fill the device, and a second
// launch adds the parts. The split depends only on the shape, so results do not vary.
constexpr int kBlocksWanted = 256;

int row_parts(const h2o_shape& shape, int n, int slots) {
    const int blocks = (slots + kColumnSumKeys - 1) / kColumnSumKeys * shape.score_heads;
    const int64_t rows = static_cast<int64_t>(n) * (shape.query_heads / own_heads(shape));
    const int64_t tiles = (rows + kColumnSumRows - 1) / kColumnSumRows;
    const int wanted = (kBlocksWanted + blocks - 1) / blocks;
    return static_cast<int>(tiles < wanted ? tiles : wanted);
}

struct Scratch {
    float* m;      // [n, Hq] maxima of the scores
    float* l;      // [n, Hq] sums of exp(score - m)
    float* parts;  // [parts, Hs, M] column sums of parts of the rows

    template <class Call>
    Scratch(const Call& call, bool own_state, Workspace& workspace) {
        const int64_t states = own_state ? static_cast<int64_t>(call.n) * call.shape.query_heads : 0;
        m = workspace.take<float>(states);
        l = workspace.take<float>(states);
        // An upper bound that grows with the shape, not the parts of this shape: a workspace for the largest
        // n and M fits every smaller call.
        parts = workspace.take<float>(kBlocksWanted * kColumnSumKeys +
                                      static_cast<int64_t>(call.shape.score_heads) * call.M);
    }
};

// Of the rows whose states are m and l.
template <class Call>
h2o_status sum_columns(const Call& call, const KeySource& keys, const float* m, const float* l,
                       float* parts) {
    ColumnSumArgs sums =
        column_sums_of(call.shape, rows_of(call.shape, call.q, call.n, own_heads(call.shape)), keys);
    sums.m = m;
    sums.l = l;
    sums.splits = row_parts(call.shape, call.n, call.M);
    sums.out = sums.splits > 1 ? parts : call.colsum;
    sums.key_stride = 1;
    sums.set_stride = call.M;
    const int64_t count = static_cast<int64_t>(call.shape.score_heads) * call.M;
    sums.split_stride = count;
    const h2o_status status = launch_column_sums(sums, stream_of(call));
    if (status != H2O_OK || sums.splits == 1) return status;
    return launch_sum_of_parts(parts, sums.splits, count, call.colsum, stream_of(call));
}

// Attention of n rows to the cache rows of `memory`, fused with their state. If the output replaces the
// input, the whole state is fused; otherwise only the output is needed.
template <class Fused>
AttentionArgs fused_attention(const Fused& call) {
    const int sets = own_heads(call.shape);
    const bool in_place = call.o == call.o_intra;
    AttentionArgs attention = attention_of(call.shape, rows_of(call.shape, call.q, call.n, sets),
                                           cache_keys(call.shape, *call.kv, true, call.M, sets));
    attention.keys.memory = call.memory;
    attention.keys.last_row = static_cast<int>(call.kv->rows - 1);
    attention.with_o = call.o_intra;
    attention.with_m = call.m_intra;
    attention.with_l = call.l_intra;
    attention.o = call.o;
    attention.m = in_place ? call.m_intra : nullptr;
    attention.l = in_place ? call.l_intra : nullptr;
    return attention;
}

template <class Fused>
h2o_status check_fused(const Fused& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.M <= 0 || any_null(call.q, call.o_intra, call.o) || !call.memory)
        return H2O_BAD_ARGUMENT;
    if (!call.m_intra || !call.l_intra) return H2O_BAD_ARGUMENT;
    return check_kv(call.shape, call.kv, 1);
}

template <class Call>
size_t bytes_of(const Call& call) {
    if (check_shape(&call.shape) != H2O_OK || call.n <= 0 || call.M <= 0) return 0;
    Workspace workspace;
    Scratch scratch(call, true, workspace);
    return workspace.used();
}

}  // namespace

namespace h2o::cuda {

size_t workspace(const calls::MemoryAttention& call) {
    return bytes_of(call);
}

size_t workspace(const calls::MemoryFusedAttention& call) {
    return bytes_of(call);
}

h2o_status run(const calls::MemoryAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const State state{call.o, call.m, call.l};
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.M <= 0 || any_null(call.q, call.k_mem, call.v_mem) || !complete(state))
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_tokens(call.shape, call.n); status != H2O_OK) return status;
    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call, false, pieces);
    if (call.colsum && !pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    AttentionArgs attention =
        attention_of(call.shape, rows_of(call.shape, call.q, call.n, call.shape.score_heads),
                     set_major_keys(call.shape, call.k_mem, call.v_mem, call.M));
    attention.o = state.o;
    attention.m = state.m;
    attention.l = state.l;
    const h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK || !call.colsum) return status;
    return sum_columns(call, attention.keys, state.m, state.l, scratch.parts);
}

h2o_status run(const calls::MemoryFusedAttention& call) {
    const cudaStream_t stream = stream_of(call);
    h2o_status status = check_fused(call);
    if (status == H2O_OK) status = check_tokens(call.shape, call.n);
    if (status != H2O_OK) return status;
    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call, true, pieces);
    if (call.colsum && !pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    AttentionArgs attention = fused_attention(call);
    attention.own_m = call.colsum ? scratch.m : nullptr;
    attention.own_l = call.colsum ? scratch.l : nullptr;
    status = launch_attention(attention, stream);
    if (status != H2O_OK || !call.colsum) return status;
    return sum_columns(call, attention.keys, scratch.m, scratch.l, scratch.parts);
}

h2o_status run(const calls::TiledMemoryAttention& call) {
    const cudaStream_t stream = stream_of(call);
    h2o_status status = check_fused(call);
    if (status == H2O_OK)
        status = call.tile > 0 ? check_tokens(call.shape, call.tile, call.n) : H2O_BAD_ARGUMENT;
    if (status != H2O_OK) return status;
    AttentionArgs attention = fused_attention(call);
    attention.rows.tile = call.tile;
    return launch_attention(attention, stream);
}

}  // namespace h2o::cuda
