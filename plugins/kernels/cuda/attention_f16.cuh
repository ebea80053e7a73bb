// Attention of packed rows to a set's keys in float16, on tensor cores.
//
// A block owns WARPS * MT * 16 packed rows and walks over the keys in tiles of KEYS, keeping for each row the
// running maximum, the denominator and the unnormalised output in registers (online softmax). Scores live
// only in registers: the accumulator layout of q k^T is the operand layout of p v.
//
// Floor: 4 * d FLOP for each (row, visible key) on the tensor cores; q and o are read or written once, k and
// v once per block from L2. How the kernel stays near it:
//  - each warp owns 32 rows (MT = 2), so every key fragment read from shared memory feeds two products;
//    with 16 rows the shared memory would be the limit, not the tensor cores;
//  - values of a tile arrive while its scores are computed, keys of the next one during softmax and p v;
//  - rows of a tile are swizzled in shared memory, so ldmatrix has no bank conflicts; they have no padding,
//    so two blocks of the widest heads fit into 100 KB with KEYS = 32;
//  - the scale and log2(e) are folded into the multiply-add before exp2;
//  - the global address of each copied 16 bytes is one multiply-add; its shared address is a constant;
//  - masks are computed only in tiles that cross the diagonal or the end; accumulators are rescaled only when
//    a row of the warp has a new maximum.
// Keys are consecutive rows, or a memory set or a list names them. With WARPS = MT = 1 a block is one warp
// with 16 rows, for decode. The floor is then the cache's bytes, and many small blocks per multiprocessor
// keep enough loads in flight. With two warps it has 64 rows: for lists, and for memory sets that so few rows
// share, such as the votes of a tile's query head.
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

enum class Lookup {
    kNone,    // keys are consecutive rows
    kMemory,  // KeySource::memory
    kList     // KeySource::list
};

template <int D, int DV, int WARPS, int MT, int KEYS, Lookup LOOKUP>
struct AttentionTile {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kRows = WARPS * MT * 16;
    static_assert(kRows == (WARPS == 1   ? kSmallTileRows
                            : WARPS == 2 ? kMediumTileRows
                                         : kLargeTileRows),
                  "as the host takes it");
    static constexpr int kQBytes = kRows * D * 2;
    static constexpr int kKeyBytes = KEYS * D * 2;
    static constexpr int kValueBytes = KEYS * DV * 2;
    static_assert(DV <= D, "outputs are staged where queries lay");
    static constexpr int kSlotBytes = LOOKUP == Lookup::kNone ? 0 : 3 * KEYS * 4;  // rows of three tiles
    static constexpr int kSharedBytes = kQBytes + kKeyBytes + kValueBytes + kSlotBytes;
    static constexpr bool kQInRegisters = MT * (D / 16) <= 8;
    static constexpr bool kStep =
        WARPS == 1 && LOOKUP == Lookup::kNone;  // appends its row and combines its parts
};

// Keys of D and values of DV elements are stored as S: half or int8_t.
template <int D, int DV, int WARPS, int MT, int KEYS, Lookup LOOKUP, class S>
__global__ void __launch_bounds__(WARPS * 32, WARPS == 4 ? 2 : 1) attention_f16(const AttentionArgs args) {
    using Tile = AttentionTile<D, DV, WARPS, MT, KEYS, LOOKUP>;
    constexpr bool kGather = LOOKUP != Lookup::kNone, kListed = LOOKUP == Lookup::kList;
    constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows;
    const RowSource& rows = args.rows;
    const KeySource& keys = args.keys;

    const AttentionBlock block = attention_block<kRows, KEYS, kListed>(args);
    const Extent& extent = block.extent;
    const bool parted = block.parted;
    const int set = block.set, first_row = block.first_row, last_row = block.last_row;
    const int key_begin = block.keys.begin, key_end = block.keys.end;
    if (first_row >= extent.rows) return;

    // Keys that all rows see.
    const int all_from = LOOKUP == Lookup::kNone ? first_key_of(extent, rows, last_row) : 0;
    const int all_until = min(last_key_of(extent, rows, first_row) + 1, key_end);

    unsigned char* shared = dynamic_shared();
    const shared_t q_shared = shared_address(shared);
    const shared_t k_shared = q_shared + Tile::kQBytes;
    const shared_t v_shared = k_shared + Tile::kKeyBytes;
    constexpr int kSlotsAt = Tile::kQBytes + Tile::kKeyBytes + Tile::kValueBytes;
    int* slots = reinterpret_cast<int*>(shared + kSlotsAt);
    const shared_t slots_shared = v_shared + Tile::kValueBytes;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const half* q = static_cast<const half*>(rows.q);
    const h2o_kv* const cache = kGather ? nullptr : block.cache;
    const SetRows<S> k_base = set_keys<S>(keys, set, extent.first_key, cache);
    const SetRows<S> v_base = set_values<S>(keys, set, extent.first_key, cache);
    const bool with_values = v_base.first != nullptr;
    if constexpr (Tile::kStep) {
        if (args.new_k && key_begin < key_end && key_end == extent.keys)
            append_last_row<half>(args, k_base, v_base, set, extent.keys);
    }

    // Entries of the memory set are fetched two tiles ahead, so the rows that they name can be fetched one
    // tile ahead. Past the last key its row is fetched again: those scores are masked, so the copy needs no
    // condition.
    const auto fetch_slots = [&](int tile_key, int slot) {
        static_assert(KEYS <= kThreads || LOOKUP != Lookup::kMemory, "a thread has an entry");
        if (threadIdx.x >= KEYS) return;
        const int key = min(tile_key + static_cast<int>(threadIdx.x), key_end - 1);
        copy4_async(slots_shared + (slot * KEYS + static_cast<int>(threadIdx.x)) * 4,
                    list_of(keys, extent, set) + key, true);
    };
    // Rows of a list are computed from its entries. A thread loads its entries before it computes the scores
    // of a tile, and stores the rows after it. The scores hide the latency of the load.
    constexpr int kOwnRows = kListed ? KEYS / kThreads : 1;
    static_assert(!kListed || KEYS % kThreads == 0, "all threads have as many rows");
    const auto load_listed = [&](int tile_key, int (&to)[kOwnRows]) {
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i)
            to[i] = block.listed.row(tile_key + static_cast<int>(threadIdx.x) + i * kThreads);
    };
    const auto put_listed = [&](int slot, const int (&from)[kOwnRows]) {
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i)
            slots[slot * KEYS + static_cast<int>(threadIdx.x) + i * kThreads] = from[i];
    };
    const int last_gathered = kListed ? block.listed.last_row : keys.last_row;
    const auto row_of = [&](int tile_key, int slot, int row) {
        if constexpr (kGather) return row_within(slots[slot * KEYS + row], last_gathered);
        return min(tile_key + row, key_end - 1);
    };
    const auto fetch_keys = [&](int tile_key, int slot) {
        copy_rows<D, KEYS, kThreads>(k_shared, k_base, [&](int i) { return row_of(tile_key, slot, i); });
    };
    const auto fetch_values = [&](int tile_key, int slot) {
        copy_rows<DV, KEYS, kThreads>(v_shared, v_base, [&](int i) { return row_of(tile_key, slot, i); });
    };
    const auto next_of = [](int slot) { return slot == 2 ? 0 : slot + 1; };

    float o[MT][DV / 8][4] = {};
    float row_max[MT][2], row_sum[MT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            row_max[i][h] = -INFINITY;
            row_sum[i][h] = 0;
        }

    // The lane's row of a 16 x 16 operand for ldmatrix: rows (keys) for q, p and v; pairs of keys for k.
    const LanePieces<D> k_lane(k_shared, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const LanePieces<DV> v_lane(v_shared, lane % 16, lane / 16);
    const LanePieces<D> q_lane(q_shared, warp * MT * 16 + lane % 16, lane / 16);

    if (key_begin < key_end) {
        copy_rows_async<D, kRows, kThreads>(q_shared, [&](int row, int number) {
            return q + number + row_index(rows, extent, set, min(first_row + row, last_row)) * D;
        });
        if constexpr (kGather) {
            int listed[kOwnRows];
            for (int tile = 0; tile < 2; ++tile) {
                if constexpr (kListed) {
                    load_listed(key_begin + tile * KEYS, listed);
                    put_listed(tile, listed);
                } else {
                    fetch_slots(key_begin + tile * KEYS, tile);
                }
            }
            copy_commit();
            copy_wait<0>();
            __syncthreads();
        }
        fetch_keys(key_begin, 0);
        copy_commit();
    }

    uint32_t q_registers[Tile::kQInRegisters ? MT : 1][Tile::kQInRegisters ? D / 16 : 1][4];
    const float scale = args.scores.scale * kLog2E;

    int slot = 0;  // where the entries of this tile are
    for (int tile_key = key_begin; tile_key < key_end; tile_key += KEYS) {
        int listed[kOwnRows];  // two tiles ahead
        if constexpr (kListed) load_listed(tile_key + 2 * KEYS, listed);
        copy_wait<0>();
        __syncthreads();  // keys have arrived, and every warp has finished with the previous values
        if (with_values) fetch_values(tile_key, slot);
        copy_commit();

        if constexpr (Tile::kQInRegisters) {
            if (tile_key == key_begin) {
#pragma unroll
                for (int i = 0; i < MT; ++i)
#pragma unroll
                    for (int kk = 0; kk < D / 16; ++kk)
                        load_matrices(q_registers[i][kk], q_lane.at(i * 16, kk));
            }
        }

        float s[MT][KEYS / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            uint32_t a[MT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                if constexpr (Tile::kQInRegisters) {
#pragma unroll
                    for (int r = 0; r < 4; ++r) a[i][r] = q_registers[i][kk][r];
                } else {
                    load_matrices(a[i], q_lane.at(i * 16, kk));
                }
            }
#pragma unroll
            for (int nn = 0; nn < KEYS / 16; ++nn) {
                uint32_t b[4];
                load_matrices(b, k_lane.at(nn * 16, kk));
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    mma_16x8x16(s[i][nn * 2], a[i], b[0], b[1]);
                    mma_16x8x16(s[i][nn * 2 + 1], a[i], b[2], b[3]);
                }
            }
        }

        copy_wait<0>();
        __syncthreads();  // values have arrived, and every warp has finished with the keys
        const int* const tile_rows = slots + slot * KEYS;
        if constexpr (kGather) slot = next_of(slot);
        if constexpr (kListed) put_listed(next_of(slot), listed);
        if (tile_key + KEYS < key_end) {
            fetch_keys(tile_key + KEYS, slot);
            if constexpr (LOOKUP == Lookup::kMemory) {
                if (tile_key + 2 * KEYS < key_end) fetch_slots(tile_key + 2 * KEYS, next_of(slot));
            }
        }
        copy_commit();

        cap_tile(args.scores, s);
        if constexpr (kListed) {
            mask_listed<MT, KEYS>(s, tile_rows, block.listed);
        } else if (tile_key < all_from || tile_key + KEYS > all_until) {
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = min(first_row + warp * MT * 16 + i * 16 + h * 8 + lane / 4, last_row);
                    const int last = min(last_key_of(extent, rows, row), key_end - 1);
                    const int first = LOOKUP == Lookup::kNone ? first_key_of(extent, rows, row) : 0;
#pragma unroll
                    for (int nn = 0; nn < KEYS / 8; ++nn)
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int key = tile_key + nn * 8 + lane % 4 * 2 + e;
                            if (key < first || key > last) s[i][nn][h * 2 + e] = -INFINITY;
                        }
                }
        }

        float rescale[MT][2];
        bool grew = false;
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float top = s[i][0][h * 2];
#pragma unroll
                for (int nn = 0; nn < KEYS / 8; ++nn)
                    top = fmaxf(top, fmaxf(s[i][nn][h * 2], s[i][nn][h * 2 + 1]));
                top = fmaxf(row_max[i][h], lanes_max<4>(top));
                grew |= top > row_max[i][h];
                // The maximum of a row that has met no key is -inf: subtract 0 instead, and exp2(-inf) is 0.
                const float offset = top == -INFINITY ? 0.f : top * scale;
                rescale[i][h] = exp2_fast(row_max[i][h] * scale - offset);
                row_max[i][h] = top;
                float sum = 0;
#pragma unroll
                for (int nn = 0; nn < KEYS / 8; ++nn)
#pragma unroll
                    for (int e = h * 2; e < h * 2 + 2; ++e) {
                        s[i][nn][e] = exp2_fast(s[i][nn][e] * scale - offset);
                        sum += s[i][nn][e];
                    }
                row_sum[i][h] = row_sum[i][h] * rescale[i][h] + sum;
            }
        if (!with_values) continue;

        if (__any_sync(kAllLanes, grew)) {
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int nn = 0; nn < DV / 8; ++nn)
#pragma unroll
                    for (int r = 0; r < 4; ++r) o[i][nn][r] *= rescale[i][r / 2];
        }
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; ++kk) {
            uint32_t p[MT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    p[i][r] =
                        pack_half2(s[i][kk * 2 + r / 2][r % 2 * 2], s[i][kk * 2 + r / 2][r % 2 * 2 + 1]);
#pragma unroll
            for (int nn = 0; nn < DV / 16; ++nn) {
                uint32_t b[4];
                load_matrices_transposed(b, v_lane.at(kk * 16, nn));
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    mma_16x8x16(o[i][nn * 2], p[i], b[0], b[1]);
                    mma_16x8x16(o[i][nn * 2 + 1], p[i], b[2], b[3]);
                }
            }
        }
    }

    // Each warp writes its own rows. They pass through shared memory (the warp's own rows of q), so that a
    // lane stores 16 bytes at once; float32 partial results are stored directly.
    unsigned char* staged = shared + warp * MT * 16 * TileRows<D>::kRowBytes;
    if (Tile::kQInRegisters) __syncwarp();
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = first_row + warp * MT * 16 + i * 16 + h * 8 + lane / 4;
            const bool valid = row <= last_row;
            const float sum = lanes_sum<4>(row_sum[i][h]);
            const int64_t index = valid ? row_index(rows, extent, set, row) : 0;
            const FinishedRow finished = finish_row(args, valid, index, row_max[i][h] * args.scores.scale,
                                                    sum, [](float x) { return exp2_fast(x * kLog2E); });
            const float factor = finished.factor, with_factor = finished.with_factor;
            const int64_t part = place_of(args, parted, index);
            __syncwarp();  // the row's four lanes have read the other state
            if (valid && lane % 4 == 0) put_state(args, finished, parted, index);
            if (!with_values) continue;
#pragma unroll
            for (int nn = 0; nn < DV / 8; ++nn) {
                float x = o[i][nn][h * 2] * factor, y = o[i][nn][h * 2 + 1] * factor;
                const int column = nn * 8 + lane % 4 * 2;
                if (parted) {
                    if (valid)
                        put_between_blocks(reinterpret_cast<float2*>(args.partial_o + part * DV + column),
                                           make_float2(x, y));
                    continue;
                }
                if (valid && args.with_o) {
                    const half* with = static_cast<const half*>(args.with_o) + index * DV + column;
                    const float2 w = __half22float2(*reinterpret_cast<const __half2*>(with));
                    x += with_factor > 0 ? w.x * with_factor : 0.f;
                    y += with_factor > 0 ? w.y * with_factor : 0.f;
                }
                const int place = TileRows<DV>::offset(i * 16 + h * 8 + lane / 4, nn) + lane % 4 * 4;
                *reinterpret_cast<uint32_t*>(staged + place) = pack_half2(x, y);
            }
        }
    if constexpr (Tile::kStep) {
        if (parted && args.arrivals) combine_if_last<DV>(args, extent, set, first_row, last_row, shared);
    }
    if (parted || !with_values || !args.o) return;
    __syncwarp();
    constexpr int kPieces = DV / 8;
#pragma unroll
    for (int i = lane; i < MT * 16 * kPieces; i += 32) {
        const int row = i / kPieces, piece = i % kPieces;
        const int packed = first_row + warp * MT * 16 + row;
        if (packed > last_row) continue;
        half* to = static_cast<half*>(args.o) + row_index(rows, extent, set, packed) * DV + piece * 8;
        *reinterpret_cast<uint4*>(to) =
            *reinterpret_cast<const uint4*>(staged + TileRows<DV>::offset(row, piece));
    }
}

}  // namespace h2o::cuda
