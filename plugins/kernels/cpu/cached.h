// One call of exact causal attention to the cache, and its two implementations.
#pragma once

#include <algorithm>

#include "context.h"
#include "stored_rows.h"

namespace h2o {

struct Cached {
    h2o_shape shape;
    int64_t n;              // query rows
    int64_t length;         // cache rows in use; the last n are the queries' own
    const void* q;          // [n, Hq, d] of shape.dtype
    h2o_kv kv;              // keys and values of the cache
    void* o;                // [n, Hq, dv] of shape.dtype, out
    float* seen = nullptr;  // [length][kv_heads] or null: each row's probability, summed over the queries
                            // that share its key
    float* m = nullptr;     // [n][query_heads] or null: the state of each row's softmax
    float* l = nullptr;     // [n][query_heads], as m

    int64_t group() const { return shape.query_heads / shape.kv_heads; }
    int64_t rows() const { return n * group(); }  // that share a key
    int64_t dv() const { return value_size(shape); }
    int64_t first() const {  // key that a single token sees
        return shape.window > 0 ? std::max<int64_t>(0, length - shape.window) : 0;
    }
};

// Calls of one shape and n, each to its own cache or to a shared one. The result of a call does not depend on
// the others.
constexpr int64_t kMostCalls = H2O_MOST_STEP_ROWS;
void attend(h2o_cpu* context, const Cached* ops, int64_t count);

// Few rows as well as many with the arithmetic of many: a row has the bits that it has beside any others.
void attend_as_prompt(h2o_cpu* context, const Cached& op);

// A few rows: the cache is cut into runs, and each is read once for all heads, in memory order.
bool few_rows(const Cached& op);
void decode(h2o_cpu* context, const Cached* ops, int64_t count);

// KernelTable::decode for many query rows per head, if values are stored in keys. A few keys at a time serve
// scores and outputs while they are in the processor's cache, and each element serves a whole vector of rows.
void decode_latent(const KernelTable& kernels, const DecodeArgs& args, char* scratch);
size_t decode_latent_scratch(const h2o_shape& shape, int64_t group);

}  // namespace h2o
