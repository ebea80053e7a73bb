// Sums of the votes of tiles of queries for keys, in float16 on tensor cores: one launch.
//
// A key's sum is that of min(exp(s_ij - m_i) / l_i, 1) over the packed rows i of the votes. A block has 64 of
// these rows in shared memory, and keys pass in tiles of 128. In a first pass every thread keeps the maxima
// and denominators of the votes in its columns; they are put together once, behind the last tile. Only the
// sample passes there (vote_sample.cuh), whose denominators are multiplied behind its last tile, the first
// keys, and behind these a vote's own rows, if it has any. Then all keys pass, and a key's sum is a sum along
// the accumulator's rows. No block waits for another, and every sum has one order. Votes beyond 64 rows, and
// score heads that span several key sets, are pieces, each with a block and sums of its own. Two score heads
// of at most 32 votes that look at the same keys share a block, with half of the rows each. Keys of more than
// 128 numbers are BlockSelect's moments: halves, without lists.
//
// Floor: 2 * d FLOP for each (row, key) of a pass, and an exponential. The passes are over about an eighth of
// the keys, the first 128 and own rows, and over all keys; keys are read from L2, 64 FLOP a byte.
//  - a warp has 32 keys in registers, so that every fragment of the rows feeds two products;
//  - when all warps have their keys, the buffer is free: the next tile arrives during the products;
//  - denominators are rescaled only when a maximum of the warp grows.
#include "row_range.cuh"
#include "scores.cuh"
#include "tile_copy.cuh"
#include "tile_votes.h"
#include "vote_sample.cuh"

namespace h2o::cuda {
namespace {

constexpr float kLowest = -1e30f;  // below every score, and finite: differences of two are numbers

template <int D>
struct VoteTile {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = kWarps * 32;
    static constexpr bool kLists = has_tiles(D);                  // wide keys have no lists
    static constexpr int kAtOnce = D > 128 ? 2 : D > 64 ? 3 : 4;  // blocks of a multiprocessor, by registers
    static constexpr int kBlocks = 2;                             // of 16 keys, in a warp's registers
    static constexpr int kKeys = kWarps * kBlocks * 16;
    static constexpr int kRows = kVoteRows;
    static constexpr int kKeysAt = kRows * D * 2;
    static constexpr int kOffsetsAt = kKeysAt + kKeys * D * 2;
    static constexpr int kStatesAt = kOffsetsAt + kRows * 4;         // a maximum and a denominator
    static constexpr int kSlotsAt = kStatesAt + kWarps * kRows * 8;  // rows of three tiles
    static constexpr int kSeenAt =
        kSlotsAt + (kLists ? 3 * kKeys * 4 : 0);  // keys of the first pass that a row sees
    static constexpr int kSharedBytes = kSeenAt + kRows * 4;
    static_assert(kSharedBytes <= 99 * 1024, "as GPUs of 100 KB have it");
};

struct VoteArgs {
    const half* q;  // [n, heads, d]
    VotingTiles tiles;
    KeySource keys;  // with a list, or a length for each tile
    OwnRows own;     // behind these
    Scores scores;
    int heads;     // Hq
    int group;     // query heads of a key set
    int spanned;   // key sets of a score head
    int at_once;   // score heads of a block: 1 or 2; with 2 there is one piece
    int sharing;   // score heads of a list
    float* score;  // [tiles, Hs, pieces, places] out
    int places;
};

// The votes of one tile for one key set: packed row = vote * group + query head.
struct Voters {
    const VoteArgs& args;
    int tile, set;
    int first, end;  // rows of q
    int rows;        // packed

    __device__ __forceinline__ Voters(const VoteArgs& args, int tile, int set)
        : args(args), tile(tile), set(set) {
        first = tile * args.tiles.tile;
        end = min(first + args.tiles.tile, args.tiles.n);
        rows = (end - first + args.tiles.stride - 1) / args.tiles.stride * args.group;
    }
    // Of q.
    __device__ __forceinline__ int row(int packed) const {
        const int vote = packed / args.group, head = set * args.group + packed - vote * args.group;
        return args.tiles.row(tile, vote, head, args.group * args.spanned);
    }
    // Of [n, heads].
    __device__ __forceinline__ int64_t index(int packed) const {
        return static_cast<int64_t>(row(packed)) * args.heads + set * args.group + packed % args.group;
    }
};

template <int D, class S>
__global__ void __launch_bounds__(VoteTile<D>::kThreads, VoteTile<D>::kAtOnce)
    sum_votes_f16(const VoteArgs args) {
    using Tile = VoteTile<D>;
    constexpr int kThreads = Tile::kThreads, kKeys = Tile::kKeys, kRows = Tile::kRows;
    constexpr int kBlocks = Tile::kBlocks;
    const KeySource& keys = args.keys;
    const int heads = gridDim.x * args.at_once, head = blockIdx.x * args.at_once;  // the block's first
    const int tile = gridDim.y - 1 - blockIdx.y;  // late tiles have the most keys and start first
    const int count = keys.length ? bounded(keys.length[tile], 1, keys.keys) : keys.keys;
    const int64_t number = static_cast<int64_t>(tile) * (heads / args.sharing) + head / args.sharing;
    const int32_t* const list = Tile::kLists && keys.memory ? keys.memory + number * keys.keys : nullptr;
    // Place `count` and those behind it are own rows: place + shift is the cache row.
    const OwnRows& own = args.own;
    const int before = own.past ? own.before_tile(tile) : 0, shift = list ? own.begin(tile) - count : 0;
    const int last_row = own.past ? own.last_row : count - 1;
    const int piece = blockIdx.z, pieces = gridDim.z;
    float* const sums =
        args.score + ((static_cast<int64_t>(tile) * heads + head) * pieces + piece) * args.places;
    const int half = kRows / args.at_once;  // rows of a head
    const int set = head * args.spanned + piece / (pieces / args.spanned);
    const int first_row = piece % (pieces / args.spanned) * kRows;  // packed

    unsigned char* const shared = dynamic_shared();
    const shared_t rows_shared = shared_address(shared);
    const shared_t keys_shared = rows_shared + Tile::kKeysAt;
    const shared_t slots_shared = rows_shared + Tile::kSlotsAt;
    int* const slots = reinterpret_cast<int*>(shared + Tile::kSlotsAt);
    float* const offsets = reinterpret_cast<float*>(shared + Tile::kOffsetsAt);  // as in the column sums
    float2* const states = reinterpret_cast<float2*>(shared + Tile::kStatesAt);
    int* const seen = reinterpret_cast<int*>(shared + Tile::kSeenAt);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 4 * 2;
    const LanePieces<D> key_lane(keys_shared, warp * kBlocks * 16 + lane % 16, lane / 16);
    const LanePieces<D> row_lane(rows_shared, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const float scale = args.scores.scale * kLog2E;
    const auto key_of = [&](int first, int i, int h) {
        return first + warp * kBlocks * 16 + i * 16 + h * 8 + lane / 4;
    };

    // Calls add(first, nn, s) with the scores of 32 keys of each warp, from key `first` of the tile on, and
    // of rows 16 * nn on, if there are any; and then(first) behind a tile. There are `total` keys, and key i
    // is at place_of(i).
    const auto walk = [&](int rows, int total, auto&& place_of, auto&& add, auto&& then) {
        const SetRows<S> base = set_keys<S>(keys, set, 0);
        const auto fetch_slots = [&](int first, int slot) {
            static_assert(kKeys <= kThreads, "a thread has an entry");
            const int place = place_of(min(first + static_cast<int>(threadIdx.x), total - 1));
            const int at = slot * kKeys + static_cast<int>(threadIdx.x);
            if (place < count)
                copy4_async(slots_shared + at * 4, list + place, true);
            else
                slots[at] = place + shift;
        };
        const auto fetch_keys = [&](int first, int slot) {
            copy_rows<D, kKeys, kThreads>(keys_shared, base, [&](int i) {
                const int row = list ? slots[slot * kKeys + i] : place_of(min(first + i, total - 1));
                return row_within(row, last_row);
            });
        };
        const auto next_of = [](int slot) { return slot == 2 ? 0 : slot + 1; };
        __syncthreads();  // every warp has finished with the offsets and slots
        if (list) {
            fetch_slots(0, 0);
            fetch_slots(kKeys, 1);
            copy_commit();
            copy_wait<0>();
            __syncthreads();
        }
        fetch_keys(0, 0);
        copy_commit();
        int slot = 0;
        for (int first = 0; first < total; first += kKeys) {
            copy_wait<0>();
            __syncthreads();  // keys, and the entries of the next tile, have arrived
            uint32_t k[kBlocks][D / 16][4];
#pragma unroll
            for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                for (int kk = 0; kk < D / 16; ++kk) load_matrices(k[i][kk], key_lane.at(i * 16, kk));
            __syncthreads();  // every warp has its keys
            slot = next_of(slot);
            if (first + kKeys < total) {
                fetch_keys(first + kKeys, slot);
                if (list) fetch_slots(first + 2 * kKeys, next_of(slot));
            }
            copy_commit();
#pragma unroll
            for (int nn = 0; nn < kRows / 16; ++nn) {
                if (nn * 16 >= rows) break;
                float s[kBlocks][2][4] = {};
#pragma unroll
                for (int kk = 0; kk < D / 16; ++kk) {
                    uint32_t b[4];
                    load_matrices(b, row_lane.at(nn * 16, kk));
#pragma unroll
                    for (int i = 0; i < kBlocks; ++i) {
                        mma_16x8x16(s[i][0], k[i][kk], b[0], b[1]);
                        mma_16x8x16(s[i][1], k[i][kk], b[2], b[3]);
                    }
                }
                cap_tile(args.scores, s);
                add(first, nn, s);
            }
            then(first);
        }
    };

    // offsets [kRows]: what is subtracted from a row's scores before exp2, the division by l included. Maxima
    // are scaled, in powers of 2.
    const auto find_offsets = [&](int rows, int used, const VoteSample& sample, int total) {
        float m[kRows / 16][2][2], l[kRows / 16][2][2];
#pragma unroll
        for (int nn = 0; nn < kRows / 16; ++nn)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                m[nn][j / 2][j % 2] = kLowest;
                l[nn][j / 2][j % 2] = 0;
            }
        walk(
            rows, total, [&](int i) { return sample.place(i); },
            [&](int first, int nn, float (&s)[kBlocks][2][4]) {
                const bool sampled = first < sample.begin;
                if (first + kKeys > (sampled ? sample.sampled : sample.end)) {
#pragma unroll
                    for (int j = 0; j < 2; ++j)
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int end = sampled ? sample.sampled : seen[nn * 16 + j * 8 + column + e];
#pragma unroll
                            for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                                for (int h = 0; h < 2; ++h)
                                    if (key_of(first, i, h) >= end) s[i][j][h * 2 + e] = -INFINITY;
                        }
                }
                float top[2][2];
                bool grew = false;
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        top[j][e] = fmaxf(s[0][j][e], s[0][j][2 + e]);
#pragma unroll
                        for (int i = 1; i < kBlocks; ++i)
                            top[j][e] = fmaxf(top[j][e], fmaxf(s[i][j][e], s[i][j][2 + e]));
                        top[j][e] = fmaxf(m[nn][j][e], top[j][e] * scale);
                        grew |= top[j][e] > m[nn][j][e];
                    }
                if (__any_sync(kAllLanes, grew)) {
#pragma unroll
                    for (int j = 0; j < 2; ++j)
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            l[nn][j][e] *= exp2_fast(m[nn][j][e] - top[j][e]);
                            m[nn][j][e] = top[j][e];
                        }
                }
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
#pragma unroll
                        for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                            for (int h = 0; h < 2; ++h)
                                l[nn][j][e] += exp2_fast(s[i][j][h * 2 + e] * scale - m[nn][j][e]);
            },
            [&](int first) {
                if (first + kKeys != sample.begin) return;
#pragma unroll
                for (int nn = 0; nn < kRows / 16; ++nn)
#pragma unroll
                    for (int j = 0; j < 4; ++j) l[nn][j / 2][j % 2] *= kSampleWeight;
            });
#pragma unroll
        for (int nn = 0; nn < kRows / 16; ++nn)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float top = m[nn][j][e];
#pragma unroll
                    for (int i = 4; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, i));
                    float sum = l[nn][j][e] * exp2_fast(m[nn][j][e] - top);
#pragma unroll
                    for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
                    if (lane < 4) states[warp * kRows + nn * 16 + j * 8 + column + e] = make_float2(top, sum);
                }
        __syncthreads();
        if (threadIdx.x >= kRows) return;
        float top = kLowest, sum = 0;
#pragma unroll
        for (int w = 0; w < Tile::kWarps; ++w) top = fmaxf(top, states[w * kRows + threadIdx.x].x);
#pragma unroll
        for (int w = 0; w < Tile::kWarps; ++w) {
            const float2 part = states[w * kRows + threadIdx.x];
            sum += part.y * exp2_fast(part.x - top);
        }
        // A place without a row: exp2 of minus infinity is zero.
        const bool row = static_cast<int>(threadIdx.x) % half < used && sum > 0;
        offsets[threadIdx.x] = row ? top + log2f(sum) : INFINITY;
    };

    const auto add_sums = [&](int rows) {
        float sum[2][kBlocks][2] = {};  // of each half of the rows
        const auto vote = [&](float score, float offset) {
            return exp2_fast(fminf(score * scale - offset, 0.f));
        };
        walk(
            rows, count, [](int i) { return i; },
            [&](int, int nn, float (&s)[kBlocks][2][4]) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float2 offset =
                        *reinterpret_cast<const float2*>(offsets + nn * 16 + j * 8 + column);
#pragma unroll
                    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            sum[nn / (kRows / 32)][i][h] +=
                                vote(s[i][j][h * 2], offset.x) + vote(s[i][j][h * 2 + 1], offset.y);
                }
            },
            [&](int first) {
#pragma unroll
                for (int i = 0; i < kBlocks; ++i)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float upper = lanes_sum<4>(sum[0][i][h]), lower = lanes_sum<4>(sum[1][i][h]);
                        const int key = key_of(first, i, h);
                        if (lane % 4 == 0 && key < count) {
                            sums[key] = args.at_once == 1 ? upper + lower : upper;
                            if (args.at_once == 2) sums[args.places + key] = lower;
                        }
                        sum[0][i][h] = sum[1][i][h] = 0;
                    }
            });
    };

    const Voters voters(args, tile, set);
    const int used = voters.rows - first_row, rows = args.at_once == 1 ? used : half + used;
    if (used <= 0) {  // a short tile
        for (int key = threadIdx.x; key < count; key += kThreads) sums[key] = 0;
        return;
    }
    copy_rows_async<D, kRows, kThreads>(rows_shared, [&](int row, int number) {
        const int packed = min(first_row + row % half, voters.rows - 1);
        return args.q + number + (voters.index(packed) + row / half * args.group) * D;
    });
    const VoteSample sample(count, kKeys);
    if (threadIdx.x < kRows) {
        const int row = voters.row(min(first_row + static_cast<int>(threadIdx.x) % half, voters.rows - 1));
        seen[threadIdx.x] = sample.end + (own.past ? before + row - voters.first + 1 : 0);
    }
    find_offsets(rows, used, sample, sample.end + (own.past ? before + voters.end - voters.first : 0));
    add_sums(rows);
}

// Score heads of a block: two if their votes fit, and both look at the same keys of the same set.
inline int heads_at_once(const h2o_shape& shape, const VotingTiles& tiles, int sharing) {
    const int sets = own_heads(shape), votes = tiles.votes_of_whole() * (shape.query_heads / sets);
    const bool alike = sets == shape.score_heads && sets / shape.kv_heads % 2 == 0 && sharing % 2 == 0;
    return alike && 2 * votes <= kVoteRows ? 2 : 1;
}

}  // namespace

h2o_status sum_half_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                          const KeySource& keys, const OwnRows& own, int sharing, const VoteScratch& scratch,
                          cudaStream_t stream) {
    const int heads = own_heads(shape), at_once = heads_at_once(shape, tiles, sharing);
    const dim3 grid(static_cast<unsigned>(shape.score_heads / at_once), static_cast<unsigned>(tiles.count()),
                    static_cast<unsigned>(scratch.pieces));
    const VoteArgs args = {static_cast<const half*>(q),
                           tiles,
                           keys,
                           own,
                           scores_of(shape),
                           shape.query_heads,
                           shape.query_heads / heads,
                           heads / shape.score_heads,
                           at_once,
                           sharing,
                           scratch.score,
                           scratch.places};
    return dispatch_vote_size(shape.head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        using Tile = VoteTile<D>;
        const auto sum = [&](auto kernel) {
            return launch(kernel, grid, Tile::kThreads, Tile::kSharedBytes, stream, args);
        };
        if constexpr (Tile::kLists)
            if (keys.dtype == H2O_I8) return sum(sum_votes_f16<D, int8_t>);
        return sum(sum_votes_f16<D, half>);
    });
}

}  // namespace h2o::cuda
