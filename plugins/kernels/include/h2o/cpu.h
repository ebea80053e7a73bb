// Attention operators of ONNX domain `h2o` on CPUs. Raw pointers, no framework types, no exceptions.
//
// Layout is token-major and contiguous: q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv]; o [n, Hq, dv]; a cache
// is an h2o_kv; states m, l [n, Hq]; memory [Hs, M] int32; scores and column sums in float32. q, k, v and o
// are stored as the shape's dtype; all arithmetic is float32. Query head h belongs to score head h / (Hq /
// Hs), which belongs to key/value head hs / (Hs / Hkv); where Hs divides Hkv instead, it spans Hkv / Hs
// of them, whose query heads share one memory.
//
// Where v is the address of k, values are the first dv numbers of each key, and have its stride.
//
// dv other than d: H2O_UNSUPPORTED of landmark_update, subquadratic_attention and the operators of pages
// and lines. Hs below Hkv: chunked_intra_attention, memory_fused_attention and query_select alone.
//
// Every function returns a status and changes nothing when the status is not H2O_OK. Results do not
// depend on the number of threads. One context runs one call at a time; a second caller waits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/kv.h"
#include "h2o/status.h"
#include "h2o/subquadratic.h"

#ifdef __cplusplus
extern "C" {
#endif

// Threads and scratch memory. Scratch grows to the largest call seen and is then used again, so that
// repeating a call of a size seen before allocates nothing.
typedef struct h2o_cpu h2o_cpu;

typedef struct h2o_shape {
    int64_t query_heads;  // Hq
    int64_t kv_heads;     // Hkv, divides Hq
    int64_t score_heads;  // Hs: Hkv or Hq, or divides Hkv
    int64_t head_size;    // d, a multiple of 8
    float scale;
    h2o_dtype dtype;     // of q, k, v and o
    int64_t value_size;  // dv, a multiple of 4; 0: d
} h2o_shape;

// threads <= 0 takes what the process may use. isa is null for the best that this machine has, or one of
// "scalar", "avx2", "avx512", "neon"; H2O_UNSUPPORTED when the build or the machine lacks it.
h2o_status h2o_cpu_create(int threads, const char* isa, h2o_cpu** context);

// Threads of somebody else's. run calls work(data, i) once for every i below count, on as many threads as it
// likes, and returns when all are done.
typedef struct h2o_executor {
    void* self;
    int threads;
    void (*run)(void* self, int count, void (*work)(void* data, size_t i), void* data);
} h2o_executor;

// A context that works on these threads alone, all of them below `threads`.
h2o_status h2o_cpu_create_on(const h2o_executor* executor, const char* isa, h2o_cpu** context);

void h2o_cpu_destroy(h2o_cpu* context);
int h2o_cpu_threads(const h2o_cpu* context);
const char* h2o_cpu_isa(const h2o_cpu* context);

// Bytes of scratch held now.
size_t h2o_cpu_scratch_bytes(const h2o_cpu* context);

// Causal attention inside every chunk of chunk_size rows; row 0 starts a chunk, the last may be partial.
// colsum [n, Hs], unless null: each key's probability summed over its chunk's rows and its group's heads.
h2o_status h2o_cpu_chunked_intra_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n,
                                           int64_t chunk_size, const void* q, const void* k, const void* v,
                                           void* o, float* m, float* l, float* colsum);

// Attention of every row to all of k_mem [Hs, M, d], v_mem [Hs, M, dv]. colsum [Hs, M] or null.
h2o_status h2o_cpu_memory_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, int64_t slots,
                                    const void* q, const void* k_mem, const void* v_mem, void* o, float* m,
                                    float* l, float* colsum);

// MemoryGather, MemoryAttention and OnlineSoftmaxFusion in one pass over the cache rows named by memory
// [n / tile rounded up, Hs, M]: `tile` rows of q share those of one list. o, m, l hold the first state and
// receive the fused one. colsum [Hs, M], or null, is of this pass's own probabilities; with one list alone.
h2o_status h2o_cpu_memory_fused_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, int64_t tile,
                                          int64_t slots, const void* q, const h2o_kv* kv,
                                          const int32_t* memory, void* o, float* m, float* l, float* colsum);

// (o, m, l) = fusion of states a and b, over n x Hq rows of dv. Outputs may be the inputs of a or b.
h2o_status h2o_cpu_online_softmax_fusion(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* o_a,
                                         const float* m_a, const float* l_a, const void* o_b,
                                         const float* m_b, const float* l_b, void* o, float* m, float* l);

// Votes of the last w rows of a chunk, by their joint softmax over the memory (no row, when slots is 0)
// and the chunk's keys k [n, Hkv, d]. score_memory [Hs, M], score_chunk [n, Hs].
h2o_status h2o_cpu_candidate_score(h2o_cpu* context, const h2o_shape* shape, int64_t w, int64_t n,
                                   int64_t slots, const void* q_window, const void* k, const h2o_kv* kv,
                                   const int32_t* memory, float* score_memory, float* score_chunk);

// out [Hs, M] = sorted(last `local` of [start, stop) and the best of all other candidates by score). The
// candidates are memory [Hs, Mp], all below start, and start ... stop - 1; score [cap, Hs]. Positions below
// sink always win; ties go to the lower index. Scores below 1e-30 (and NaN) count as 0.
h2o_status h2o_cpu_memory_select(h2o_cpu* context, int64_t score_heads, int64_t cap, const float* score,
                                 int64_t previous_slots, const int32_t* memory, int64_t start, int64_t stop,
                                 int64_t local, int64_t slots, int64_t sink, int32_t* out);

// How queries choose a memory: tile i has rows [i * tile, (i + 1) * tile) of the n, of which every stride-th
// votes, and looks at the candidates of list i / share.
typedef struct h2o_tiles {
    int64_t n, tile, stride, share, reach;
    int64_t tiles;       // n / tile, rounded up
    int64_t lists;       // of candidates, at least tiles / share, rounded up
    int64_t candidates;  // a list; 0: a tile looks at every row below its past
    int64_t local, slots, sink;
} h2o_tiles;

// memory_next [tiles, Hs, slots] = sorted(last `local` rows below past[i] and the best of the others that
// tile i looks at, by the summed softmax probabilities of its votes over all that it looks at, and a quarter
// of those of the rows up to `reach` before and behind). Candidates [lists, Hs, candidates] are sorted rows
// below past[i], enough of them before the local window. Sinks and ties are as in memory_select. The values
// of the cache are not read.
h2o_status h2o_cpu_query_select(h2o_cpu* context, const h2o_shape* shape, const h2o_tiles* tiles,
                                const void* q, const h2o_kv* kv, const int32_t* candidates,
                                const int64_t* past, int32_t* memory_next);

// Exact causal attention: row r stands at position length - n + r and sees the cache up to itself.
h2o_status h2o_cpu_cached_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* q,
                                    const h2o_kv* kv, int64_t length, void* o);

// As cached_attention of one row, the last; and seen [length, Hkv] = the probability of each row, summed over
// the query heads that share its key, of which there may be 16.
h2o_status h2o_cpu_scored_attention(h2o_cpu* context, const h2o_shape* shape, const void* q, const h2o_kv* kv,
                                    int64_t length, void* o, float* seen);

// k_mean, v_mean [blocks, Hkv, d]: means of block_size cache rows each, in which rows below `start` are
// counted already, take up rows start ... length - 1. Of a block that is not full they are the mean of what
// it has.
h2o_status h2o_cpu_landmark_update(h2o_cpu* context, const h2o_shape* shape, const h2o_kv* kv, int64_t start,
                                   int64_t length, int64_t block_size, int64_t blocks, float* k_mean,
                                   float* v_mean);

// Attention under the pattern: row r stands at position length - n + r. k_mean, v_mean are those of
// landmark_update for at least the complete blocks; global_rows [slots] are all different.
h2o_status h2o_cpu_subquadratic_attention(h2o_cpu* context, const h2o_shape* shape,
                                          const h2o_subquadratic* pattern, int64_t n, const void* q,
                                          const h2o_kv* kv, int64_t length, const float* k_mean,
                                          const float* v_mean, int64_t slots, const int32_t* global_rows,
                                          void* o);

// k_min, k_max [pages, Hkv, d]: smallest and largest keys of page_size cache rows each, in which rows below
// `start` are counted already, take up rows start ... length - 1.
h2o_status h2o_cpu_page_bounds(h2o_cpu* context, const h2o_shape* shape, const h2o_kv* kv, int64_t start,
                               int64_t length, int64_t page_size, int64_t pages, float* k_min, float* k_max);

// page_list [Hs, budget] = for the one token q [1, Hq, d] the last page of a cache of `length` rows and the
// budget - 1 others of the highest bounds, rising; ties go to the lower page. Where there are no more, -1. A
// page's bound is that of its best query head, which no key in it can score above.
h2o_status h2o_cpu_page_select(h2o_cpu* context, const h2o_shape* shape, const void* q, int64_t length,
                               int64_t page_size, int64_t pages, const float* k_min, const float* k_max,
                               int64_t budget, int32_t* page_list);

// Attention of one token to the pages in page_list [Hs, budget], as page_select writes them.
h2o_status h2o_cpu_page_attention(h2o_cpu* context, const h2o_shape* shape, const void* q, const h2o_kv* kv,
                                  int64_t length, int64_t page_size, int64_t budget, const int32_t* page_list,
                                  void* o);

// The columns and the diagonals on which the probabilities of the last n rows lie, row r at position length -
// n + r. columns [Hq, vertical]: keys of the highest sums over the rows, those below `sink` always among
// them; distances [Hq, slash] from a row back to a key, likewise, with those below `near`. Both rise; -1
// where there are no more. Sums below 1e-30 count as 0, and ties go to the lower number.
h2o_status h2o_cpu_vertical_slash_select(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* q,
                                         const h2o_kv* kv, int64_t length, int64_t vertical, int64_t slash,
                                         int64_t sink, int64_t near, int32_t* columns, int32_t* distances);

// Attention of the last n rows, row r at position length - n + r, up to themselves to the keys in columns
// [Hq, vertical] and to what their tile of 64 rows, counted from row 0, sees: with the tile's end e, 64 keys
// before max(e - s, 64) for each s < e of distances [Hq, slash] and for 0. From the largest distance on, a
// block that begins not behind the end of the run of keys before it extends that by 64 where it reaches
// further. Both lists as vertical_slash_select writes them.
h2o_status h2o_cpu_vertical_slash_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n,
                                            const void* q, const h2o_kv* kv, int64_t length, int64_t vertical,
                                            const int32_t* columns, int64_t slash, const int32_t* distances,
                                            void* o);

// k_mem [Hs, M, d], v_mem [Hs, M, dv] = the cache rows named by memory [Hs, M].
h2o_status h2o_cpu_memory_gather(h2o_cpu* context, const h2o_shape* shape, int64_t slots, const h2o_kv* kv,
                                 const int32_t* memory, void* k_mem, void* v_mem);

// Rows first ... first + n - 1 of the cache become k, v, as it stores them; where its values are in its keys,
// v is not read. Integers: a row and
// head's largest magnitude is 127, to the nearest even; the scale of one with a NaN or an infinity is NaN.
h2o_status h2o_cpu_cache_append(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* k,
                                const void* v, int64_t first, const h2o_kv* kv);

#ifdef __cplusplus
}
#endif
