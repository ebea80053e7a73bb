// The subquadratic pattern: which keys a query sees. Both implementations share it.
//
// The query at position i sees the tokens i - window ... i, the global rows before them, and the tokens i -
// 2^k; of the landmarks, which are means of complete blocks, the newest two and those 2^k blocks before the
// newest. Each counts once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "stored_rows.h"

namespace h2o {

constexpr int kMostStrides = kMostOwn;

constexpr bool power_of_two(int64_t x) {
    return x > 0 && (x & (x - 1)) == 0;
}

struct Subquadratic {
    const calls::SubquadraticAttention& call;
    h2o_shape shape = call.shape;
    h2o_kv kv = *call.kv;
    // Added to the scores of landmarks: each then weighs like its tokens.
    float bias =
        call.count_bias != 0 && call.block_size > 0 ? std::log(static_cast<float>(call.block_size)) : 0.0f;

    int64_t length() const { return *call.length; }  // cache rows in use; the last n are the queries' own
    int64_t window() const { return call.window; }
    int64_t block_size() const { return call.block_size; }
    int64_t group() const { return shape.query_heads / shape.kv_heads; }
    int64_t offset() const { return length() - call.n; }
    // A global row or a token at a power of two, `distance` before the query.
    bool sees_global(int64_t distance) const {
        return distance > window() && !(call.strides != 0 && power_of_two(distance));
    }
    bool strides_to(int64_t distance, int64_t position) const {
        return call.strides != 0 && distance > window() && distance <= position;
    }
    // The newest landmark at a position; -1 if there is none.
    int64_t newest(int64_t position) const {
        return block_size() > 0 ? (position + 1) / block_size() - 1 : -1;
    }
    bool sees_landmark(int64_t distance) const {
        return distance == 0 || distance == 1 || (call.strides != 0 && power_of_two(distance));
    }

    // Landmarks that any position from `first` to `last` sees, rising; `out` has room for
    // landmarks_at_most().
    int64_t landmarks(int64_t first, int64_t last, int32_t* out) const {
        const int64_t low = std::max<int64_t>(newest(first), 0), high = newest(last);
        int64_t count = 0, next = 0;
        for (int k = call.strides != 0 ? kMostStrides : 0; k >= -1; --k) {
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
        if (block_size() <= 0) return 0;
        const int64_t each = positions / block_size() + 2;
        return std::min(each * (kMostStrides + 2), length() / block_size() + 1);
    }
};

// One token, as the few rows that it reads.
void subquadratic_step(h2o_cpu* context, const Subquadratic& op);

}  // namespace h2o
