// Votes of tiles of queries for keys: what the operators that choose by a tile's queries have in common.
#pragma once

#include "int8_keys.h"

namespace h2o {

// Tile i has rows [i * tile, (i + 1) * tile) of the n. Of each stride of rows one votes, for each query head
// of those that vote together another one.
struct VotingTiles {
    int64_t n;       // query rows
    int64_t tile;    // query rows of a tile
    int64_t stride;  // query rows of which one votes

    bool good() const { return n > 0 && tile > 0 && stride > 0; }
    int64_t tiles() const { return (n + tile - 1) / tile; }
    int64_t rows(int64_t index) const { return std::min(tile, n - index * tile); }

    // The votes of one tile for one of `heads` heads, of which `spanned` vote together; keys not yet named.
    Sweep sweep(const h2o_cpu* context, const h2o_shape& shape, const void* q, int64_t index, int64_t heads,
                int64_t spanned, int64_t head) const {
        const char* const queries = static_cast<const char*>(q) + index * tile * query_bytes(shape);
        Sweep votes = head_sweep(context, shape, heads, head, queries, (rows(index) + stride - 1) / stride);
        votes.stride = stride;
        votes.last_row = rows(index) - 1;
        votes.first_voter = head % spanned * votes.group;
        votes.voters = spanned * votes.group;
        return votes;
    }
};

// Whether votes are to be sums of int8 products.
inline bool votes_are_int8(const h2o_cpu* context, const h2o_shape& shape) {
    return shape.softcap == 0 && int8_votes(context) != nullptr;
}

// Adds a sweep's votes for the first `voted` of its keys (simd/sample.h) to sums [round_up(voted, P)].
// `packed`: the int8 keys of all key/value heads, if votes are int8. `votes` needs its keys, their unit and
// its offset.
inline void sum_votes(const h2o_cpu* context, Sweep votes, SweepScratch& scratch, const Int8Block& block,
                      const Int8Keys* packed, int64_t kv_head, int64_t voted, float* sums) {
    const int64_t count = votes.keys.count;
    votes.total_keys = votes.key_block = count;
    votes.voted = voted;
    votes.votes = sums;
    if (packed != nullptr) return vote_int8(context, votes, scratch, block, packed->head(kv_head));
    votes.run(scratch, 0, votes.blocks(), 0, count, false, [](int64_t, int64_t) {});
}

// What carve(carver) returns for each of `count` threads.
template <class Carve>
auto carve_each(Carver& carver, int64_t count, Carve carve) {
    using Own = decltype(carve(carver));
    Own* const all = carver.take<Own>(count);
    for (int64_t i = 0; i < count; ++i) {
        const Own own = carve(carver);
        if (all != nullptr) all[i] = own;
    }
    return all;
}

// For sum_votes over so many keys, at most.
inline void prepare_votes(h2o_cpu* context, int64_t d, int64_t keys) {
    SweepSize size{d, 0, keys, 1, false, false};
    size.scores = kKeyStep;
    prepare(context, size);
}

}  // namespace h2o
