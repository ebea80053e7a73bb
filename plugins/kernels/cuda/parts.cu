#include "attention.h"
#include "launch.h"
#include "parts.h"
#include "row_range.cuh"
#include "tiles.h"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ void store(float* to, float value) {
    *to = value;
}
__device__ __forceinline__ void store(half* to, float value) {
    *to = __float2half_rn(value);
}

// The floats that a block of combine_parts shares.
template <int D>
struct Shared {
    static constexpr int kColumns = D / 4;                // threads across a row
    static constexpr int kStreams = kThreads / kColumns;  // parts read side by side
    float sums[kStreams * D];
    float reduced[2 * (kThreads / 32)];
    float weights[1];  // [parts]

    static size_t bytes(int parts) { return sizeof(Shared) + sizeof(float) * static_cast<size_t>(parts - 1); }
};

// Floor: the bytes of the parts, read once. A block owns a row. Its threads first turn the parts' states
// into weights, then each adds four columns of every k-th part, and the k sums are added at the end.
template <int D, class T>
__global__ void __launch_bounds__(kThreads)
    combine_parts(const float* o, const float* m, const float* l, int parts, int64_t rows, T* out) {
    constexpr int kColumns = Shared<D>::kColumns, kStreams = Shared<D>::kStreams;
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(dynamic_shared());
    float *weights = shared.weights, *sums = shared.sums, *reduced = shared.reduced;
    const int64_t row = blockIdx.x;
    const int warp = threadIdx.x / 32;

    float top = -INFINITY;
    for (int p = threadIdx.x; p < parts; p += kThreads)
        if (l[p * rows + row] > 0) top = fmaxf(top, m[p * rows + row]);
    top = lanes_max<32>(top);
    if (threadIdx.x % 32 == 0) reduced[warp] = top;
    __syncthreads();
    for (int w = 0; w < kThreads / 32; ++w) top = fmaxf(top, reduced[w]);

    float total = 0;
    for (int p = threadIdx.x; p < parts; p += kThreads) {
        const float denominator = l[p * rows + row];
        weights[p] = denominator > 0 ? denominator * expf(m[p * rows + row] - top) : 0.f;
        total += weights[p];
    }
    total = lanes_sum<32>(total);
    if (threadIdx.x % 32 == 0) reduced[kThreads / 32 + warp] = total;
    __syncthreads();
    total = 0;
    for (int w = 0; w < kThreads / 32; ++w) total += reduced[kThreads / 32 + w];

    const int stream = threadIdx.x / kColumns, column = threadIdx.x % kColumns * 4;
    if (stream < kStreams) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int p = stream; p < parts; p += kStreams) {
            const float weight = weights[p];
            if (!(weight > 0)) continue;  // an empty part: its output need not be read
            const float4 x = *reinterpret_cast<const float4*>(o + (p * rows + row) * D + column);
            sum.x = fmaf(weight, x.x, sum.x);
            sum.y = fmaf(weight, x.y, sum.y);
            sum.z = fmaf(weight, x.z, sum.z);
            sum.w = fmaf(weight, x.w, sum.w);
        }
        *reinterpret_cast<float4*>(sums + stream * D + column) = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += kThreads) {
        float sum = 0;
        for (int s = 0; s < kStreams; ++s) sum += sums[s * D + c];
        store(out + row * D + c, total > 0 ? sum / total : 0.f);
    }
}

// The same for rows of any size: every thread adds up columns of its own.
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
        store(out + row * d + c, total > 0 ? sum / total : 0.f);
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
    if (!has_tiles(head_size) && head_size != kMostValueSize) {
        if (dtype == H2O_F16)
            return launch(combine_parts_any<half>, grid, kThreads, 0, stream, o, m, l, parts, rows, head_size,
                          static_cast<half*>(out));
        return launch(combine_parts_any<float>, grid, kThreads, 0, stream, o, m, l, parts, rows, head_size,
                      static_cast<float*>(out));
    }
    const auto combine = [&](auto size) {
        constexpr int D = decltype(size)::value;
        const size_t shared = Shared<D>::bytes(parts);
        if (dtype == H2O_F16)
            return launch(combine_parts<D, half>, grid, kThreads, shared, stream, o, m, l, parts, rows,
                          static_cast<half*>(out));
        return launch(combine_parts<D, float>, grid, kThreads, shared, stream, o, m, l, parts, rows,
                      static_cast<float*>(out));
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
