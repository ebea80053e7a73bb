// The operators as functions with their arguments by place, as the tests here call them.
#pragma once

#include <type_traits>

#include "h2o/cpu.h"
#include "h2o/operator.h"

namespace calls {

template <class Call, class = void>
constexpr bool has_score_heads = false;
template <class Call>
constexpr bool has_score_heads<Call, std::void_t<decltype(Call::Hs)>> = true;

// A call of an operator, with what all of them have.
template <class Call>
Call on(h2o_cpu* context, const h2o_shape* shape, const h2o_kv* kv = nullptr) {
    Call c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.kv = kv;
    if constexpr (has_score_heads<Call>) c.Hs = c.shape.score_heads;
    return c;
}

}  // namespace calls

inline h2o_status h2o_cpu_chunked_intra_attention(h2o_cpu* context, const h2o_shape* shape, int32_t n,
                                                  int32_t chunk_size, const void* q, const void* k,
                                                  const void* v, void* o, float* m, float* l, float* colsum) {
    auto c = calls::on<h2o::calls::ChunkedIntraAttention>(context, shape);
    c.n = n, c.chunk_size = chunk_size, c.q = q, c.k = k, c.v = v;
    c.o = o, c.m = m, c.l = l, c.colsum = colsum;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_cached_attention(h2o_cpu* context, const h2o_shape* shape, int32_t n, const void* q,
                                           const h2o_kv* kv, int64_t length, void* o) {
    auto c = calls::on<h2o::calls::CachedAttention>(context, shape, kv);
    c.n = n, c.q = q, c.length = &length, c.o = o;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_prompt_attention(h2o_cpu* context, const h2o_shape* shape, int32_t n, const void* q,
                                           const h2o_kv* kv, int64_t length, void* o, float* m, float* l) {
    auto c = calls::on<h2o::calls::PromptAttention>(context, shape, kv);
    c.n = n, c.q = q, c.length = &length, c.o = o, c.m = m, c.l = l;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_candidate_score(h2o_cpu* context, const h2o_shape* shape, int32_t w, int32_t n,
                                          int32_t slots, const void* q_window, const void* k,
                                          const h2o_kv* kv, const int32_t* memory, float* score_memory,
                                          float* score_chunk) {
    auto c = calls::on<h2o::calls::CachedCandidateScore>(context, shape, kv);
    c.w = w, c.n = n, c.M = slots, c.q_window = q_window, c.k = k, c.memory = memory;
    c.score_mem = score_memory, c.score_chunk = score_chunk;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_cache_append(h2o_cpu* context, const h2o_shape* shape, int32_t n, const void* k,
                                       const void* v, int64_t first, const h2o_kv* kv) {
    auto c = calls::on<h2o::calls::CacheAppend>(context, shape, kv);
    c.n = n, c.k = k, c.v = v, c.at = &first;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_memory_fused_attention(h2o_cpu* context, const h2o_shape* shape, int32_t n,
                                                 int32_t slots, const void* q, const h2o_kv* kv,
                                                 const int32_t* memory, void* o, float* m, float* l,
                                                 float* colsum) {
    auto c = calls::on<h2o::calls::MemoryFusedAttention>(context, shape, kv);
    c.n = n, c.M = slots, c.q = q, c.memory = memory, c.colsum = colsum;
    c.o_intra = c.o = o, c.m_intra = m, c.l_intra = l;
    return h2o::cpu::run(c);
}
