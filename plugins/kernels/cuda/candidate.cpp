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

    template <class Call>
    Scratch(const Call& call, Workspace& workspace)
        : chunk_parts(parts_of(call.n)), memory_parts(parts_of(call.M)) {
        const int64_t rows = static_cast<int64_t>(call.w) * call.shape.query_heads;
        m_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        l_parts = workspace.take<float>((chunk_parts + memory_parts) * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
    }
};

template <class Call>
h2o_status check(const Call& call) {
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (call.w <= 0 || call.n < call.w || call.M < 0 || any_null(call.q_window, call.k) || !call.score_chunk)
        return H2O_BAD_ARGUMENT;
    if (call.M > 0 && !call.score_mem) return H2O_BAD_ARGUMENT;
    return check_tokens(call.shape, call.w);
}

// `remembered` is the memory set's keys.
template <class Call>
h2o_status score(const Call& call, const KeySource& remembered) {
    const h2o_shape& shape = call.shape;
    const cudaStream_t stream = stream_of(call);
    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call, pieces);
    if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;

    const int64_t rows = static_cast<int64_t>(call.w) * shape.query_heads;
    KeySource chunk = token_major_keys(shape, call.k, nullptr, call.n, shape.score_heads);
    chunk.causal = true;
    chunk.first_position = call.n - call.w;

    AttentionArgs attention =
        attention_of(shape, rows_of(shape, call.q_window, call.w, shape.score_heads), chunk);
    attention.splits = scratch.chunk_parts;
    attention.partial_m = scratch.m_parts;
    attention.partial_l = scratch.l_parts;
    h2o_status status = launch_attention(attention, stream);
    if (status != H2O_OK) return status;
    if (call.M > 0) {
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
    sums.out = call.score_chunk;
    sums.key_stride = shape.score_heads;
    sums.set_stride = 1;
    status = launch_column_sums(sums, stream);
    if (status != H2O_OK || call.M == 0) return status;
    sums.keys = remembered;
    sums.out = call.score_mem;
    sums.key_stride = 1;
    sums.set_stride = call.M;
    return launch_column_sums(sums, stream);
}

template <class Call>
size_t bytes_of(const Call& call) {
    if (check_shape(&call.shape) != H2O_OK || call.w <= 0 || call.n <= 0 || call.M < 0) return 0;
    Workspace workspace;
    Scratch scratch(call, workspace);
    return workspace.used();
}

}  // namespace

namespace h2o::cuda {

size_t workspace(const calls::CandidateScore& call) {
    return bytes_of(call);
}

size_t workspace(const calls::CachedCandidateScore& call) {
    return bytes_of(call);
}

h2o_status run(const calls::CachedCandidateScore& call) {
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (const h2o_status status = check_keys(call.shape, call.kv, call.M > 0); status != H2O_OK)
        return status;
    if (call.M > 0 && !call.memory) return H2O_BAD_ARGUMENT;
    KeySource remembered = cache_keys(call.shape, *call.kv, false, call.M, call.shape.score_heads);
    remembered.memory = call.memory;
    remembered.last_row = static_cast<int>(call.kv->rows - 1);
    return score(call, remembered);
}

h2o_status run(const calls::CandidateScore& call) {
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (call.M > 0 && !call.k_mem) return H2O_BAD_ARGUMENT;
    return score(call, set_major_keys(call.shape, call.k_mem, nullptr, call.M));
}

}  // namespace h2o::cuda
