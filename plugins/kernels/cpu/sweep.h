// One score head's query rows against its keys, block by block: what all operators but decode are made of.
//
// A score head's rows are its tokens' query heads laid end to end: row f is token f / group, head f % group;
// where rows vote, Sweep::token says which.
// Token t sees the keys below offset + t + 1. Keys are packed a block at a time and every row block passes
// over them before the next are packed, so a packed key serves all rows.
#pragma once

#include <algorithm>
#include <cstring>

#include "context.h"
#include "stored_rows.h"

namespace h2o {

// One thread's arrays.
struct SweepScratch {
    const void** rows;    // [max(keys, kLanes)]
    const void** more;    // [keys]
    float* scales;        // [keys]
    float* k;             // packed keys, as in BlockArgs
    float* v;             // packed values, alike
    float* p;             // [SweepSize::scores][R]
    float* q;             // [blocks][d][R]
    float* o;             // [blocks][dv, rounded up to P][R]
    float* m;             // [blocks][R] maxima of the scores
    float* l;             // [blocks][R] sums of exp(score - m)
    float* colsum;        // [keys][kColsumLanes]
    int64_t packed_unit;  // what k and v hold: the first packed_keys keys of this unit, when not -1
    int64_t packed_keys;  // or 0
};

// How large the arrays must be.
struct SweepSize {
    int64_t d, dv;   // numbers of a key and of a value
    int64_t keys;    // most keys in one key block
    int64_t blocks;  // row blocks whose state is kept across key blocks; 1 when there is one key block
    bool values;     // whether they are packed
    bool colsum;     // whether column sums are wanted
    int64_t more_states = 0;  // row blocks with a state and without queries, behind the others
    int64_t scores = 0;       // keys whose scores are kept at a time; 0: all of a block
};

SweepScratch* carve(Carver& carver, const SweepSize& size);

// Keys for which panels of packed values have room: panels whole pages apart would fall on the same lines of
// L1.
constexpr int64_t value_room(int64_t keys) {
    return round_up(keys, kPanel) + kPanel;
}

struct Sweep {
    const KernelTable* kernels;
    const BlockAttention* attention;
    h2o_dtype dtype;      // of q and out
    float scale;          // of dot products
    float softcap;        // as in BlockArgs
    int64_t d, dv;        // numbers of a key and of a value
    int64_t query_heads;  // Hq
    int64_t group;        // query heads of this score head
    int64_t first_head;   // its first query head
    int64_t tokens;       // query rows a head
    const char* q;        // [tokens][Hq][d]
    char* out = nullptr;  // [tokens][Hq][dv]
    KeyRows keys;
    int64_t total_keys;           // that the keys have in all
    int64_t offset;               // see above; total_keys when nothing is masked
    int64_t key_block;            // keys packed at a time, at most
    int64_t later_block = 0;      // the same behind the first key_block keys, if fewer
    int64_t window = 0;           // of a token's keys the last so many are seen; 0: all
    int64_t unit;                 // names the keys: a scratch that holds them packed is not filled again
    int64_t block_rows = kLanes;  // or fewer, what BlockArgs::rows may be
    // Queries stand for runs of so many rows, and none behind the last. Of a run each of the `voters` heads
    // that vote together has another row; here are those from `first_voter` on.
    int64_t stride = 1, last_row = INT64_MAX, first_voter = 0, voters = 0;
    float* votes = nullptr;  // as in BlockArgs, like the next one; keys come in one block
    int64_t voted = 0;

    int64_t rows() const { return tokens * group; }
    int64_t output_floats() const { return round_up(dv, kPanel) * kLanes; }  // of a block
    int64_t blocks() const { return (rows() + block_rows - 1) / block_rows; }
    int64_t lanes(int64_t block) const { return std::min(block_rows, rows() - block * block_rows); }
    // The token of row f.
    int64_t token(int64_t f) const {
        const int64_t row_of_run = voters > 0 ? (first_voter + f % group) * stride / voters : 0;
        return std::min(f / group * stride + row_of_run, last_row);
    }
    // Keys that row f sees.
    int64_t visible(int64_t f) const { return std::min(total_keys, offset + token(f) + 1); }
    // The first of them.
    int64_t first_seen(int64_t f) const {
        return window > 0 ? std::max<int64_t>(0, offset + token(f) + 1 - window) : 0;
    }
    int64_t visible_to_block(int64_t block) const { return visible(block * block_rows + lanes(block) - 1); }
    // Where row f stands among [tokens, Hq].
    int64_t at(int64_t f) const { return token(f) * query_heads + first_head + f % group; }
    char* row_of_out(int64_t f) const { return out + at(f) * dv * element_size(dtype); }

    // Keys packed at a time from `key` on.
    int64_t block_at(int64_t key) const { return key > 0 && later_block > 0 ? later_block : key_block; }

    // Runs row blocks [begin, end) over keys [first_key, last_key); the state of block b is then in slot
    // b - begin (slot 0 with a single key block, when finish(b, slot) is called as soon as b is done).
    template <class Finish>
    void run(SweepScratch& scratch, int64_t begin, int64_t end, int64_t first_key, int64_t last_key,
             bool colsum, Finish&& finish) const {
        last_key = std::min(last_key, visible_to_block(end - 1));
        first_key = std::max(first_key, first_seen(begin * block_rows));
        const bool single = last_key - first_key <= block_at(first_key);
        for (int64_t key = first_key, count; key < last_key; key += count) {
            count = std::min(block_at(key), last_key - key);
            pack(scratch, key, count, single);
            for (int64_t block = begin; block < end; ++block) {
                const int64_t slot = single ? 0 : block - begin;
                step(scratch, block, slot, key, count, key == first_key, colsum);
                if (single) finish(block, slot);
            }
        }
        if (single) return;
        for (int64_t block = begin; block < end; ++block) finish(block, block - begin);
    }

    void pack(SweepScratch& scratch, int64_t first_key, int64_t count, bool reusable) const;
    void step(SweepScratch& scratch, int64_t block, int64_t slot, int64_t first_key, int64_t count,
              bool fresh, bool colsum) const;

    // out[row f] = keep * out[row f] + factor * o, for every row f of the block.
    void store(const SweepScratch& scratch, int64_t block, int64_t slot, const float* keep,
               const float* factor) const;
    // Plain finish: o divided by l, and the states; m and l may be null.
    void store_state(const SweepScratch& scratch, int64_t block, int64_t slot, float* m, float* l) const;
};

// Keys that ChunkedIntraAttention and CachedAttention pack at a time. Both begin with as many: then the first
// rows of a prompt have the same bits from each of them.
constexpr int64_t kFirstKeys = 1024;

// The sweep of one score head, keys not yet named.
Sweep head_sweep(const h2o_cpu* context, const h2o_shape& shape, int64_t score_heads, int64_t head,
                 const void* q, int64_t tokens);
// The key/value head that a score head belongs to.
inline int64_t kv_head(const h2o_shape& shape, int64_t score_heads, int64_t head) {
    return head / (score_heads / shape.kv_heads);
}
// Bytes of a token's queries, and of its outputs.
inline int64_t query_bytes(const h2o_shape& shape) {
    return shape.query_heads * shape.head_size * element_size(shape.dtype);
}
inline int64_t output_bytes(const h2o_shape& shape) {
    return shape.query_heads * value_size(shape) * element_size(shape.dtype);
}

// Where part `part` of `parts` of `blocks` begins: equal shares, or equal shares of a triangle.
int64_t even_part(int64_t blocks, int64_t parts, int64_t part);
int64_t triangle_part(int64_t blocks, int64_t parts, int64_t part);

// Prepares all threads' scratch.
void prepare(h2o_cpu* context, const SweepSize& size);

// out[key * stride] = the sum of `count` parts, [count][pitch], of each of `keys` keys, in order.
inline void add_parts(const float* parts, int64_t count, int64_t pitch, int64_t keys, float* out,
                      int64_t stride) {
    for (int64_t key = 0; key < keys; ++key) {
        float sum = 0.0f;
        for (int64_t i = 0; i < count; ++i) sum += parts[i * pitch + key];
        out[key * stride] = sum;
    }
}

// Calls work(unit, part, thread) for all parts of all units. A unit's parts share packed keys, so a thread
// takes whole units while many are left and single parts at the end, last part first.
template <class Work>
void each_part(h2o_cpu* context, int64_t units, int64_t parts, Work&& work) {
    const int64_t whole = std::max<int64_t>(0, units - 2 * context->pool.size());
    context->pool.each(whole + (units - whole) * parts, [&](int64_t item, int thread) {
        if (item < whole) {
            for (int64_t part = parts; part-- > 0;) work(item, part, thread);
        } else {
            const int64_t rest = item - whole;
            work(whole + rest / parts, parts - 1 - rest % parts, thread);
        }
    });
}

}  // namespace h2o
