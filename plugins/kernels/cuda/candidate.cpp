// CandidateScore: votes of a chunk's last rows by their joint softmax over the memory and the chunk.
//
// First the states of those rows over either half of the keys, cut into parts so that a few rows fill the
// device; the states together are the joint softmax; then column sums of both halves under it. Two passes
// over the keys, 4 * d FLOP for each (row, key), and no values are read.

#include "attention.h"
#include "checks.h"
#include "parts.h"

using namespace h2o::cuda;

namespace {

constexpr int kKeysAPart = 128;
constexpr int kMaxParts = 16;

int parts_of(int keys) {
    const int parts = (keys + kKeysAPart - 1) / kKeysAPart;
    return parts < kMaxParts ? parts : kMaxParts;
}

struct Scratch {
    int chunk_parts, memory_parts;
    float *m_parts, *l_parts, *m, *l;

    Scratch(const h2o_cuda_shape& shape, int window, int n, int slots, Workspace& workspace)
        : chunk_parts(parts_of(n)), memory_parts(parts_of(slots)) {
        const int64_t rows = static_cast<int64_t>(window) * shape.query_heads;
        m_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        l_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
    }
};

}  // namespace

extern "C" size_t h2o_cuda_candidate_score_workspace(const h2o_cuda_shape* shape, int32_t window, int32_t n,
                                                     int32_t slots) {
    if (check_shape(shape) != H2O_OK || window <= 0 || n <= 0 || slots < 0) return 0;
    Workspace workspace;
    Scratch scratch(*shape, window, n, slots, workspace);
    return workspace.used();
}

extern "C" h2o_status h2o_cuda_candidate_score(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                               int32_t window, int32_t n, int32_t slots, const void* q_window,
                                               const void* k, const void* k_mem, const int32_t* memory,
                                               float* score_memory, float* score_chunk, void* workspace,
                                               size_t workspace_bytes) {
    if (const h2o_status status = check_shape(shape); status != H2O_OK) return status;
    if (window <= 0 || n < window || slots < 0 || any_null(q_window, k) || !score_chunk)
        return H2O_BAD_ARGUMENT;
    if (slots > 0 && (!k_mem || !score_memory)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_tokens(*shape, window); status != H2O_OK) return status;
    Workspace pieces(workspace, workspace_bytes);
    const Scratch scratch(*shape, window, n, slots, pieces);
    if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    const int64_t rows = static_cast<int64_t>(window) * shape->query_heads;
    KeySource chunk = token_major_keys(*shape, k, nullptr, n, shape->score_heads);
    chunk.causal = true;
    chunk.first_position = n - window;
    KeySource remembered = memory ? token_major_keys(*shape, k_mem, nullptr, slots, shape->score_heads)
                                  : set_major_keys(*shape, k_mem, nullptr, slots);
    remembered.memory = memory;

    AttentionArgs attention;
    attention.rows = rows_of(*shape, q_window, window, shape->score_heads);
    attention.scale = shape->scale;
    attention.keys = chunk;
    attention.splits = scratch.chunk_parts;
    attention.partial_m = scratch.m_parts;
    attention.partial_l = scratch.l_parts;
    h2o_status status = launch_attention(attention, shape->head_size, shape->dtype, stream);
    if (status != H2O_OK) return status;
    if (slots > 0) {
        attention.keys = remembered;
        attention.splits = scratch.memory_parts;
        attention.partial_m = scratch.m_parts + scratch.chunk_parts * rows;
        attention.partial_l = scratch.l_parts + scratch.chunk_parts * rows;
        status = launch_attention(attention, shape->head_size, shape->dtype, stream);
        if (status != H2O_OK) return status;
    }
    status =
        launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.chunk_parts + scratch.memory_parts,
                              rows, scratch.m, scratch.l, stream);
    if (status != H2O_OK) return status;

    ColumnSumArgs sums;
    sums.rows = attention.rows;
    sums.scale = shape->scale;
    sums.m = scratch.m;
    sums.l = scratch.l;
    sums.keys = chunk;
    sums.out = score_chunk;
    sums.key_stride = shape->score_heads;
    sums.set_stride = 1;
    status = launch_column_sums(sums, shape->head_size, shape->dtype, stream);
    if (status != H2O_OK || slots == 0) return status;
    sums.keys = remembered;
    sums.out = score_memory;
    sums.key_stride = 1;
    sums.set_stride = slots;
    return launch_column_sums(sums, shape->head_size, shape->dtype, stream);
}
