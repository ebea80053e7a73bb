// VerticalSlashSelect: chooses the columns and diagonals that carry most of some queries' probability.
//
// First the states of the queries over all keys, split into parts as in CandidateScore, then sums under them.
// Columns use the common column-sum kernel. For diagonals, each thread sums along one. Three passes over the
// keys, 6 * d FLOP for each (query, key); values are not read. One launch chooses.

#include "attention.h"
#include "checks.h"
#include "numbers.cuh"
#include "parts.h"
#include "row_range.cuh"
#include "scores.cuh"
#include "select.cuh"

namespace h2o::cuda {
namespace {

constexpr int kKeysAPart = 128;
constexpr int kMaxParts = 16;
constexpr int kThreads = 128;
constexpr int kStaged = 32;  // queries in shared memory at a time

struct LineArgs {
    const int64_t* length;  // [] on the device: cache rows in use; the last n are the queries' own
    int n;                  // query rows
    int rows;               // of the cache
    int heads;              // Hq
    int kv_heads;           // Hkv
    Scores scores;
    const float *m, *l;  // [n, Hq] states of the queries

    __device__ __forceinline__ int keys() const { return bounded(*length, n, rows); }
};

// by_distance [Hq, rows]: thread d of head h sums the probabilities at distance d, over the queries.
template <int D, class T, class S>
__global__ void __launch_bounds__(kThreads)
    sum_diagonals(LineArgs args, const T* q, Stored<D, S> k, float* by_distance) {
    float* const staged = reinterpret_cast<float*>(dynamic_shared());  // [kStaged][D]
    const int distance = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y, length = args.keys();
    const int kv_head = head / (args.heads / args.kv_heads), first = length - args.n;
    float sum = 0;
    for (int from = 0; from < args.n; from += kStaged) {
        const int count = min(kStaged, args.n - from);
        __syncthreads();  // the previous queries have been read
        for (int i = threadIdx.x; i < count * D; i += kThreads) {
            const int64_t row = static_cast<int64_t>(from + i / D) * args.heads + head;
            staged[i] = to_float(q[row * D + i % D]);
        }
        __syncthreads();
        for (int r = 0; r < count; ++r) {
            const int key = first + from + r - distance;
            if (key < 0 || key >= length) continue;
            const int64_t state = static_cast<int64_t>(from + r) * args.heads + head;
            const float score =
                capped(args.scores, k.times(staged + r * D, key, kv_head)) * args.scores.scale;
            sum += expf(score - args.m[state]) / args.l[state];
        }
    }
    if (distance < length) by_distance[static_cast<int64_t>(head) * args.rows + distance] = sum;
}

struct Candidates {
    const float* score;  // [rows] of one head
    int forced;          // places below it are chosen first

    __device__ __forceinline__ int position(int i) const { return i; }
    __device__ __forceinline__ uint32_t bits(int i) const { return rank_bits(score[i], i < forced); }
};

struct Wanted {
    const float* score;  // [Hq, rows] sums of probabilities, by column or by distance
    int count;           // to choose for a head
    int forced;          // places below it are chosen first
    int32_t* out;        // [Hq, count] rising; -1: none
};

// One block for each head, first for its columns, then for its distances.
__global__ void __launch_bounds__(kSelectThreads)
    choose_lines(LineArgs args, Wanted columns, Wanted distances) {
    const Wanted& wanted = blockIdx.y == 0 ? columns : distances;
    const int length = args.keys(), there = min(wanted.count, length);
    const Candidates all{wanted.score + static_cast<int64_t>(blockIdx.x) * args.rows, wanted.forced};
    int32_t* const out = wanted.out + static_cast<int64_t>(blockIdx.x) * wanted.count;
    take_best<kSelectThreads>(all, length, there, *reinterpret_cast<SelectShared*>(dynamic_shared()), out);
    for (int i = there + threadIdx.x; i < wanted.count; i += kSelectThreads) out[i] = -1;
}

struct Scratch {
    int parts;                       // into which the keys of a row are split
    float *m_parts, *l_parts;        // [parts, n, Hq] states of the parts
    float *m, *l;                    // [n, Hq] states
    float *by_column, *by_distance;  // [Hq, rows] sums of probabilities

    Scratch(const h2o_shape& shape, int n, int capacity, Workspace& workspace) {
        parts = static_cast<int>(ceil_div(capacity, kKeysAPart));
        if (parts > kMaxParts) parts = kMaxParts;
        const int64_t rows = static_cast<int64_t>(n) * shape.query_heads;
        const int64_t sums = static_cast<int64_t>(capacity) * shape.query_heads;
        m_parts = workspace.take<float>(parts * rows);
        l_parts = workspace.take<float>(parts * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
        by_column = workspace.take<float>(sums);
        by_distance = workspace.take<float>(sums);
    }
};

struct Select {
    const h2o_shape& shape;
    int n;                  // query rows
    int vertical;           // M: columns to choose for a head
    int slash;              // D: diagonals to choose for a head
    int sink;               // columns below this cache row are chosen first
    int near;               // diagonals below this distance, in cache rows, are chosen first
    const void* q;          // [n, Hq, d] of shape.dtype
    const h2o_kv& kv;       // keys of the cache; values are not read
    const int64_t* length;  // [] on the device: cache rows in use
    int32_t* columns;       // [Hq, M] out: cache rows, rising; -1: none
    int32_t* distances;     // [Hq, D] out: cache rows from a query back to a key, rising; -1: none
    cudaStream_t stream;

    int rows() const { return static_cast<int>(kv.rows); }

    KeySource keys(int sets) const {
        KeySource keys = cache_keys(shape, kv, false, rows(), sets);
        keys.length = length;
        keys.causal = true;
        return keys;
    }

    h2o_status states(const Scratch& scratch) const {
        AttentionArgs attention =
            attention_of(shape, rows_of(shape, q, n, shape.kv_heads), keys(shape.kv_heads));
        attention.splits = scratch.parts;
        attention.partial_m = scratch.m_parts;
        attention.partial_l = scratch.l_parts;
        const h2o_status status = launch_attention(attention, stream);
        if (status != H2O_OK) return status;
        return launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.parts,
                                     static_cast<int64_t>(n) * shape.query_heads, scratch.m, scratch.l,
                                     stream);
    }

    h2o_status column_sums(const Scratch& scratch) const {
        ColumnSumArgs sums =
            column_sums_of(shape, rows_of(shape, q, n, shape.query_heads), keys(shape.query_heads));
        sums.m = scratch.m;
        sums.l = scratch.l;
        sums.out = scratch.by_column;
        sums.key_stride = 1;
        sums.set_stride = rows();
        return launch_column_sums(sums, stream);
    }

    template <class T>
    h2o_status diagonal_sums(const LineArgs& args, const Scratch& scratch) const {
        const dim3 grid(ceil_div(rows(), kThreads), static_cast<unsigned>(shape.query_heads), 1);
        return dispatch_plain_size(shape.head_size, [&](auto d) {
            constexpr int D = decltype(d)::value;
            return with_stored<T>(kv, [&](auto zero) {
                using S = decltype(zero);
                return launch(sum_diagonals<D, T, S>, grid, kThreads, sizeof(float) * kStaged * D, stream,
                              args, static_cast<const T*>(q), stored<D, S>(kv.k, kv.k_scales, shape.kv_heads),
                              scratch.by_distance);
            });
        });
    }

    h2o_status run(Workspace pieces) const {
        const Scratch scratch(shape, n, rows(), pieces);
        if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
        const LineArgs args{length,           n,         rows(),   shape.query_heads, shape.kv_heads,
                            scores_of(shape), scratch.m, scratch.l};
        h2o_status status = states(scratch);
        if (status == H2O_OK) status = column_sums(scratch);
        if (status == H2O_OK)
            status = shape.dtype == H2O_F16 ? diagonal_sums<half>(args, scratch)
                                            : diagonal_sums<float>(args, scratch);
        if (status != H2O_OK) return status;
        return launch(choose_lines, dim3(static_cast<unsigned>(shape.query_heads), 2, 1), kSelectThreads,
                      sizeof(SelectShared), stream, args, Wanted{scratch.by_column, vertical, sink, columns},
                      Wanted{scratch.by_distance, slash, near, distances});
    }
};

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

namespace {

size_t bytes_of(const h2o_shape& shape, int32_t n, int32_t capacity) {
    if (check_alike(&shape) != H2O_OK || n <= 0 || capacity <= 0) return 0;
    Workspace workspace;
    Scratch scratch(shape, n, capacity, workspace);
    return workspace.used();
}

}  // namespace

size_t workspace(const calls::VerticalSlashSelect& call) {
    return bytes_of(call.shape, call.n, call.cap);
}

h2o_status run(const calls::VerticalSlashSelect& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.M <= 0 || call.D <= 0 || call.sink < 0 || call.near < 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.length || any_null(call.columns, call.distances)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.shape, call.kv, call.n); status != H2O_OK) return status;
    if (const h2o_status status = check_tokens(call.shape, call.n); status != H2O_OK) return status;
    const Select op{call.shape, call.n,   call.M,      call.D,       call.sink,      call.near,
                    call.q,     *call.kv, call.length, call.columns, call.distances, stream};
    return op.run(Workspace(call.workspace, call.workspace_bytes));
}

}  // namespace h2o::cuda
