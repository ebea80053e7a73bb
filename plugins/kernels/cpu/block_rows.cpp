// LandmarkUpdate and PageBounds: what is known of a block of rows, updated as rows are written: means of its
// keys and of its values, or the least and the largest of each number of its keys.
//
// A row changes its block's mean by (row - mean) / count, so rows written one by one and all at once give the
// same bits.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

// The new cache rows [start, length), in blocks of `size`; whatever is known of a block is a row [Hkv, d].
template <class Call>
struct Blocks {
    h2o_cpu* context;
    const Call& call;
    int64_t size;

    int64_t width() const { return call.shape.kv_heads * call.shape.head_size; }

    h2o_status check() const {
        if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
        return context == nullptr || *call.start < 0 || *call.length < *call.start || size <= 0
                   ? H2O_BAD_ARGUMENT
                   : H2O_OK;
    }

    // fold(row, place, known, scratch) for every row: its place within its block, the block's first number of
    // what is known, and memory for a row's floats. The first row of a block overwrites the old values.
    template <class Fold>
    h2o_status run(const float* low, const float* high, Fold fold) const {
        if (*call.start == *call.length) return H2O_OK;
        if (!low || !high || call.Nb < (*call.length + size - 1) / size) return H2O_BAD_ARGUMENT;
        return guarded(context, [&] {
            const auto floats = carve_own(context, [&](Carver& own) { return own.take<float>(width()); });
            const int64_t begin = *call.start / size, end = (*call.length + size - 1) / size;
            context->pool.each(end - begin, [&](int64_t index, int thread) {
                const int64_t block = begin + index, first = block * size;
                const int64_t stop = std::min(*call.length, first + size);
                float* const scratch = floats(thread);
                for (int64_t row = std::max(*call.start, first); row < stop; ++row)
                    fold(row, row - first, block * width(), scratch);
            });
        });
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::LandmarkUpdate& call) {
    h2o_cpu* const context = cpu_of(call);
    const Blocks<calls::LandmarkUpdate> blocks{context, call, call.block_size};
    if (const h2o_status status = blocks.check(); status != H2O_OK) return status;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    const auto add = [&](const void* rows, const float* scales, int64_t row, int64_t place, float* mean,
                         float* scratch) {
        const float share = 1.0f / static_cast<float>(place + 1);
        const float* const floats =
            read_row(*context->kernels, call.shape, *call.kv, rows, scales, row, scratch);
        context->kernels->blend_row(H2O_F32, blocks.width(), share, floats, 1.0f - share, mean, mean);
    };
    return blocks.run(call.k_mean_next, call.v_mean_next,
                      [&](int64_t row, int64_t place, int64_t at, float* scratch) {
                          add(call.kv->k, call.kv->k_scales, row, place, call.k_mean_next + at, scratch);
                          add(call.kv->v, call.kv->v_scales, row, place, call.v_mean_next + at, scratch);
                      });
}

h2o_status run(const calls::PageBounds& call) {
    h2o_cpu* const context = cpu_of(call);
    const Blocks<calls::PageBounds> pages{context, call, call.page_size};
    if (const h2o_status status = pages.check(); status != H2O_OK) return status;
    if (const h2o_status status = check_keys(call.kv, *call.length); status != H2O_OK) return status;
    return pages.run(call.k_min_next, call.k_max_next,
                     [&](int64_t row, int64_t place, int64_t at, float* scratch) {
                         float *const low = call.k_min_next + at, *const high = call.k_max_next + at;
                         const float* const keys = read_row(*context->kernels, call.shape, *call.kv,
                                                            call.kv->k, call.kv->k_scales, row, scratch);
                         if (place == 0) {
                             std::copy_n(keys, pages.width(), low);
                             std::copy_n(keys, pages.width(), high);
                             return;
                         }
                         for (int64_t i = 0; i < pages.width(); ++i) {
                             low[i] = keys[i] < low[i] ? keys[i] : low[i];
                             high[i] = keys[i] > high[i] ? keys[i] : high[i];
                         }
                     });
}

}  // namespace h2o::cpu
