// What is compiled once for every instruction set: the arithmetic on one block of rows. How work is cut into
// blocks is written once, above this table, and never depends on the instruction set.
//
// Packed forms, all float32 (P = kPanel, R = kLanes):
//     queries, outputs and scores have the block's rows innermost: q [d][R], o [dv][R], p [keys][R]
//     keys are in panels of P keys: [keys / P][d][P]; values in panels of P columns: [dv / P][keys][P]; where
//     dv is no multiple of P, the columns that it lacks are zeros, and rows of o follow its last
// so that one matrix-product tile serves both products: for every k, R consecutive floats times P floats.
//
// In bfloat16 a word of four bytes holds two numbers that are multiplied and added together: two neighbours
// of d in queries and keys, two neighbouring keys in values and probabilities. The forms are the same, with
// half as many words: q [d/2][R], keys [keys / P][d/2][P], values [dv / P][keys / 2][P]. Scores, maxima, sums
// and outputs stay float32. For tiles of AMX, keys are [keys][d/2], and values [dv][keys / 2].
//
// With 16-bit integers such words have one more row, of scales: q [d/2 + 1][R], keys [keys / P][d/2 + 1][P].
// Values and probabilities are float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "h2o/status.h"

namespace h2o {

constexpr int64_t kLanes = 48;  // query rows a block: 3 vectors of 16, 6 of 8 or 12 of 4
constexpr int64_t kPanel = 8;
constexpr int64_t kKeyStep = 128;  // keys whose probabilities (24 KiB) stay in L1 from one pass to the next
constexpr int64_t kMostOwn = 32;   // keys of a row's own: every power of two that an int32 names
constexpr int64_t kColsumLanes = 16;  // partial sums kept for every key, as many as the widest vector

constexpr int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

// Stored rows by address. Integers are multiplied with a scale a row; floats have none.
struct RowList {
    const void* const* at;  // [rows] addresses
    h2o_dtype dtype;
    const float* scales;  // [rows], or null
};

// Adds keys to the running softmax of one block of rows.
struct BlockArgs {
    int64_t d;         // numbers of a query and of a key
    int64_t dv;        // of values and outputs
    int64_t keys;      // keys that at least one row sees
    int64_t unmasked;  // the first of them, which every row sees
    int64_t lanes;     // rows in use; those above are computed and ignored
    const float* q;    // [d][R]; q, k and v: words, which are floats in float32
    const float* k;    // [keys / P][d][P], packed; see `stride`
    int64_t stride;  // 0, or k is not packed (float32 alone): floats from one key to the next, and values lie
                     // in keys
    const float* v;  // [dv / P][v_keys][P]; null: states and column sums only
    int64_t v_keys;  // keys for which v's panels have room
    const float* visible;  // [R] keys that each row sees, from key 0; read where key >= unmasked
    const float* first;    // [R] the first of them, where rows do not see from key 0 on, or null
    int64_t hiding;        // keys below it are hidden from some row by `first`
    float softcap;         // scores become softcap * tanh(score / softcap); 0: they stay as they are
    const float* bias;     // [round_up(keys, P)][R] added to the scores: -inf hides a key; or null
    float* p;              // [round_up(keys, P)][R] scratch
    float* m;              // [R] running state, in and out: maxima of the scores,
    float* l;              // [R] sums of exp(score - m),
    float* o;              // [dv][R] outputs, not divided by l
    bool fresh;            // these are the first keys: m, l and o are written, not read
    const char* ahead;     // keys that come next, where k is not packed: asked for meanwhile
    int64_t ahead_bytes;   // of them; or 0
    float* colsum;         // [keys][kColsumLanes], added to, or null; needs fresh
    float* votes;          // [round_up(voted, P)] sums of votes (simd/sample.h), added to, or null: then p is
                           // [kKeyStep][R], only m and l come out beside them, and `fresh` is needed
    int64_t voted;         // so many of the keys, the first, get sums; every row sees them
    int64_t rows;          // that are computed, from where the arrays' pointers point: 16, 32, or else all R
    void* const* out;      // [lanes] where the result will be written: asked for meanwhile; or null
    int64_t out_bytes;     // of each
};

// Adds to the running softmax of every row of a block a few keys of its own, and stores the result.
struct OwnKeysArgs {
    int64_t d;              // numbers of a query, a key and a value
    int64_t rows;           // in use
    int64_t keys;           // that a row has at most: kMostOwn or fewer
    h2o_dtype dtype;        // of q and out
    h2o_dtype stored;       // of k and v, no longer than that
    float scale;            // of dot products
    float softcap;          // as in BlockArgs
    const void* const* q;   // [rows] not scaled
    const void* const* k;   // [keys][R], null where a row has fewer
    const void* const* v;   // [keys][R]
    const float* k_scales;  // [keys][R] where they are integers, else null
    const float* v_scales;  // [keys][R]
    const float* m;         // [R] running state, as in BlockArgs
    const float* l;         // [R]
    const float* o;         // [d][R], not divided by l
    float* scratch;         // [8][d]
    void* const* out;       // [rows] addresses of d numbers
};

// Rows of all heads: of each head `d` numbers are read.
struct StoredHeads {
    const void* at;  // row 0 of the first head
    int64_t stride;  // elements from one row to the next
    int64_t apart;   // elements from one head to the next
    int64_t d;       // elements of a head that are read
};

// Some rows of a cache, from `first` on.
struct Piece {
    int64_t first;  // row
    int64_t keys;   // rows
};

// A run of rows for a few queries of every key/value head: consecutive ones, or pieces, one below the other.
//
// Row `i` of the run lies at row `first + i` of k, v and their scales; with pages, at the place of the
// sequence's row `first + i`, as h2o_kv says. Rows have k.stride / k.apart heads, of which these may be some.
struct DecodeArgs {
    int64_t kv_heads;
    int64_t group;    // query rows a key/value head, those of different tokens included
    int64_t keys;     // rows of the run
    h2o_dtype dtype;  // of k and v
    StoredHeads k, v;
    const float* k_scales;  // [rows][kv_heads] where they are integers, else null
    const float* v_scales;  // [rows][kv_heads]
    int64_t first;          // row of the sequence at which the run begins, without pieces
    const Piece* pieces;    // [piece_count] of the run, or null
    int64_t piece_count;
    const int32_t* pages;    // numbers of the sequence's pages, or null
    int page_bits;           // a page has 1 << page_bits rows
    const float* q;          // [kv_heads * group][round_up(k.d, 16)], scaled, zero padded
    float softcap;           // as in BlockArgs
    const int64_t* visible;  // [group] rows of the run that each query row sees
    float* p;                // [decode_scratch(kv_heads * group, keys)]
    float* m;                // [kv_heads * group] out: maxima of the scores
    float* l;                // [kv_heads * group] out: sums of exp(score - m)
    float* o;                // [kv_heads * group][round_up(v.d, 16)] out, not divided by l
};

// Floats that DecodeArgs::p has room for: scores of `rows` query rows, and a head's scales of keys and of
// values.
constexpr int64_t decode_scratch(int64_t rows, int64_t keys) {
    return (rows + 2) * round_up(keys, 16);
}
// out[query][page] = positive[query] . high[page] + negative[query] . low[page], a query's parts being those
// of its numbers that are positive and negative.
struct BoundsArgs {
    int64_t kv_heads;
    int64_t group;          // queries a key/value head
    int64_t d;              // numbers of a query and of a key
    int64_t pages;          // whose bounds are wanted
    const float* positive;  // [kv_heads * group][round_up(d, 16)], zero padded
    const float* negative;  // [kv_heads * group][round_up(d, 16)]
    const float* low;       // [pages][kv_heads][d] least numbers of a page's keys
    const float* high;      // [pages][kv_heads][d] largest
    int64_t pitch;          // floats from one query's bounds to the next one's
    float* out;             // [kv_heads * group][pitch] bounds of scores, not scaled
};

constexpr int64_t kStateColumns = 64;  // of a head's state at a time: with 128 keys they fit in L1
constexpr int64_t kStateUnit = 32;     // columns are a multiple of it
constexpr int64_t kDeltaRows = 8;      // tokens that pass a state together
constexpr int64_t kDeltaFactors = 16;  // keys and queries of so many tokens
constexpr int64_t kMamba2Rows = 16;    // tokens that pass a state together

// Up to kDeltaRows tokens of the gated delta rule on some columns of one head's state. Factors of decay are
// those from the state's token to a token, and between two tokens.
struct DeltaArgs {
    int64_t d;             // numbers of a key and of a query
    int64_t rows;          // tokens, at most kDeltaRows
    int64_t columns;       // of the state: numbers of a value
    const float* factors;  // [kDeltaFactors][d] keys of all rows, then queries; zeros up to a multiple of 4
    const float* v;        // [rows][columns]
    const float* since;    // [rows] decay from the state to a row
    const float* between;  // [rows][kDeltaRows] from row j, j <= i, to row i
    const float* beta;     // [rows] share of each token's correction
    float* state;          // [d][columns] in and out
    float* products;       // [kDeltaFactors][columns] scratch
    float* delta;          // [rows][columns] scratch
    float* o;              // [rows][columns] out
};

// Up to kMamba2Rows tokens of Mamba-2 on some columns of one head's state; R = kMamba2Rows. Decays are
// logarithms.
struct Mamba2Args {
    int64_t d;             // rows of the state: numbers of a token's b and c
    int64_t rows;          // tokens, at most R
    int64_t columns;       // of the state: numbers of a token's x
    int64_t stride;        // floats from one row of the state to the next
    const float* b;        // [rows][d]
    const float* c;        // [R][d], zeros from `rows` up to a multiple of 4
    const float* pairs;    // [rows][R] c_i . b_j for j <= i, and zeros
    const float* between;  // [rows][R] decay from row j, j <= i, to row i, and zeros
    const float* since;    // [R] decay from the state to a row, and zeros
    const float* step;     // [R] factors of what x adds to the state
    const float* skip;     // [R] factors of x in o
    const float* x;        // [rows][columns]
    float* state;          // [d][stride] in and out
    float* weights;        // [rows][R] scratch
    float* added;          // [rows][columns] scratch
    float* o;              // [R][columns] out
};

// Attention on packed blocks in one number format.
struct BlockAttention {
    int64_t pair;        // numbers a word of queries and keys
    int64_t scales;      // words behind them: 1 where every key and query has a scale of its own, else 0
    int64_t value_pair;  // numbers a word of values
    void (*attend)(const BlockArgs& args);
    // rows[j] -> panels; the last panel is filled with zeros.
    void (*pack_keys)(const RowList& rows, int64_t keys, int64_t d, float* out);
    void (*pack_values)(const RowList& rows, int64_t keys, int64_t d, int64_t v_keys, float* out);
    // rows[r] * scale -> q [d][R]; rows above `lanes` become zeros.
    void (*pack_queries)(const RowList& rows, int64_t lanes, int64_t d, float scale, float* out);
    int64_t value_columns = kPanel;  // that lie side by side in packed values, or 1

    int64_t key_words(int64_t d) const { return d / pair + scales; }
    // From the beginning of packed values to those of the key `first`, the first of a panel.
    int64_t value_words(int64_t first) const { return first * value_columns / value_pair; }
};

struct KernelTable {
    const char* name;
    BlockAttention float32;
    void (*finish_rows)(const OwnKeysArgs& args);
    void (*decode)(const DecodeArgs& args);
    void (*bounds)(const BoundsArgs& args);
    // rows[r] = keep[r] * rows[r] + factor[r] * o[:, r]; rows[r] is not read where keep[r] is 0.
    void (*store_rows)(const float* o, const float* keep, const float* factor, h2o_dtype dtype, int64_t lanes,
                       int64_t d, void* const* rows);
    // One row: out = a * x + b * y; x or y is not read where its factor is 0.
    void (*blend_row)(h2o_dtype dtype, int64_t d, float a, const void* x, float b, const void* y, void* out);
    // A block of rows: o[:, r] = keep[r] * o[:, r] + factor[r] * other[:, r]; both are [d][kLanes]. What is
    // not finite in `other` does not count where the factor is 0.
    void (*blend_block)(const float* keep, const float* factor, const float* other, int64_t d, float* o);
    void (*to_float)(const void* in, h2o_dtype dtype, int64_t count, float scale, float* out);
    void (*from_float)(const float* in, h2o_dtype dtype, int64_t count, float scale, void* out);
    // out = in / scale, rounded to the nearest even of -127 ... 127; returns the scale, 1/127 of the largest
    // magnitude. It is not a number where some of `in` are not, or are infinite.
    float (*to_int8)(const void* in, h2o_dtype dtype, int64_t count, int8_t* out);
    void (*sum_lanes)(const float* partial, int64_t keys,
                      float* out);  // [keys][kColsumLanes] -> [keys], added
    // columns[key] = the sum over rows r < `rows`, 16, 32 or 48, of weight[r] * p[key][r], and
    // distances[r - key] += each of them.
    void (*line_sums)(const float* p, int64_t keys, int64_t rows, const float* weight, float* columns,
                      float* distances);
    void (*delta)(const DeltaArgs& args);
    // pairs[i][j] = c_i . b_j for j <= i < rows, and 0 for other j < kMamba2Rows; b and c are [rows][d].
    void (*mamba2_pairs)(const float* b, const float* c, int64_t rows, int64_t d, float* pairs);
    void (*mamba2)(const Mamba2Args& args);
    void (*exp)(const float* in, int64_t count, float* out);  // for tests: count is a multiple of 16
};

const KernelTable* scalar_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();
const KernelTable* neon_kernels();

// For machines that multiply bfloat16 numbers; in plain C++ for tests on all others.
const BlockAttention* scalar_bfloat16();
const BlockAttention* avx512_bfloat16();
const BlockAttention* amx_bfloat16();
const BlockAttention* neon_bfloat16();

// For machines that add products of 16-bit integers.
const BlockAttention* avx2_int16();
const BlockAttention* avx512_int16();

}  // namespace h2o
