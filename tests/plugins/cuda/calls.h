// The operators as functions with their arguments by place, as the tests here call them; bench/gpu_check
// calls those that calls.cpp puts into libh2o_cuda for it, and reads this file for their arguments.
#pragma once

#include "call_arguments.h"
#include "h2o/cuda.h"
#include "h2o/operator.h"

#ifndef H2O_CALL
#define H2O_CALL inline
#endif

// Partial softmax: normalised output o [n, Hq, dv] T, row maximum m [n, Hq], denominator l [n, Hq].
typedef struct h2o_cuda_state {
    void* o;
    float* m;
    float* l;
} h2o_cuda_state;

// Where a memory set goes, [Hs, M] each; the last three may be null.
typedef struct h2o_cuda_next_memory {
    int32_t* memory;
    int32_t* last;
    int32_t* set;
    float* set_scores;
} h2o_cuda_next_memory;

H2O_CALL h2o_status h2o_cuda_chunked_intra_attention(h2o_cuda_stream stream, const h2o_shape* shape,
                                                     int32_t n, int32_t chunk_size, const void* q,
                                                     const void* k, const void* v,
                                                     const h2o_cuda_state* state, float* colsum) {
    auto c = calls::on<h2o::calls::ChunkedIntraAttention>(stream, shape);
    c.n = n, c.chunk_size = chunk_size, c.q = q, c.k = k, c.v = v, c.colsum = colsum;
    if (state) c.o = state->o, c.m = state->m, c.l = state->l;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_memory_gather(h2o_cuda_stream stream, const h2o_shape* shape, int32_t slots,
                                           const h2o_kv* kv, const int32_t* memory, void* k_mem,
                                           void* v_mem) {
    auto c = calls::on<h2o::calls::MemoryGather>(stream, shape);
    c.M = slots;
    calls::read(c, kv);
    c.memory = memory, c.k_mem = k_mem, c.v_mem = v_mem;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_online_softmax_fusion(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                                   const h2o_cuda_state* a, const h2o_cuda_state* b,
                                                   const h2o_cuda_state* fused) {
    auto c = calls::on<h2o::calls::OnlineSoftmaxFusion>(stream, shape);
    c.n = n;
    if (a) c.o_a = a->o, c.m_a = a->m, c.l_a = a->l;
    if (b) c.o_b = b->o, c.m_b = b->m, c.l_b = b->l;
    if (fused) c.o = fused->o, c.m = fused->m, c.l = fused->l;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_score_update(h2o_cuda_stream stream, int32_t score_heads, int32_t slots,
                                          const int32_t* memory, const float* addend, int32_t replace,
                                          float* score) {
    h2o::calls::ScatterScores c;
    c.context = stream, c.Hs = score_heads, c.M = slots, c.memory = memory, c.values = addend,
    c.add = !replace, c.score = score;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_memory_attention(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                              int32_t slots, const void* q, const void* k_mem,
                                              const void* v_mem, const h2o_cuda_state* state, float* colsum,
                                              void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::MemoryAttention>(stream, shape);
    c.n = n, c.M = slots, c.q = q, c.k_mem = k_mem, c.v_mem = v_mem, c.colsum = colsum,
    c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    if (state) c.o = state->o, c.m = state->m, c.l = state->l;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_memory_fused_attention(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                                    int32_t slots, const void* q, const h2o_kv* kv,
                                                    const int32_t* memory, const h2o_cuda_state* intra,
                                                    const h2o_cuda_state* fused, float* colsum,
                                                    void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::MemoryFusedAttention>(stream, shape);
    c.n = n, c.M = slots, c.q = q;
    calls::read(c, kv);
    c.memory = memory, c.colsum = colsum, c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    if (intra) c.o_intra = intra->o, c.m_intra = intra->m, c.l_intra = intra->l;
    if (fused) c.o = fused->o;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_tiled_memory_attention(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                                    int32_t tile, int32_t slots, const void* q,
                                                    const h2o_kv* kv, const int32_t* memory,
                                                    const h2o_cuda_state* intra,
                                                    const h2o_cuda_state* fused) {
    auto c = calls::on<h2o::calls::TiledMemoryAttention>(stream, shape);
    c.n = n, c.tile = tile, c.M = slots, c.q = q;
    calls::read(c, kv);
    c.memory = memory;
    if (intra) c.o_intra = intra->o, c.m_intra = intra->m, c.l_intra = intra->l;
    if (fused) c.o = fused->o;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_candidate_score(h2o_cuda_stream stream, const h2o_shape* shape, int32_t window,
                                             int32_t n, int32_t slots, const void* q_window, const void* k,
                                             const h2o_kv* kv, const int32_t* memory, float* score_memory,
                                             float* score_chunk, void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::CachedCandidateScore>(stream, shape);
    c.w = window, c.n = n, c.M = slots, c.q_window = q_window, c.k = k;
    calls::read(c, kv);
    c.memory = memory, c.score_mem = score_memory, c.score_chunk = score_chunk, c.workspace = workspace,
    c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_candidate_score_gathered(h2o_cuda_stream stream, const h2o_shape* shape,
                                                      int32_t window, int32_t n, int32_t slots,
                                                      const void* q_window, const void* k, const void* k_mem,
                                                      float* score_memory, float* score_chunk,
                                                      void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::CandidateScore>(stream, shape);
    c.w = window, c.n = n, c.M = slots, c.q_window = q_window, c.k = k, c.k_mem = k_mem,
    c.score_mem = score_memory, c.score_chunk = score_chunk, c.workspace = workspace,
    c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_memory_select(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                           int32_t previous_slots, int32_t local, int32_t heavy,
                                           const float* score, const int32_t* memory,
                                           const int64_t* chunk_range, int32_t* memory_next) {
    h2o::calls::MemorySelect c;
    c.context = stream, c.Hs = score_heads, c.cap = capacity, c.Mp = previous_slots, c.local = local,
    c.score = score, c.memory = memory, c.chunk_range = chunk_range, c.memory_next = memory_next,
    c.M = local + heavy;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_memory_step(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                         int32_t previous_slots, int32_t local, int32_t heavy, int32_t start,
                                         int32_t stop, const int32_t* memory, const float* values,
                                         int32_t replace, float* score, const h2o_cuda_next_memory* next) {
    h2o::calls::MemoryStep c;
    c.context = stream, c.Hs = score_heads, c.cap = capacity, c.Mp = previous_slots, c.local = local,
    c.start = start, c.stop = stop, c.memory = memory, c.values = values, c.add = !replace, c.score = score,
    c.M = local + heavy;
    if (next)
        c.memory_next = next->memory, c.last = next->last, c.boundary = next->set,
        c.scores = next->set_scores;
    return h2o::cuda::run(c);
}

// A tile has a list of `listed` candidates; with none, it looks at all rows before its chunk. Neighbours of a
// row count within half a stride, as in the runtime.
H2O_CALL h2o_status h2o_cuda_query_select(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                          int32_t tile, int32_t stride, int32_t listed, int32_t local,
                                          int32_t heavy, const void* q, const h2o_kv* kv,
                                          const int32_t* candidates, const int64_t* past,
                                          const int64_t* first, int32_t* memory_next, void* workspace,
                                          size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::QuerySelect>(stream, shape);
    c.n = n, c.tile = tile, c.t = (n + tile - 1) / tile, c.stride = stride, c.reach = stride / 2,
    c.Mp = listed, c.local = local, c.M = local + heavy, c.Hl = shape->score_heads, c.q = q;
    calls::read(c, kv);
    c.candidates = candidates, c.past = past, c.first = first, c.memory_next = memory_next,
    c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

// A list of local + heavy candidates for each tile.
H2O_CALL h2o_status h2o_cuda_block_select(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                          int32_t tile, int32_t stride, int32_t block, int32_t local,
                                          int32_t heavy, const void* q, const h2o_kv* kv, const int64_t* past,
                                          int32_t* candidates, void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::BlockSelect>(stream, shape);
    c.n = n, c.tile = tile, c.t = (n + tile - 1) / tile, c.stride = stride, c.block_size = block;
    c.local = local, c.M = local + heavy, c.q = q;
    calls::read(c, kv);
    c.past = past, c.candidates = candidates, c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_cached_attention(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                              const void* q, const h2o_kv* kv, const int64_t* length, void* o,
                                              void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::CachedAttention>(stream, shape);
    c.n = n, c.q = q;
    calls::read(c, kv);
    c.length = length, c.o = o, c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_step_attention(h2o_cuda_stream stream, const h2o_shape* shape, const void* q,
                                            const void* k, const void* v, const h2o_kv* kv,
                                            const int64_t* length, void* o, uint32_t* arrivals,
                                            void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::StepAttention>(stream, shape);
    c.q = q, c.k = k, c.v = v;
    calls::read(c, kv);
    c.length = length, c.o = o, c.counters = arrivals, c.workspace = workspace,
    c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_step_rows_attention(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                                 const void* q, const void* k, const void* v,
                                                 const h2o_kv* kv, const int64_t* lengths,
                                                 const int64_t* caches, const float* sinks, void* o,
                                                 uint32_t* arrivals, void* workspace,
                                                 size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::StepRowsAttention>(stream, shape);
    c.n = n, c.q = q, c.k = k, c.v = v;
    calls::read(c, kv);
    c.lengths = lengths, c.caches = caches, c.sinks = sinks, c.o = o, c.counters = arrivals;
    c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_page_bounds(h2o_cuda_stream stream, const h2o_shape* shape, const h2o_kv* kv,
                                         const int64_t* start, const int64_t* length, int32_t most_rows,
                                         int32_t page_size, int32_t pages, const float* k_min,
                                         const float* k_max, float* min_next, float* max_next) {
    auto c = calls::on<h2o::calls::PageBounds>(stream, shape);
    calls::read(c, kv);
    c.start = start, c.length = length, c.page_size = page_size, c.Nb = pages, c.k_min = k_min,
    c.k_max = k_max, c.k_min_next = min_next, c.k_max_next = max_next;
    const int64_t first = 0, last = most_rows;  // what counts is how many
    c.start_on_host = &first, c.length_on_host = &last;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_page_select(h2o_cuda_stream stream, const h2o_shape* shape, const void* q,
                                         const int64_t* length, int32_t page_size, int32_t pages,
                                         const float* k_min, const float* k_max, int32_t budget,
                                         int32_t* page_list, void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::PageSelect>(stream, shape);
    c.q = q, c.length = length, c.page_size = page_size, c.Nb = pages, c.k_min = k_min, c.k_max = k_max,
    c.M = budget, c.page_list = page_list, c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_page_attention(h2o_cuda_stream stream, const h2o_shape* shape, const void* q,
                                            const h2o_kv* kv, const int64_t* length, int32_t page_size,
                                            int32_t budget, const int32_t* page_list, void* o,
                                            void* workspace, size_t workspace_bytes) {
    auto c = calls::on<h2o::calls::PageAttention>(stream, shape);
    c.q = q;
    calls::read(c, kv);
    c.length = length, c.page_size = page_size, c.M = budget, c.page_list = page_list, c.o = o,
    c.workspace = workspace, c.workspace_bytes = workspace_bytes;
    return h2o::cuda::run(c);
}

H2O_CALL h2o_status h2o_cuda_cache_append(h2o_cuda_stream stream, const h2o_shape* shape, int32_t n,
                                          const void* k, const void* v, const int64_t* position,
                                          int64_t first, const h2o_kv* kv) {
    auto c = calls::on<h2o::calls::CacheAppend>(stream, shape);
    c.n = n, c.k = k, c.v = v, c.at = position;
    calls::read(c, kv);
    c.first = static_cast<int32_t>(first);
    return h2o::cuda::run(c);
}

H2O_CALL size_t h2o_cuda_memory_attention_workspace(const h2o_shape* shape, int32_t n, int32_t slots) {
    auto c = calls::on<h2o::calls::MemoryAttention>(nullptr, shape);
    c.n = n, c.M = slots;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_candidate_score_workspace(const h2o_shape* shape, int32_t window, int32_t n,
                                                   int32_t slots) {
    auto c = calls::on<h2o::calls::CandidateScore>(nullptr, shape);
    c.w = window, c.n = n, c.M = slots;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_query_select_workspace(const h2o_shape* shape, int32_t n, int32_t tile,
                                                int32_t stride, int32_t listed, int32_t capacity) {
    auto c = calls::on<h2o::calls::QuerySelect>(nullptr, shape);
    c.n = n, c.tile = tile, c.stride = stride, c.Mp = listed, c.cap = capacity;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_block_select_workspace(const h2o_shape* shape, int32_t n, int32_t tile,
                                                int32_t stride, int32_t block, int32_t capacity) {
    auto c = calls::on<h2o::calls::BlockSelect>(nullptr, shape);
    c.n = n, c.tile = tile, c.stride = stride, c.block_size = block, c.cap = capacity;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_cached_attention_workspace(const h2o_shape* shape, int32_t n, int32_t capacity) {
    auto c = calls::on<h2o::calls::CachedAttention>(nullptr, shape);
    c.n = n, c.cap = capacity;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_step_rows_attention_workspace(const h2o_shape* shape, int32_t capacity) {
    auto c = calls::on<h2o::calls::StepRowsAttention>(nullptr, shape);
    c.cap = capacity;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_page_select_workspace(const h2o_shape* shape, int32_t pages) {
    auto c = calls::on<h2o::calls::PageSelect>(nullptr, shape);
    c.Nb = pages;
    return h2o::cuda::workspace(c);
}

H2O_CALL size_t h2o_cuda_page_attention_workspace(const h2o_shape* shape, int32_t page_size, int32_t budget) {
    auto c = calls::on<h2o::calls::PageAttention>(nullptr, shape);
    c.page_size = page_size, c.M = budget;
    return h2o::cuda::workspace(c);
}
