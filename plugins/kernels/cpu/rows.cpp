// The operators that only move, convert or combine rows: MemoryGather, CacheAppend and OnlineSoftmaxFusion.
#include <algorithm>
#include <cstring>

#include "context.h"
#include "fuse.h"
#include "stored_rows.h"

namespace h2o {
namespace {

constexpr int64_t kRowsTogether = 64;  // that one thread appends

// A score head's memory set rows, gathered into k_mem [Hs, M, d] and v_mem [Hs, M, dv].
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

// Stores row `from` of `in` [n, Hkv, d], keys or values, as row `place` of `out` in the cache's format.
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

namespace h2o::cpu {

h2o_status run(const calls::OnlineSoftmaxFusion& call) {
    h2o_cpu* const context = cpu_of(call);
    const h2o_status status = check_shape(&call.shape);
    if (status != H2O_OK) return status;
    if (context == nullptr || call.n < 0) return H2O_BAD_ARGUMENT;
    if (call.n == 0) return H2O_OK;
    if (!call.o_a || !call.m_a || !call.l_a || !call.o_b || !call.m_b || !call.l_b || !call.o || !call.m ||
        !call.l)
        return H2O_BAD_ARGUMENT;
    const int64_t dv = value_size(call.shape), row = dv * element_size(call.shape.dtype);
    return guarded(context, [&] {
        context->pool.each(call.n, [&](int64_t token, int) {
            for (int64_t i = token * call.shape.query_heads; i < (token + 1) * call.shape.query_heads; ++i) {
                const Fused state = fuse(call.m_a[i], call.l_a[i], call.m_b[i], call.l_b[i]);
                context->kernels->blend_row(call.shape.dtype, dv, state.weight_a,
                                            static_cast<const char*>(call.o_a) + i * row, state.weight_b,
                                            static_cast<const char*>(call.o_b) + i * row,
                                            static_cast<char*>(call.o) + i * row);
                call.m[i] = state.m;
                call.l[i] = state.l;
            }
        });
    });
}

h2o_status run(const calls::MemoryGather& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.M < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check(call.kv, call.M > 0); status != H2O_OK) return status;
    if (call.M == 0) return H2O_OK;
    if (!call.memory || !call.k_mem || !call.v_mem) return H2O_BAD_ARGUMENT;
    if (!rows_in_range(*call.kv, call.memory, int64_t{call.Hs} * call.M)) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] {
        context->pool.each(call.shape.score_heads, [&](int64_t head, int) {
            gather_head(context, call.shape, head, *call.kv, call.memory + head * call.M, call.M, call.k_mem,
                        call.v_mem);
        });
    });
}

h2o_status run(const calls::CacheAppend& call) {
    h2o_cpu* const context = cpu_of(call);
    const int64_t first = call.at != nullptr ? *call.at : call.first;
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || first < 0 || first > INT64_MAX - call.n) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, call.n > 0 ? first + call.n : 0); status != H2O_OK)
        return status;
    const bool latent = h2o_kv_latent(call.kv);
    if (call.n > 0 && (!call.k || (!latent && !call.v))) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] {
        const int64_t items = (call.n + kRowsTogether - 1) / kRowsTogether;
        context->pool.each(items, [&](int64_t item, int) {
            const int64_t begin = item * kRowsTogether;
            const int64_t end = std::min<int64_t>(call.n, begin + kRowsTogether);
            for (int64_t row = begin; row < end; ++row) {
                const int64_t place = place_of(*call.kv, first + row);
                store_row(*context->kernels, call.shape, call.shape.head_size, call.k, row, *call.kv,
                          call.kv->k, call.kv->k_scales, place);
                if (latent) continue;
                store_row(*context->kernels, call.shape, value_size(call.shape), call.v, row, *call.kv,
                          call.kv->v, call.kv->v_scales, place);
            }
        });
    });
}

}  // namespace h2o::cpu
