// PageBounds: minimum and maximum of each key channel over the rows of every page, updated as rows are
// written.
//
// Floor: the new rows, read once; a thread owns one channel of a page.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

struct Pages {
    const int64_t *start, *length;  // [] on the device: the new cache rows are [start, length)
    int size;                       // cache rows of a page
    int count;                      // Nb: pages that the bounds have room for
    int width;                      // elements of one row, all heads together
    int rows;                       // of the cache
    int d;                          // elements of one head
    const float* scales;            // [rows, Hkv], of integers
    bool in_place;                  // pages without new rows keep their values
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
        // The first row of a page overwrites the old value, which is arbitrary.
        low = row == first ? x : fminf(low, x);
        high = row == first ? x : fmaxf(high, x);
    }
    min_next[to] = low;
    max_next[to] = high;
}

// The number of rows from `start` to `length` if the host knows it; 0: none. If only the device knows both,
// the call is a decode step with one row.
int32_t most_rows_of(const calls::PageBounds& call, bool in_place) {
    if (call.start_on_host && call.length_on_host)
        return static_cast<int32_t>(*call.length_on_host - *call.start_on_host);
    return in_place ? 1 : call.cap;
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::PageBounds& call) {
    const cudaStream_t stream = stream_of(call);
    const bool in_place = call.k_min_next == call.k_min && call.k_max_next == call.k_max;
    const int32_t most_rows = most_rows_of(call, in_place);
    if (most_rows == 0) return H2O_OK;
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (most_rows <= 0 || call.page_size <= 0 || call.Nb <= 0) return H2O_BAD_ARGUMENT;
    if (any_null(call.start, call.length) ||
        any_null(call.k_min, call.k_max, call.k_min_next, call.k_max_next))
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.shape, call.kv, 1); status != H2O_OK) return status;
    const int width = call.shape.kv_heads * call.shape.head_size;
    const int64_t touched = (static_cast<int64_t>(most_rows) + call.page_size - 2) / call.page_size + 1;
    const int64_t height = in_place && touched < call.Nb ? touched : call.Nb;
    const Pages args = {call.start,
                        call.length,
                        call.page_size,
                        call.Nb,
                        width,
                        static_cast<int>(call.kv->rows),
                        call.shape.head_size,
                        call.kv->k_scales,
                        in_place};
    const dim3 grid(ceil_div(width, kThreads), static_cast<unsigned>(height), 1);
    return with_stored<float>(call.kv->dtype, [&](auto zero) {
        using S = decltype(zero);
        return launch(update_bounds<S>, grid, kThreads, 0, stream, args, static_cast<const S*>(call.kv->k),
                      call.k_min, call.k_max, call.k_min_next, call.k_max_next);
    });
}

}  // namespace h2o::cuda
