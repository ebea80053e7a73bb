// The operators that only move or blend rows: MemoryGather and OnlineSoftmaxFusion.
#include <algorithm>
#include <cstring>

#include "context.h"
#include "fuse.h"

h2o_status h2o_cpu_online_softmax_fusion(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* o_a,
                                         const float* m_a, const float* l_a, const void* o_b,
                                         const float* m_b, const float* l_b, void* o, float* m, float* l) {
    const h2o_status status = h2o::check_shape(shape);
    if (status != H2O_OK) return status;
    if (context == nullptr || n < 0) return H2O_BAD_ARGUMENT;
    if (n == 0) return H2O_OK;
    if (!o_a || !m_a || !l_a || !o_b || !m_b || !l_b || !o || !m || !l) return H2O_BAD_ARGUMENT;
    const int64_t row = shape->head_size * h2o::element_size(shape->dtype);
    return h2o::guarded(context, [&] {
        context->pool.each(n, [&](int64_t token, int) {
            for (int64_t i = token * shape->query_heads; i < (token + 1) * shape->query_heads; ++i) {
                const h2o::Fused state = h2o::fuse(m_a[i], l_a[i], m_b[i], l_b[i]);
                context->kernels->blend_row(
                    shape->dtype, shape->head_size, state.weight_a, static_cast<const char*>(o_a) + i * row,
                    state.weight_b, static_cast<const char*>(o_b) + i * row, static_cast<char*>(o) + i * row);
                m[i] = state.m;
                l[i] = state.l;
            }
        });
    });
}

h2o_status h2o_cpu_memory_gather(h2o_cpu* context, const h2o_shape* shape, int64_t slots, const h2o_kv* kv,
                                 const int32_t* memory, void* k_mem, void* v_mem) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || slots < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check(kv, slots > 0); status != H2O_OK) return status;
    if (slots == 0) return H2O_OK;
    if (!memory || !k_mem || !v_mem) return H2O_BAD_ARGUMENT;
    if (!h2o::in_range(memory, shape->score_heads * slots, kv->rows)) return H2O_BAD_ARGUMENT;
    const int64_t row = shape->head_size * h2o::element_size(shape->dtype);
    const size_t bytes = static_cast<size_t>(row);
    return h2o::guarded(context, [&] {
        context->pool.each(shape->score_heads, [&](int64_t head, int) {
            const int64_t kv_head = head / (shape->score_heads / shape->kv_heads);
            for (int64_t slot = head * slots; slot < (head + 1) * slots; ++slot) {
                const int64_t from = (memory[slot] * shape->kv_heads + kv_head) * row;
                std::memcpy(static_cast<char*>(k_mem) + slot * row, static_cast<const char*>(kv->k) + from,
                            bytes);
                std::memcpy(static_cast<char*>(v_mem) + slot * row, static_cast<const char*>(kv->v) + from,
                            bytes);
            }
        });
    });
}
