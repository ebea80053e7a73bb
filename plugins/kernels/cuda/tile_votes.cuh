// Sums of the votes of tiles of queries for keys: what the operators that choose by a tile's queries have in
// common.
//
// The votes of all tiles are copied next to each other. Then come two launches for all tiles, as in
// CandidateScore: the states of a tile's votes over all its keys, split into parts so that a few rows fill
// the device; and the column sums under these states. That makes two passes over the keys, 4 * d FLOP for
// each (vote, key); values are not read.
//
// A tile has few votes, so most of a key's cost is to load it. Consecutive tiles `together` may have the same
// keys: their votes are one row tile of both passes, and each tile has its own column sums.
#pragma once

#include "attention.h"
#include "checks.h"
#include "parts.h"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kKeysAPart = 128;
constexpr int kMaxParts = 16;
constexpr int kCopyThreads = 256;

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
};

// votes [tiles * votes_of_whole] = a row of q for each stride of rows, for each of the `group` query heads
// that vote together another one. If the last tile has fewer, the rest keep their old contents.
__global__ void __launch_bounds__(kCopyThreads)
    take_votes(const uint4* q, VotingTiles tiles, int votes, int group, int64_t head_pieces,
               int64_t row_pieces, int64_t count, uint4* out) {
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

struct VoteScratch {
    int parts;                 // into which the keys of a vote are split
    int places;                // keys of a tile, at most
    void* votes;               // [tiles * votes_of_whole, Hq, d] of shape.dtype
    float *m_parts, *l_parts;  // [parts, votes, Hq] states of the parts
    float *m, *l;              // [votes, Hq] states
    float* score;              // [tiles, Hs, places] sums of probabilities

    VoteScratch(const h2o_shape& shape, const VotingTiles& tiles, int most_keys, Workspace& workspace)
        : parts(1), places(most_keys) {
        while (parts < kMaxParts && 2 * parts * kKeysAPart <= places &&
               2 * parts * tiles.count() <= kMaxGridYZ)
            parts *= 2;  // a power of two
        const int64_t rows = static_cast<int64_t>(tiles.count()) * tiles.votes_of_whole() * shape.query_heads;
        const int64_t row = static_cast<int64_t>(shape.head_size) * element_bytes(shape.dtype);
        votes = workspace.take<unsigned char>(rows * row);
        m_parts = workspace.take<float>(parts * rows);
        l_parts = workspace.take<float>(parts * rows);
        m = workspace.take<float>(rows);
        l = workspace.take<float>(rows);
        score = workspace.take<float>(static_cast<int64_t>(tiles.count()) * shape.score_heads * places);
    }
};

inline h2o_status copy_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                             const VoteScratch& scratch, cudaStream_t stream) {
    const int64_t head_pieces = pieces_of(shape, shape.head_size);
    const int64_t row_pieces = shape.query_heads * head_pieces;
    const int64_t count = tiles.count() * tiles.votes_of_whole() * row_pieces;
    return launch(take_votes, dim3(ceil_div(count, kCopyThreads), 1, 1), kCopyThreads, 0, stream,
                  static_cast<const uint4*>(q), tiles, tiles.votes_of_whole(),
                  static_cast<int>(shape.query_heads / shape.score_heads), head_pieces, row_pieces, count,
                  static_cast<uint4*>(scratch.votes));
}

// scratch.score = what each of a tile's keys gets.
inline h2o_status sum_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                            const KeySource& keys, int together, const VoteScratch& scratch,
                            cudaStream_t stream) {
    h2o_status status = copy_votes(shape, tiles, q, scratch, stream);
    if (status != H2O_OK) return status;
    const int votes = tiles.votes();
    RowSource voters = rows_of(shape, scratch.votes, votes, own_heads(shape));
    voters.tile = tiles.votes_of_whole() * together;
    AttentionArgs attention = attention_of(shape, voters, keys);
    attention.splits = scratch.parts;
    attention.partial_m = scratch.m_parts;
    attention.partial_l = scratch.l_parts;
    status = launch_attention(attention, stream);
    if (status != H2O_OK) return status;
    status =
        launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.parts,
                              static_cast<int64_t>(votes) * shape.query_heads, scratch.m, scratch.l, stream);
    if (status != H2O_OK) return status;
    ColumnSumArgs sums = column_sums_of(shape, voters, attention.keys);
    if (together > 1 && sums.spanned == 1 && column_sums_of_parts(shape.head_size, shape.dtype)) {
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

}  // namespace
}  // namespace h2o::cuda
