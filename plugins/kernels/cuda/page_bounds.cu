// PageBounds: smallest and largest number of each key channel over the rows of every page, kept up to date as
// rows are written. Floor: the new rows, read once; a thread owns one channel of a page.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

struct Pages {
    const int64_t *start, *length;
    int size, count, width, rows;  // width: numbers of one row, all heads together; rows: of the cache
    int d;
    const float* scales;  // of integers
    bool in_place;        // pages without new rows need not be copied
};

template <class S>
__global__ void __launch_bounds__(kThreads)
    update_bounds(Pages pages, const S* k, const float* k_min, const float* k_max, float* min_next,
                  float* max_next) {
    const int column = blockIdx.x * kThreads + threadIdx.x;
    if (column >= pages.width) return;
    const int64_t start = bounded(*pages.start, 0, pages.rows),
                  length = bounded(*pages.length, 0, pages.rows);
    const int64_t page = blockIdx.y + (pages.in_place ? start / pages.size : 0);
    if (page >= pages.count) return;
    const int64_t first = page * pages.size, to = page * pages.width + column;
    const int64_t begin = max(start, first), stop = min(length, first + pages.size);
    if (pages.in_place && begin >= stop) return;
    float low = k_min[to], high = k_max[to];
    for (int64_t row = begin; row < stop; ++row) {
        const int64_t at = row * pages.width + column;
        const float x = scaled(k, at, pages.scales, pages.d);
        // The first row of a page replaces what was there, which may be anything.
        low = row == first ? x : fminf(low, x);
        high = row == first ? x : fmaxf(high, x);
    }
    min_next[to] = low;
    max_next[to] = high;
}

}  // namespace
}  // namespace h2o::cuda

using namespace h2o::cuda;

extern "C" h2o_status h2o_cuda_page_bounds(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                           const h2o_kv* kv, const int64_t* start, const int64_t* length,
                                           int32_t most_rows, int32_t page_size, int32_t pages,
                                           const float* k_min, const float* k_max, float* min_next,
                                           float* max_next) {
    if (const h2o_status status = check_alike(shape); status != H2O_OK) return status;
    if (most_rows <= 0 || page_size <= 0 || pages <= 0) return H2O_BAD_ARGUMENT;
    if (any_null(start, length) || any_null(k_min, k_max, min_next, max_next)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(*shape, kv, 1); status != H2O_OK) return status;
    const bool in_place = min_next == k_min && max_next == k_max;
    const int width = shape->kv_heads * shape->head_size;
    const int64_t touched = (static_cast<int64_t>(most_rows) + page_size - 2) / page_size + 1;
    const int64_t height = in_place && touched < pages ? touched : pages;
    const Pages args = {
        start,        length,  page_size, pages, width, static_cast<int>(kv->rows), shape->head_size,
        kv->k_scales, in_place};
    const dim3 grid(ceil_div(width, kThreads), static_cast<unsigned>(height), 1);
    return with_stored<float>(*kv, [&](auto zero) {
        using S = decltype(zero);
        return launch(update_bounds<S>, grid, kThreads, 0, stream, args, static_cast<const S*>(kv->k), k_min,
                      k_max, min_next, max_next);
    });
}
