// The subquadratic pattern: which keys a query sees. Both implementations share it.
//
// The query at position i sees the tokens i - window ... i, the global rows before them, and the tokens i -
// 2^k; of the landmarks, which are means of complete blocks, the newest two and those 2^k blocks before the
// newest. Each counts once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "h2o/subquadratic.h"
#include "stored_rows.h"

namespace h2o {

constexpr int kMostStrides = kMostOwn;

constexpr bool power_of_two(int64_t x) {
    return x > 0 && (x & (x - 1)) == 0;
}

struct Subquadratic {
    const h2o_shape& shape;
    const h2o_subquadratic& pattern;
    int64_t n;                     // query rows
    int64_t length;                // cache rows in use; the last n are the queries' own
    const void* q;                 // [n, Hq, d] of shape.dtype
    const h2o_kv& kv;              // keys and values of the cache
    const float *k_mean, *v_mean;  // [Nb, Hkv, d] landmarks: means of blocks of keys and of values
    const int32_t* global_rows;    // [M] cache rows, all different
    int64_t slots;                 // M: how many global rows
    void* o;                       // [n, Hq, dv] of shape.dtype, out

    int64_t group() const { return shape.query_heads / shape.kv_heads; }
    int64_t offset() const { return length - n; }
    // A global row or a token at a power of two, `distance` before the query.
    bool sees_global(int64_t distance) const {
        return distance > pattern.window && !(pattern.strides && power_of_two(distance));
    }
    bool strides_to(int64_t distance, int64_t position) const {
        return pattern.strides && distance > pattern.window && distance <= position;
    }
    // The newest landmark at a position; -1 if there is none.
    int64_t newest(int64_t position) const {
        return pattern.block_size > 0 ? (position + 1) / pattern.block_size - 1 : -1;
    }
    bool sees_landmark(int64_t distance) const {
        return distance == 0 || distance == 1 || (pattern.strides && power_of_two(distance));
    }

    // Landmarks that any position from `first` to `last` sees, rising; `out` has room for
    // landmarks_at_most().
    int64_t landmarks(int64_t first, int64_t last, int32_t* out) const {
        const int64_t low = std::max<int64_t>(newest(first), 0), high = newest(last);
        int64_t count = 0, next = 0;
        for (int k = pattern.strides ? kMostStrides : 0; k >= -1; --k) {
            const int64_t distance = k < 0 ? 0 : int64_t{1} << k;
            for (int64_t id = std::max(low - distance, next); id <= high - distance; ++id) {
                out[count++] = static_cast<int32_t>(id);
                next = id + 1;
            }
        }
        return count;
    }
    // For that many neighbouring positions.
    int64_t landmarks_at_most(int64_t positions) const {
        if (pattern.block_size <= 0) return 0;
        const int64_t each = positions / pattern.block_size + 2;
        return std::min(each * (kMostStrides + 2), length / pattern.block_size + 1);
    }
};

// One token, as the few rows that it reads.
void subquadratic_step(h2o_cpu* context, const Subquadratic& op);

}  // namespace h2o
