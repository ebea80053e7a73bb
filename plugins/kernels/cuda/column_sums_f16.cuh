// How much attention each key received, in float16: sum over rows i of exp(s_ij - m_i) / l_i.
//
// A block keeps 128 keys of a set as the stationary operand, in registers, and walks over the packed rows in
// tiles of 64, recomputing the scores k q^T with the rows' final m and l. A column sum is then a sum along
// the accumulator's rows: it stays in registers to the end, needs no atomics, and always adds in one order.
//
// Floor: 2 * d FLOP for each (row, visible key), half of what attention itself needs; q once a block.
#pragma once

#include "attention_args.h"
#include "grid.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "tile_copy.cuh"
#include "tiles.h"

namespace h2o::cuda {

template <int D>
struct ColumnSumTile {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kKeys = kColumnSumKeys;
    static constexpr int kRows = kColumnSumRows;
    static_assert(kKeys == kWarps * 32, "a warp keeps 32 keys");
    static constexpr int kRowBytes = kRows * D * 2;
    // The keys pass through the two row buffers on their way into registers.
    static constexpr int kStatsOffset = 2 * kRowBytes;
    static constexpr int kSharedBytes = kStatsOffset + 2 * kRows * 12;
};

template <int D, bool GATHER, class S>
__global__ void __launch_bounds__(ColumnSumTile<D>::kThreads, 2) column_sums_f16(const ColumnSumArgs args) {
    using Tile = ColumnSumTile<D>;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const ColumnSumBlock block = column_sum_block<Tile::kKeys, kRows>(args);
    const Extent& extent = block.extent;
    const int first_key = block.first_key;
    const int row_begin = block.rows.begin, row_end = block.rows.end;
    if (first_key >= extent.keys) return;

    unsigned char* shared = dynamic_shared();
    const shared_t rows_shared = shared_address(shared);
    // Of each row of a tile: m in units of log2, 1 / l, and the last key it sees.
    float* maxima = reinterpret_cast<float*>(shared + Tile::kStatsOffset);
    float* inverses = maxima + 2 * kRows;
    int* last_keys = reinterpret_cast<int*>(inverses + 2 * kRows);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const half* q = static_cast<const half*>(rows.q);

    float sums[2][2] = {};
    for (int set = block.first_set; set <= block.last_set; ++set) {
        if (set != block.first_set) __syncthreads();  // every warp has finished with the rows before
        const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key);
        copy_rows<D, Tile::kKeys, kThreads>(rows_shared, k_base, [&](int i) {
            const int key = first_key + i;
            if (key >= extent.keys) return -1;
            if constexpr (GATHER) {
                return row_within(list_of(keys, extent, set)[key], keys.last_row);
            }
            return key;
        });
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        uint32_t k[2][D / 16][4];
        const LanePieces<D> k_lane(rows_shared, warp * 32 + lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) load_matrices(k[i][kk], k_lane.at(i * 16, kk));
        __syncthreads();  // the buffers are free for rows now

        const auto fetch_rows = [&](int stage, int row) {
            copy_rows_async<D, kRows, kThreads>(
                rows_shared + stage * Tile::kRowBytes, q, [&](int i) -> const half* {
                    return row + i < extent.rows ? q + row_index(rows, extent, set, row + i) * D : nullptr;
                });
        };
        float next_m = 0, next_l = 0;  // one row's state, in flight while a tile is computed
        int next_last = 0;
        const auto fetch_state = [&](int row) {
            row += threadIdx.x;
            if (threadIdx.x >= kRows) return;
            const bool valid = row < row_end;
            const int64_t index = row_index(rows, extent, set, min(row, extent.rows - 1));
            next_m = valid ? args.m[index] * kLog2E : 0.f;
            next_l = valid ? args.l[index] : 0.f;
            next_last = valid ? last_key_of(extent, rows, row) : -1;
        };
        const auto keep_state = [&](int stage) {
            if (threadIdx.x >= kRows) return;
            const bool empty =
                !(next_l > 0);  // a row outside the range, or one that saw nothing: counts as zero
            maxima[stage * kRows + threadIdx.x] = empty ? 0.f : next_m;
            inverses[stage * kRows + threadIdx.x] = empty ? 0.f : 1.f / next_l;
            last_keys[stage * kRows + threadIdx.x] = empty ? -1 : next_last;
        };

        const float scale = args.scale * kLog2E;
        const LanePieces<D> row_lane(rows_shared, lane % 8 + lane / 16 * 8, lane / 8 % 2);
        if (row_begin < row_end) {
            fetch_rows(0, row_begin);
            fetch_state(row_begin);
            keep_state(0);
        }
        copy_commit();

        int stage = 0;
        for (int row = row_begin; row < row_end; row += kRows, stage ^= 1) {
            copy_wait<0>();
            __syncthreads();  // this tile has landed, and every warp has finished with the other buffer
            const bool more = row + kRows < row_end;
            if (more) {
                fetch_rows(stage ^ 1, row + kRows);
                fetch_state(row + kRows);
            }
            copy_commit();

            float s[2][kRows / 8][4] = {};
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
                for (int nn = 0; nn < kRows / 16; ++nn) {
                    uint32_t b[4];
                    load_matrices(b, row_lane.at(stage * kRows + nn * 16, kk));
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_16x8x16(s[i][nn * 2], k[i][kk], b[0], b[1]);
                        mma_16x8x16(s[i][nn * 2 + 1], k[i][kk], b[2], b[3]);
                    }
                }

            const int column = stage * kRows + lane % 4 * 2;
            // The first row of the tile sees the fewest keys, the last row may lie outside the range.
            const bool masked =
                last_keys[stage * kRows] < first_key + Tile::kKeys - 1 || row + kRows > row_end;
#pragma unroll
            for (int nn = 0; nn < kRows / 8; ++nn) {
                const float2 m = *reinterpret_cast<const float2*>(maxima + column + nn * 8);
                const float2 inverse = *reinterpret_cast<const float2*>(inverses + column + nn * 8);
                const int2 last =
                    masked ? *reinterpret_cast<const int2*>(last_keys + column + nn * 8) : int2{};
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float x = s[i][nn][h * 2] * scale - m.x, y = s[i][nn][h * 2 + 1] * scale - m.y;
                        if (masked) {
                            const int key = first_key + warp * 32 + i * 16 + h * 8 + lane / 4;
                            if (key > last.x) x = -INFINITY;
                            if (key > last.y) y = -INFINITY;
                        }
                        sums[i][h] += exp2_fast(x) * inverse.x;
                        sums[i][h] += exp2_fast(y) * inverse.y;
                    }
            }
            if (more) keep_state(stage ^ 1);
        }
    }

    float* out = args.out + blockIdx.z * args.split_stride + blockIdx.y * args.set_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = lanes_sum<4>(sums[i][h]);
            const int key = first_key + warp * 32 + i * 16 + h * 8 + lane / 4;
            if (lane % 4 == 0 && key < extent.keys) out[(extent.first_key + key) * args.key_stride] = sum;
        }
}

}  // namespace h2o::cuda
