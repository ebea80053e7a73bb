// The operators as functions with their arguments by place, as the tests here call them.
#pragma once

#include "h2o/cpu.h"
#include "h2o/operator.h"

inline h2o_status h2o_cpu_chunked_intra_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n,
                                                  int64_t chunk_size, const void* q, const void* k,
                                                  const void* v, void* o, float* m, float* l, float* colsum) {
    h2o::calls::ChunkedIntraAttention c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.n = static_cast<int32_t>(n);
    c.chunk_size = static_cast<int32_t>(chunk_size);
    c.q = q;
    c.k = k;
    c.v = v;
    c.o = o;
    c.m = m;
    c.l = l;
    c.colsum = colsum;
    c.Hs = c.shape.score_heads;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_cached_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* q,
                                           const h2o_kv* kv, int64_t length, void* o) {
    h2o::calls::CachedAttention c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.n = static_cast<int32_t>(n);
    c.q = q;
    c.kv = kv;
    c.length = &length;
    c.o = o;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_prompt_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* q,
                                           const h2o_kv* kv, int64_t length, void* o, float* m, float* l) {
    h2o::calls::PromptAttention c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.n = static_cast<int32_t>(n);
    c.q = q;
    c.kv = kv;
    c.length = &length;
    c.o = o;
    c.m = m;
    c.l = l;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_candidate_score(h2o_cpu* context, const h2o_shape* shape, int64_t w, int64_t n,
                                          int64_t slots, const void* q_window, const void* k,
                                          const h2o_kv* kv, const int32_t* memory, float* score_memory,
                                          float* score_chunk) {
    h2o::calls::CachedCandidateScore c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.w = static_cast<int32_t>(w);
    c.n = static_cast<int32_t>(n);
    c.M = static_cast<int32_t>(slots);
    c.q_window = q_window;
    c.k = k;
    c.kv = kv;
    c.memory = memory;
    c.score_mem = score_memory;
    c.score_chunk = score_chunk;
    c.Hs = c.shape.score_heads;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_landmark_update(h2o_cpu* context, const h2o_shape* shape, const h2o_kv* kv,
                                          int64_t start, int64_t length, int64_t block_size, int64_t blocks,
                                          float* k_mean, float* v_mean) {
    h2o::calls::LandmarkUpdate c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.kv = kv;
    c.start = &start;
    c.length = &length;
    c.block_size = static_cast<int32_t>(block_size);
    c.Nb = static_cast<int32_t>(blocks);
    c.k_mean_next = k_mean;
    c.v_mean_next = v_mean;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_cache_append(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* k,
                                       const void* v, int64_t first, const h2o_kv* kv) {
    h2o::calls::CacheAppend c;
    c.context = context;
    c.shape = shape ? *shape : h2o_shape{};
    c.n = static_cast<int32_t>(n);
    c.k = k;
    c.v = v;
    c.kv = kv;
    c.at = &first;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_memory_select(h2o_cpu* context, int64_t score_heads, int64_t cap,
                                        const float* score, int64_t previous_slots, const int32_t* memory,
                                        int64_t start, int64_t stop, int64_t local, int64_t slots,
                                        int32_t* out) {
    h2o::calls::MemorySelect c;
    c.context = context;
    c.Hs = static_cast<int32_t>(score_heads);
    c.cap = static_cast<int32_t>(cap);
    c.score = score;
    c.Mp = static_cast<int32_t>(previous_slots);
    c.memory = memory;
    c.local = static_cast<int32_t>(local);
    c.M = static_cast<int32_t>(slots);
    c.memory_next = out;
    const int64_t range[] = {start, stop};
    c.chunk_range = range;
    return h2o::cpu::run(c);
}

inline h2o_status h2o_cpu_memory_fused_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n,
                                                 int64_t tile, int64_t slots, const void* q, const h2o_kv* kv,
                                                 const int32_t* memory, void* o, float* m, float* l,
                                                 float* colsum) {
    const auto fill = [&](auto& c) {
        c.context = context;
        c.shape = *shape;
        c.n = static_cast<int32_t>(n);
        c.M = static_cast<int32_t>(slots);
        c.q = q;
        c.kv = kv;
        c.memory = memory;
        c.o_intra = c.o = o;
        c.m_intra = m;
        c.l_intra = l;
    };
    if (tile >= n) {
        h2o::calls::MemoryFusedAttention c;
        fill(c);
        c.Hs = shape->score_heads;
        c.colsum = colsum;
        return h2o::cpu::run(c);
    }
    h2o::calls::TiledMemoryAttention c;
    fill(c);
    c.tile = static_cast<int32_t>(tile);
    return h2o::cpu::run(c);
}
