// PageBounds: minimum and maximum of each key channel over the rows of every page, updated as rows are
// written.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

struct Bounds {
    const h2o_shape& shape;
    const h2o_kv& kv;
    int64_t start, length;  // the new cache rows: [start, length)
    int64_t page_size;      // cache rows of a page
    float *k_min, *k_max;   // [Nb, Hkv, d] in and out: by page, extremes of the keys' numbers

    int64_t width() const { return shape.kv_heads * shape.head_size; }
    int64_t first_page() const { return start / page_size; }
    int64_t pages() const { return (length + page_size - 1) / page_size - first_page(); }

    // The first row of a page overwrites the old values.
    void page(const KernelTable* kernels, int64_t index, float* row_floats) const {
        const int64_t first = index * page_size, stop = std::min(length, first + page_size);
        float* const low = k_min + index * width();
        float* const high = k_max + index * width();
        for (int64_t row = std::max(start, first); row < stop; ++row) {
            read_row(*kernels, shape, kv, kv.k, kv.k_scales, row, row_floats);
            if (row == first) {
                std::copy_n(row_floats, width(), low);
                std::copy_n(row_floats, width(), high);
                continue;
            }
            for (int64_t i = 0; i < width(); ++i) {
                low[i] = row_floats[i] < low[i] ? row_floats[i] : low[i];
                high[i] = row_floats[i] > high[i] ? row_floats[i] : high[i];
            }
        }
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::PageBounds& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || *call.start < 0 || *call.length < *call.start || call.page_size <= 0)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.kv, *call.length); status != H2O_OK) return status;
    if (*call.start == *call.length) return H2O_OK;
    if (!call.k_min_next || !call.k_max_next ||
        call.Nb < (*call.length + call.page_size - 1) / call.page_size)
        return H2O_BAD_ARGUMENT;
    const Bounds op{call.shape,     *call.kv,        *call.start,    *call.length,
                    call.page_size, call.k_min_next, call.k_max_next};
    return guarded(context, [&] {
        const size_t bytes = static_cast<size_t>(op.width()) * sizeof(float);
        for (Arena& arena : context->arenas) arena.at_least(bytes);
        context->pool.each(op.pages(), [&](int64_t index, int thread) {
            Arena& buffer = context->arenas[static_cast<size_t>(thread)];
            op.page(context->kernels, op.first_page() + index, reinterpret_cast<float*>(buffer.at_least(0)));
        });
    });
}

}  // namespace h2o::cpu
