// Sums of the votes of tiles of queries for keys: what the operators that choose by a tile's queries have in
// common. A tile's votes are the packed rows of its voting queries: for each stride of rows, another row for
// each query head that votes for the same sums. choose_by_votes.cuh says how an operator chooses by them.
#pragma once

#include "attention_args.h"
#include "checks.h"
#include "launch.h"
#include "row_range.cuh"

namespace h2o::cuda {

struct VotingTiles {
    int n;       // query rows
    int tile;    // query rows of a tile
    int stride;  // query rows of which one votes

    bool good() const { return n > 0 && tile > 0 && stride > 0; }
    int count() const { return static_cast<int>(ceil_div(n, tile)); }
    int votes_of_whole() const { return static_cast<int>(ceil_div(tile, stride)); }
    int votes() const {  // of all
        const int whole = n / tile;
        return whole * votes_of_whole() + static_cast<int>(ceil_div(n - whole * tile, stride));
    }
    // The row of a query head in vote `vote` of tile `index`: of `together` heads that vote for the same
    // sums, each has another row of the stride.
    __device__ __forceinline__ int row(int index, int vote, int head, int together) const {
        const int first = index * tile, shift = head % together * stride / together;
        return min(first + vote * stride + shift, min(first + tile, n) - 1);
    }
};

// The rows of a tile's chunk, up to its last: a vote also sees those up to itself. They come behind its keys,
// take part in its softmax and have no sums.
struct OwnRows {
    const int64_t* past = nullptr;   // [tiles] cache row where the tile's chunk begins; null: there are none
    const int64_t* first = nullptr;  // [tiles] cache row of the tile's first query
    int last_row = 0;                // of the cache

    __device__ __forceinline__ int begin(int tile) const { return bounded(past[tile], 0, last_row); }
    __device__ __forceinline__ int before_tile(int tile) const {
        return bounded(first[tile], begin(tile), last_row) - begin(tile);
    }
};

constexpr int kVoteRows = 64;  // packed rows of a piece on tensor cores

// The keys that tiles vote for: those of a cache, any of them; or only first ones, all of shape.dtype.
enum class Voted { kCache, kRows };

inline bool votes_on_tensor_cores(const h2o_shape& shape, Voted voted) {
    const int d = shape.head_size;
    const bool wide = voted == Voted::kRows && (d == 160 || d == 192 || d == 256);
    return shape.dtype == H2O_F16 && (has_tiles(d) || wide);
}

// Pieces of the votes of a tile and score head, each with sums of its own.
inline int vote_pieces(const h2o_shape& shape, const VotingTiles& tiles, bool on_tensor_cores) {
    if (!on_tensor_cores) return 1;
    const int sets = own_heads(shape), rows = tiles.votes_of_whole() * (shape.query_heads / sets);
    return sets / shape.score_heads * static_cast<int>(ceil_div(rows, kVoteRows));
}

struct VoteScratch {
    int places;              // keys of a tile, at most
    bool on_tensor_cores;    // how votes are summed
    int pieces;              // of votes
    float* score = nullptr;  // [tiles, Hs, pieces, places] sums of votes
    // Without tensor cores:
    void* votes = nullptr;  // [tiles * votes_of_whole, Hq, d] of shape.dtype; null if every row votes
    float *m = nullptr, *l = nullptr;  // [votes, Hq] states

    VoteScratch(const h2o_shape& shape, const VotingTiles& tiles, Voted voted, int most_keys,
                Workspace& workspace);
};

// scratch.score = what each of a tile's keys gets. q [n, Hq, d]; keys: with a list, or a length for each
// tile. The states of a tile's votes over a sample of its keys (vote_sample.cuh), then the column sums under
// these states.
h2o_status sum_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q, const KeySource& keys,
                     const OwnRows& own, const VoteScratch& scratch, cudaStream_t stream);

// The same on tensor cores, in one launch: votes_f16.cu. `sharing` score heads have one list, or no list and
// any number look at all keys.
h2o_status sum_half_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                          const KeySource& keys, const OwnRows& own, int sharing, const VoteScratch& scratch,
                          cudaStream_t stream);

}  // namespace h2o::cuda
