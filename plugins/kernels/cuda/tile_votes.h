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

#include "attention_args.h"
#include "checks.h"
#include "launch.h"

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
};

struct VoteScratch {
    int parts;                 // into which the keys of a vote are split
    int places;                // keys of a tile, at most
    void* votes;               // [tiles * votes_of_whole, Hq, d] of shape.dtype
    float *m_parts, *l_parts;  // [parts, votes, Hq] states of the parts
    float *m, *l;              // [votes, Hq] states
    float* score;              // [tiles, Hs, places] sums of probabilities

    VoteScratch(const h2o_shape& shape, const VotingTiles& tiles, int most_keys, Workspace& workspace);
};

// scratch.score = what each of a tile's keys gets. q [n, Hq, d]; keys: with a list, or a length for each
// tile.
h2o_status sum_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q, const KeySource& keys,
                     int together, const VoteScratch& scratch, cudaStream_t stream);

}  // namespace h2o::cuda
