// Blocks of one sweep's rows that keep their running softmax while keys arrive in pieces; each row has its
// own first and last key. The operator chooses the keys.
#pragma once

#include <limits>

#include "sweep.h"

namespace h2o {

constexpr int64_t kRangeRows = 384;  // share the keys that are packed for them
constexpr int64_t kRangeKeys = 512;  // keys packed at a time

class RowBlocks {
  public:
    // Blocks of the rows from `begin` on, at most a range; row f is at offset + f / group.
    RowBlocks(const Sweep& rows, SweepScratch& scratch, int64_t begin, int64_t offset)
        : rows_(rows),
          scratch_(scratch),
          begin_(begin),
          end_(std::min(rows.blocks(), begin + kRangeRows / rows.block_rows)),
          offset_(offset) {
        rows_.key_block = kRangeKeys;
        for (int64_t block = begin_; block < end_; ++block) start(block);
    }

    int64_t begin() const { return begin_; }
    int64_t end() const { return end_; }
    int64_t lanes(int64_t block) const { return rows_.lanes(block); }
    // The position of a block's lane; lanes beyond those in use repeat the last one.
    int64_t position(int64_t block, int64_t lane) const { return position_[block - begin_][lane]; }
    int64_t last_position(int64_t block) const { return position(block, kLanes - 1); }

    // Packs consecutive keys of the sweep, for args() to attend to.
    void pack(int64_t key, int64_t count) { rows_.pack(scratch_, key, count, false); }
    // Packs other keys, in their storage format.
    void pack(const RowList& k, const RowList& v, int64_t count) {
        attention().pack_keys(k, count, rows_.d, scratch_.k);
        attention().pack_values(v, count, rows_.d, value_room(kRangeKeys), scratch_.v);
    }

    // The block's state, and the first `keys` packed keys, without masks. Attend to them at once.
    BlockArgs args(int64_t block, int64_t keys) {
        const int64_t at = block - begin_;
        BlockArgs block_args{};
        block_args.d = block_args.dv = rows_.d;
        block_args.keys = keys;
        block_args.unmasked = round_up(keys, kPanel);
        block_args.lanes = rows_.lanes(block);
        block_args.rows = rows_.block_rows;
        block_args.q = scratch_.q + at * rows_.d * kLanes;
        block_args.k = scratch_.k;
        block_args.v = scratch_.v;
        block_args.v_keys = value_room(kRangeKeys);
        block_args.softcap = rows_.softcap;
        block_args.p = scratch_.p;
        block_args.m = scratch_.m + at * kLanes;
        block_args.l = scratch_.l + at * kLanes;
        block_args.o = scratch_.o + at * rows_.d * kLanes;
        block_args.fresh = fresh_[at];
        fresh_[at] = false;
        return block_args;
    }

    // Attention starts at the packed key `from`, the first of a panel.
    void skip(BlockArgs& args, int64_t from) const {
        args.k += from * attention().key_words(args.d);
        args.v += attention().value_words(from);
    }

    // Attend with some of its rows, from `lane` on, 16, 32 or all: they see other keys than the rest. After
    // clear().
    BlockArgs args(int64_t block, int64_t keys, int64_t lane, int64_t rows) {
        BlockArgs block_args = args(block, keys);
        for (float** at : {&block_args.p, &block_args.m, &block_args.l, &block_args.o}) *at += lane;
        block_args.q += lane;
        block_args.rows = rows;
        return block_args;
    }

    // A block that has attended to nothing yet, with no visible key.
    void clear(int64_t block) {
        if (!fresh_[block - begin_]) return;
        const BlockArgs state = args(block, 0);
        std::fill(state.m, state.m + kLanes, -std::numeric_limits<float>::infinity());
        std::fill(state.l, state.l + kLanes, 0.0f);
        std::fill(state.o, state.o + rows_.d * kLanes, 0.0f);
    }

    void store(int64_t block) const { rows_.store_state(scratch_, block, block - begin_, nullptr, nullptr); }

    const Sweep& rows() const { return rows_; }
    SweepScratch& scratch() { return scratch_; }
    const BlockAttention& attention() const { return *rows_.attention; }

  private:
    void start(int64_t block) {
        const int64_t used = rows_.lanes(block), from = block * rows_.block_rows, at = block - begin_;
        for (int64_t r = 0; r < used; ++r)
            scratch_.rows[r] = rows_.q + rows_.at(from + r) * rows_.d * element_size(rows_.dtype);
        attention().pack_queries({scratch_.rows, rows_.dtype, nullptr}, used, rows_.d, rows_.scale,
                                 scratch_.q + at * rows_.d * kLanes);
        for (int64_t r = 0, token = from / rows_.group, head = from % rows_.group; r < kLanes; ++r) {
            position_[at][r] = offset_ + token;
            if (r + 1 >= used || ++head < rows_.group) continue;
            head = 0;
            ++token;
        }
        fresh_[at] = true;
    }

    Sweep rows_;
    SweepScratch& scratch_;
    int64_t begin_, end_, offset_;
    static constexpr int64_t kMostBlocks = kRangeRows / 16;
    int64_t position_[kMostBlocks][kLanes];
    bool fresh_[kMostBlocks];
};

// The size of a RowBlocks' scratch.
inline SweepSize range_size(int64_t d, int64_t block_rows) {
    return {d, d, kRangeKeys, kRangeRows / block_rows, true, false};
}

}  // namespace h2o
