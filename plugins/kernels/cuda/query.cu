// QuerySelect: some of a tile's queries (its votes) score the rows of the past, and the best rows become the
// tile's memory set.
//
// The votes of all tiles are copied next to each other. Then come two launches for all tiles, as in
// CandidateScore: the states of a tile's votes over all its keys, split into parts so that a few rows fill
// the device; and the column sums under these states. That makes two passes over the keys, 4 * d FLOP for
// each (vote, key); values are not read. One more launch ranks the candidates, and one selects.
//
// A tile has few votes, so most of a key's cost is to load it. Without lists, `share` consecutive tiles have
// the same past: their votes are one row tile of both passes, and each tile has its own column sums.

#include "attention.h"
#include "checks.h"
#include "parts.h"
#include "row_range.cuh"
#include "select.cuh"

namespace h2o::cuda {
namespace {

constexpr int kKeysAPart = 128;
constexpr int kMaxParts = 16;
constexpr int kCopyThreads = 256;
constexpr int kRankThreads = 256;
constexpr int kMostRows = 1 << 30;

struct Tiles {
    int n;       // query rows
    int tile;    // query rows of a tile
    int stride;  // query rows of which one votes
    int share;   // consecutive tiles that have one list of candidates, or one past
    int reach;   // cache rows on either side whose votes count by a quarter
    int listed;  // Mp: candidates of a list; 0: all rows
    int local;   // most recent cache rows, which every memory set has
    int heavy;   // other cache rows of a memory set: M - local

    int count() const { return static_cast<int>(ceil_div(n, tile)); }
    int votes_of_whole() const { return static_cast<int>(ceil_div(tile, stride)); }
    int together() const { return listed > 0 ? 1 : share; }  // tiles that read the same rows of the past
    int votes() const {                                      // of all
        const int whole = n / tile;
        return whole * votes_of_whole() + static_cast<int>(ceil_div(n - whole * tile, stride));
    }
};

// votes [tiles * votes_of_whole] = a row of q for each stride of rows, for each of the `group` query heads
// that vote together another one. If the last tile has fewer, the rest keep their old contents.
__global__ void __launch_bounds__(kCopyThreads)
    take_votes(const uint4* q, Tiles tiles, int votes, int group, int64_t head_pieces, int64_t row_pieces,
               int64_t count, uint4* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
    if (i >= count) return;
    const int64_t vote = i / row_pieces;
    const int64_t start = vote / votes * tiles.tile, run = start + vote % votes * tiles.stride;
    if (run >= tiles.n) return;
    const int64_t piece = i - vote * row_pieces, head = piece / head_pieces % group;
    const int64_t end = start + tiles.tile < tiles.n ? start + tiles.tile : tiles.n;
    const int64_t own = run + head * tiles.stride / group;
    out[i] = __ldg(q + (own < end ? own : end - 1) * row_pieces + piece);
}

// The number of rows of a sorted list below `border`.
__device__ __forceinline__ int rows_below(const int32_t* list, int count, int border) {
    int low = 0;
    while (low < count) {
        const int middle = (low + count) / 2;
        if (list[middle] < border)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

// The rows that one tile and score head look at.
struct Looked {
    const int32_t* list;  // or null: entry i is row i
    int filled;           // places
    int count;            // of these, before the tile's local window
    int border;           // first row of that window

    __device__ __forceinline__ int position(int i) const { return list ? list[i] : i; }
};

__device__ __forceinline__ Looked looked_at(const Tiles& tiles, const int32_t* candidates,
                                            const int64_t* past, int places, int tile, int head, int heads) {
    const int64_t list = static_cast<int64_t>(tile / tiles.share) * heads + head;
    const int32_t* own = tiles.listed > 0 ? candidates + list * tiles.listed : nullptr;
    const int rows = bounded(past[tile], tiles.local, own ? kMostRows : places);
    const int border = rows - tiles.local;
    if (!own) return {own, rows, border, border};
    return {own, tiles.listed, rows_below(own, tiles.listed, border), border};
}

// Whether two adjacent rows of a sorted list are this close. If the list is not sorted the answer is
// arbitrary, but nothing overflows.
__device__ __forceinline__ bool within_reach(int lower, int higher, int reach) {
    return static_cast<unsigned>(higher) - static_cast<unsigned>(lower) <= static_cast<unsigned>(reach);
}

// bits [tiles, Hs, places]: the ranking key of score [tiles, Hs, places] plus a quarter of the neighbours'
// scores. A thread ranks one candidate; z counts tiles, y heads. This is a launch of its own because the
// search below reads each key five times.
__global__ void __launch_bounds__(kRankThreads)
    rank_votes(const float* score, int places, const int32_t* candidates, const int64_t* past, Tiles tiles,
               uint32_t* bits) {
    const int head = blockIdx.y, heads = gridDim.y, tile = blockIdx.z;
    const Looked looked = looked_at(tiles, candidates, past, places, tile, head, heads);
    const int i = blockIdx.x * kRankThreads + threadIdx.x;
    if (i >= looked.count) return;
    const int64_t first = (static_cast<int64_t>(tile) * heads + head) * places;
    score += first;
    const int at = looked.position(i);
    float beside = 0;
    for (int j = i - 1; j >= 0 && within_reach(looked.position(j), at, tiles.reach); --j) beside += score[j];
    for (int j = i + 1; j < looked.filled && within_reach(at, looked.position(j), tiles.reach); ++j)
        beside += score[j];
    bits[first + i] = rank_bits(score[i] + 0.25f * beside);
}

struct Ranked {
    Looked looked;
    const uint32_t* all;  // [places] bits that order like the scores

    __device__ __forceinline__ int position(int i) const { return looked.position(i); }
    __device__ __forceinline__ uint32_t bits(int i) const { return all[i]; }
};

// One block for each score head and tile.
__global__ void __launch_bounds__(kSelectThreads)
    select_by_votes(const uint32_t* bits, int places, const int32_t* candidates, const int64_t* past,
                    Tiles tiles, int32_t* out) {
    const int head = blockIdx.x, heads = gridDim.x, tile = blockIdx.y;
    const Looked looked = looked_at(tiles, candidates, past, places, tile, head, heads);
    const int64_t set = static_cast<int64_t>(tile) * heads + head;
    out += set * (tiles.local + tiles.heavy);
    const Ranked all{looked, bits + set * places};
    take_best(all, looked.count, min(tiles.heavy, looked.count),
              *reinterpret_cast<SelectShared*>(dynamic_shared()), out);
    for (int i = threadIdx.x; i < tiles.local; i += kSelectThreads) out[tiles.heavy + i] = looked.border + i;
}

struct Scratch {
    int parts;                 // into which the keys of a vote are split
    int places;                // candidates of a tile
    void* votes;               // [tiles * votes_of_whole, Hq, d] of shape.dtype
    float *m_parts, *l_parts;  // [parts, votes, Hq] states of the parts
    float *m, *l;              // [votes, Hq] states
    float* score;              // [tiles, Hs, places] sums of probabilities
    uint32_t* bits;            // [tiles, Hs, places] bits that order like the final scores

    Scratch(const h2o_shape& shape, const Tiles& tiles, int capacity, Workspace& workspace) {
        places = tiles.listed > 0 ? tiles.listed : capacity;
        parts = 1;  // a power of two
        while (parts < kMaxParts && 2 * parts * kKeysAPart <= places &&
               2 * parts * tiles.count() <= kMaxGridYZ)
            parts *= 2;
        const int64_t rows = static_cast<int64_t>(tiles.count()) * tiles.votes_of_whole() * shape.query_heads;
        const int64_t row = static_cast<int64_t>(shape.head_size) * element_bytes(shape.dtype);
        votes = workspace.take<unsigned char>(rows * row);
        m_parts = workspace.take<float>(parts * rows);
        l_parts = workspace.take<float>(parts * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
        const int64_t candidates = static_cast<int64_t>(tiles.count()) * shape.score_heads * places;
        score = workspace.take<float>(candidates);
        bits = workspace.take<uint32_t>(candidates);
    }
};

struct Query {
    const h2o_shape& shape;
    Tiles tiles;
    const void* q;              // [n, Hq, d] of shape.dtype
    const h2o_kv& kv;           // keys of the cache; values are not read
    const int32_t* candidates;  // [c, Hs, Mp] cache rows, rising; not read if Mp is 0
    const int64_t* past;        // [t] cache rows that come before each tile
    int32_t* out;               // [t, Hs, M] cache rows, rising
    cudaStream_t stream;

    h2o_status copy_votes(const Scratch& scratch) const {
        const int64_t head_pieces = pieces_of(shape, shape.head_size);
        const int64_t row_pieces = shape.query_heads * head_pieces;
        const int64_t count = tiles.count() * tiles.votes_of_whole() * row_pieces;
        return launch(take_votes, dim3(ceil_div(count, kCopyThreads), 1, 1), kCopyThreads, 0, stream,
                      static_cast<const uint4*>(q), tiles, tiles.votes_of_whole(),
                      static_cast<int>(shape.query_heads / shape.score_heads), head_pieces, row_pieces, count,
                      static_cast<uint4*>(scratch.votes));
    }

    KeySource keys(int places) const {
        KeySource keys = cache_keys(shape, kv, false, places, own_heads(shape));
        if (tiles.listed > 0) {
            keys.memory = candidates;
            keys.tiles_per_list = tiles.share;
            keys.last_row = static_cast<int>(kv.rows - 1);
        } else {
            keys.length = past;
            keys.lengths_per_tile = tiles.together();
        }
        return keys;
    }

    h2o_status score(const Scratch& scratch) const {
        const int votes = tiles.votes();
        RowSource voters = rows_of(shape, scratch.votes, votes, own_heads(shape));
        voters.tile = tiles.votes_of_whole() * tiles.together();
        AttentionArgs attention = attention_of(shape, voters, keys(scratch.places));
        attention.splits = scratch.parts;
        attention.partial_m = scratch.m_parts;
        attention.partial_l = scratch.l_parts;
        h2o_status status = launch_attention(attention, stream);
        if (status != H2O_OK) return status;
        status = launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.parts,
                                       static_cast<int64_t>(votes) * shape.query_heads, scratch.m, scratch.l,
                                       stream);
        if (status != H2O_OK) return status;
        ColumnSumArgs sums = column_sums_of(shape, voters, attention.keys);
        if (tiles.together() > 1 && sums.spanned == 1 && column_sums_of_parts(shape.head_size, shape.dtype)) {
            sums.sum_rows = tiles.votes_of_whole() * voters.group;
        } else {
            sums.rows.tile = tiles.votes_of_whole();
            sums.keys.lengths_per_tile = 1;
        }
        sums.m = scratch.m;
        sums.l = scratch.l;
        sums.out = scratch.score;
        sums.key_stride = 1;
        sums.set_stride = scratch.places;
        sums.split_stride = static_cast<int64_t>(shape.score_heads) * scratch.places;
        return launch_column_sums(sums, stream);
    }

    h2o_status run(Workspace pieces) const {
        const Scratch scratch(shape, tiles, static_cast<int>(kv.rows), pieces);
        if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
        h2o_status status = copy_votes(scratch);
        if (status == H2O_OK) status = score(scratch);
        if (status != H2O_OK) return status;
        const auto heads = static_cast<unsigned>(shape.score_heads);
        const auto all = static_cast<unsigned>(tiles.count());
        status = launch(rank_votes, dim3(ceil_div(scratch.places, kRankThreads), heads, all), kRankThreads, 0,
                        stream, static_cast<const float*>(scratch.score), scratch.places, candidates, past,
                        tiles, scratch.bits);
        if (status != H2O_OK) return status;
        return launch(select_by_votes, dim3(heads, all, 1), kSelectThreads, sizeof(SelectShared), stream,
                      static_cast<const uint32_t*>(scratch.bits), scratch.places, candidates, past, tiles,
                      out);
    }
};

bool good(const Tiles& tiles) {
    return tiles.n > 0 && tiles.tile > 0 && tiles.stride > 0 && tiles.share > 0 && tiles.reach >= 0 &&
           tiles.listed >= 0 && tiles.local >= 0 && tiles.heavy >= 0 && tiles.local + tiles.heavy > 0;
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

// Without lists a tile looks at all rows, which needs more than any list: the largest sizes cover both.
size_t workspace(const calls::QuerySelect& call) {
    size_t most = 0;
    for (const int32_t listed : {0, call.Mp}) {
        const Tiles tiles{call.n, call.tile, call.stride, 1, 0, listed, 1, 0};
        if (check_shape(&call.shape) != H2O_OK || !good(tiles) || call.cap <= 0) return 0;
        Workspace room;
        Scratch scratch(call.shape, tiles, call.cap, room);
        if (room.used() > most) most = room.used();
    }
    return most;
}

h2o_status run(const calls::QuerySelect& call) {
    const cudaStream_t stream = stream_of(call);
    const Tiles tiles{call.n,     call.tile, call.stride, call.share,
                      call.reach, call.Mp,   call.local,  call.M - call.local};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (!good(tiles) || any_null(call.q) || !call.past || !call.memory_next) return H2O_BAD_ARGUMENT;
    if (call.Mp > 0 && (!call.candidates || int64_t{call.c} * call.share < call.t)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.shape, call.kv, 1); status != H2O_OK) return status;
    if (const h2o_status status = check_tokens(call.shape, call.tile, call.n); status != H2O_OK)
        return status;
    const Query op{call.shape, tiles, call.q, *call.kv, call.candidates, call.past, call.memory_next, stream};
    return op.run(Workspace(call.workspace, call.workspace_bytes));
}

}  // namespace h2o::cuda
