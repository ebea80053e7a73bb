#include "arrivals.cuh"
#include "attention.h"
#include "launch.h"
#include "parts.h"
#include "row_range.cuh"
#include "tiles.h"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = kThreads / 32;  // of a combine_parts block

// Floor: the bytes of the parts, read once.
template <int D>
__global__ void __launch_bounds__(kThreads) combine_parts(PartStates parts, half* out) {
    const int warp = threadIdx.x / 32;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + warp;
    if (row >= parts.rows) return;  // the whole warp
    float* const weights = reinterpret_cast<float*>(dynamic_shared()) + warp * parts.count;
    weigh_parts<1>(parts, 1, [row](int) { return row; }, weights);
    __syncwarp();
    combine_row<D>(parts, row, weights, out + row * D);
}

// The same for rows of any size and type: every thread combines its own columns.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_parts_any(const float* o, const float* m, const float* l,
                                                              int parts, int64_t rows, int d, T* out) {
    const int64_t row = blockIdx.x;
    float top = -INFINITY, total = 0;
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) top = fmaxf(top, m[p * rows + row]);
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) total += l[p * rows + row] * expf(m[p * rows + row] - top);
    for (int c = threadIdx.x; c < d; c += kThreads) {
        float sum = 0;
        for (int p = 0; p < parts; ++p) {
            const int64_t at = p * rows + row;
            if (l[at] > 0) sum = fmaf(l[at] * expf(m[at] - top), o[at * d + c], sum);
        }
        put(out + row * d + c, total > 0 ? sum / total : 0.f);
    }
}

__global__ void __launch_bounds__(kThreads)
    combine_states(const float* m, const float* l, int parts, int64_t rows, float* m_out, float* l_out) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (row >= rows) return;
    float top = -INFINITY, total = 0;
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) top = fmaxf(top, m[p * rows + row]);
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) total += l[p * rows + row] * expf(m[p * rows + row] - top);
    m_out[row] = top;
    l_out[row] = total;
}

__global__ void __launch_bounds__(kThreads)
    sum_of_parts(const float* parts, int splits, int64_t count, float* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    for (int p = 0; p < splits; ++p) sum += parts[p * count + i];
    out[i] = sum;
}

}  // namespace

h2o_status launch_combine_parts(const float* o, const float* m, const float* l, int parts, int64_t rows,
                                int head_size, h2o_dtype dtype, void* out, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(rows), 1, 1);
    if (dtype != H2O_F16)
        return launch(combine_parts_any<float>, grid, kThreads, 0, stream, o, m, l, parts, rows, head_size,
                      static_cast<float*>(out));
    if (!has_tiles(head_size) && head_size != kMostValueSize)
        return launch(combine_parts_any<half>, grid, kThreads, 0, stream, o, m, l, parts, rows, head_size,
                      static_cast<half*>(out));
    const PartStates states = {o, m, l, parts, rows};
    const dim3 blocks(ceil_div(rows, kRows), 1, 1);
    const size_t shared = sizeof(float) * static_cast<size_t>(parts) * kRows;
    const auto combine = [&](auto size) {
        return launch(combine_parts<decltype(size)::value>, blocks, kThreads, shared, stream, states,
                      static_cast<half*>(out));
    };
    if (head_size == kMostValueSize) return combine(HeadSize<kMostValueSize>());
    return dispatch_head_size(head_size, combine);
}

h2o_status launch_combine_states(const float* m, const float* l, int parts, int64_t rows, float* m_out,
                                 float* l_out, cudaStream_t stream) {
    return launch(combine_states, dim3(ceil_div(rows, kThreads), 1, 1), kThreads, 0, stream, m, l, parts,
                  rows, m_out, l_out);
}

h2o_status launch_sum_of_parts(const float* parts, int splits, int64_t count, float* out,
                               cudaStream_t stream) {
    return launch(sum_of_parts, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0, stream, parts, splits,
                  count, out);
}

}  // namespace h2o::cuda
