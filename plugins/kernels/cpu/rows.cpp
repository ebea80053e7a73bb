// CacheAppend: new rows, in the cache's format.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

constexpr int64_t kRowsTogether = 64;  // that one thread appends

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
