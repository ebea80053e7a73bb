// Attention of packed rows to a set's keys in float32, without tensor cores.
//
// A block owns WARPS * 16 packed rows and walks over the keys in tiles of 32. Eight neighbouring lanes share
// four rows: each computes 4 x 4 scores with keys 8 apart, then 4 rows of output over its share of the
// columns. Only those eight lanes read a row's probabilities, so they need no block barrier.
//
// Floor: 4 * d FLOP for each (row, visible key) as fused multiply-adds. Shared memory bounds it: the 4 x 4
// tile reads one word for two multiply-adds. float32 is for checking, not for speed. Masks, parts, fusion and
// states are those of attention_f16.cuh.
#pragma once

#include "arrivals.cuh"
#include "attention_args.h"
#include "grid.cuh"
#include "new_row.cuh"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "scores.cuh"
#include "tiles.h"

namespace h2o::cuda {

template <int D, int WARPS, bool LISTED>
struct AttentionTileF32 {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kRows = WARPS * 16;
    static_assert(kRows == (WARPS == 1 ? kSmallTileRows : kLargeTileRowsF32), "as the host takes it");
    static constexpr int kStride = D + 4;  // floats; 16 bytes of padding spread rows over the banks
    static constexpr int kPStride = kKeyTileF32 + 4;
    static constexpr bool kStep = WARPS == 1 && !LISTED;  // appends its row and combines its parts
    static constexpr int kSharedBytes = ((kRows + 2 * kKeyTileF32) * kStride + kRows * kPStride) * 4;
};

// ROWS rows of D floats into padded shared memory; rows whose pointer_of(row) is null become zeros.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows_f32(float* to, const float* somewhere, F&& pointer_of) {
    constexpr int kPieces = D / 4;
#pragma unroll 4
    for (int i = 0; i < ROWS * kPieces / THREADS; ++i) {
        const int index = i * THREADS + static_cast<int>(threadIdx.x);
        const int row = index / kPieces, piece = index % kPieces;
        const float* from = pointer_of(row);
        copy16_async(shared_address(to + row * (D + 4) + piece * 4), (from ? from : somewhere) + piece * 4,
                     from != nullptr);
    }
}

// Rows row_of(i) of a set as float32; negative row numbers give zeros.
template <int D, int ROWS, int THREADS, class S, class F>
__device__ __forceinline__ void copy_set_rows_f32(float* to, const SetRows<S>& from, F&& row_of) {
    if constexpr (sizeof(S) == 4) {
        copy_rows_f32<D, ROWS, THREADS>(to, from.first, [&](int i) -> const float* {
            const int row = row_of(i);
            return row < 0 ? nullptr : from.row(row);
        });
    } else {
        for (int i = 0; i < ROWS * D / THREADS; ++i) {
            const int index = i * THREADS + static_cast<int>(threadIdx.x), column = index % D;
            const int row = row_of(index / D);
            to[index / D * (D + 4) + column] =
                row < 0 ? 0.f : to_float(from.row(row)[column]) * from.scale(row);
        }
    }
}

// sum[i][j] = a row i . b row j of this thread's 4 x 4 rows, `b_step` rows apart in b.
template <int D>
__device__ __forceinline__ void dot_4x4(float (&sum)[4][4], const float* a, const float* b, int b_step) {
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
        float4 x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = *reinterpret_cast<const float4*>(a + i * (D + 4) + c);
            y[i] = *reinterpret_cast<const float4*>(b + i * b_step * (D + 4) + c);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                sum[i][j] = fmaf(x[i].x, y[j].x, sum[i][j]);
                sum[i][j] = fmaf(x[i].y, y[j].y, sum[i][j]);
                sum[i][j] = fmaf(x[i].z, y[j].z, sum[i][j]);
                sum[i][j] = fmaf(x[i].w, y[j].w, sum[i][j]);
            }
    }
}

// Keys and values are stored as S: float, half or int8_t. LISTED: the keys are those of KeySource::list.
template <int D, int WARPS, bool LISTED, class S>
__global__ void __launch_bounds__(WARPS * 32) attention_f32(const AttentionArgs args) {
    using Tile = AttentionTileF32<D, WARPS, LISTED>;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows, kStride = Tile::kStride;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const AttentionBlock block = attention_block<kRows, kKeyTileF32, LISTED>(args);
    const Extent& extent = block.extent;
    const bool parted = block.parted;
    const int set = block.set, first_row = block.first_row, last_row = block.last_row;
    const int key_begin = block.keys.begin, key_end = block.keys.end;
    if (first_row >= extent.rows) return;

    float* q_shared = reinterpret_cast<float*>(dynamic_shared());
    float* k_shared = q_shared + kRows * kStride;
    float* v_shared = k_shared + kKeyTileF32 * kStride;
    float* p_shared = v_shared + kKeyTileF32 * kStride;

    const int lane8 = threadIdx.x % 8, local_row = threadIdx.x / 8 * 4;
    const float* q = static_cast<const float*>(rows.q);
    const h2o_kv* const cache = LISTED ? nullptr : block.cache;
    const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key, cache);
    const SetRows<S> v_base = set_values<S>(keys, set, extent.first_key, cache);
    const bool with_values = v_base.first != nullptr;
    if constexpr (Tile::kStep) {
        if (args.new_k && key_begin < key_end && key_end == extent.keys)
            append_last_row<float>(args, k_base, v_base, set, extent.keys);
    }
    const auto fetch_keys = [&](float* to, const SetRows<S>& from, int tile_key) {
        copy_set_rows_f32<D, kKeyTileF32, kThreads>(to, from, [&](int i) {
            const int key = tile_key + i;
            if (key >= key_end) return -1;
            if constexpr (LISTED) {
                const int row = block.listed.row(key);
                return hidden(row, block.listed.last_row) ? -1 : row;
            }
            if (!keys.memory) return key;
            return row_within(list_of(keys, extent, set)[key], keys.last_row);
        });
    };

    float o[4][D / 8] = {};  // columns lane8 * 2 + {0, 1} of every 16
    float row_max[4], row_sum[4] = {};
    int first_key[4], last_key[4];  // that a row sees; with a list, the last row of the cache
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        row_max[i] = -INFINITY;
        const int row = min(first_row + local_row + i, last_row);
        first_key[i] = LISTED ? 0 : first_key_of(extent, rows, row);
        last_key[i] =
            LISTED ? block.listed.position(rows, row) : min(last_key_of(extent, rows, row), key_end - 1);
    }

    copy_rows_f32<D, kRows, kThreads>(q_shared, q, [&](int row) -> const float* {
        const int packed = first_row + row;
        return packed < extent.rows ? q + row_index(rows, extent, set, packed) * D : nullptr;
    });
    if (key_begin < key_end) fetch_keys(k_shared, k_base, key_begin);
    copy_commit();

    for (int tile_key = key_begin; tile_key < key_end; tile_key += kKeyTileF32) {
        copy_wait<0>();
        __syncthreads();
        if (with_values) fetch_keys(v_shared, v_base, tile_key);
        copy_commit();

        int tile_rows[4];  // the keys that this thread scores, in the numbering of last_key
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int key = tile_key + lane8 + 8 * j;
            tile_rows[j] = LISTED ? block.listed.row(key) : key;
        }
        float s[4][4] = {};
        dot_4x4<D>(s, q_shared + local_row * kStride, k_shared + lane8 * kStride, 8);

        copy_wait<0>();
        __syncthreads();
        if (tile_key + kKeyTileF32 < key_end) fetch_keys(k_shared, k_base, tile_key + kKeyTileF32);
        copy_commit();

#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float top = row_max[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const bool seen = tile_rows[j] >= first_key[i] && tile_rows[j] <= last_key[i];
                s[i][j] = seen ? capped(args.scores, s[i][j]) * args.scores.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = lanes_max<8>(top);
            const float offset = top == -INFINITY ? 0.f : top;
            const float rescale = expf(row_max[i] - offset);
            row_max[i] = top;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                s[i][j] = expf(s[i][j] - offset);
                sum += s[i][j];
                p_shared[(local_row + i) * Tile::kPStride + lane8 + 8 * j] = s[i][j];
            }
            row_sum[i] = row_sum[i] * rescale + sum;
#pragma unroll
            for (int c = 0; c < D / 8; ++c) o[i][c] *= rescale;
        }
        if (!with_values) continue;
        __syncwarp();
#pragma unroll 2
        for (int j = 0; j < kKeyTileF32; j += 4) {
            float4 p[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                p[i] = *reinterpret_cast<const float4*>(p_shared + (local_row + i) * Tile::kPStride + j);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int c = 0; c < D / 16; ++c) {
                    const float2 v =
                        *reinterpret_cast<const float2*>(v_shared + (j + e) * kStride + c * 16 + lane8 * 2);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float weight = e == 0 ? p[i].x : e == 1 ? p[i].y : e == 2 ? p[i].z : p[i].w;
                        o[i][c * 2] = fmaf(weight, v.x, o[i][c * 2]);
                        o[i][c * 2 + 1] = fmaf(weight, v.y, o[i][c * 2 + 1]);
                    }
                }
        }
        __syncwarp();
    }
    copy_wait<0>();

#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = first_row + local_row + i;
        const bool valid = row <= last_row;
        const float sum = lanes_sum<8>(row_sum[i]);
        float factor = sum > 0 ? 1.f / sum : 0.f, with_factor = 0;
        float m = row_max[i], l = sum;
        const int64_t index = valid ? row_index(rows, extent, set, row) : 0;
        if (valid && fused_with_other(args)) {
            const auto [wm, wl] = other_state(args, index);
            m = fmaxf(row_max[i], wm);
            const float weight = sum > 0 ? sum * expf(row_max[i] - m) : 0.f;
            const float with_weight = wl > 0 ? wl * expf(wm - m) : 0.f;
            l = weight + with_weight;
            factor = l > 0 ? factor * weight / l : 0.f;
            with_factor = args.with_o && l > 0 ? with_weight / l : 0.f;
        }
        const int64_t part =
            parted ? static_cast<int64_t>(part_index(args)) * rows.tokens * rows.heads + index : index;
        __syncwarp();  // the row's eight lanes have read the other state; now it may be overwritten
        if (!valid) continue;
        if (lane8 == 0) {
            if (parted) {
                put_between_blocks(args.partial_m + part, m);
                put_between_blocks(args.partial_l + part, l);
            } else {
                if (args.m) args.m[index] = m;
                if (args.l) args.l[index] = l;
                if (args.own_m) args.own_m[index] = row_max[i];
                if (args.own_l) args.own_l[index] = sum;
            }
        }
        float* out = parted ? args.partial_o : static_cast<float*>(args.o);
        if (!with_values || !out) continue;
#pragma unroll
        for (int c = 0; c < D / 16; ++c) {
            const int64_t at = part * D + c * 16 + lane8 * 2;
            float2 value = make_float2(o[i][c * 2] * factor, o[i][c * 2 + 1] * factor);
            if (with_factor > 0) {
                const float2 with =
                    *reinterpret_cast<const float2*>(static_cast<const float*>(args.with_o) + at);
                value.x = fmaf(with.x, with_factor, value.x);
                value.y = fmaf(with.y, with_factor, value.y);
            }
            put_between_blocks(reinterpret_cast<float2*>(out + at), value);
        }
    }
    if constexpr (Tile::kStep) {
        if (parted && args.arrivals)
            combine_if_last<D, float>(args, extent, set, first_row, last_row, dynamic_shared());
    }
}

}  // namespace h2o::cuda
