// PageBounds: smallest and largest number of each key channel over the rows of every page, kept up to date as
// rows are written.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

struct Bounds {
    const h2o_shape& shape;
    const h2o_kv& kv;
    int64_t start, length, page_size;
    float *k_min, *k_max;

    int64_t width() const { return shape.kv_heads * shape.head_size; }
    int64_t first_page() const { return start / page_size; }
    int64_t pages() const { return (length + page_size - 1) / page_size - first_page(); }

    // The first row of a page replaces what was there.
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

h2o_status h2o_cpu_page_bounds(h2o_cpu* context, const h2o_shape* shape, const h2o_kv* kv, int64_t start,
                               int64_t length, int64_t page_size, int64_t pages, float* k_min, float* k_max) {
    if (const h2o_status status = h2o::check_alike(shape); status != H2O_OK) return status;
    if (context == nullptr || start < 0 || length < start || page_size <= 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o::check_keys(kv, length); status != H2O_OK) return status;
    if (start == length) return H2O_OK;
    if (!k_min || !k_max || pages < (length + page_size - 1) / page_size) return H2O_BAD_ARGUMENT;
    const h2o::Bounds op{*shape, *kv, start, length, page_size, k_min, k_max};
    return h2o::guarded(context, [&] {
        const size_t bytes = static_cast<size_t>(op.width()) * sizeof(float);
        for (h2o::Arena& arena : context->own) arena.at_least(bytes);
        context->pool.each(op.pages(), [&](int64_t index, int thread) {
            h2o::Arena& own = context->own[static_cast<size_t>(thread)];
            op.page(context->kernels, op.first_page() + index, reinterpret_cast<float*>(own.at_least(0)));
        });
    });
}
