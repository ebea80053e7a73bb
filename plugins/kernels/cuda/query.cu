// QuerySelect: some of a tile's queries (its votes) score the rows of the past, and the best rows become the
// tile's memory set: two launches in float16 (choose_by_votes.cuh).

#include "choose_by_votes.cuh"
#include "numbers.cuh"

namespace h2o::cuda {
namespace {

constexpr int kMostRows = 1 << 30;

struct Tiles {
    VotingTiles votes;
    int reach;   // cache rows on either side whose votes count by a quarter
    int lists;   // Hl: of a tile, each for as many score heads
    int listed;  // Mp: candidates of a list; 0: all rows
    int local;   // most recent cache rows, which every memory set has
    int heavy;   // other cache rows of a memory set: M - local
};

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
    const int64_t list = static_cast<int64_t>(tile) * tiles.lists + head / (heads / tiles.lists);
    const int32_t* own = tiles.listed > 0 ? candidates + list * tiles.listed : nullptr;
    const int rows = bounded(past[tile], tiles.local, own ? kMostRows : places);
    const int border = rows - tiles.local;
    if (!own) return {own, rows, border, border};
    return {own, tiles.listed, rows_below(own, tiles.listed, border), border};
}

// What ranking reads of a tile's rows: the sum of place i, its position, and how far it is behind the one
// before it, which is kNever at either end.
constexpr unsigned kNever = 0xffffffffu;

struct ListedRows {
    Looked looked;
    const float* sums;

    __device__ __forceinline__ float sum(int i) const { return sums[i]; }
    __device__ __forceinline__ int position(int i) const { return looked.position(i); }
    __device__ __forceinline__ unsigned gap(int i) const {
        if (i == 0 || i >= looked.filled) return kNever;
        return static_cast<unsigned>(position(i)) - static_cast<unsigned>(position(i - 1));
    }
};

// The same in shared memory, if the rows are not more than kNear: ranking reads several neighbours of each,
// one after the other. Gaps are bytes; those of kFar and more are alike. kNear of them
// take 48 KB: more would need an opt-in. Rule 1 has lists of 15,360 rows, which stay in global memory.
constexpr int kNear = 9728;
constexpr unsigned kFar = 255;

struct NearShared {
    float sums[kNear];
    uint32_t gaps[kNear / 4 + 1];  // four bytes
};

struct NearRows {
    const NearShared& near;
    const Looked& looked;

    template <int THREADS>
    static __device__ void copy(const ListedRows& rows, NearShared& near) {
        const int count = rows.looked.filled;
        for (int i = threadIdx.x; i < count; i += THREADS) near.sums[i] = rows.sum(i);
        for (int i = threadIdx.x; i <= count / 4; i += THREADS) {
            uint32_t four = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) four |= min(rows.gap(i * 4 + j), kFar) << (j * 8);
            near.gaps[i] = four;
        }
        __syncthreads();
    }
    __device__ __forceinline__ float sum(int i) const { return near.sums[i]; }
    __device__ __forceinline__ int position(int i) const { return looked.position(i); }
    __device__ __forceinline__ unsigned gap(int i) const {
        return reinterpret_cast<const uint8_t*>(near.gaps)[i];
    }
};

// The rows by their sums plus a quarter of the sums of neighbours within `reach`. If the list is not sorted
// the order is arbitrary, but nothing overflows.
template <class Rows>
struct Ranked {
    Rows rows;
    unsigned reach;

    __device__ __forceinline__ int position(int i) const { return rows.position(i); }
    __device__ __forceinline__ uint32_t bits(int i) const {
        float beside = 0;
        unsigned left = reach;
        for (int j = i;; --j) {
            const unsigned gap = rows.gap(j);
            if (gap > left) break;
            left -= gap;
            beside += rows.sum(j - 1);
        }
        left = reach;
        for (int j = i + 1;; ++j) {
            const unsigned gap = rows.gap(j);
            if (gap > left) break;
            left -= gap;
            beside += rows.sum(j);
        }
        return rank_bits(rows.sum(i) + 0.25f * beside);
    }
};

struct BestRows {
    struct Shared {
        SelectShared select;
        NearShared near;
    };
    static constexpr size_t kSharedBytes = sizeof(Shared);
    Tiles tiles;
    const int32_t* candidates;  // [t, Hl, Mp] cache rows, rising; not read if Mp is 0
    const int64_t* past;        // [t] cache rows that come before each tile's chunk
    int places;
    int32_t* out;  // [t, Hs, M] cache rows, rising

    template <int THREADS>
    __device__ void choose(const float* sums, int tile, int head, int heads, unsigned char* memory) const {
        Shared& shared = *reinterpret_cast<Shared*>(memory);
        const Looked looked = looked_at(tiles, candidates, past, places, tile, head, heads);
        const ListedRows rows{looked, sums};
        const unsigned reach = static_cast<unsigned>(tiles.reach);
        const int wanted = min(tiles.heavy, looked.count);
        int32_t* const set = out + (static_cast<int64_t>(tile) * heads + head) * (tiles.local + tiles.heavy);
        if (looked.filled <= kNear && reach < kFar) {
            NearRows::copy<THREADS>(rows, shared.near);
            const Ranked<NearRows> ranked{{shared.near, looked}, reach};
            take_best<THREADS, kNear>(ranked, looked.count, wanted, shared.select, set);
        } else {
            const Ranked<ListedRows> ranked{rows, reach};
            take_best<THREADS, kNear>(ranked, looked.count, wanted, shared.select, set);
        }
        for (int i = threadIdx.x; i < tiles.local; i += THREADS) set[tiles.heavy + i] = looked.border + i;
    }
};

VoteScratch scratch_of(const h2o_shape& shape, const Tiles& tiles, int capacity, Workspace& workspace) {
    return VoteScratch(shape, tiles.votes, Voted::kCache, tiles.listed > 0 ? tiles.listed : capacity,
                       workspace);
}

struct Query {
    const calls::QuerySelect& call;
    Tiles tiles;

    KeySource keys(int places) const {
        KeySource keys = cache_keys(call.shape, *call.kv, false, places, own_heads(call.shape));
        if (tiles.listed > 0) {
            keys.memory = call.candidates;
            keys.sets_per_list = own_heads(call.shape) / tiles.lists;
            keys.last_row = static_cast<int>(call.kv->rows - 1);
        } else {
            keys.length = call.past;
        }
        return keys;
    }

    h2o_status run() const {
        Workspace pieces(call.workspace, call.workspace_bytes);
        const VoteScratch scratch = scratch_of(call.shape, tiles, static_cast<int>(call.kv->rows), pieces);
        if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
        const OwnRows own{call.past, call.first, static_cast<int>(call.kv->rows - 1)};
        const BestRows choice{tiles, call.candidates, call.past, scratch.places, call.memory_next};
        return choose_by_votes(call.shape, tiles.votes, call.q, keys(scratch.places), own,
                               call.shape.score_heads / tiles.lists, scratch, choice, stream_of(call));
    }
};

bool good(const Tiles& tiles) {
    return tiles.votes.good() && tiles.reach >= 0 && tiles.listed >= 0 && tiles.local >= 0 &&
           tiles.heavy >= 0 && tiles.local + tiles.heavy > 0 && tiles.lists > 0;
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

// Of lists, or without them of all `cap` rows. A caller whose tiles have short pasts gives no more rows.
size_t workspace(const calls::QuerySelect& call) {
    const Tiles tiles{{call.n, call.tile, call.stride}, 0, 1, call.Mp, 1, 0};
    if (check_shape(&call.shape) != H2O_OK || !good(tiles) || call.cap <= 0) return 0;
    Workspace room;
    scratch_of(call.shape, tiles, call.cap, room);
    return room.used();
}

h2o_status run(const calls::QuerySelect& call) {
    const Tiles tiles{
        {call.n, call.tile, call.stride}, call.reach, call.Hl, call.Mp, call.local, call.M - call.local};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (!good(tiles) || any_null(call.q) || !call.past || !call.first || !call.memory_next)
        return H2O_BAD_ARGUMENT;
    if (call.Mp > 0 && !call.candidates) return H2O_BAD_ARGUMENT;
    if (call.shape.score_heads % call.Hl != 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.shape, call.kv, 1); status != H2O_OK) return status;
    if (const h2o_status status = check_tokens(call.shape, call.tile, call.n); status != H2O_OK)
        return status;
    return Query{call, tiles}.run();
}

}  // namespace h2o::cuda
