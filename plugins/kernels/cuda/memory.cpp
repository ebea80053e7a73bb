// MemoryAttention and MemoryFusedAttention: attention to M rows a set, gathered or read in place.

#include "attention.h"
#include "checks.h"
#include "tiles.h"

using namespace h2o::cuda;

namespace {

// Column sums over few keys and many rows: the rows are cut into parts so that the device is filled, and
// the parts are added in a second launch. The cut depends on the shape alone, so results do not vary.
constexpr int kBlocksWanted = 256;

int row_parts(const h2o_cuda_shape& shape, int n, int slots) {
    const int blocks = (slots + kColumnSumKeys - 1) / kColumnSumKeys * shape.score_heads;
    const int64_t rows = static_cast<int64_t>(n) * (shape.query_heads / own_heads(shape));
    const int64_t tiles = (rows + kColumnSumRows - 1) / kColumnSumRows;
    const int wanted = (kBlocksWanted + blocks - 1) / blocks;
    return static_cast<int>(tiles < wanted ? tiles : wanted);
}

struct Scratch {
    float* m;
    float* l;
    float* parts;

    Scratch(const h2o_cuda_shape& shape, int n, int slots, bool own_state, Workspace& workspace) {
        const int64_t states = own_state ? static_cast<int64_t>(n) * shape.query_heads : 0;
        m = workspace.take<float>(states);
        l = workspace.take<float>(states);
        // Not the parts of this very shape but a bound that grows with it: a caller who asks for the largest
        // n and M has enough for every smaller call.
        parts = workspace.take<float>(kBlocksWanted * kColumnSumKeys +
                                      static_cast<int64_t>(shape.score_heads) * slots);
    }
};

h2o_status sum_columns(const h2o_cuda_shape& shape, int n, int slots, const void* q, const KeySource& keys,
                       const float* m, const float* l, float* parts, float* colsum, cudaStream_t stream) {
    ColumnSumArgs sums = column_sums_of(shape, rows_of(shape, q, n, own_heads(shape)), keys);
    sums.m = m;
    sums.l = l;
    sums.splits = row_parts(shape, n, slots);
    sums.out = sums.splits > 1 ? parts : colsum;
    sums.key_stride = 1;
    sums.set_stride = slots;
    const int64_t count = static_cast<int64_t>(shape.score_heads) * slots;
    sums.split_stride = count;
    const h2o_status status = launch_column_sums(sums, stream);
    if (status != H2O_OK || sums.splits == 1) return status;
    return launch_sum_of_parts(parts, sums.splits, count, colsum, stream);
}

// Attention of n rows to the cache rows in `memory`, fused with `intra`.
AttentionArgs fused_attention(const h2o_cuda_shape& shape, int n, int slots, const void* q, const h2o_kv& kv,
                              const int32_t* memory, const h2o_cuda_state& intra,
                              const h2o_cuda_state& fused) {
    const int sets = own_heads(shape);
    AttentionArgs attention =
        attention_of(shape, rows_of(shape, q, n, sets), cache_keys(shape, kv, true, slots, sets));
    attention.keys.memory = memory;
    attention.keys.last_row = static_cast<int>(kv.rows - 1);
    attention.with_o = intra.o;
    attention.with_m = intra.m;
    attention.with_l = intra.l;
    attention.o = fused.o;
    attention.m = fused.m;
    attention.l = fused.l;
    return attention;
}

h2o_status check_fused(const h2o_cuda_shape* shape, int n, int slots, const void* q, const h2o_kv* kv,
                       const int32_t* memory, const h2o_cuda_state* intra, const h2o_cuda_state* fused) {
    if (const h2o_status status = check_shape(shape); status != H2O_OK) return status;
    if (n <= 0 || slots <= 0 || !q || !memory || !complete(intra)) return H2O_BAD_ARGUMENT;
    if (!fused || !fused->o) return H2O_BAD_ARGUMENT;
    return check_kv(*shape, kv, 1);
}

}  // namespace

extern "C" size_t h2o_cuda_memory_attention_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t slots) {
    if (check_shape(shape) != H2O_OK || n <= 0 || slots <= 0) return 0;
    Workspace workspace;
    Scratch scratch(*shape, n, slots, true, workspace);
    return workspace.used();
}

extern "C" h2o_status h2o_cuda_memory_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                                int32_t n, int32_t slots, const void* q, const void* k_mem,
                                                const void* v_mem, const h2o_cuda_state* state, float* colsum,
                                                void* workspace, size_t workspace_bytes) {
    if (const h2o_status status = check_heads(shape); status != H2O_OK) return status;
    if (n <= 0 || slots <= 0 || any_null(q, k_mem, v_mem) || !complete(state)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_tokens(*shape, n); status != H2O_OK) return status;
    Workspace pieces(workspace, workspace_bytes);
    const Scratch scratch(*shape, n, slots, false, pieces);
    if (colsum && !pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    AttentionArgs attention = attention_of(*shape, rows_of(*shape, q, n, shape->score_heads),
                                           set_major_keys(*shape, k_mem, v_mem, slots));
    attention.o = state->o;
    attention.m = state->m;
    attention.l = state->l;
    const h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK || !colsum) return status;
    return sum_columns(*shape, n, slots, q, attention.keys, state->m, state->l, scratch.parts, colsum,
                       stream);
}

extern "C" h2o_status h2o_cuda_memory_fused_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                                      int32_t n, int32_t slots, const void* q,
                                                      const h2o_kv* kv, const int32_t* memory,
                                                      const h2o_cuda_state* intra,
                                                      const h2o_cuda_state* fused, float* colsum,
                                                      void* workspace, size_t workspace_bytes) {
    h2o_status status = check_fused(shape, n, slots, q, kv, memory, intra, fused);
    if (status == H2O_OK) status = check_tokens(*shape, n);
    if (status != H2O_OK) return status;
    Workspace pieces(workspace, workspace_bytes);
    const Scratch scratch(*shape, n, slots, true, pieces);
    if (colsum && !pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    AttentionArgs attention = fused_attention(*shape, n, slots, q, *kv, memory, *intra, *fused);
    attention.own_m = colsum ? scratch.m : nullptr;
    attention.own_l = colsum ? scratch.l : nullptr;
    status = launch_attention(attention, stream);
    if (status != H2O_OK || !colsum) return status;
    return sum_columns(*shape, n, slots, q, attention.keys, scratch.m, scratch.l, scratch.parts, colsum,
                       stream);
}

extern "C" h2o_status h2o_cuda_tiled_memory_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                                      int32_t n, int32_t tile, int32_t slots, const void* q,
                                                      const h2o_kv* kv, const int32_t* memory,
                                                      const h2o_cuda_state* intra,
                                                      const h2o_cuda_state* fused) {
    h2o_status status = check_fused(shape, n, slots, q, kv, memory, intra, fused);
    if (status == H2O_OK) status = tile > 0 ? check_tokens(*shape, tile, n) : H2O_BAD_ARGUMENT;
    if (status != H2O_OK) return status;
    AttentionArgs attention = fused_attention(*shape, n, slots, q, *kv, memory, *intra, *fused);
    attention.rows.tile = tile;
    return launch_attention(attention, stream);
}
