// VerticalSlashAttention: each tile of 64 rows of a head attends to a list of keys.
//
// A list begins with segments of 64 keys, the blocks along the tile's diagonals; adjacent blocks are merged.
// Columns outside all segments follow. attention_f16.cuh attends to the listed keys.

#include "attention.h"
#include "checks.h"
#include "launch.h"
#include "ptx.cuh"
#include "row_range.cuh"
#include "tiles.h"

namespace h2o::cuda {
namespace {

constexpr int kTile = kMediumTileRows;  // tokens, and keys of a segment
constexpr int kWarps = 4;               // tiles of a thread block, each with its own list
constexpr int kThreads = 32 * kWarps;

struct LineArgs {
    const int64_t* length;     // [] on the device: cache rows in use; the last n are the queries' own
    const int32_t* columns;    // [Hq, M] cache rows, rising; -1: none
    const int32_t* distances;  // [Hq, D] cache rows from a query back to a key, rising; -1: none
    int32_t* entries;          // [tiles, Hq, stride] as in KeyList
    int32_t* counts;           // [tiles, Hq, 2]: segments and columns
    int n;                     // query rows
    int rows;                  // of the cache
    int heads;                 // Hq
    int vertical;              // M
    int slash;                 // D
    int stride;                // entries for which a list has room

    __host__ __device__ __forceinline__ int tiles() const { return (n + kTile - 1) / kTile; }
};

// Segments in rising order, as one thread would write them: every lane follows them, and lane 0 writes.
__device__ __forceinline__ int list_segments(const int32_t* distances, int count, int end, int32_t* to) {
    const int lane = threadIdx.x % 32;
    int segments = 0, last = 0;                         // last: the end of the last segment
    for (int above = count; above >= 0; above -= 32) {  // in falling order; the last one is always 0
        const int at = above - 1 - lane;
        const int lane_distance = at >= 0 ? distances[at] : at == -1 ? 0 : -1;
        for (int i = 0; i < min(32, above + 1); ++i) {
            const int distance = __shfl_sync(kAllLanes, lane_distance, i);
            if (distance < 0 || distance >= end) continue;
            const int stop = max(end - distance, kTile);
            if (segments == 0 || stop > last + kTile)
                last = stop;
            else if (stop > last)
                last += kTile;
            else
                continue;
            if (lane == 0) to[segments] = last - kTile;
            ++segments;
        }
    }
    return segments;
}

__device__ __forceinline__ bool in_a_segment(const int32_t* segments, int count, int key) {
    int low = 0;  // segments that begin at or before the key
    while (low < count) {
        const int middle = (low + count) / 2;
        if (segments[middle] <= key)
            low = middle + 1;
        else
            count = middle;
    }
    return low > 0 && key < segments[low - 1] + kTile;
}

__global__ void __launch_bounds__(kThreads) list_keys(const LineArgs args) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (index >= static_cast<int64_t>(args.tiles()) * args.heads) return;  // the whole warp
    const int tile = static_cast<int>(index / args.heads), head = static_cast<int>(index % args.heads);
    const int lane = threadIdx.x % 32;
    const int start = bounded(*args.length, args.n, args.rows) - args.n + tile * kTile;
    int32_t* const entries = args.entries + index * args.stride;
    const int segments = list_segments(args.distances + static_cast<int64_t>(head) * args.slash, args.slash,
                                       start + kTile, entries);
    __syncwarp();  // every lane can read the segments
    const int32_t* const columns = args.columns + static_cast<int64_t>(head) * args.vertical;
    int singles = 0;
    for (int i = 0; i < args.vertical; i += 32) {
        const int column = i + lane < args.vertical ? columns[i + lane] : -1;
        const bool wanted = column >= 0 && column < start && !in_a_segment(entries, segments, column);
        const unsigned all = __ballot_sync(kAllLanes, wanted);
        if (wanted) entries[segments + singles + __popc(all & ((1u << lane) - 1))] = column;
        singles += __popc(all);
    }
    if (lane == 0) {
        args.counts[2 * index] = segments;
        args.counts[2 * index + 1] = singles;
    }
}

// One segment for every distance and one for 0; no two overlap.
int most_entries(int capacity, int vertical, int slash) {
    const int segments = capacity / kTile + 2;
    return (slash + 1 < segments ? slash + 1 : segments) + vertical;
}

struct Scratch {
    int32_t *entries, *counts;  // as in LineArgs

    Scratch(const calls::VerticalSlashAttention& call, int capacity, Workspace& workspace) {
        const int64_t lists = static_cast<int64_t>(ceil_div(call.n, kTile)) * call.shape.query_heads;
        entries = workspace.take<int32_t>(lists * most_entries(capacity, call.M, call.D));
        counts = workspace.take<int32_t>(lists * 2);
    }
};

h2o_status check(const calls::VerticalSlashAttention& call) {
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.M < 0 || call.D < 0) return H2O_BAD_ARGUMENT;
    return check_tokens(call.shape, kTile, call.n);
}

}  // namespace

size_t workspace(const calls::VerticalSlashAttention& call) {
    if (check(call) != H2O_OK || call.cap <= 0) return 0;
    Workspace pieces;
    Scratch(call, call.cap, pieces);
    return pieces.used();
}

h2o_status run(const calls::VerticalSlashAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const h2o_shape& shape = call.shape;
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (!call.q || !call.length || !call.o) return H2O_BAD_ARGUMENT;
    if ((call.M > 0 && !call.columns) || (call.D > 0 && !call.distances)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(shape, call.kv, call.n); status != H2O_OK) return status;
    const int capacity = static_cast<int>(call.kv->rows), heads = shape.query_heads;
    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call, capacity, pieces);
    if (!pieces.enough() || !scratch.entries) return H2O_OUT_OF_WORKSPACE;
    const LineArgs lines{call.length,
                         call.columns,
                         call.distances,
                         scratch.entries,
                         scratch.counts,
                         call.n,
                         capacity,
                         heads,
                         call.M,
                         call.D,
                         most_entries(capacity, call.M, call.D)};
    const int64_t lists = static_cast<int64_t>(lines.tiles()) * heads;
    const h2o_status status =
        launch(list_keys, dim3(ceil_div(lists, kWarps), 1, 1), kThreads, 0, stream, lines);
    if (status != H2O_OK) return status;

    AttentionArgs attention = attention_of(shape, rows_of(shape, call.q, call.n, heads),
                                           cache_keys(shape, *call.kv, true, capacity, heads));
    attention.rows.tile = kTile;
    attention.keys.last_row = capacity - 1;
    KeyList& list = attention.keys.list;
    list.entries = scratch.entries;
    list.stride = lines.stride;
    list.counts = scratch.counts;
    list.segment = kTile;
    list.reciprocal = reciprocal_of(kTile);
    list.length = call.length;
    attention.o = call.o;
    return launch_attention(attention, stream);
}

}  // namespace h2o::cuda
