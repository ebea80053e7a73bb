// PageAttention: one token's attention to lists of pages. A block owns a query head; its warps share out the
// pages, each keeps a running softmax of its own, and at the end the first warp joins them.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

struct PageArgs {
    const int64_t* length;
    const int32_t* page_list;
    float scale;
    int page_size, budget, heads, kv_heads, sets, rows;
};

template <int D>
struct Shared {
    float q[D];
    float p[kWarps][32];
    float o[kWarps][D];
    float m[kWarps], l[kWarps];
};

template <int D, class T, class S>
__global__ void __launch_bounds__(kThreads)
    attend_pages(PageArgs args, const T* q, Stored<D, S> k, Stored<D, S> v, T* o) {
    constexpr int kColumns = (D + 31) / 32;
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(dynamic_shared());
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
    const int kv_head = head / (args.heads / args.kv_heads), set = head / (args.heads / args.sets);
    const int32_t* const pages = args.page_list + static_cast<int64_t>(set) * args.budget;
    const int length = bounded(*args.length, 1, args.rows), last = (length - 1) / args.page_size;

    for (int c = threadIdx.x; c < D; c += kThreads) shared.q[c] = to_float(q[head * D + c]) * args.scale;
    __syncthreads();
    float m = -INFINITY, l = 0, sum[kColumns] = {};
    for (int i = warp; i < args.budget; i += kWarps) {
        if (pages[i] < 0) continue;  // the whole warp
        const int page = min(pages[i], last);
        const int stop = static_cast<int>(min(int64_t{length}, (page + int64_t{1}) * args.page_size));
        for (int first = page * args.page_size; first < stop; first += 32) {
            const int row = first + lane;
            float score = -INFINITY;
            if (row < stop) {
                const S* const key = k.row(row, kv_head);
                score = 0;
                for (int c = 0; c < D; ++c) score = fmaf(shared.q[c], to_float(key[c]), score);
                score *= k.scale(row, kv_head);
            }
            const float top = fmaxf(m, lanes_max<32>(score));
            const float p = row < stop ? expf(score - top) : 0.f, keep = l > 0 ? expf(m - top) : 0.f;
            l = l * keep + lanes_sum<32>(p);
            m = top;
            shared.p[warp][lane] = p;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kColumns; ++j) sum[j] *= keep;
            for (int r = 0; r < min(32, stop - first); ++r) {
                const S* const value = v.row(first + r, kv_head);
                const float weight = shared.p[warp][r] * v.scale(first + r, kv_head);
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    const int c = lane + 32 * j;
                    if (c < D) sum[j] = fmaf(weight, to_float(value[c]), sum[j]);
                }
            }
            __syncwarp();
        }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
        if (lane + 32 * j < D) shared.o[warp][lane + 32 * j] = sum[j];
    if (lane == 0) {
        shared.m[warp] = m;
        shared.l[warp] = l;
    }
    __syncthreads();
    float top = -INFINITY, total = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.m[w]);
    for (int w = 0; w < kWarps; ++w) total += shared.l[w] > 0 ? shared.l[w] * expf(shared.m[w] - top) : 0.f;
    for (int c = threadIdx.x; c < D; c += kThreads) {
        float x = 0;
        for (int w = 0; w < kWarps; ++w)
            x += shared.l[w] > 0 ? shared.o[w][c] * expf(shared.m[w] - top) : 0.f;
        put(o + head * D + c, x / total);
    }
}

template <class T>
h2o_status attend(const h2o_shape& shape, const PageArgs& args, const void* q, const h2o_kv& kv, void* o,
                  cudaStream_t stream) {
    return dispatch_head_size(shape.head_size, [&](auto d) {
        constexpr int D = decltype(d)::value;
        return with_stored<T>(kv, [&](auto zero) {
            using S = decltype(zero);
            return launch(attend_pages<D, T, S>, dim3(static_cast<unsigned>(shape.query_heads), 1, 1),
                          kThreads, sizeof(Shared<D>), stream, args, static_cast<const T*>(q),
                          stored<D, S>(kv.k, kv.k_scales, shape.kv_heads),
                          stored<D, S>(kv.v, kv.v_scales, shape.kv_heads), static_cast<T*>(o));
        });
    });
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::PageAttention& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.page_size <= 0 || call.M <= 0 || !call.q || !call.length || !call.page_list || !call.o)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    const PageArgs args = {call.length,
                           call.page_list,
                           call.shape.scale,
                           call.page_size,
                           call.M,
                           call.shape.query_heads,
                           call.shape.kv_heads,
                           call.shape.score_heads,
                           static_cast<int>(call.kv->rows)};
    return call.shape.dtype == H2O_F16 ? attend<half>(call.shape, args, call.q, *call.kv, call.o, stream)
                                       : attend<float>(call.shape, args, call.q, *call.kv, call.o, stream);
}

size_t workspace(const calls::PageAttention&) {
    return 0;
}

}  // namespace h2o::cuda
