// CandidateScore: votes of a chunk's last rows by their joint softmax over memory set and chunk.
//
// First come the states of those rows over the memory set and over the chunk, split into parts so that a few
// rows fill the device. Together they give the joint softmax. Then come the column sums over both under that
// softmax. Two passes over the keys, 4 * d FLOP for each (row, key); values are not read.

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
    int chunk_parts, memory_parts;  // into which the keys of the chunk and of a memory set are split
    float *m_parts, *l_parts;       // [parts of both, w, Hq] states of the parts
    float *m, *l;                   // [w, Hq] states

    Scratch(const h2o_shape& shape, int window, int n, int slots, Workspace& workspace)
        : chunk_parts(parts_of(n)), memory_parts(parts_of(slots)) {
        const int64_t rows = static_cast<int64_t>(window) * shape.query_heads;
        m_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        l_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
    }
};

struct Candidate {
    const h2o_shape& shape;
    int window;           // w: query rows, the last of the chunk
    int n;                // keys of the chunk
    int slots;            // M: keys of a memory set
    const void* q;        // [w, Hq, d] of shape.dtype
    const void* k;        // [n, Hkv, d] of shape.dtype
    float* score_memory;  // [Hs, M] out: sums of probabilities
    float* score_chunk;   // [n, Hs] out: sums of probabilities
};

h2o_status check(const Candidate& op) {
    if (const h2o_status status = check_heads(&op.shape); status != H2O_OK) return status;
    if (op.window <= 0 || op.n < op.window || op.slots < 0 || any_null(op.q, op.k) || !op.score_chunk)
        return H2O_BAD_ARGUMENT;
    if (op.slots > 0 && !op.score_memory) return H2O_BAD_ARGUMENT;
    return check_tokens(op.shape, op.window);
}

// `remembered` is the memory set's keys.
h2o_status score(cudaStream_t stream, const Candidate& op, const KeySource& remembered, Workspace pieces) {
    const h2o_shape& shape = op.shape;
    const Scratch scratch(shape, op.window, op.n, op.slots, pieces);
    if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    const int64_t rows = static_cast<int64_t>(op.window) * shape.query_heads;
    KeySource chunk = token_major_keys(shape, op.k, nullptr, op.n, shape.score_heads);
    chunk.causal = true;
    chunk.first_position = op.n - op.window;

    AttentionArgs attention = attention_of(shape, rows_of(shape, op.q, op.window, shape.score_heads), chunk);
    attention.splits = scratch.chunk_parts;
    attention.partial_m = scratch.m_parts;
    attention.partial_l = scratch.l_parts;
    h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK) return status;
    if (op.slots > 0) {
        attention.keys = remembered;
        attention.splits = scratch.memory_parts;
        attention.partial_m = scratch.m_parts + scratch.chunk_parts * rows;
        attention.partial_l = scratch.l_parts + scratch.chunk_parts * rows;
        status = launch_attention(attention, stream);
        if (status != H2O_OK) return status;
    }
    status =
        launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.chunk_parts + scratch.memory_parts,
                              rows, scratch.m, scratch.l, stream);
    if (status != H2O_OK) return status;

    ColumnSumArgs sums = column_sums_of(shape, attention.rows, chunk);
    sums.m = scratch.m;
    sums.l = scratch.l;
    sums.out = op.score_chunk;
    sums.key_stride = shape.score_heads;
    sums.set_stride = 1;
    status = launch_column_sums(sums, stream);
    if (status != H2O_OK || op.slots == 0) return status;
    sums.keys = remembered;
    sums.out = op.score_memory;
    sums.key_stride = 1;
    sums.set_stride = op.slots;
    return launch_column_sums(sums, stream);
}

}  // namespace

namespace h2o::cuda {

namespace {

size_t bytes_of(const h2o_shape& shape, int32_t window, int32_t n, int32_t slots) {
    if (check_shape(&shape) != H2O_OK || window <= 0 || n <= 0 || slots < 0) return 0;
    Workspace workspace;
    Scratch scratch(shape, window, n, slots, workspace);
    return workspace.used();
}

}  // namespace

size_t workspace(const calls::CandidateScore& call) {
    return bytes_of(call.shape, call.w, call.n, call.M);
}

size_t workspace(const calls::CachedCandidateScore& call) {
    return bytes_of(call.shape, call.w, call.n, call.M);
}

h2o_status run(const calls::CachedCandidateScore& call) {
    const cudaStream_t stream = stream_of(call);
    const Candidate op{call.shape,    call.w, call.n,         call.M,
                       call.q_window, call.k, call.score_mem, call.score_chunk};
    if (const h2o_status status = check(op); status != H2O_OK) return status;
    if (const h2o_status status = check_keys(call.shape, call.kv, call.M > 0); status != H2O_OK)
        return status;
    if (call.M > 0 && !call.memory) return H2O_BAD_ARGUMENT;
    KeySource remembered = cache_keys(call.shape, *call.kv, false, call.M, call.shape.score_heads);
    remembered.memory = call.memory;
    remembered.last_row = static_cast<int>(call.kv->rows - 1);
    return score(stream, op, remembered, Workspace(call.workspace, call.workspace_bytes));
}

h2o_status run(const calls::CandidateScore& call) {
    const cudaStream_t stream = stream_of(call);
    const Candidate op{call.shape,    call.w, call.n,         call.M,
                       call.q_window, call.k, call.score_mem, call.score_chunk};
    if (const h2o_status status = check(op); status != H2O_OK) return status;
    if (call.M > 0 && !call.k_mem) return H2O_BAD_ARGUMENT;
    return score(stream, op, set_major_keys(call.shape, call.k_mem, nullptr, call.M),
                 Workspace(call.workspace, call.workspace_bytes));
}

}  // namespace h2o::cuda
