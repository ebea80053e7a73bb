// The arguments of the attention kernels, for every operator built on them.
//
// A launch covers `sets` key sets: one for each key/value head, or one for each query head if query heads
// have their own memory sets. Several sets can read one memory set and add to one column sum. The `group`
// query heads of a set share its keys. Token and head are packed into one row index, row = token * group + g,
// so one tile of keys serves the whole group.
#pragma once

#include <cstdint>

#include "h2o/kv.h"
#include "h2o/status.h"

namespace h2o::cuda {

// The segments of consecutive cache rows that a key set attends to. One token, at the last row of the cache,
// sees those up to itself.
struct KeyList {
    const int32_t* entries = nullptr;  // [sets, count]; negative: none. Null: no lists
    int count = 0;
    int segment = 1;                  // rows of a segment; entry * segment is its first row
    uint32_t reciprocal = 0;          // of `segment`, from reciprocal_of
    const int64_t* length = nullptr;  // on the device: rows in the cache
};

// Location and number of a set's keys and values.
struct KeySource {
    const void* k = nullptr;          // element 0 of row 0
    const void* v = nullptr;          // likewise; null: only the row states m and l are computed
    h2o_dtype dtype = H2O_F32;        // of both
    const float* k_scales = nullptr;  // with int8 rows, [keys, key/value heads]
    const float* v_scales = nullptr;  // likewise
    int scale_stride = 0;             // scales from one key to the next: key/value heads
    int64_t row_stride = 0;           // elements from one key to the next
    int64_t head_stride = 0;          // elements from one key/value head to the next
    int64_t v_row_stride = 0;         // of values
    int64_t v_head_stride = 0;        // of values
    int sets_per_head = 1;            // set s reads key/value head s / sets_per_head
    int sets_per_list = 1;            // set s reads memory set s / sets_per_list
    const int32_t* memory = nullptr;  // [lists, keys]: key j is row memory[list * keys + j]; null: row j
    int last_row = 0;                 // with a memory set or a list: the last valid cache row
    KeyList list;                     // replaces memory, keys, length and causal
    int keys = 0;                     // of a set, or of all chunks
    const int64_t* length = nullptr;  // on the device; replaces `keys`, and the last token is at length - 1;
                                      // each row tile has its own
    // On the device, one for each row tile: replace k, v and their scales, and have rows like theirs. Not
    // with a memory set or a list. A tile whose length is below 1 has no rows.
    const h2o_kv* caches = nullptr;
    bool causal = false;     // row of token t sees keys 0 .. first_position + t,
    int window = 0;          // of these the last `window`, unless it is 0; no chunks then, no list
    int first_position = 0;  // cache row of token 0
};

// The query rows. With `chunk` > 0, tokens and keys are cut alike and attention stays inside a chunk. With
// `tile` > 0, tokens are cut and each tile has its own memory set or length. At most one of the two is set.
struct RowSource {
    const void* q = nullptr;  // [tokens, heads, d]
    int tokens = 0;           // n
    int heads = 0;            // Hq
    int group = 1;            // query heads of a set
    uint32_t reciprocal = 0;  // of `group`, for token_of; 0 for a group of 1
    int sets = 0;             // key sets of a launch
    int chunk = 0;            // tokens
    int tile = 0;             // tokens
};

// 2^32 / group, rounded up: row * reciprocal / 2^32 is row / group for every row below 2^32 / group.
inline uint32_t reciprocal_of(int group) {
    return group == 1 ? 0
                      : static_cast<uint32_t>(((uint64_t{1} << 32) + static_cast<uint64_t>(group) - 1) /
                                              static_cast<uint64_t>(group));
}

// A score is scale * (q k), or with `squeeze` scale * tanh(squeeze * (q k)): scale is its cap then.
struct Scores {
    float scale = 0;    // of dot products, or the cap
    float squeeze = 0;  // scale of dot products / the cap; 0: no cap
};

struct AttentionArgs {
    RowSource rows;
    KeySource keys;
    Scores scores;
    int head_size = 0;          // d
    int value_size = 0;         // dv
    h2o_dtype dtype = H2O_F32;  // of q and o

    void* o = nullptr;   // [tokens, heads, dv]
    float* m = nullptr;  // [tokens, heads] maxima of the scores; may be null
    float* l = nullptr;  // [tokens, heads] sums of exp(score - m); may be null

    // Fuse the result with this state before writing; its arrays may be the outputs.
    const void* with_o = nullptr;   // [tokens, heads, dv]
    const float* with_m = nullptr;  // [tokens, heads]
    const float* with_l = nullptr;  // [tokens, heads]

    // [heads]: scores that have no key, each of which joins the state of its head's rows. Null: none. With
    // parts, they join the first. Not together with `with_o`.
    const float* sinks = nullptr;

    // When fusing: where to write the state of this pass alone, for the column sums; may be null.
    float* own_m = nullptr;  // [tokens, heads]
    float* own_l = nullptr;  // [tokens, heads]

    // With splits > 1, or with partial_m set, part p of the keys writes its state to partial_*[p], all
    // float32.
    int splits = 1;
    uint32_t part_reciprocal = 0;  // of the parts, as `RowSource::reciprocal`; set by launch_attention
    float* partial_o = nullptr;    // [splits, tokens, heads, dv]; null without v
    float* partial_m = nullptr;    // [splits, tokens, heads]
    float* partial_l = nullptr;    // [splits, tokens, heads]

    // For a decode step (step_in_one): with partial_m set, the last block of a row combines the parts into o.
    // Zeros, one for each block of x and y, and for each row tile.
    unsigned* arrivals = nullptr;

    // The row at length - 1, which the launch appends to the cache: [tiles, key/value heads, d] and [.., dv],
    // of `dtype`. Null: the row is already there. With several tiles, only launch_append_last_row appends.
    const void* new_k = nullptr;
    const void* new_v = nullptr;
};

struct ColumnSumArgs {
    RowSource rows;
    KeySource keys;
    Scores scores;
    int head_size = 0;          // d
    h2o_dtype dtype = H2O_F32;  // of q
    int spanned = 1;            // sets s * spanned ... whose sums are added for s
    const float* m = nullptr;   // [tokens, heads]: final state of the rows
    const float* l = nullptr;   // [tokens, heads]
    bool at_most_one = false;   // cut probabilities: the state is an estimate, and scores may be above it

    // Sum of key j of set s over the rows of part p: out[p * split_stride + j * key_stride + s * set_stride].
    // With row tiles, p counts tiles.
    float* out = nullptr;      // sums of probabilities
    int splits = 1;            // parts of the rows
    int64_t split_stride = 0;  // floats, like the next two
    int64_t key_stride = 0;
    int64_t set_stride = 0;
};

}  // namespace h2o::cuda
