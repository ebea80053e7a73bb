// What the attention kernels are told, for every operator built on them.
//
// A launch covers `sets` key sets: one a key/value head, or one a query head when each query head has its
// own memory. Several sets can read one memory, and give one column sum. The `group` query heads of a set
// share its keys, so token and head are packed into one row index, row = token * group + g: one tile of keys
// then serves the whole group.
#pragma once

#include <cstdint>

#include "h2o/status.h"

namespace h2o::cuda {

// Rows of a cache that a set attends to, each row of it to those up to its own position. A list begins with
// segments, which are rows side by side, and ends with single rows.
struct KeyList {
    const int32_t* entries = nullptr;  // [lists, stride]; negative: none. Null: there are no lists
    int stride = 0;
    const int32_t* counts = nullptr;  // [lists, 2]: segments and single rows; null: `stride` segments alone
    int segment = 1;                  // rows of a segment
    uint32_t reciprocal = 0;          // of it, as reciprocal_of has it
    int unit = 1;                     // entry * unit is a segment's first row
    const int64_t* length =
        nullptr;  // on the device: rows in the cache, of which the last are those that attend
};

// Where the keys and values of a set lie, and how many there are.
struct KeySource {
    const void* k = nullptr;
    const void* v = nullptr;          // null: only the row states m and l are wanted
    h2o_dtype dtype = H2O_F32;        // of both
    const float* k_scales = nullptr;  // of integers, [keys, key/value heads]
    const float* v_scales = nullptr;
    int scale_stride = 0;      // key/value heads
    int64_t row_stride = 0;    // elements from one key to the next
    int64_t head_stride = 0;   // elements from one key/value head to the next
    int64_t v_row_stride = 0;  // of values
    int64_t v_head_stride = 0;
    int sets_per_head = 1;            // set s reads key/value head s / sets_per_head
    int sets_per_list = 1;            // and the memory s / sets_per_list
    const int32_t* memory = nullptr;  // [lists, keys]: key j is row memory[list * keys + j]; null: row j
    int tiles_per_list = 1;           // tile t of the rows has the t / tiles_per_list-th of such memories
    int last_row = 0;                 // with a memory or a list: the last row that there is
    KeyList list;                     // takes the place of memory, keys, length and causal
    int keys = 0;
    const int64_t* length = nullptr;  // on the device; replaces `keys` and puts the last token at length - 1;
                                      // one a tile of the rows
    bool causal = false;              // row of token t sees keys 0 .. first_position + t
    int first_position = 0;
};

// The rows that attend. With `chunk` > 0 tokens and keys are cut alike, and attention stays inside a chunk.
// With `tile` > 0 tokens are cut, and each tile has a memory or a length of its own. Never both.
struct RowSource {
    const void* q = nullptr;  // [tokens, heads, d]
    int tokens = 0;
    int heads = 0;
    int group = 1;            // query heads a set
    uint32_t reciprocal = 0;  // of the group, for token_of; 0 for a group of 1
    int sets = 0;
    int chunk = 0;
    int tile = 0;
};

// 2^32 / group, rounded up: row * reciprocal / 2^32 is row / group for every row below 2^32 / group.
inline uint32_t reciprocal_of(int group) {
    return group == 1 ? 0
                      : static_cast<uint32_t>(((uint64_t{1} << 32) + static_cast<uint64_t>(group) - 1) /
                                              static_cast<uint64_t>(group));
}

struct AttentionArgs {
    RowSource rows;
    KeySource keys;
    float scale = 0;
    int head_size = 0;          // d
    int value_size = 0;         // dv
    h2o_dtype dtype = H2O_F32;  // of q and o

    void* o = nullptr;   // [tokens, heads, dv]
    float* m = nullptr;  // [tokens, heads]; may be null
    float* l = nullptr;

    // Fuse with this state before writing; its arrays may be the outputs.
    const void* with_o = nullptr;
    const float* with_m = nullptr;
    const float* with_l = nullptr;

    // When fusing, the state of this pass alone goes here (for the column sums); may be null.
    float* own_m = nullptr;
    float* own_l = nullptr;

    // splits > 1, or partial_m set: part p of the keys writes its state at partial_*[p], all float32. With
    // tiles of rows, a power of two.
    int splits = 1;
    int part_bits = 0;  // of the grid's z, the others are the chunk's or tile's; launch_attention sets them
    float* partial_o = nullptr;  // [splits, tokens, heads, dv]; null without v
    float* partial_m = nullptr;  // [splits, tokens, heads]
    float* partial_l = nullptr;

    // A step's (step_in_one): with partial_m set, the last block of a row's parts adds them up to o. Zeros,
    // one for each block of x and y.
    unsigned* arrivals = nullptr;

    // The row at length - 1, which the launch puts into the keys: [key/value heads, d] and [.., dv], of
    // `dtype`. Null: it is there.
    const void* new_k = nullptr;
    const void* new_v = nullptr;
};

struct ColumnSumArgs {
    RowSource rows;
    KeySource keys;
    float scale = 0;
    int head_size = 0;
    h2o_dtype dtype = H2O_F32;
    int spanned = 1;           // sets s * spanned ... whose sums are those of s
    const float* m = nullptr;  // [tokens, heads]: final state of the rows
    const float* l = nullptr;

    // Sum of key j of s over the rows of part p: out[p * split_stride + j * key_stride + s * set_stride].
    // Tiles of rows take the place of parts.
    float* out = nullptr;
    int splits = 1;
    int64_t split_stride = 0;
    int64_t key_stride = 0;
    int64_t set_stride = 0;
};

}  // namespace h2o::cuda
