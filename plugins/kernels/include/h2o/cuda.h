// The operators on an NVIDIA GPU (SM80 and later), as plain C.
//
// Every pointer is device memory, unless its call says otherwise; every call only enqueues work on `stream`
// and returns. No call allocates, waits for the device, throws or prints, so a sequence of calls can be
// captured into a CUDA graph.
//
// n tokens in this call, Hq / Hkv query and key/value heads, Hs score heads, d head size of queries and keys,
// dv that of values and outputs, M memory slots; T is the shape's dtype. Layouts are token-major: q [n, Hq,
// d], k [n, Hkv, d], v [n, Hkv, dv]; a cache is an h2o_kv, which is itself on the host and read before the
// call returns. States m, l and all scores are float32. Rows start on 16 bytes.
//
// Where v is the address of k, values are the first dv numbers of each key, and have its stride.
//
// dv other than d: H2O_UNSUPPORTED of landmark_update, subquadratic_attention and the operators of pages and
// lines, which also want d to be 32, 64, 80, 96 or 128. Hs below Hkv, a divisor of it: a score head spans Hkv
// / Hs key/value heads; in chunked_intra_attention, memory_fused_attention and query_select alone.
//
// Integers that a kernel reads on the device (entries of a memory, lengths, ranges) are brought into their
// range where they lie outside: with wrong ones the result is wrong, but nothing outside the arrays is
// touched. score_update and cache_append take theirs from the caller's own selection, and do not.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/kv.h"
#include "h2o/status.h"
#include "h2o/subquadratic.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* h2o_cuda_stream;  // the same type as cudaStream_t

typedef struct h2o_cuda_shape {
    int32_t query_heads;  // Hq, a multiple of kv_heads
    int32_t kv_heads;     // Hkv
    int32_t score_heads;  // Hs: kv_heads or query_heads, or divides kv_heads
    int32_t head_size;    // d, up to 576; rows of q, k, v and o have a multiple of 16 bytes a head
    float scale;          // above 0; the softmax is over scale * (q . k)
    h2o_dtype dtype;
    int32_t value_size;  // dv, up to 512; 0: d
} h2o_cuda_shape;

// What CUDA said of the last call on this thread that returned H2O_CUDA_ERROR; it stays as long as the
// library.
const char* h2o_cuda_last_error(void);

// Partial softmax: normalised output o [n, Hq, dv] T, row maximum m [n, Hq], denominator l [n, Hq].
typedef struct h2o_cuda_state {
    void* o;
    float* m;
    float* l;
} h2o_cuda_state;

// Causal attention inside every chunk; row 0 starts a chunk, the last chunk may be partial.
// Writes `state` and, unless it is null, colsum [n, Hs].
h2o_status h2o_cuda_chunked_intra_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                            int32_t chunk_size, const void* q, const void* k, const void* v,
                                            const h2o_cuda_state* state, float* colsum);

// k_mem [Hs, M, d], v_mem [Hs, M, dv] = the cache rows at memory [Hs, M].
h2o_status h2o_cuda_memory_gather(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t slots,
                                  const h2o_kv* kv, const int32_t* memory, void* k_mem, void* v_mem);

// Bytes of workspace for memory_attention and memory_fused_attention; less suffices without colsum.
size_t h2o_cuda_memory_attention_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t slots);

// Attention to gathered rows k_mem [Hs, M, d], v_mem [Hs, M, dv]. Writes `state` and, unless it is null,
// colsum [Hs, M].
h2o_status h2o_cuda_memory_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                     int32_t slots, const void* q, const void* k_mem, const void* v_mem,
                                     const h2o_cuda_state* state, float* colsum, void* workspace,
                                     size_t workspace_bytes);

// Gather, attention and fusion in one pass over the cache rows in memory [Hs, M]. `fused` may be `intra`
// itself, and its m and l may be null. colsum [Hs, M], unless null: sums of this pass's own probabilities.
h2o_status h2o_cuda_memory_fused_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                           int32_t slots, const void* q, const h2o_kv* kv,
                                           const int32_t* memory, const h2o_cuda_state* intra,
                                           const h2o_cuda_state* fused, float* colsum, void* workspace,
                                           size_t workspace_bytes);

// memory_fused_attention without colsum, in one launch, of tiles of `tile` rows of q with a memory each, in
// memory [tiles, Hs, M]; the last tile may be partial.
h2o_status h2o_cuda_tiled_memory_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                           int32_t tile, int32_t slots, const void* q, const h2o_kv* kv,
                                           const int32_t* memory, const h2o_cuda_state* intra,
                                           const h2o_cuda_state* fused);

// Two partial softmaxes of the same rows become one. `fused` may be `a` or `b` itself.
h2o_status h2o_cuda_online_softmax_fusion(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                          const h2o_cuda_state* a, const h2o_cuda_state* b,
                                          const h2o_cuda_state* fused);

size_t h2o_cuda_candidate_score_workspace(const h2o_cuda_shape* shape, int32_t window, int32_t n,
                                          int32_t slots);

// Votes of the last `window` rows of a chunk by their joint softmax over the memory, which are the cache rows
// in memory [Hs, M], and the chunk. q_window [window, Hq, d], k [n, Hkv, d]. Writes score_memory [Hs, M] (M
// may be 0) and score_chunk [n, Hs].
h2o_status h2o_cuda_candidate_score(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t window,
                                    int32_t n, int32_t slots, const void* q_window, const void* k,
                                    const h2o_kv* kv, const int32_t* memory, float* score_memory,
                                    float* score_chunk, void* workspace, size_t workspace_bytes);

// The same for a memory that was gathered, k_mem [Hs, M, d].
h2o_status h2o_cuda_candidate_score_gathered(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                             int32_t window, int32_t n, int32_t slots, const void* q_window,
                                             const void* k, const void* k_mem, float* score_memory,
                                             float* score_chunk, void* workspace, size_t workspace_bytes);

// score [cap, Hs] at the positions memory [Hs, M]: `addend` [Hs, M] is added, or replaces what is there.
h2o_status h2o_cuda_score_update(h2o_cuda_stream stream, int32_t score_heads, int32_t slots,
                                 const int32_t* memory, const float* addend, int32_t replace, float* score);

// memory_next [Hs, local + heavy]: the last `local` positions of [start, stop) and the best of everything
// else by score [capacity, Hs], sorted. chunk_range is {start, stop}, read on the device. Candidates are
// memory [Hs, previous_slots] (sorted, all below start) and the range; at least local + heavy of them exist.
// Positions below `sink` always win; ties go to the lower position. Scores below 1e-30 (and NaN)
// count as 0. memory_next must not be memory.
h2o_status h2o_cuda_memory_select(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                  int32_t previous_slots, int32_t local, int32_t heavy, int32_t sink,
                                  const float* score, const int32_t* memory, const int64_t* chunk_range,
                                  int32_t* memory_next);

// Where a memory set goes, [Hs, local + heavy] each: `memory`, and, unless they are null, `last` and `set`;
// its scores go to `set_scores`, unless that is null.
typedef struct h2o_cuda_next_memory {
    int32_t* memory;
    int32_t* last;
    int32_t* set;
    float* set_scores;
} h2o_cuda_next_memory;

// The end of a chunk in one launch: score_update with values [Hs, previous_slots], unless they are null;
// memory_select behind it, whose range the host knows; and what is kept of its result.
h2o_status h2o_cuda_memory_step(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                int32_t previous_slots, int32_t local, int32_t heavy, int32_t sink,
                                int32_t start, int32_t stop, const int32_t* memory, const float* values,
                                int32_t replace, float* score, const h2o_cuda_next_memory* next);

// Bytes of workspace for query_select: `slots` candidates a list; without lists it grows with `capacity`.
size_t h2o_cuda_query_select_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t tile, int32_t stride,
                                       int32_t slots, int32_t capacity);

// memory_next [tiles, Hs, local + heavy] of the tiles of q [n, Hq, d], `tile` rows each, the last maybe
// fewer: the last `local` rows below past[i] and the best of the others that tile i looks at, sorted. It
// looks at the rows in candidates [lists, Hs, slots], sorted and all below past[i], of list i / share; with
// slots 0 at all rows below past[i]. A row's score is its softmax probability over these, summed over every
// stride-th row of the tile, the first among them, and the head's group, and a quarter of what the rows up to
// `reach` before and behind it get. past [tiles] is read on the device, and is at least local + heavy. Sinks
// and ties are as in memory_select. The values of the cache are not read.
h2o_status h2o_cuda_query_select(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n, int32_t tile,
                                 int32_t stride, int32_t share, int32_t reach, int32_t slots, int32_t local,
                                 int32_t heavy, int32_t sink, const void* q, const h2o_kv* kv,
                                 const int32_t* candidates, const int64_t* past, int32_t* memory_next,
                                 void* workspace, size_t workspace_bytes);

// Bytes of workspace for cached_attention over `capacity` cache rows, for every length up to that.
size_t h2o_cuda_cached_attention_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t capacity);

// Exact causal attention: row r of q [n, Hq, d] stands at position length - n + r and sees the cache up to
// itself. `length` is one int64 on the device, read when the work runs: a captured call serves every length.
h2o_status h2o_cuda_cached_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                     const void* q, const h2o_kv* kv, const int64_t* length, void* o,
                                     void* workspace, size_t workspace_bytes);

// A decode step's attention: row length - 1 of the cache becomes k [Hkv, d] and v [Hkv, dv], as cache_append
// stores them, and q [1, Hq, d] attends to all rows up to it, with the numbers that cached_attention gives,
// whose workspace for one token it takes. One launch for heads that have tiles, up to 16 to a key, and parts
// that are few enough to be added up inside it; at most three. Where values are a part of the keys, v is not
// read. A length outside 1 ... capacity appends nothing. `arrivals` [Hq] are zeros, and zeros again after
// every call; calls that may run at the same time need their own.
h2o_status h2o_cuda_step_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const void* q,
                                   const void* k, const void* v, const h2o_kv* kv, const int64_t* length,
                                   void* o, uint32_t* arrivals, void* workspace, size_t workspace_bytes);

size_t h2o_cuda_scored_attention_workspace(const h2o_cuda_shape* shape, int32_t capacity);

// As cached_attention of one row, the last; and seen [capacity, Hkv] = the probability of each row up to
// `length`, summed over the query heads that share its key. One more pass over the keys.
h2o_status h2o_cuda_scored_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const void* q,
                                     const h2o_kv* kv, const int64_t* length, void* o, float* seen,
                                     void* workspace, size_t workspace_bytes);

// k_next, v_next [blocks, Hkv, d] float32 = the means of block_size cache rows each in k_mean, v_mean, in
// which rows below `start` are counted, with rows start ... length - 1 taken up. `start` and `length` are
// int64 on the device, read when the work runs; at most `most_rows` lie between them. k_next may be k_mean,
// and v_next v_mean: then only the blocks of those rows are touched.
h2o_status h2o_cuda_landmark_update(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const h2o_kv* kv,
                                    const int64_t* start, const int64_t* length, int32_t most_rows,
                                    int32_t block_size, int32_t blocks, const float* k_mean,
                                    const float* v_mean, float* k_next, float* v_next);

// Attention under the pattern: row r of q stands at position length - n + r. `length` is one int64 on the
// device, read when the work runs. k_mean, v_mean are those of landmark_update for at least the complete
// blocks; global_rows [slots] are all different.
h2o_status h2o_cuda_subquadratic_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                           const h2o_subquadratic* pattern, int32_t n, const void* q,
                                           const h2o_kv* kv, const int64_t* length, const float* k_mean,
                                           const float* v_mean, int32_t slots, const int32_t* global_rows,
                                           void* o);

// min_next, max_next [pages, Hkv, d] float32 = the smallest and the largest keys of page_size cache rows each
// in k_min, k_max, in which rows below `start` are counted, with rows start ... length - 1 taken up;
// otherwise as landmark_update.
h2o_status h2o_cuda_page_bounds(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const h2o_kv* kv,
                                const int64_t* start, const int64_t* length, int32_t most_rows,
                                int32_t page_size, int32_t pages, const float* k_min, const float* k_max,
                                float* min_next, float* max_next);

// Bytes of workspace for page_select among so many pages.
size_t h2o_cuda_page_select_workspace(const h2o_cuda_shape* shape, int32_t pages);

// page_list [Hs, budget] = for the one token q [1, Hq, d] the last page of a cache of `length` rows (one
// int64 on the device, read when the work runs) and the budget - 1 others of the highest bounds, rising; ties
// go to the lower page. Where there are no more, -1. A page's bound is that of its best query head, which no
// key in it can score above.
h2o_status h2o_cuda_page_select(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const void* q,
                                const int64_t* length, int32_t page_size, int32_t pages, const float* k_min,
                                const float* k_max, int32_t budget, int32_t* page_list, void* workspace,
                                size_t workspace_bytes);

// Attention of one token to the pages in page_list [Hs, budget], as page_select writes them.
h2o_status h2o_cuda_page_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, const void* q,
                                   const h2o_kv* kv, const int64_t* length, int32_t page_size, int32_t budget,
                                   const int32_t* page_list, void* o);

// Bytes of workspace for vertical_slash_select of n rows in a cache of `capacity` rows.
size_t h2o_cuda_vertical_slash_select_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t capacity);

// The columns and the diagonals on which the probabilities of the n rows of q lie, row r at position length -
// n
// + r. `length` is one int64 on the device, read when the work runs. columns [Hq, vertical]: keys of the
// highest sums over the rows, those below `sink` always among them; distances [Hq, slash] from a row back to
// a key, likewise, with those below `near`. Both rise; -1 where there are no more. Sums below 1e-30 count as
// 0, and ties go to the lower number.
h2o_status h2o_cuda_vertical_slash_select(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                          const void* q, const h2o_kv* kv, const int64_t* length,
                                          int32_t vertical, int32_t slash, int32_t sink, int32_t near,
                                          int32_t* columns, int32_t* distances, void* workspace,
                                          size_t workspace_bytes);

// Bytes of workspace for vertical_slash_attention of n rows in a cache of `capacity` rows.
size_t h2o_cuda_vertical_slash_attention_workspace(const h2o_cuda_shape* shape, int32_t n, int32_t capacity,
                                                   int32_t slash);

// Attention of the n rows of q, row r at position length - n + r, up to themselves to the keys in columns
// [Hq, vertical] and to what their tile of 64 rows, counted from row 0, sees: with the tile's end e, 64 keys
// before max(e - s, 64) for each s < e of distances [Hq, slash] and for 0. From the largest distance on, a
// block that begins not behind the end of the run of keys before it extends that by 64 where it reaches
// further. `length` and both lists as in vertical_slash_select.
h2o_status h2o_cuda_vertical_slash_attention(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                             const void* q, const h2o_kv* kv, const int64_t* length,
                                             int32_t vertical, const int32_t* columns, int32_t slash,
                                             const int32_t* distances, void* o, void* workspace,
                                             size_t workspace_bytes);

// Cache rows first ... first + n - 1 become k and v [n, Hkv, d], as the cache stores them: integers as
// h2o_cpu_cache_append says. `position`, unless null, is one int64 on the device in the place of `first`,
// read when the work runs, as `length` is above; rows that there are not are left out then.
h2o_status h2o_cuda_cache_append(h2o_cuda_stream stream, const h2o_cuda_shape* shape, int32_t n,
                                 const void* k, const void* v, const int64_t* position, int64_t first,
                                 const h2o_kv* kv);

// y [n, outputs] = x [n, inputs] times a matrix of integers of 4 bits, each block of 32 inputs of an output
// with a scale: float32 sums; x, scales [inputs / 32, outputs] and y are of `dtype`. weights [inputs / 32,
// outputs, 4] are words: the bits 4 i ... 4 i + 3 of word t of an output hold an integer plus 8, of input 8 t
// + 2 i of the block for i < 4, and of 8 t + 2 (i - 4) + 1 for the others. In each four outputs the 4 x 4
// words are transposed: where word t of output j would be, word j of output t is. `inputs` are whole blocks,
// `outputs` a multiple of 8. Made for one row; up to 16 take hardly longer than one.
h2o_status h2o_cuda_block_product(h2o_cuda_stream stream, h2o_dtype dtype, int32_t n, int32_t inputs,
                                  int32_t outputs, const void* x, const int32_t* weights, const void* scales,
                                  void* y);

// target [count] on the device = values [count] on the host, at most H2O_CUDA_MAX_INTEGERS. They are read
// before the call returns and travel as arguments of the kernel: a captured call writes the same ones each
// time.
#define H2O_CUDA_MAX_INTEGERS 8
h2o_status h2o_cuda_write_integers(h2o_cuda_stream stream, int32_t count, const int64_t* values,
                                   int64_t* target);

#ifdef __cplusplus
}
#endif
