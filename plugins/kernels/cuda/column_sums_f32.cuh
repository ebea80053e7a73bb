// How much attention each key received, in float32: the key-stationary pass of column_sums_f16.cuh without
// tensor cores. A block keeps 64 keys of a set in shared memory and walks over the packed rows in tiles of
// 32. Eight neighbouring lanes share four keys, and each sums its own rows in order.
//
// Floor: 2 * d FLOP for each (row, visible key) as fused multiply-adds.
#pragma once

#include "attention_f32.cuh"

namespace h2o::cuda {

template <int D>
struct ColumnSumTileF32 {
    static constexpr int kThreads = 128;
    static constexpr int kKeys = kColumnSumKeysF32;
    static constexpr int kRows = kColumnSumRowsF32;
    static constexpr int kStride = D + 4;
    static constexpr int kSharedBytes = ((kKeys + kRows) * kStride + 3 * kRows) * 4;
};

template <int D, class S>
__global__ void __launch_bounds__(ColumnSumTileF32<D>::kThreads) column_sums_f32(const ColumnSumArgs args) {
    using Tile = ColumnSumTileF32<D>;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows, kStride = Tile::kStride;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const ColumnSumBlock block = column_sum_block<Tile::kKeys, kRows>(args);
    const Extent& extent = block.extent;
    const int first_key = block.first_key;
    const int row_begin = block.rows.begin, row_end = block.rows.end;
    if (first_key >= extent.keys) return;

    float* k_shared = reinterpret_cast<float*>(dynamic_shared());
    float* q_shared = k_shared + Tile::kKeys * kStride;
    float* maxima = q_shared + kRows * kStride;
    float* inverses = maxima + kRows;
    int* last_keys = reinterpret_cast<int*>(inverses + kRows);

    const int lane8 = threadIdx.x % 8, local_key = threadIdx.x / 8 * 4;
    const float* q = static_cast<const float*>(rows.q);
    const float most = args.at_most_one ? 1.f : INFINITY;
    float sums[4] = {};
    for (int set = block.first_set; set <= block.last_set; ++set) {
        if (set != block.first_set) __syncthreads();  // every warp has finished with the previous keys
        const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key);
        copy_set_rows_f32<D, Tile::kKeys, kThreads>(k_shared, k_base, [&](int i) {
            const int key = first_key + i;
            if (key >= extent.keys) return -1;
            if (!keys.memory) return key;
            return row_within(list_of(keys, extent, set)[key], keys.last_row);
        });
        for (int row = row_begin; row < row_end; row += kRows) {
            __syncthreads();  // every warp has finished with the previous rows
            copy_rows_f32<D, kRows, kThreads>(q_shared, q, [&](int i) -> const float* {
                return row + i < extent.rows ? q + row_index(rows, extent, set, row + i) * D : nullptr;
            });
            copy_commit();
            if (threadIdx.x < kRows) {
                const int packed = row + static_cast<int>(threadIdx.x);
                const int64_t index = row_index(rows, extent, set, min(packed, extent.rows - 1));
                const float l = packed < row_end ? args.l[index] : 0.f;
                maxima[threadIdx.x] = l > 0 ? args.m[index] : 0.f;
                inverses[threadIdx.x] = l > 0 ? 1.f / l : 0.f;
                last_keys[threadIdx.x] = l > 0 ? last_key_of(extent, rows, packed) : -1;
            }
            copy_wait<0>();
            __syncthreads();

            float s[4][4] = {};
            dot_4x4<D>(s, k_shared + local_key * kStride, q_shared + lane8 * kStride, 8);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int column = lane8 + 8 * j;
                const float m = maxima[column], inverse = inverses[column];
                const int last = last_keys[column];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (first_key + local_key + i <= last) {
                        const float score = capped(args.scores, s[i][j]) * args.scores.scale;
                        sums[i] += fminf(expf(score - m) * inverse, most);
                    }
            }
        }
        copy_wait<0>();
    }

    float* out = args.out + blockIdx.z * args.split_stride + blockIdx.y * args.set_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float sum = lanes_sum<8>(sums[i]);
        const int key = first_key + local_key + i;
        if (lane8 == 0 && key < extent.keys) out[(extent.first_key + key) * args.key_stride] = sum;
    }
}

}  // namespace h2o::cuda
