// SubquadraticAttention: a warp owns one query row of one head. The visible rows are numbered: window, global
// rows, strides, landmarks. A lane scores every 32nd of them without exchange between lanes. Then the lanes
// share the columns of the values. Neighbouring warps see nearly the same rows, which caches serve. One token
// uses the same code.

#include <cmath>

#include "checks.h"
#include "h2o/subquadratic.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "scores.cuh"

namespace h2o::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPowers = 31;          // 2^k below every position that fits an int32
constexpr int kMarks = kPowers + 2;  // distances 0, 1, 2, 4, …, and one spare

struct PatternArgs {
    h2o_subquadratic pattern;
    Scores scores;
    int tokens;                    // n: query rows
    int heads;                     // Hq
    int kv_heads;                  // Hkv
    int slots;                     // M: global rows
    int rows;                      // of the cache
    const int64_t* length;         // [] on the device: cache rows in use; the last n are the queries' own
    const float *k_mean, *v_mean;  // [Nb, Hkv, d] landmarks: means of blocks of keys and of values
    const int32_t* global_rows;    // [M] cache rows, all different
};

// What a lane scores: a cache row, a landmark, or nothing.
struct Place {
    int row = -1;           // of the cache, or the number of a landmark; -1: nothing
    bool landmark = false;  // which of them
};

__device__ __forceinline__ bool power_of_two(int64_t x) {
    return x > 0 && (x & (x - 1)) == 0;
}

// The rows and landmarks that the query at `position` may see, by number.
struct Sight {
    const PatternArgs& args;
    int position;  // cache row of the query
    int window;    // most recent cache rows, its own included
    int powers;    // cache rows at strides, at most
    int marks;     // landmarks, at most
    int newest;    // landmark; -1: none

    __device__ __forceinline__ Sight(const PatternArgs& a, int at) : args(a), position(at) {
        const h2o_subquadratic& pattern = a.pattern;
        window = static_cast<int>(min(pattern.window, static_cast<int64_t>(at))) + 1;
        powers = pattern.strides ? kPowers : 0;
        newest = pattern.block_size > 0 ? static_cast<int>((at + int64_t{1}) / pattern.block_size) - 1 : -1;
        marks = newest < 0 ? 0 : pattern.strides ? kMarks : 2;
    }
    __device__ __forceinline__ int count() const { return window + args.slots + powers + marks; }

    __device__ __forceinline__ Place place(int i) const {
        if (i < window) return {position - i, false};
        i -= window;
        if (i < args.slots) {
            const int row = row_within(args.global_rows[i], args.rows - 1);
            const int64_t distance = static_cast<int64_t>(position) - row;
            const bool seen = distance > args.pattern.window && !(powers && power_of_two(distance));
            return {seen ? row : -1, false};
        }
        i -= args.slots;
        if (i < powers) {
            const int64_t distance = int64_t{1} << i;
            const bool seen = distance > args.pattern.window && distance <= position;
            return {seen ? static_cast<int>(position - distance) : -1, false};
        }
        i -= powers;
        if (i >= marks) return {};
        const int64_t distance = i == 0 ? 0 : int64_t{1} << (i - 1);
        return {distance <= newest ? static_cast<int>(newest - distance) : -1, true};
    }
};

// Of one warp.
template <int D>
struct Shared {
    float q[D];
    float p[32];
    int row[32];
    int landmark[32];
};

template <int D, class T, class S>
__global__ void __launch_bounds__(kThreads)
    attend_pattern(PatternArgs args, const T* q, Stored<D, S> k, Stored<D, S> v, T* o) {
    constexpr int kColumns = (D + 31) / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Shared<D>& shared = reinterpret_cast<Shared<D>*>(dynamic_shared())[warp];
    const int64_t query = static_cast<int64_t>(blockIdx.x) * kWarps + warp;  // in [n, Hq]
    if (query >= static_cast<int64_t>(args.tokens) * args.heads) return;     // the whole warp
    const int token = static_cast<int>(query / args.heads), head = static_cast<int>(query % args.heads);
    const int kv_head = head / (args.heads / args.kv_heads);
    const int64_t stride = static_cast<int64_t>(args.kv_heads) * D, skip = static_cast<int64_t>(kv_head) * D;
    const Sight sight(args, bounded(*args.length, args.tokens, args.rows) - args.tokens + token);

    for (int c = lane; c < D; c += 32) shared.q[c] = to_float(q[query * D + c]);
    __syncwarp();
    float m = -INFINITY, l = 0, sum[kColumns] = {};
    const int count = sight.count();
    for (int first = 0; first < count; first += 32) {
        const Place place = sight.place(first + lane);
        float score = -INFINITY;
        if (place.row >= 0) {
            const float product = place.landmark ? dot<D>(shared.q, args.k_mean + place.row * stride + skip)
                                                 : k.times(shared.q, place.row, kv_head);
            score = capped(args.scores, product) * args.scores.scale;
            if (place.landmark) score += args.pattern.landmark_bias;
        }
        const float top = fmaxf(m, lanes_max<32>(score));
        const float p = place.row >= 0 ? expf(score - top) : 0.f;
        const float keep = l > 0 ? expf(m - top) : 0.f;
        l = l * keep + lanes_sum<32>(p);
        m = top;
        shared.p[lane] = p;
        shared.row[lane] = place.row;
        shared.landmark[lane] = place.landmark;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum[i] *= keep;
        for (int j = 0; j < min(32, count - first); ++j) {
            if (shared.row[j] < 0) continue;
            const int64_t at = shared.row[j] * stride + skip;
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                const int c = lane + 32 * i;
                if (c >= D) continue;
                const float x =
                    shared.landmark[j] ? args.v_mean[at + c] : v.number(shared.row[j], kv_head, c);
                sum[i] = fmaf(shared.p[j], x, sum[i]);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
        if (lane + 32 * i < D) put(o + query * D + lane + 32 * i, sum[i] / l);
}

template <class T>
h2o_status attend(const h2o_shape& shape, const PatternArgs& args, const void* q, const h2o_kv& kv, void* o,
                  cudaStream_t stream) {
    return dispatch_plain_size(shape.head_size, [&](auto d) {
        constexpr int D = decltype(d)::value;
        const int64_t rows = static_cast<int64_t>(args.tokens) * args.heads;
        return with_stored<T>(kv, [&](auto zero) {
            using S = decltype(zero);
            return launch(attend_pattern<D, T, S>, dim3(ceil_div(rows, kWarps), 1, 1), kThreads,
                          sizeof(Shared<D>) * kWarps, stream, args, static_cast<const T*>(q),
                          stored<D, S>(kv.k, kv.k_scales, shape.kv_heads),
                          stored<D, S>(kv.v, kv.v_scales, shape.kv_heads), static_cast<T*>(o));
        });
    });
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::SubquadraticAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const h2o_subquadratic pattern =
        h2o_subquadratic_of(call.window, call.block_size, call.strides, call.count_bias);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (pattern.window < 0 || pattern.block_size < 0 || !std::isfinite(pattern.landmark_bias))
        return H2O_BAD_ARGUMENT;
    if (call.n <= 0 || !call.q || !call.length || !call.o || call.M < 0 || (call.M > 0 && !call.global_rows))
        return H2O_BAD_ARGUMENT;
    if (pattern.block_size > 0 && any_null(call.k_mean, call.v_mean)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, call.n); status != H2O_OK) return status;
    const PatternArgs args = {pattern,
                              scores_of(call.shape),
                              call.n,
                              call.shape.query_heads,
                              call.shape.kv_heads,
                              call.M,
                              static_cast<int>(call.kv->rows),
                              call.length,
                              call.k_mean,
                              call.v_mean,
                              call.global_rows};
    return call.shape.dtype == H2O_F16 ? attend<half>(call.shape, args, call.q, *call.kv, call.o, stream)
                                       : attend<float>(call.shape, args, call.q, *call.kv, call.o, stream);
}

size_t workspace(const calls::SubquadraticAttention&) {
    return 0;
}

}  // namespace h2o::cuda
