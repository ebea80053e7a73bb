// Attention and column sums in float32, and for head sizes that have no tiles. A warp owns a packed row (a
// key, for column sums) and spreads its elements over the lanes. It reads the keys (the rows) one by one from
// global memory. The warps of a block read the same ones at about the same time, so L1 serves most reads.
// Exact and simple, and far slower than tensor cores. Masks, parts, fusion and states are those of
// attention_f16.cuh.

#include "attention.h"
#include "grid.cuh"
#include "launch.h"
#include "numbers.cuh"
#include "row_range.cuh"
#include "scores.cuh"
#include "tiles.h"

namespace h2o::cuda {
namespace {

constexpr int kWarps = kAnyTileRows, kThreads = kWarps * 32;
constexpr int kKeyNumbers = kMostHeadSize / 32,
              kValueNumbers = kMostValueSize / 32;  // elements of a row for each lane

// This lane's elements of a row.
template <int MOST, class S>
__device__ __forceinline__ void load_row(float (&to)[MOST], const S* row, int d, float scale) {
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int c = threadIdx.x % 32 + 32 * i;
        to[i] = c < d ? to_float(row[c]) * scale : 0.f;
    }
}

template <int MOST, class S>
__device__ __forceinline__ float dot_row(const float (&a)[MOST], const S* row, int d) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int c = threadIdx.x % 32 + 32 * i;
        if (c < d) sum = fmaf(a[i], to_float(row[c]), sum);
    }
    return lanes_sum<32>(sum);
}

// The cache row of key `key` of a set; -1: none.
template <bool LISTED>
__device__ __forceinline__ int cache_row(const AttentionArgs& args, const AttentionBlock& block, int key) {
    const KeySource& keys = args.keys;
    if constexpr (LISTED) {
        const int at = block.listed.row(key);
        return block.listed.hides(at) ? -1 : at;
    }
    return keys.memory ? row_within(list_of(keys, block.extent, block.set)[key], keys.last_row) : key;
}

// Queries and outputs are T, keys and values S. LISTED: the keys are those of KeySource::list.
template <class T, class S, bool LISTED>
__global__ void __launch_bounds__(kThreads) attention_any(const AttentionArgs args) {
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;
    const AttentionBlock block = attention_block<kAnyTileRows, kAnyKeyTile, LISTED>(args);
    const Extent& extent = block.extent;
    const int lane = threadIdx.x % 32, set = block.set;
    const int row = block.first_row + static_cast<int>(threadIdx.x) / 32;
    if (block.first_row >= extent.rows || row > block.last_row) return;  // the whole warp

    const int d = args.head_size, dv = args.value_size;
    const SetRows<S> k_rows = set_keys<S>(keys, set, extent.first_key, block.cache);
    const SetRows<S> v_rows = set_values<S>(keys, set, extent.first_key, block.cache);
    const int64_t index = row_index(rows, extent, set, row);
    float q[kKeyNumbers], o[kValueNumbers] = {};
    load_row(q, static_cast<const T*>(rows.q) + index * d, d, 1.f);

    float top = -INFINITY, sum = 0;
    const int key_begin = LISTED ? block.keys.begin : max(block.keys.begin, first_key_of(extent, rows, row));
    const int key_end = LISTED ? block.keys.end : min(block.keys.end, last_key_of(extent, rows, row) + 1);
    for (int key = key_begin; key < key_end; ++key) {
        const int at = cache_row<LISTED>(args, block, key);
        if (at < 0) continue;
        const float product = dot_row(q, k_rows.row(at), d) * k_rows.scale(at);
        const float score = capped(args.scores, product) * args.scores.scale;
        if (score > top) {
            const float rescale = expf(top - score);
            sum *= rescale;
#pragma unroll
            for (float& x : o) x *= rescale;
            top = score;
        }
        const float weight = expf(score - top);
        sum += weight;
        if (!v_rows.first) continue;
        const float share = weight * v_rows.scale(at);
        const S* const value = v_rows.row(at);
#pragma unroll
        for (int i = 0; i < kValueNumbers; ++i) {
            const int c = lane + 32 * i;
            if (c < dv) o[i] = fmaf(share, to_float(value[c]), o[i]);
        }
    }

    const int64_t part = place_of(args, block.parted, index);
    const FinishedRow finished = finish_row(args, true, index, top, sum, [](float x) { return expf(x); });
    __syncwarp();  // all lanes have read the other state
    if (lane == 0) put_state(args, finished, block.parted, index);
    if (!v_rows.first || (!block.parted && !args.o)) return;
#pragma unroll
    for (int i = 0; i < kValueNumbers; ++i) {
        const int c = lane + 32 * i;
        if (c >= dv) break;
        float x = o[i] * finished.factor;
        if (block.parted) {
            args.partial_o[part * dv + c] = x;
            continue;
        }
        if (finished.with_factor > 0)
            x = fmaf(to_float(static_cast<const T*>(args.with_o)[index * dv + c]), finished.with_factor, x);
        put(static_cast<T*>(args.o) + index * dv + c, x);
    }
}

// NUMBERS: elements of a key for each lane, at most.
template <class T, class S, int NUMBERS>
__global__ void __launch_bounds__(kThreads) column_sums_any(const ColumnSumArgs args) {
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;
    const ColumnSumBlock block = column_sum_block<kWarps, kAnyColumnSumRows>(args);
    const Extent& extent = block.extent;
    const int key = block.first_key + static_cast<int>(threadIdx.x) / 32;
    if (key >= extent.keys) return;  // the whole warp

    const int d = args.head_size;
    const T* const q = static_cast<const T*>(rows.q);
    const float most = args.at_most_one ? 1.f : INFINITY;
    float sum = 0;
    for (int set = block.first_set; set <= block.last_set; ++set) {
        const SetRows<S> k_rows = set_keys<S>(keys, set, extent.first_key);
        const int at = keys.memory ? row_within(list_of(keys, extent, set)[key], keys.last_row) : key;
        float k[NUMBERS];
        load_row(k, k_rows.row(at), d, k_rows.scale(at));
        for (int row = block.rows.begin; row < min(block.rows.end, extent.rows); ++row) {
            if (last_key_of(extent, rows, row) < key) continue;
            const int64_t index = row_index(rows, extent, set, row);
            const float l = args.l[index];
            const float score = capped(args.scores, dot_row(k, q + index * d, d)) * args.scores.scale;
            if (l > 0) sum += fminf(expf(score - args.m[index]) / l, most);
        }
    }
    if (threadIdx.x % 32 != 0) return;
    float* const out = args.out + blockIdx.z * args.split_stride;
    out[blockIdx.y * args.set_stride + (extent.first_key + key) * args.key_stride] = sum;
}

template <class T, bool LISTED>
h2o_status attend_to(const AttentionArgs& args, cudaStream_t stream) {
    return with_stored<T>(args.keys.dtype, [&](auto zero) {
        return launch(attention_any<T, decltype(zero), LISTED>, attention_grid(args, kAnyTileRows), kThreads,
                      0, stream, args);
    });
}

template <class T>
h2o_status attend(const AttentionArgs& args, cudaStream_t stream) {
    return args.keys.list.entries ? attend_to<T, true>(args, stream) : attend_to<T, false>(args, stream);
}

template <class T>
h2o_status sum_columns(const ColumnSumArgs& args, cudaStream_t stream) {
    const auto run = [&](auto kernel) {
        return launch(kernel, column_sum_grid(args, kWarps), kThreads, 0, stream, args);
    };
    // Of moments, which have the queries' type.
    if (args.head_size > kMostHeadSize) return run(column_sums_any<T, T, 2 * kKeyNumbers>);
    return with_stored<T>(args.keys.dtype,
                          [&](auto zero) { return run(column_sums_any<T, decltype(zero), kKeyNumbers>); });
}

}  // namespace

h2o_status launch_attention_any(const AttentionArgs& args, cudaStream_t stream) {
    return args.dtype == H2O_F16 ? attend<half>(args, stream) : attend<float>(args, stream);
}

h2o_status launch_column_sums_any(const ColumnSumArgs& args, cudaStream_t stream) {
    return args.dtype == H2O_F16 ? sum_columns<half>(args, stream) : sum_columns<float>(args, stream);
}

BlockForm block_form_any(h2o_dtype dtype) {
    static const int half_blocks = blocks_at_once(attention_any<half, half, false>, kThreads, 0);
    static const int float_blocks = blocks_at_once(attention_any<float, float, false>, kThreads, 0);
    return {kAnyTileRows, dtype == H2O_F16 ? half_blocks : float_blocks};
}

}  // namespace h2o::cuda
