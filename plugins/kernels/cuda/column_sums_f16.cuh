// How much attention each key received, in float16: sum over rows i of exp(s_ij - m_i) / l_i.
//
// A block keeps 128 keys of a set in registers as the stationary operand. It walks over the packed rows in
// tiles of 64 and recomputes the scores k q^T with the rows' final m and l. For latents, 64 keys and tiles of
// 32 fit. A column sum is a sum along the accumulator's rows. It stays in registers, needs no atomics and has
// a fixed order.
//
// Floor: 2 * d FLOP for each (row, visible key), half of attention's; q is read once per block.
#pragma once

#include <type_traits>

#include "attention_args.h"
#include "grid.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "scores.cuh"
#include "tile_copy.cuh"
#include "tiles.h"

namespace h2o::cuda {

template <int D>
struct ColumnSumTile {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kBlocks = D > kMostTiledHeadSize ? 1 : 2;  // of 16 keys that a warp keeps
    static constexpr int kKeys = kWarps * kBlocks * 16;
    static constexpr int kRows = D > kMostTiledHeadSize ? kColumnSumRows / 2 : kColumnSumRows;
    static_assert(kKeys <= kColumnSumKeys && kKeys <= 2 * kRows, "as the host cuts, and two buffers hold");
    static constexpr int kRowBytes = kRows * D * 2;
    static constexpr bool kOfVotes = !has_tiles(D);  // the others have votes_f16.cu
    // Keys reach the registers through the two row buffers.
    static constexpr int kOffsetsAt = 2 * kRowBytes;
    static constexpr int kSharedBytes = kOffsetsAt + 2 * kRows * 4;
};

// MEMORY: keys are those of KeySource::memory, not consecutive rows.
template <int D, bool MEMORY, class S>
__global__ void __launch_bounds__(ColumnSumTile<D>::kThreads, 2) column_sums_f16(const ColumnSumArgs args) {
    using Tile = ColumnSumTile<D>;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows, kBlocks = Tile::kBlocks;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const ColumnSumBlock block = column_sum_block<Tile::kKeys, kRows>(args);
    const Extent& extent = block.extent;
    const int first_key = block.first_key;
    const int row_begin = block.rows.begin, row_end = block.rows.end;
    if (first_key >= extent.keys) return;

    unsigned char* shared = dynamic_shared();
    const shared_t rows_shared = shared_address(shared);
    // For each row of a tile: what is subtracted from its scores before exp2, which includes the division by
    // l.
    float* offsets = reinterpret_cast<float*>(shared + Tile::kOffsetsAt);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const half* q = static_cast<const half*>(rows.q);

    float sums[kBlocks][2] = {};
    for (int set = block.first_set; set <= block.last_set; ++set) {
        if (set != block.first_set) __syncthreads();  // every warp has finished with the previous rows
        const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key);
        copy_rows<D, Tile::kKeys, kThreads>(rows_shared, k_base, [&](int i) {
            const int key = min(first_key + i, extent.keys - 1);  // surplus sums are discarded
            if constexpr (MEMORY) return row_within(list_of(keys, extent, set)[key], keys.last_row);
            return key;
        });
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        uint32_t k[kBlocks][D / 16][4];
        const LanePieces<D> k_lane(rows_shared, warp * kBlocks * 16 + lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) load_matrices(k[i][kk], k_lane.at(i * 16, kk));
        __syncthreads();  // the buffers are free for rows now

        const auto fetch_rows = [&](int stage, int row) {
            copy_rows_async<D, kRows, kThreads>(
                rows_shared + stage * Tile::kRowBytes, [&](int i, int number) {
                    return q + number + row_index(rows, extent, set, min(row + i, extent.rows - 1)) * D;
                });
        };
        float next_m = 0, next_l = 0;  // one row's state, in flight while a tile is computed
        const auto fetch_state = [&](int row) {
            row += static_cast<int>(threadIdx.x);
            if (threadIdx.x >= kRows) return;
            const int64_t index = row_index(rows, extent, set, min(row, extent.rows - 1));
            next_m = args.m[index];
            next_l = row < row_end ? args.l[index] : 0.f;
        };
        const auto keep_state = [&](int stage) {
            if (threadIdx.x >= kRows) return;
            // A row outside the range, or one that saw no key: exp2 of minus infinity is zero.
            offsets[stage * kRows + threadIdx.x] =
                next_l > 0 ? fmaf(next_m, kLog2E, log2f(next_l)) : INFINITY;
        };

        const float scale = args.scores.scale * kLog2E;
        const LanePieces<D> row_lane(rows_shared, lane % 8 + lane / 16 * 8, lane / 8 % 2);
        if (row_begin < row_end) {
            fetch_rows(0, row_begin);
            fetch_state(row_begin);
            keep_state(0);
        }
        copy_commit();

        const auto add_tile = [&](int row, int stage, auto masked) {
            copy_wait<0>();
            __syncthreads();  // this tile has arrived, and every warp has finished with the other buffer
            const bool more = row + kRows < row_end;
            if (more) {
                fetch_rows(stage ^ 1, row + kRows);
                fetch_state(row + kRows);
            }
            copy_commit();

            float s[kBlocks][kRows / 8][4] = {};
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
                for (int nn = 0; nn < kRows / 16; ++nn) {
                    uint32_t b[4];
                    load_matrices(b, row_lane.at(nn * 16, kk) + stage * Tile::kRowBytes);
#pragma unroll
                    for (int i = 0; i < kBlocks; ++i) {
                        mma_16x8x16(s[i][nn * 2], k[i][kk], b[0], b[1]);
                        mma_16x8x16(s[i][nn * 2 + 1], k[i][kk], b[2], b[3]);
                    }
                }

            cap_tile(args.scores, s);
            const int column = lane % 4 * 2;
#pragma unroll
            for (int nn = 0; nn < kRows / 8; ++nn) {
                const float2 offset =
                    *reinterpret_cast<const float2*>(offsets + stage * kRows + column + nn * 8);
                float p[kBlocks][2][2];
#pragma unroll
                for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float x = s[i][nn][h * 2] * scale - offset.x;
                        float y = s[i][nn][h * 2 + 1] * scale - offset.y;
                        if constexpr (decltype(masked)::value) {
                            const int key = first_key + warp * kBlocks * 16 + i * 16 + h * 8 + lane / 4;
                            const int sees = (key - extent.first_position) * rows.group;  // the first row
                            if (row + column + nn * 8 < sees) x = -INFINITY;
                            if (row + column + nn * 8 + 1 < sees) y = -INFINITY;
                        }
                        if constexpr (Tile::kOfVotes) {
                            const float most = args.at_most_one ? 0.f : INFINITY;
                            x = fminf(x, most);
                            y = fminf(y, most);
                        }
                        p[i][h][0] = exp2_fast(x);
                        p[i][h][1] = exp2_fast(y);
                    }
#pragma unroll
                for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                    for (int h = 0; h < 2; ++h) sums[i][h] += p[i][h][0] + p[i][h][1];
            }
            if (more) keep_state(stage ^ 1);
        };
        // Diagonal tiles first: rows from `seen` on see every key of the block.
        const int seen =
            extent.causal ? (first_key + Tile::kKeys - 1 - extent.first_position) * rows.group : 0;
        int row = row_begin, stage = 0;
        for (; row < min(seen, row_end); row += kRows, stage ^= 1) add_tile(row, stage, std::true_type());
        for (; row < row_end; row += kRows, stage ^= 1) add_tile(row, stage, std::false_type());
    }

    float* out = args.out + blockIdx.y * args.set_stride + blockIdx.z * args.split_stride;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = lanes_sum<4>(sums[i][h]);
            const int key = first_key + warp * kBlocks * 16 + i * 16 + h * 8 + lane / 4;
            if (lane % 4 == 0 && key < extent.keys) out[(extent.first_key + key) * args.key_stride] = sum;
        }
}

}  // namespace h2o::cuda
