// The tokens and keys that a block works on: host-side arguments resolved for one chunk or tile and one part.
#pragma once

#include "attention_args.h"
#include "ptx.cuh"

namespace h2o::cuda {

struct Extent {
    int first_token;     // of the chunk or tile
    int rows;            // its packed rows: tokens * group
    int first_key;       // of the chunk
    int keys;            // of the chunk
    int first_position;  // token t of the chunk sees keys 0 .. first_position + t; all keys if not causal
    int window;          // of these the last ones
    int first_list;      // of the tile's memory set
    bool causal;
};

// TensorRT times an operator on uninitialised memory, so integers read on the device may have any value. They
// are clamped to their range: no address leaves the arrays, and the result is arbitrary.
__device__ __forceinline__ int bounded(int64_t value, int least, int most) {
    return static_cast<int>(value < least ? least : value > most ? most : value);
}
__device__ __forceinline__ int row_within(int row,
                                          int last_row) {  // as unsigned, negative rows are large too
    return static_cast<int>(min(static_cast<unsigned>(row), static_cast<unsigned>(last_row)));
}

// `piece` counts chunks or tiles.
__device__ __forceinline__ Extent extent_of(const RowSource& rows, const KeySource& keys, int piece) {
    Extent e;
    e.causal = keys.causal;
    e.window = keys.window > 0 ? keys.window : INT32_MAX;
    const int cut = rows.chunk + rows.tile;  // one of them is 0
    e.first_token = piece * cut;
    e.first_key = rows.chunk > 0 ? e.first_token : 0;
    e.first_list = rows.tile > 0 ? piece * (rows.sets / keys.sets_per_list) : 0;
    const int tokens = cut > 0 ? min(cut, rows.tokens - e.first_token) : rows.tokens;
    e.rows = tokens * rows.group;
    if (rows.chunk > 0) {
        e.keys = tokens;
        e.first_position = 0;
    } else {
        // Causal rows are the last of the keys, so each has a key. Rows without a mask may outnumber the
        // keys.
        const int fewest = keys.causal ? tokens : 1;
        e.keys = keys.length ? bounded(keys.length[piece], fewest, keys.keys) : keys.keys;
        e.first_position = keys.length ? e.keys - tokens : keys.first_position;
    }
    if (!keys.causal) e.first_position = e.keys;
    return e;
}

// row / group without a division, which would slow the loops that fetch rows.
__device__ __forceinline__ int token_of(const RowSource& rows, int row) {
    return rows.reciprocal ? static_cast<int>(__umulhi(static_cast<uint32_t>(row), rows.reciprocal)) : row;
}

// The last key that packed row `row` sees.
__device__ __forceinline__ int last_key_of(const Extent& e, const RowSource& rows, int row) {
    return min(e.first_position + token_of(rows, row), e.keys - 1);
}

// The first key that packed row `row` sees.
__device__ __forceinline__ int first_key_of(const Extent& e, const RowSource& rows, int row) {
    return max(e.first_position + token_of(rows, row) + 1 - e.window, 0);
}

// Index of packed row `row` of set `set` in [tokens, heads]. The host checks that it fits an int.
__device__ __forceinline__ int64_t row_index(const RowSource& rows, const Extent& e, int set, int row) {
    const int first = e.first_token * rows.heads + set * rows.group;
    return first + row + token_of(rows, row) * (rows.heads - rows.group);
}

// The keys or values of one set, from a given row on, stored as S.
template <class S>
struct SetRows {
    const S* first = nullptr;
    unsigned stride = 0;            // bytes
    const float* scales = nullptr;  // of integers
    int scale_stride = 0;

    // Element `number` of row i. One instruction for the 32 x 32 + 64 bit multiply-add, provided the compiler
    // knows that rows and strides are not negative and that `number` is the same for many rows.
    __device__ __forceinline__ const S* at(int i, int number) const {
        return reinterpret_cast<const S*>(reinterpret_cast<const char*>(first + number) +
                                          static_cast<uint64_t>(static_cast<unsigned>(i)) * stride);
    }
    __device__ __forceinline__ const S* row(int i) const { return at(i, 0); }
    __device__ __forceinline__ float scale(int i) const {
        return sizeof(S) == 1 ? scales[static_cast<int64_t>(i) * scale_stride] : 1.f;
    }
};

template <class S>
__device__ __forceinline__ SetRows<S> set_rows(const void* base, const float* scales, int64_t row_stride,
                                               int64_t head_stride, const KeySource& source, int set,
                                               int64_t row) {
    SetRows<S> rows;
    if (!base) return rows;
    const int head = set / source.sets_per_head;
    rows.first = static_cast<const S*>(base) + head * head_stride + row * row_stride;
    rows.stride = static_cast<unsigned>(row_stride) * static_cast<unsigned>(sizeof(S));
    if (sizeof(S) > 1) return rows;
    rows.scales = scales + row * source.scale_stride + head;
    rows.scale_stride = source.scale_stride;
    return rows;
}

// `cache`, unless it is null, has the rows instead of the source.
template <class S>
__device__ __forceinline__ SetRows<S> set_keys(const KeySource& source, int set, int64_t row,
                                               const h2o_kv* cache = nullptr) {
    return set_rows<S>(cache ? cache->k : source.k, cache ? cache->k_scales : source.k_scales,
                       source.row_stride, source.head_stride, source, set, row);
}
template <class S>
__device__ __forceinline__ SetRows<S> set_values(const KeySource& source, int set, int64_t row,
                                                 const h2o_kv* cache = nullptr) {
    return set_rows<S>(cache ? cache->v : source.v, cache ? cache->v_scales : source.v_scales,
                       source.v_row_stride, source.v_head_stride, source, set, row);
}

// The set's list of rows, if it has one.
__device__ __forceinline__ const int32_t* list_of(const KeySource& source, const Extent& extent, int set) {
    return source.memory + static_cast<int64_t>(extent.first_list + set / source.sets_per_list) * extent.keys;
}

}  // namespace h2o::cuda
