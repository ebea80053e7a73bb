// VerticalSlashAttention: a block owns a tile of 64 rows of one head.
//
// First one thread a tile and head joins the blocks along its diagonals into runs. Then a tile takes up keys
// 32 at a time, from its runs and after that the columns that lie in none: they are copied into shared memory
// as float32, each of four warps holds 16 rows, a lane scores one key for all of them, and for the values it
// owns columns of the output.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpRows = kTile / kWarps;
constexpr int kPiece = 32;  // keys at a time
constexpr int kIndexThreads = 64;

struct Run {
    int begin, end;
};

struct LineArgs {
    const int64_t* length;
    const int32_t *columns, *distances;
    Run* runs;    // [tiles, Hq, most]
    int* counts;  // [tiles, Hq]
    float scale;
    int n, rows, heads, kv_heads, vertical, slash, most;  // rows: of the cache

    __host__ __device__ __forceinline__ int tiles() const { return (n + kTile - 1) / kTile; }
    __device__ __forceinline__ int first() const { return bounded(*length, n, rows) - n; }
};

__global__ void __launch_bounds__(kIndexThreads) join_runs(LineArgs args) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
    if (index >= static_cast<int64_t>(args.tiles()) * args.heads) return;
    const int tile = static_cast<int>(index / args.heads), head = static_cast<int>(index % args.heads);
    const int end = args.first() + (tile + 1) * kTile;
    const int32_t* const distances = args.distances + static_cast<int64_t>(head) * args.slash;
    Run* const runs = args.runs + index * args.most;
    int count = 0;
    Run last = {};
    for (int i = args.slash - 1; i >= -1; --i) {  // from the largest; 0 is always among them
        const int distance = i < 0 ? 0 : distances[i];
        if (distance < 0 || distance >= end) continue;
        const int stop = max(end - distance, kTile);
        if (count == 0 || stop > last.end + kTile) {
            last = {stop - kTile, stop};
            ++count;
        } else if (stop > last.end) {
            last.end += kTile;
        }
        runs[count - 1] = last;
    }
    args.counts[index] = count;
}

// Whether a key lies in one of some rising runs.
__device__ __forceinline__ bool in_a_run(const Run* runs, int count, int key) {
    int low = 0;
    while (low < count) {
        const int middle = (low + count) / 2;
        if (runs[middle].end <= key)
            low = middle + 1;
        else
            count = middle;
    }
    return runs[low].begin <= key;  // the last run ends behind every column that is asked for
}

template <int D>
struct Shared {
    float q[kTile][D];
    float k[kPiece][D + 1];  // lanes read different keys
    float v[kPiece][D];
    float p[kWarps][kWarpRows][kPiece];
};

// One warp's rows and their running softmax.
template <int D, class T, class S>
struct Rows {
    static constexpr int kOwn = (D + 31) / 32;  // columns of the output that a lane owns

    const LineArgs& args;
    Shared<D>& shared;
    Stored<D, S> k, v;
    int kv_head;
    int warp, lane, position;
    float m[kWarpRows], l[kWarpRows], o[kWarpRows][kOwn];

    __device__ Rows(const LineArgs& a, Shared<D>& s, Stored<D, S> keys, Stored<D, S> values, int head,
                    int first_position)
        : args(a),
          shared(s),
          k(keys),
          v(values),
          kv_head(head),
          warp(threadIdx.x / 32),
          lane(threadIdx.x % 32) {
        position = first_position + warp * kWarpRows;
        for (int r = 0; r < kWarpRows; ++r) {
            m[r] = -INFINITY;
            l[r] = 0;
            for (int i = 0; i < kOwn; ++i) o[r][i] = 0;
        }
    }

    // Lane j brings key `row`, or none where it is negative.
    __device__ __forceinline__ void attend(int row) {
        __syncthreads();  // the keys before have been read
        for (int j = warp; j < kPiece; j += kWarps) {
            const int from = __shfl_sync(kAllLanes, row, j);
            for (int c = lane; c < D; c += 32) {
                shared.k[j][c] = from < 0 ? 0.f : k.number(from, kv_head, c);
                shared.v[j][c] = from < 0 ? 0.f : v.number(from, kv_head, c);
            }
        }
        __syncthreads();
        float score[kWarpRows] = {};
        for (int c = 0; c < D; ++c) {
            const float x = shared.k[lane][c];
#pragma unroll
            for (int r = 0; r < kWarpRows; ++r)
                score[r] = fmaf(shared.q[warp * kWarpRows + r][c], x, score[r]);
        }
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
            const bool seen = row >= 0 && row <= position + r;
            const float top = fmaxf(m[r], lanes_max<32>(seen ? score[r] : -INFINITY));
            const float p = seen ? expf(score[r] - top) : 0.f, keep = l[r] > 0 ? expf(m[r] - top) : 0.f;
            l[r] = l[r] * keep + lanes_sum<32>(p);
            m[r] = top;
            for (int i = 0; i < kOwn; ++i) o[r][i] *= keep;
            shared.p[warp][r][lane] = p;
        }
        __syncwarp();
        for (int j = 0; j < kPiece; ++j) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int c = lane + 32 * i;
                if (c >= D) continue;
                const float x = shared.v[j][c];
#pragma unroll
                for (int r = 0; r < kWarpRows; ++r) o[r][i] = fmaf(shared.p[warp][r][j], x, o[r][i]);
            }
        }
    }

    // `out` is row 0 of the tile.
    __device__ __forceinline__ void store(T* out, int rows) const {
        for (int r = 0; r < kWarpRows && warp * kWarpRows + r < rows; ++r)
            for (int i = 0; i < kOwn; ++i) {
                const int c = lane + 32 * i;
                if (c >= D) continue;
                put(out + static_cast<int64_t>(warp * kWarpRows + r) * args.heads * D + c, o[r][i] / l[r]);
            }
    }
};

template <int D, class T, class S>
__global__ void __launch_bounds__(kThreads)
    attend_lines(LineArgs args, const T* q, Stored<D, S> k, Stored<D, S> v, T* o) {
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(dynamic_shared());
    const int tile = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32;
    const int kv_head = head / (args.heads / args.kv_heads), rows = min(kTile, args.n - tile * kTile);
    const int start = args.first() + tile * kTile, length = args.first() + args.n;
    const int64_t index = static_cast<int64_t>(tile) * args.heads + head;
    const Run* const runs = args.runs + index * args.most;
    const int count = args.counts[index];
    const int64_t row_0 = (static_cast<int64_t>(tile) * kTile * args.heads + head) * D;

    for (int i = threadIdx.x; i < kTile * D; i += kThreads) {
        const int r = i / D, c = i % D;
        const int64_t at = row_0 + static_cast<int64_t>(r) * args.heads * D + c;
        shared.q[r][c] = r < rows ? to_float(q[at]) * args.scale : 0.f;
    }
    Rows<D, T, S> own(args, shared, k, v, kv_head, start);
    for (int i = 0; i < count; ++i) {
        const int stop = min(runs[i].end, min(length, start + rows));
        for (int key = runs[i].begin; key < stop; key += kPiece)
            own.attend(key + lane < stop ? key + lane : -1);
    }
    const int32_t* const columns = args.columns + static_cast<int64_t>(head) * args.vertical;
    for (int i = 0; i < args.vertical; i += kPiece) {
        const int column = i + lane < args.vertical ? columns[i + lane] : -1;
        const bool wanted = column >= 0 && column < start && !in_a_run(runs, count, column);
        if (__ballot_sync(kAllLanes, wanted) != 0) own.attend(wanted ? column : -1);  // all warps alike
    }
    own.store(o + row_0, rows);
}

int most_runs(int capacity, int slash) {
    const int most = capacity / (kTile + 1) + 1;
    return (slash < most ? slash : most) + 1;
}

struct Scratch {
    Run* runs;
    int* counts;

    Scratch(const h2o_shape& shape, int n, int capacity, int slash, Workspace& workspace) {
        const int64_t tiles = static_cast<int64_t>(ceil_div(n, kTile)) * shape.query_heads;
        runs = workspace.take<Run>(tiles * most_runs(capacity, slash));
        counts = workspace.take<int>(tiles);
    }
};

template <class T>
h2o_status attend(const h2o_shape& shape, const LineArgs& args, const void* q, const h2o_kv& kv, void* o,
                  cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(args.tiles()), static_cast<unsigned>(args.heads), 1);
    return dispatch_head_size(shape.head_size, [&](auto d) {
        constexpr int D = decltype(d)::value;
        return with_stored<T>(kv, [&](auto zero) {
            using S = decltype(zero);
            return launch(attend_lines<D, T, S>, grid, kThreads, sizeof(Shared<D>), stream, args,
                          static_cast<const T*>(q), stored<D, S>(kv.k, kv.k_scales, shape.kv_heads),
                          stored<D, S>(kv.v, kv.v_scales, shape.kv_heads), static_cast<T*>(o));
        });
    });
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

namespace {

size_t bytes_of(const h2o_shape& shape, int32_t n, int32_t capacity, int32_t slash) {
    if (check_alike(&shape) != H2O_OK || n <= 0 || capacity <= 0 || slash < 0) return 0;
    Workspace workspace;
    Scratch scratch(shape, n, capacity, slash, workspace);
    return workspace.used();
}

}  // namespace

size_t workspace(const calls::VerticalSlashAttention& call) {
    return bytes_of(call.shape, call.n, call.cap, call.D);
}

h2o_status run(const calls::VerticalSlashAttention& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.M < 0 || call.D < 0 || !call.q || !call.length || !call.o)
        return H2O_BAD_ARGUMENT;
    if ((call.M > 0 && !call.columns) || (call.D > 0 && !call.distances)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, call.n); status != H2O_OK) return status;
    const int capacity = static_cast<int>(call.kv->rows);
    Workspace pieces(call.workspace, call.workspace_bytes);
    const Scratch scratch(call.shape, call.n, capacity, call.D, pieces);
    if (!pieces.enough() || !scratch.runs) return H2O_OUT_OF_WORKSPACE;
    const LineArgs args{call.length,
                        call.columns,
                        call.distances,
                        scratch.runs,
                        scratch.counts,
                        call.shape.scale,
                        call.n,
                        capacity,
                        call.shape.query_heads,
                        call.shape.kv_heads,
                        call.M,
                        call.D,
                        most_runs(capacity, call.D)};
    const int64_t tiles = static_cast<int64_t>(args.tiles()) * args.heads;
    const h2o_status status =
        launch(join_runs, dim3(ceil_div(tiles, kIndexThreads), 1, 1), kIndexThreads, 0, stream, args);
    if (status != H2O_OK) return status;
    return call.shape.dtype == H2O_F16 ? attend<half>(call.shape, args, call.q, *call.kv, call.o, stream)
                                       : attend<float>(call.shape, args, call.q, *call.kv, call.o, stream);
}

}  // namespace h2o::cuda
