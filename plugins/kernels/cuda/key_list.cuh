// Lists of cache rows, resolved for one set.
#pragma once

#include "attention_args.h"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

struct ListedKeys {
    const int32_t* entries;
    int count, segment;
    uint32_t reciprocal;
    int last_entry;
    int last_row;  // of the cache

    __device__ __forceinline__ int keys() const { return count * segment; }
    // The cache row of key `key`; negative if the list has no such key.
    __device__ __forceinline__ int row(int key) const {
        if (key >= keys()) return -1;
        const int place =
            reciprocal ? static_cast<int>(__umulhi(static_cast<uint32_t>(key), reciprocal)) : key;
        const int entry = entries[place];
        const bool exists = static_cast<unsigned>(entry) <= static_cast<unsigned>(last_entry);
        return exists ? entry * segment + key - place * segment : -1;
    }
    // Whether cache row `row` comes later than the token or does not exist.
    __device__ __forceinline__ bool hides(int row) const {
        return static_cast<unsigned>(row) > static_cast<unsigned>(last_row);
    }
};

// Masks a warp's scores s [MT * 16, KEYS], in mma layout. Their keys are the cache rows `tile_rows`.
template <int MT, int KEYS>
__device__ __forceinline__ void mask_listed(float (&s)[MT][KEYS / 8][4], const int* tile_rows,
                                            const ListedKeys& listed) {
    const int2* const keys = reinterpret_cast<const int2*>(tile_rows + threadIdx.x % 4 * 2);
#pragma unroll
    for (int nn = 0; nn < KEYS / 8; ++nn) {
        const int2 key = keys[nn * 4];
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (listed.hides(key.x)) s[i][nn][h * 2] = -INFINITY;
                if (listed.hides(key.y)) s[i][nn][h * 2 + 1] = -INFINITY;
            }
    }
}

__device__ __forceinline__ ListedKeys listed_keys(const KeySource& keys, int set) {
    const KeyList& list = keys.list;
    ListedKeys listed;
    listed.entries = list.entries + static_cast<int64_t>(set) * list.count;
    listed.count = list.count;
    listed.segment = list.segment;
    listed.reciprocal = list.reciprocal;
    listed.last_entry = keys.last_row / list.segment;
    listed.last_row = bounded(*list.length, 1, keys.last_row + 1) - 1;
    return listed;
}

}  // namespace h2o::cuda
