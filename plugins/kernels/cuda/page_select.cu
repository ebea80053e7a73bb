// PageSelect: the last page, and the other pages whose keys may score highest.
//
// First the upper bounds of the scores, one warp for each page and set; this reads the page bounds once, and
// is the whole cost. Then one block for each set finds the threshold by bisection over the bits of the
// bounds, and keeps pages in order.

#include <climits>

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / 32;

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

// Bits that order like the floats; 0 for NaN.
__device__ __forceinline__ unsigned ordered(float x) {
    const unsigned bits = __float_as_uint(x);
    if (!(x == x)) return 0;
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

struct Shared {
    int count[kSelectWarps];
    int above[kSelectWarps], equal[kSelectWarps];
};

// The number of threads whose `value` is set, returned to all threads.
__device__ __forceinline__ int block_sum(int value, int* shared) {
    for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(kAllLanes, value, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < kSelectWarps; ++w) sum += shared[w];
    return sum;
}

__global__ void __launch_bounds__(kSelectThreads)
    choose_pages(SelectArgs args, const unsigned* all_bits, int32_t* page_list) {
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared());
    const int set = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pages = args.pages(), budget = args.budget, others = pages - 1, wanted = budget - 1;
    const unsigned* const bits = all_bits + static_cast<int64_t>(set) * args.most_pages;
    int32_t* const out = page_list + static_cast<int64_t>(set) * budget;
    if (pages <= budget) {
        for (int i = threadIdx.x; i < budget; i += kSelectThreads) out[i] = i < pages ? i : -1;
        return;
    }
    if (threadIdx.x == 0) out[wanted] = others;
    if (wanted == 0) return;
    // The largest threshold that at least `wanted` pages reach.
    unsigned threshold = 0;
    for (unsigned bit = 0x80000000u; bit != 0; bit >>= 1) {
        int reached = 0;
        for (int i = threadIdx.x; i < others; i += kSelectThreads) reached += bits[i] >= (threshold | bit);
        if (block_sum(reached, shared.count) >= wanted) threshold |= bit;
    }
    int higher = 0;
    for (int i = threadIdx.x; i < others; i += kSelectThreads) higher += bits[i] > threshold;
    const int equals =
        wanted - block_sum(higher, shared.count);  // pages to take among those at the threshold

    int above_before = 0, equal_before = 0;
    for (int first = 0; first < others; first += kSelectThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        const bool above = i < others && bits[i] > threshold, equal = i < others && bits[i] == threshold;
        const unsigned above_lanes = __ballot_sync(kAllLanes, above);
        const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
        __syncthreads();  // the previous counts have been read
        if (lane == 0) {
            shared.above[warp] = __popc(above_lanes);
            shared.equal[warp] = __popc(equal_lanes);
        }
        __syncthreads();
        int above_rank = above_before + __popc(above_lanes & ((1u << lane) - 1));
        int equal_rank = equal_before + __popc(equal_lanes & ((1u << lane) - 1));
        for (int w = 0; w < kSelectWarps; ++w) {
            above_rank += w < warp ? shared.above[w] : 0;
            equal_rank += w < warp ? shared.equal[w] : 0;
            above_before += shared.above[w];
            equal_before += shared.equal[w];
        }
        if (above || (equal && equal_rank < equals)) out[above_rank + min(equal_rank, equals)] = i;
    }
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

namespace {

size_t bytes_of(const h2o_shape& shape, int32_t pages) {
    if (check_alike(&shape) != H2O_OK || pages <= 0) return 0;
    Workspace workspace;
    workspace.take<unsigned>(static_cast<int64_t>(shape.score_heads) * pages);
    return workspace.used();
}

}  // namespace

size_t workspace(const calls::PageSelect& call) {
    return bytes_of(call.shape, call.Nb);
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
                  sizeof(Shared), stream, args, static_cast<const unsigned*>(bits), call.page_list);
}

}  // namespace h2o::cuda
