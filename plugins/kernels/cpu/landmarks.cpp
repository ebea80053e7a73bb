// LandmarkUpdate: means of blocks of keys and of values, updated as rows are written.
//
// A row changes its block's mean by (row - mean) / count, so rows written one by one and all at once give the
// same bits.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

struct Landmarks {
    const h2o_shape& shape;
    const h2o_kv& kv;
    int64_t start, length;   // the new cache rows: [start, length)
    int64_t block_size;      // cache rows of a block
    float *k_mean, *v_mean;  // [Nb, Hkv, d] in and out: by block, means of keys and of values

    int64_t width() const { return shape.kv_heads * shape.head_size; }
    int64_t first_block() const { return start / block_size; }
    int64_t blocks() const { return (length + block_size - 1) / block_size - first_block(); }

    void block(const KernelTable* kernels, int64_t index) const {
        const int64_t first = index * block_size, stop = std::min(length, first + block_size);
        for (int64_t row = std::max(start, first); row < stop; ++row) {
            const float share = 1.0f / static_cast<float>(row - first + 1);
            add(kernels, kv.k, kv.k_scales, row, share, k_mean + index * width());
            add(kernels, kv.v, kv.v_scales, row, share, v_mean + index * width());
        }
    }

    // The first row of a block overwrites the old value.
    void add(const KernelTable* kernels, const void* rows, const float* scales, int64_t row, float share,
             float* mean) const {
        const int64_t place = place_of(kv, row), d = shape.head_size;
        const char* const from = static_cast<const char*>(rows) + place * width() * element_size(kv.dtype);
        if (scales == nullptr) return kernels->average_row(from, kv.dtype, width(), 1.0f, share, mean);
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
            const float scale = scales[place * shape.kv_heads + head];
            kernels->average_row(from + head * d, kv.dtype, d, scale, share, mean + head * d);
        }
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::LandmarkUpdate& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || *call.start < 0 || *call.length < *call.start || call.block_size <= 0)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (*call.start == *call.length) return H2O_OK;
    if (!call.k_mean_next || !call.v_mean_next ||
        call.Nb < (*call.length + call.block_size - 1) / call.block_size)
        return H2O_BAD_ARGUMENT;
    const Landmarks op{call.shape,      *call.kv,         *call.start,     *call.length,
                       call.block_size, call.k_mean_next, call.v_mean_next};
    return guarded(context, [&] {
        context->pool.each(op.blocks(),
                           [&](int64_t index, int) { op.block(context->kernels, op.first_block() + index); });
    });
}

}  // namespace h2o::cpu
