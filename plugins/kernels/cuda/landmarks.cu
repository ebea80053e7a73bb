// LandmarkUpdate: means of blocks of cache rows, updated as rows are written.
//
// Floor: the new rows, read once. A thread owns one element of a block's mean and adds the block's new rows
// in order. So rows written in one call or in several give the same bits.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

struct Blocks {
    const int64_t *start, *length;     // [] on the device: the new cache rows are [start, length)
    int size;                          // cache rows of a block
    int count;                         // Nb: blocks that the means have room for
    int width;                         // elements of one row, all heads together
    int rows;                          // of the cache
    int d;                             // elements of one head
    const float *k_scales, *v_scales;  // [rows, Hkv], of integers
    bool in_place;                     // blocks without new rows keep their values
};

template <class S>
__global__ void __launch_bounds__(kThreads)
    update_landmarks(Blocks blocks, const S* k, const S* v, const float* k_mean, const float* v_mean,
                     float* k_next, float* v_next) {
    const int column = blockIdx.x * kThreads + threadIdx.x;
    if (column >= blocks.width) return;
    const int64_t start = bounded(*blocks.start, 0, blocks.rows),
                  length = bounded(*blocks.length, 0, blocks.rows);
    const int64_t block = blockIdx.y + (blocks.in_place ? start / blocks.size : 0);
    if (block >= blocks.count) return;
    const int64_t first = block * blocks.size, to = block * blocks.width + column;
    const int64_t begin = max(start, first), stop = min(length, first + blocks.size);
    if (blocks.in_place && begin >= stop) return;
    float key = k_mean[to], value = v_mean[to];
    for (int64_t row = begin; row < stop; ++row) {
        const float share = 1.f / static_cast<float>(row - first + 1);
        const float k_new = scaled(k, row * blocks.width + column, blocks.k_scales, blocks.d);
        const float v_new = scaled(v, row * blocks.width + column, blocks.v_scales, blocks.d);
        // The first row of a block overwrites the old value, which is arbitrary.
        key = row == first ? k_new : key + (k_new - key) * share;
        value = row == first ? v_new : value + (v_new - value) * share;
    }
    k_next[to] = key;
    v_next[to] = value;
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::LandmarkUpdate& call) {
    const cudaStream_t stream = stream_of(call);
    const int32_t most_rows = most_rows_of(call, call.k_mean_next == call.k_mean);
    if (most_rows == 0) return H2O_OK;
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (most_rows <= 0 || call.block_size <= 0 || call.Nb <= 0) return H2O_BAD_ARGUMENT;
    if (any_null(call.start, call.length, call.k_mean, call.v_mean, call.k_mean_next, call.v_mean_next))
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    const bool in_place = call.k_mean_next == call.k_mean && call.v_mean_next == call.v_mean;
    const int width = call.shape.kv_heads * call.shape.head_size;
    const int64_t touched = (static_cast<int64_t>(most_rows) + call.block_size - 2) / call.block_size + 1;
    const int64_t height = in_place && touched < call.Nb ? touched : call.Nb;
    const Blocks args = {call.start,
                         call.length,
                         call.block_size,
                         call.Nb,
                         width,
                         static_cast<int>(call.kv->rows),
                         call.shape.head_size,
                         call.kv->k_scales,
                         call.kv->v_scales,
                         in_place};
    const dim3 grid(ceil_div(width, kThreads), static_cast<unsigned>(height), 1);
    return with_stored<float>(*call.kv, [&](auto zero) {
        using S = decltype(zero);
        return launch(update_landmarks<S>, grid, kThreads, 0, stream, args, static_cast<const S*>(call.kv->k),
                      static_cast<const S*>(call.kv->v), call.k_mean, call.v_mean, call.k_mean_next,
                      call.v_mean_next);
    });
}

size_t workspace(const calls::LandmarkUpdate&) {
    return 0;
}

}  // namespace h2o::cuda
