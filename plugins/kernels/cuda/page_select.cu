// PageSelect: the last page, and the other pages whose keys may score highest.
//
// First the upper bounds of the scores, one warp for each page and set; this reads the page bounds once, and
// is the whole cost. Then one block for each set takes the best pages (select.cuh).

#include <climits>

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"
#include "select.cuh"

namespace h2o::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

struct SelectArgs {
    const int64_t* length;  // [] on the device: cache rows in use
    int page_size;          // cache rows of a page
    int most_pages;         // Nb: pages that the bounds have room for
    int heads;              // Hq
    int kv_heads;           // Hkv
    int sets;               // Hs
    int head_size;          // d
    int budget;             // M: pages to choose for a score head

    __device__ __forceinline__ int pages() const {
        return bounded((bounded(*length, 1, INT_MAX) + int64_t{page_size} - 1) / page_size, 1, most_pages);
    }
};

// Bits above 0 that order like the floats; the lowest for NaN.
__device__ __forceinline__ unsigned ordered(float x) {
    const unsigned bits = __float_as_uint(x);
    if (!(x == x)) return 1;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    bound_pages(SelectArgs args, const T* q, const float* k_min, const float* k_max, unsigned* bits) {
    const int page = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32, set = blockIdx.y;
    if (page >= args.pages()) return;  // the whole warp
    const int group = args.heads / args.sets, kv = set / (args.sets / args.kv_heads);
    const int64_t row = (static_cast<int64_t>(page) * args.kv_heads + kv) * args.head_size;
    float best = -INFINITY;
    for (int g = 0; g < group; ++g) {
        const int64_t query = (static_cast<int64_t>(set) * group + g) * args.head_size;
        float sum = 0;
        for (int c = lane; c < args.head_size; c += 32) {
            const float x = to_float(q[query + c]);
            sum = fmaf(x, x > 0 ? k_max[row + c] : k_min[row + c], sum);
        }
        best = fmaxf(best, lanes_sum<32>(sum));
    }
    if (lane == 0) bits[static_cast<int64_t>(set) * args.most_pages + page] = ordered(best);
}

struct Candidates {
    const unsigned* of_pages;

    __device__ __forceinline__ int position(int i) const { return i; }
    __device__ __forceinline__ uint32_t bits(int i) const { return of_pages[i]; }
};

__global__ void __launch_bounds__(kSelectThreads)
    choose_pages(SelectArgs args, const unsigned* all_bits, int32_t* page_list) {
    const int set = blockIdx.x, pages = args.pages(), budget = args.budget;
    const Candidates candidates{all_bits + static_cast<int64_t>(set) * args.most_pages};
    int32_t* const out = page_list + static_cast<int64_t>(set) * budget;
    if (pages <= budget) {
        for (int i = threadIdx.x; i < budget; i += kSelectThreads) out[i] = i < pages ? i : -1;
        return;
    }
    if (threadIdx.x == 0) out[budget - 1] = pages - 1;
    take_best<kSelectThreads>(candidates, pages - 1, budget - 1,
                              *reinterpret_cast<SelectShared*>(dynamic_shared()), out);
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

size_t workspace(const calls::PageSelect& call) {
    if (check_alike(&call.shape) != H2O_OK || call.Nb <= 0) return 0;
    Workspace workspace;
    workspace.take<unsigned>(static_cast<int64_t>(call.shape.score_heads) * call.Nb);
    return workspace.used();
}

h2o_status run(const calls::PageSelect& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.page_size <= 0 || call.Nb <= 0 || call.M <= 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.length || !call.k_min || !call.k_max || !call.page_list) return H2O_BAD_ARGUMENT;
    Workspace pieces(call.workspace, call.workspace_bytes);
    unsigned* const bits = pieces.take<unsigned>(static_cast<int64_t>(call.shape.score_heads) * call.Nb);
    if (!pieces.enough() || !bits) return H2O_OUT_OF_WORKSPACE;
    const SelectArgs args = {call.length,
                             call.page_size,
                             call.Nb,
                             call.shape.query_heads,
                             call.shape.kv_heads,
                             call.shape.score_heads,
                             call.shape.head_size,
                             call.M};
    const dim3 grid(ceil_div(call.Nb, kWarps), static_cast<unsigned>(call.shape.score_heads), 1);
    const h2o_status status = call.shape.dtype == H2O_F16
                                  ? launch(bound_pages<half>, grid, kThreads, 0, stream, args,
                                           static_cast<const half*>(call.q), call.k_min, call.k_max, bits)
                                  : launch(bound_pages<float>, grid, kThreads, 0, stream, args,
                                           static_cast<const float*>(call.q), call.k_min, call.k_max, bits);
    if (status != H2O_OK) return status;
    return launch(choose_pages, dim3(static_cast<unsigned>(call.shape.score_heads), 1, 1), kSelectThreads,
                  sizeof(SelectShared), stream, args, static_cast<const unsigned*>(bits), call.page_list);
}

}  // namespace h2o::cuda
