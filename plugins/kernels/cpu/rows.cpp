// The operators that only move, convert or blend rows: MemoryGather, CacheAppend and OnlineSoftmaxFusion.
#include <algorithm>
#include <cstring>

#include "context.h"
#include "fuse.h"
#include "stored_rows.h"

namespace h2o {
namespace {

constexpr int64_t kRowsTogether = 64;  // that one thread appends

// A score head's rows of the memory, as plain rows of k_mem [Hs, M, d] and v_mem [Hs, M, dv].
void gather_head(const h2o_cpu* context, const h2o_shape& shape, int64_t head, const h2o_kv& kv,
                 const int32_t* memory, int64_t slots, void* k_mem, void* v_mem) {
    const KeyRows rows = cache_rows(shape, head / (shape.score_heads / shape.kv_heads), kv, nullptr, kv.rows);
    const int64_t d = shape.head_size, dv = value_size(shape), size = element_size(shape.dtype);
    for (int64_t slot = 0; slot < slots; ++slot) {
        const int64_t row = memory[slot], to = (head * slots + slot) * size;
        convert(*context->kernels, rows.key(row), kv.dtype, rows.key_scale(row), d,
                static_cast<char*>(k_mem) + to * d, shape.dtype);
        convert(*context->kernels, rows.value(row), kv.dtype, rows.value_scale(row), dv,
                static_cast<char*>(v_mem) + to * dv, shape.dtype);
    }
}

// Row `from` of `in` [n, Hkv, d], keys or values, becomes row `place` of `out`, as the cache stores it.
void store_row(const KernelTable& kernels, const h2o_shape& shape, int64_t d, const void* in, int64_t from,
               const h2o_kv& kv, void* out, float* scales, int64_t place) {
    const int64_t width = shape.kv_heads * d;
    const char* const source = static_cast<const char*>(in) + from * width * element_size(shape.dtype);
    char* const target = static_cast<char*>(out) + place * width * element_size(kv.dtype);
    if (kv.dtype != H2O_I8) return convert(kernels, source, shape.dtype, 1.0f, width, target, kv.dtype);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
        scales[place * shape.kv_heads + head] =
            kernels.to_int8(source + head * d * element_size(shape.dtype), shape.dtype, d,
                            reinterpret_cast<int8_t*>(target) + head * d);
    }
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_online_softmax_fusion(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* o_a,
                                         const float* m_a, const float* l_a, const void* o_b,
                                         const float* m_b, const float* l_b, void* o, float* m, float* l) {
    const h2o_status status = h2o::check_shape(shape);
    if (status != H2O_OK) return status;
    if (context == nullptr || n < 0) return H2O_BAD_ARGUMENT;
    if (n == 0) return H2O_OK;
    if (!o_a || !m_a || !l_a || !o_b || !m_b || !l_b || !o || !m || !l) return H2O_BAD_ARGUMENT;
    const int64_t dv = h2o::value_size(*shape), row = dv * h2o::element_size(shape->dtype);
    return h2o::guarded(context, [&] {
        context->pool.each(n, [&](int64_t token, int) {
            for (int64_t i = token * shape->query_heads; i < (token + 1) * shape->query_heads; ++i) {
                const h2o::Fused state = h2o::fuse(m_a[i], l_a[i], m_b[i], l_b[i]);
                context->kernels->blend_row(
                    shape->dtype, dv, state.weight_a, static_cast<const char*>(o_a) + i * row, state.weight_b,
                    static_cast<const char*>(o_b) + i * row, static_cast<char*>(o) + i * row);
                m[i] = state.m;
                l[i] = state.l;
            }
        });
    });
}

h2o_status h2o_cpu_memory_gather(h2o_cpu* context, const h2o_shape* shape, int64_t slots, const h2o_kv* kv,
                                 const int32_t* memory, void* k_mem, void* v_mem) {
    if (const h2o_status status = h2o::check_heads(shape); status != H2O_OK) return status;
    if (context == nullptr || slots < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check(kv, slots > 0); status != H2O_OK) return status;
    if (slots == 0) return H2O_OK;
    if (!memory || !k_mem || !v_mem) return H2O_BAD_ARGUMENT;
    if (!h2o::rows_in_range(*kv, memory, shape->score_heads * slots)) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context, [&] {
        context->pool.each(shape->score_heads, [&](int64_t head, int) {
            h2o::gather_head(context, *shape, head, *kv, memory + head * slots, slots, k_mem, v_mem);
        });
    });
}

h2o_status h2o_cpu_cache_append(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* k,
                                const void* v, int64_t first, const h2o_kv* kv) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || n < 0 || first < 0 || first > INT64_MAX - n) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o::check_kv(kv, n > 0 ? first + n : 0); status != H2O_OK) return status;
    const bool latent = h2o_kv_latent(kv);
    if (n > 0 && (!k || (!latent && !v))) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context, [&] {
        const int64_t items = (n + h2o::kRowsTogether - 1) / h2o::kRowsTogether;
        context->pool.each(items, [&](int64_t item, int) {
            const int64_t begin = item * h2o::kRowsTogether;
            const int64_t end = std::min(n, begin + h2o::kRowsTogether);
            for (int64_t row = begin; row < end; ++row) {
                const int64_t place = h2o::place_of(*kv, first + row);
                h2o::store_row(*context->kernels, *shape, shape->head_size, k, row, *kv, kv->k, kv->k_scales,
                               place);
                if (latent) continue;
                h2o::store_row(*context->kernels, *shape, h2o::value_size(*shape), v, row, *kv, kv->v,
                               kv->v_scales, place);
            }
        });
    });
}
