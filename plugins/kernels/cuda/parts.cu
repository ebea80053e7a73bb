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

struct Combined {
    float m, l;
};
__device__ __forceinline__ Combined combined(const float* m, const float* l, int parts, int64_t rows,
                                             int64_t row) {
    Combined state = {-INFINITY, 0.f};
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) state.m = fmaxf(state.m, m[p * rows + row]);
    for (int p = 0; p < parts; ++p)
        if (l[p * rows + row] > 0) state.l += l[p * rows + row] * expf(m[p * rows + row] - state.m);
    return state;
}

// The same for rows of any size and type: every thread combines its own columns.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_parts_any(PartStates parts, int d, T* out) {
    const int64_t row = blockIdx.x;
    const Combined all = combined(parts.m, parts.l, parts.count, parts.rows, row);
    for (int c = threadIdx.x; c < d; c += kThreads) {
        float sum = 0;
        for (int p = 0; p < parts.count; ++p) {
            const int64_t at = p * parts.rows + row;
            if (parts.l[at] > 0)
                sum = fmaf(parts.l[at] * expf(parts.m[at] - all.m), parts.o[at * d + c], sum);
        }
        put(out + row * d + c, all.l > 0 ? sum / all.l : 0.f);
    }
}

__global__ void __launch_bounds__(kThreads)
    combine_states(const float* m, const float* l, int parts, int64_t rows, float* m_out, float* l_out) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (row >= rows) return;
    const Combined all = combined(m, l, parts, rows, row);
    m_out[row] = all.m;
    l_out[row] = all.l;
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

h2o_status launch_combine_parts(const AttentionArgs& args, void* o, cudaStream_t stream) {
    const int64_t rows = static_cast<int64_t>(args.rows.tokens) * args.rows.heads;
    const PartStates parts = {args.partial_o, args.partial_m, args.partial_l, args.splits, rows};
    const int dv = args.value_size;
    const dim3 a_row(static_cast<unsigned>(rows), 1, 1), blocks(ceil_div(rows, kRows), 1, 1);
    if (args.dtype != H2O_F16)
        return launch(combine_parts_any<float>, a_row, kThreads, 0, stream, parts, dv,
                      static_cast<float*>(o));
    if (!has_tiles(dv) && dv != kMostValueSize)
        return launch(combine_parts_any<half>, a_row, kThreads, 0, stream, parts, dv, static_cast<half*>(o));
    const size_t shared = sizeof(float) * static_cast<size_t>(parts.count) * kRows;
    const auto combine = [&](auto size) {
        return launch(combine_parts<decltype(size)::value>, blocks, kThreads, shared, stream, parts,
                      static_cast<half*>(o));
    };
    if (dv == kMostValueSize) return combine(HeadSize<kMostValueSize>());
    return dispatch_head_size(dv, combine);
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
