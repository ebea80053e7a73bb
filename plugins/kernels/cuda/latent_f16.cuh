// Attention of packed rows to latents in float16, on tensor cores. Many query heads share one wide key, and
// its first DV elements are its value.
//
// A block owns MT * 16 packed rows and walks over the keys in tiles of 32, read once for both scores and
// outputs. The outputs of one row would fill a lane's registers, so all warps share all rows. Four groups of
// warps score 8 keys each. Scores pass through shared memory, where a few threads per row turn them into
// probabilities. Every warp then accumulates its own columns of all rows' outputs.
//
// Floor: 2 * (D + DV) FLOP for each (row, visible key) on the tensor cores; the cache is read once for every
// MT * 16 rows. With 16 query heads that is one token, so the floor is the cache's bytes. Two tiles of keys
// are in flight or in use. A block has 94 KB of shared memory, which fits GPUs with 100 KB. Larger blocks of
// 64 rows need 158 KB, which SM80, SM87 and SM90 have.
#pragma once

#include "arrivals.cuh"
#include "attention_args.h"
#include "grid.cuh"
#include "new_row.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "scores.cuh"
#include "tile_copy.cuh"
#include "tiles.h"

namespace h2o::cuda {

template <int D, int DV, int MT>
struct LatentTile {
    static constexpr int kWarps = MT > 1 ? 8 : kLatentWarps;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kRows = MT * 16;
    static constexpr int kKeys = kLatentKeys;
    static constexpr int kKeyGroups = kKeys / 8;                // groups of warps, 8 keys each
    static constexpr int kScored = MT / (kWarps / kKeyGroups);  // sets of 16 rows that a warp scores
    static constexpr int kColumns = DV / kWarps;                // output columns of a warp
    static constexpr int kThreadsARow = kThreads / kRows;       // of the softmax
    static constexpr int kKeysAThread = kKeys / kThreadsARow;   // of a row
    static constexpr int kStride = kKeys + 4;                   // row stride of scores, in floats
    static constexpr int kQBytes = kRows * D * 2, kKeyBytes = kKeys * D * 2;
    static constexpr int kScoreBytes = kRows * kStride * 4, kShareBytes = kRows * kKeys * 2;
    static constexpr int kKeysAt = kQBytes, kScoresAt = kKeysAt + 2 * kKeyBytes;
    static constexpr int kSharesAt = kScoresAt + kScoreBytes, kFactorsAt = kSharesAt + kShareBytes;
    static constexpr int kSharedBytes = kFactorsAt + 2 * kRows * 4;
    static_assert(D % 32 == 0 && kColumns % (16 * TileRows<D>::kGroup / 2) == 0,
                  "warps begin at whole groups");
    static_assert(kKeysAThread % 4 == 0, "a thread takes whole vectors of scores");
};

// Keys are stored as S: half or int8_t.
template <int D, int DV, int MT, class S>
__global__ void __launch_bounds__(LatentTile<D, DV, MT>::kThreads, 1) latent_f16(const AttentionArgs args) {
    using Tile = LatentTile<D, DV, MT>;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows, KEYS = Tile::kKeys,
                  kOwn = Tile::kKeysAThread;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const AttentionBlock block = attention_block<kRows, KEYS>(args);
    const Extent& extent = block.extent;
    const int set = block.set, first_row = block.first_row, last_row = block.last_row;
    const int key_begin = block.keys.begin, key_end = block.keys.end;
    if (first_row >= extent.rows) return;
    const int tiles = key_end > key_begin ? (key_end - key_begin + KEYS - 1) / KEYS : 0;
    const bool with_values = keys.v != nullptr;

    unsigned char* shared = dynamic_shared();
    const shared_t q_shared = shared_address(shared), k_shared = q_shared + Tile::kKeysAt;
    float* const scores = reinterpret_cast<float*>(shared + Tile::kScoresAt);
    unsigned char* const shares = shared + Tile::kSharesAt;
    float* const factors = reinterpret_cast<float*>(shared + Tile::kFactorsAt);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int key_group = warp % Tile::kKeyGroups, row_group = warp / Tile::kKeyGroups;
    const half* q = static_cast<const half*>(rows.q);
    const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key);
    if (args.new_k && key_begin < key_end && key_end == extent.keys)
        append_last_row<half>(args, k_base, k_base, set, extent.keys);
    const int32_t* const list = keys.memory ? list_of(keys, extent, set) : nullptr;
    const auto fetch_keys = [&](int tile) {
        copy_rows<D, KEYS, kThreads>(k_shared + tile % 2 * Tile::kKeyBytes, k_base, [&](int row) {
            const int key =
                min(key_begin + tile * KEYS + row, key_end - 1);  // scores of later keys are masked
            return list ? row_within(list[key], keys.last_row) : key;
        });
    };

    // Where this lane's operands are: 16 rows of q and p; for scores, 8 keys and four 16-byte units at a
    // time; for outputs, the warp's own columns of the keys.
    const LanePieces<D> q_lane(q_shared + row_group * Tile::kScored * 16 * TileRows<D>::kRowBytes, lane % 16,
                               lane / 16);
    const int key_row = key_group * 8 + lane % 8;
    const shared_t key_lane = k_shared + key_row * TileRows<D>::kRowBytes;
    const LanePieces<D> value_lane(k_shared + warp * Tile::kColumns * 2, lane % 16, lane / 16);
    const LanePieces<KEYS> share_lane(shared_address(shares), lane % 16, lane / 16);

    // The row whose softmax this thread computes, with its neighbours.
    const int own_row = threadIdx.x / Tile::kThreadsARow, own_keys = threadIdx.x % Tile::kThreadsARow * kOwn;
    const int packed = first_row + own_row;
    const int first_key = first_key_of(extent, rows, min(packed, last_row));
    const int last_key = min(last_key_of(extent, rows, min(packed, last_row)), key_end - 1);
    const float scale = args.scores.scale * kLog2E;
    float row_max = -INFINITY, row_sum = 0;
    float o[MT][Tile::kColumns / 8][4] = {};

    if (tiles > 0) {
        copy_rows_async<D, kRows, kThreads>(q_shared, [&](int row, int number) {
            return q + number + row_index(rows, extent, set, min(first_row + row, last_row)) * D;
        });
        fetch_keys(0);
        copy_commit();
    }
    for (int tile = 0; tile < tiles; ++tile) {
        const shared_t buffer = tile % 2 * Tile::kKeyBytes;
        copy_wait<0>();
        __syncthreads();  // keys have arrived, and every warp has finished with the previous tile
        if (tile + 1 < tiles) fetch_keys(tile + 1);
        copy_commit();

        float s[Tile::kScored][2][4] =
            {};  // two accumulators each, so that products do not wait for each other
#pragma unroll
        for (int j = 0; j < D / 32; ++j) {
            uint32_t b[4];
            load_matrices(b, key_lane + buffer + ((j * 4 + lane / 8) ^ TileRows<D>::flip(key_row)) * 16);
#pragma unroll
            for (int i = 0; i < Tile::kScored; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    uint32_t a[4];
                    load_matrices(a, q_lane.at(i * 16, j * 2 + e));
                    mma_16x8x16(s[i][e], a, b[e * 2], b[e * 2 + 1]);
                }
        }
#pragma unroll
        for (int i = 0; i < Tile::kScored; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = (row_group * Tile::kScored + i) * 16 + h * 8 + lane / 4;
                const int column = key_group * 8 + lane % 4 * 2;
                *reinterpret_cast<float2*>(scores + row * Tile::kStride + column) =
                    make_float2(s[i][0][h * 2] + s[i][1][h * 2], s[i][0][h * 2 + 1] + s[i][1][h * 2 + 1]);
            }
        __syncthreads();

        {
            float x[kOwn], top = row_max;
            const int first = key_begin + tile * KEYS + own_keys;
#pragma unroll
            for (int e = 0; e < kOwn; e += 4)
                *reinterpret_cast<float4*>(x + e) =
                    *reinterpret_cast<const float4*>(scores + own_row * Tile::kStride + own_keys + e);
#pragma unroll
            for (int e = 0; e < kOwn; ++e) {
                x[e] = capped(args.scores, x[e]);
                if (first + e < first_key || first + e > last_key) x[e] = -INFINITY;
                top = fmaxf(top, x[e]);
            }
            top = lanes_max<Tile::kThreadsARow>(top);
            const float offset = top == -INFINITY ? 0.f : top * scale;
            const float rescale = exp2_fast(row_max * scale - offset);
            row_max = top;
            float sum = 0;
#pragma unroll
            for (int e = 0; e < kOwn; ++e) {
                x[e] = exp2_fast(x[e] * scale - offset);
                sum += x[e];
            }
            row_sum = row_sum * rescale + sum;
#pragma unroll
            for (int e = 0; e < kOwn; e += 2) {
                const int key = own_keys + e;
                *reinterpret_cast<uint32_t*>(shares + TileRows<KEYS>::offset(own_row, key / 8) +
                                             key % 8 * 2) = pack_half2(x[e], x[e + 1]);
            }
            if (own_keys == 0) factors[own_row] = rescale;
        }
        __syncthreads();
        if (!with_values) continue;

#pragma unroll
        for (int i = 0; i < MT; ++i) {
            const float above = factors[i * 16 + lane / 4], below = factors[i * 16 + 8 + lane / 4];
            if (!__any_sync(kAllLanes, above != 1.f || below != 1.f)) continue;
#pragma unroll
            for (int nn = 0; nn < Tile::kColumns / 8; ++nn)
#pragma unroll
                for (int r = 0; r < 4; ++r) o[i][nn][r] *= r < 2 ? above : below;
        }
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; ++kk) {
            uint32_t p[MT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) load_matrices(p[i], share_lane.at(i * 16, kk));
#pragma unroll
            for (int nn = 0; nn < Tile::kColumns / 16; ++nn) {
                uint32_t b[4];
                load_matrices_transposed(b, value_lane.at(kk * 16, nn) + buffer);
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    mma_16x8x16(o[i][nn * 2], p[i], b[0], b[1]);
                    mma_16x8x16(o[i][nn * 2 + 1], p[i], b[2], b[3]);
                }
            }
        }
    }

    // The threads of each row write its state, and publish the factor for its output.
    __syncthreads();  // every warp has read the previous factors
    {
        const bool valid = packed <= last_row;
        const int64_t index = valid ? row_index(rows, extent, set, packed) : 0;
        const float sum = lanes_sum<Tile::kThreadsARow>(row_sum);
        const FinishedRow finished = finish_row(args, valid, index, row_max * args.scores.scale, sum,
                                                [](float x) { return exp2_fast(x * kLog2E); });
        __syncwarp();  // the row's lanes have read the other state
        if (own_keys == 0) {
            factors[own_row] = finished.factor;
            factors[kRows + own_row] = finished.with_factor;
            if (valid) put_state(args, finished, block.parted, index);
        }
    }
    __syncthreads();
    if (!with_values || (!block.parted && !args.o)) return;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int local = i * 16 + h * 8 + lane / 4, row = first_row + local;
            if (row > last_row) continue;
            const int64_t index = row_index(rows, extent, set, row);
            const float factor = factors[local], with_factor = factors[kRows + local];
#pragma unroll
            for (int nn = 0; nn < Tile::kColumns / 8; ++nn) {
                const int column = warp * Tile::kColumns + nn * 8 + lane % 4 * 2;
                const int64_t at = place_of(args, block.parted, index) * DV + column;
                float x = o[i][nn][h * 2] * factor, y = o[i][nn][h * 2 + 1] * factor;
                if (block.parted) {
                    put_between_blocks(reinterpret_cast<float2*>(args.partial_o + at), make_float2(x, y));
                    continue;
                }
                if (with_factor > 0) {
                    const half* with = static_cast<const half*>(args.with_o) + at;
                    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(with));
                    x = fmaf(w.x, with_factor, x);
                    y = fmaf(w.y, with_factor, y);
                }
                *reinterpret_cast<uint32_t*>(static_cast<half*>(args.o) + at) = pack_half2(x, y);
            }
        }
    if (block.parted && args.arrivals) combine_if_last<DV>(args, extent, set, first_row, last_row, shared);
}

}  // namespace h2o::cuda
