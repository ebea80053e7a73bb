// Lists of cache rows, resolved for one tile of rows and one set.
#pragma once

#include "attention_args.h"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

struct ListedKeys {
    const int32_t* entries;
    int segments, singles;
    int segment;
    uint32_t reciprocal;
    int unit, last_entry;
    int first_position;  // of the tile's first token
    int last_row;        // of the cache

    __device__ __forceinline__ int keys() const { return segments * segment + singles; }
    // The cache row of key `key`; negative if the list has no such key.
    __device__ __forceinline__ int row(int key) const {
        const int single = key - segments * segment;
        if (single >= 0) return single < singles ? entries[segments + single] : -1;
        const int place =
            reciprocal ? static_cast<int>(__umulhi(static_cast<uint32_t>(key), reciprocal)) : key;
        const int entry = entries[place];
        const bool exists = static_cast<unsigned>(entry) <= static_cast<unsigned>(last_entry);
        return exists ? entry * unit + key - place * segment : -1;
    }
    // The last cache row that packed row `row` sees.
    __device__ __forceinline__ int position(const RowSource& rows, int packed) const {
        return first_position + token_of(rows, packed);
    }
};

// Whether a query at `position` cannot see cache row `row`, which comes later or does not exist.
__device__ __forceinline__ bool hidden(int row, int position) {
    return static_cast<unsigned>(row) > static_cast<unsigned>(position);
}

// Masks a warp's scores s [MT * 16, KEYS], in mma layout, of packed rows from `first` on. Their keys are the
// cache rows `tile_rows`. Few tiles contain a hidden key, so the warp checks for one first.
template <int MT, int KEYS>
__device__ __forceinline__ void mask_listed(float (&s)[MT][KEYS / 8][4], const int* tile_rows,
                                            const ListedKeys& listed, const RowSource& rows, int first,
                                            int last) {
    const int lane = threadIdx.x % 32, least = listed.position(rows, first);
    const int2* const keys = reinterpret_cast<const int2*>(tile_rows + lane % 4 * 2);
    bool hides = false;
#pragma unroll
    for (int nn = 0; nn < KEYS / 8; ++nn) {
        const int2 key = keys[nn * 4];
        hides |= hidden(key.x, least) || hidden(key.y, least);
    }
    if (!__any_sync(kAllLanes, hides)) return;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int position = listed.position(rows, min(first + i * 16 + h * 8 + lane / 4, last));
#pragma unroll
            for (int nn = 0; nn < KEYS / 8; ++nn) {
                const int2 key = keys[nn * 4];
                if (hidden(key.x, position)) s[i][nn][h * 2] = -INFINITY;
                if (hidden(key.y, position)) s[i][nn][h * 2 + 1] = -INFINITY;
            }
        }
}

__device__ __forceinline__ ListedKeys listed_keys(const RowSource& rows, const KeySource& keys,
                                                  const Extent& extent, int set) {
    const KeyList& list = keys.list;
    const int64_t index = extent.first_list + set / keys.sets_per_list;
    const int length = bounded(*list.length, rows.tokens, keys.last_row + 1);
    ListedKeys listed;
    listed.entries = list.entries + index * list.stride;
    listed.segments = list.counts ? list.counts[2 * index] : list.stride;
    listed.singles = list.counts ? list.counts[2 * index + 1] : 0;
    listed.segment = list.segment;
    listed.reciprocal = list.reciprocal;
    listed.unit = list.unit;
    listed.last_entry = keys.last_row / list.unit;
    listed.first_position = length - rows.tokens + extent.first_token;
    listed.last_row = length - 1;
    return listed;
}

}  // namespace h2o::cuda
