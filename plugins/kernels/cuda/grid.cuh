// The grid of the attention and column-sum kernels: its size on the host, and the work of each block.
//
// x counts tiles of packed rows (of keys, for column sums), and y key sets. z counts chunks, or tiles of
// tokens with their own keys, or parts of one of them.
#pragma once

#include "attention_args.h"
#include "key_list.cuh"
#include "launch.h"
#include "row_range.cuh"

namespace h2o::cuda {

// Of a chunk or a tile, if the launch has them.
inline int64_t tokens_together(const RowSource& rows) {
    const int cut = rows.chunk + rows.tile;
    return cut > 0 && cut < rows.tokens ? cut : rows.tokens;
}

// Chunks or tiles.
inline unsigned pieces_of(const RowSource& rows) {
    const int cut = rows.chunk + rows.tile;
    return cut > 0 ? ceil_div(rows.tokens, cut) : 1;
}

inline dim3 attention_grid(const AttentionArgs& args, int tile_rows) {
    const RowSource& rows = args.rows;
    return dim3(ceil_div(tokens_together(rows) * rows.group, tile_rows), static_cast<unsigned>(rows.sets),
                pieces_of(rows) * (args.partial_m ? static_cast<unsigned>(args.splits) : 1));
}

inline dim3 column_sum_grid(const ColumnSumArgs& args, int tile_keys) {
    const RowSource& rows = args.rows;
    return dim3(ceil_div(rows.chunk > 0 ? tokens_together(rows) : args.keys.keys, tile_keys),
                static_cast<unsigned>(rows.sets / args.spanned),
                args.splits > 1 ? static_cast<unsigned>(args.splits) : pieces_of(rows));
}

struct Range {
    int begin, end;
};

// This block's range of `count` items cut into `parts`: whole tiles; empty if it begins past `count`.
template <int TILE>
__device__ __forceinline__ Range part_of(int count, int parts, int part) {
    const int size = ((count + TILE - 1) / TILE + parts - 1) / parts * TILE;
    return {part * size, (part + 1) * size};
}

// The chunk or tile, and the part of its keys, that this block works on.
__device__ __forceinline__ int piece_index(const AttentionArgs& args) {
    return static_cast<int>(args.part_reciprocal ? __umulhi(blockIdx.z, args.part_reciprocal) : blockIdx.z);
}
__device__ __forceinline__ int part_index(const AttentionArgs& args) {
    if (!args.part_reciprocal) return 0;
    return static_cast<int>(blockIdx.z) - piece_index(args) * args.splits;
}

// What a row's state is fused with, if anything: another pass, or the sink of its head, which has no value.
struct OtherState {
    float m, l;
};
__device__ __forceinline__ bool fused_with_other(const AttentionArgs& args) {
    return args.with_o || (args.sinks && part_index(args) == 0);
}
__device__ __forceinline__ OtherState other_state(const AttentionArgs& args, int64_t index) {
    if (args.with_o) return {args.with_m[index], args.with_l[index]};
    const unsigned head = static_cast<unsigned>(index) % static_cast<unsigned>(args.rows.heads);
    return {args.sinks[head], 1.f};
}

// A row's softmax state after its last key, alone and fused with the other state if there is one, and the
// factors of this pass's output and of the other one.
struct FinishedRow {
    float own_m, own_l, m, l, factor, with_factor;
};

template <class Exp>
__device__ __forceinline__ FinishedRow finish_row(const AttentionArgs& args, bool valid, int64_t index,
                                                  float own_m, float own_l, Exp&& exp) {
    FinishedRow row = {own_m, own_l, own_m, own_l, own_l > 0 ? 1.f / own_l : 0.f, 0.f};
    if (!valid || !fused_with_other(args)) return row;
    const auto [with_m, with_l] = other_state(args, index);
    row.m = fmaxf(own_m, with_m);
    const float weight = own_l > 0 ? own_l * exp(own_m - row.m) : 0.f;
    const float with_weight = with_l > 0 ? with_l * exp(with_m - row.m) : 0.f;
    row.l = weight + with_weight;
    row.factor = row.l > 0 ? row.factor * weight / row.l : 0.f;
    row.with_factor = args.with_o && row.l > 0 ? with_weight / row.l : 0.f;
    return row;
}

// Where a row's output and state go: its own place, or that of the part.
__device__ __forceinline__ int64_t place_of(const AttentionArgs& args, bool parted, int64_t index) {
    return parted ? static_cast<int64_t>(part_index(args)) * args.rows.tokens * args.rows.heads + index
                  : index;
}

// Called by one lane, when all that share the row have read the other state: it may be overwritten here.
__device__ __forceinline__ void put_state(const AttentionArgs& args, const FinishedRow& row, bool parted,
                                          int64_t index) {
    if (parted) {
        put_between_blocks(args.partial_m + place_of(args, parted, index), row.m);
        put_between_blocks(args.partial_l + place_of(args, parted, index), row.l);
        return;
    }
    if (args.m) args.m[index] = row.m;
    if (args.l) args.l[index] = row.l;
    if (args.own_m) args.own_m[index] = row.own_m;
    if (args.own_l) args.own_l[index] = row.own_l;
}

struct AttentionBlock {
    Extent extent;
    int set;
    int first_row, last_row;  // first packed row; no work if it is past the extent
    Range keys;
    bool parted;
    const h2o_kv* cache;  // of the tile, if each has its own
    ListedKeys listed;
};

template <int ROWS, int KEYS, bool LISTED = false>
__device__ __forceinline__ AttentionBlock attention_block(const AttentionArgs& args) {
    AttentionBlock block;
    block.parted = args.partial_m != nullptr;
    const int piece = piece_index(args);
    block.extent = extent_of(args.rows, args.keys, piece);
    block.set = blockIdx.y;
    block.cache = args.keys.caches ? args.keys.caches + piece : nullptr;
    if constexpr (LISTED) {
        block.listed = listed_keys(args.keys, block.set);
        block.extent.keys = block.extent.first_position = block.listed.keys();
    }
    // Late rows see the most keys. They start first, so that short blocks fill the gaps at the end.
    block.first_row = (gridDim.x - 1 - blockIdx.x) * ROWS;
    block.last_row = min(block.first_row + ROWS, block.extent.rows) - 1;
    block.keys = {first_key_of(block.extent, args.rows, block.first_row),
                  last_key_of(block.extent, args.rows, block.last_row) + 1};
    if (block.parted) {
        const int begin = block.keys.begin, count = block.keys.end - begin;
        const Range part = part_of<KEYS>(count, args.splits, part_index(args));
        block.keys = {begin + part.begin, begin + min(count, part.end)};
    }
    if (block.cache && args.keys.length[piece] < 1) block.first_row = block.extent.rows;
    return block;
}

struct ColumnSumBlock {
    Extent extent;
    int first_set, last_set;
    int first_key;  // no work if it is past the extent
    Range rows;     // packed
    bool parted;
};

template <int KEYS, int ROWS>
__device__ __forceinline__ ColumnSumBlock column_sum_block(const ColumnSumArgs& args) {
    ColumnSumBlock block;
    block.parted = args.splits > 1;
    block.extent = extent_of(args.rows, args.keys, block.parted ? 0 : blockIdx.z);
    block.first_set = blockIdx.y * args.spanned;
    block.last_set = block.first_set + args.spanned - 1;
    block.first_key = blockIdx.x * KEYS;
    block.rows = {0, block.extent.rows};
    if (block.extent.causal) {  // rows before the first key's own row see none of these keys
        const int first = max(0, (block.first_key - block.extent.first_position) * args.rows.group);
        block.rows.begin = first / ROWS * ROWS;
    }
    if (block.parted) {
        const Range part = part_of<ROWS>(block.extent.rows, args.splits, blockIdx.z);
        block.rows = {max(block.rows.begin, part.begin), min(block.rows.end, part.end)};
    }
    return block;
}

}  // namespace h2o::cuda
