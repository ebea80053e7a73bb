// MemorySelect: for each score head, the last `local` positions of a chunk and the best of everything else.
//
// Nothing is sorted. Candidates stand in order of position already (the memory is sorted and lies before the
// chunk), so it is enough to find the score of the last one that gets in, and to keep candidates in order:
// a radix search over the score's bits, 8 at a time, finds that score and how many of its equals get in; one
// ordered compaction writes the result, sorted, with ties to the lower position.
//
// Floor: the scores, read once; at these sizes (about 1,300 candidates) it is the latency of a few block-wide
// steps that counts. One block a score head; scores are kept in shared memory when they fit.

#include "h2o/cuda.h"
#include "launch.h"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kKept = 8192;  // candidates whose score bits stay in shared memory
constexpr int kBins = 256;
constexpr float kNegligible = 1e-30f;  // so close to float32's end, engines differ in what they round to zero

struct Candidates {
    const float* score;     // of this head, `heads` apart
    const int32_t* memory;  // of this head
    int heads, remembered, start, sink, last_row;

    __device__ __forceinline__ int position(int i) const {
        return i < remembered ? row_within(memory[i], last_row) : start + (i - remembered);
    }
    // Bits that order as the scores do; above every score for a sink.
    __device__ __forceinline__ uint32_t bits(int i) const {
        const int at = position(i);
        if (at < sink) return 0xffffffffu;
        const float s = score[static_cast<int64_t>(at) * heads];
        return __float_as_uint(s >= kNegligible ? s : 0.f) | 0x80000000u;  // no score is negative
    }
};

struct Found {
    int bin;
    int wanted;  // how many of the bin's entries get in
    int held;    // how many it holds
};

// Of a block.
struct Shared {
    uint32_t kept[kKept];
    int bins[kBins];
    Found found;
    int warp_above[kWarps];  // of each warp: candidates above the threshold,
    int warp_equal[kWarps];  // and at it
};

// Among `bins`, counted from the top, the one in which the `wanted`-th entry lies. Called by one warp.
__device__ __forceinline__ void find_bin(const int* bins, int wanted, Found* found) {
    constexpr int kEach = kBins / 32;
    const int lane = threadIdx.x % 32;
    const int high = kBins - 1 - lane * kEach;  // this lane looks at bins high .. high - kEach + 1
    int own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) own += bins[high - i];
    int above = own;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const int other = __shfl_up_sync(kAllLanes, above, i);
        if (lane >= i) above += other;
    }
    above -= own;  // entries in bins above this lane's
    if (above >= wanted || above + own < wanted) return;
    int bin = high;
    while (above + bins[bin] < wanted) above += bins[bin--];
    *found = {bin, wanted - above, bins[bin]};
}

__global__ void __launch_bounds__(kThreads)
    select_memory(const float* score, const int32_t* memory, const int64_t* range, int heads, int capacity,
                  int remembered, int local, int heavy, int sink, int32_t* out) {
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared());
    uint32_t* kept = shared.kept;
    int *bins = shared.bins, *warp_above = shared.warp_above, *warp_equal = shared.warp_equal;
    Found* found = &shared.found;

    const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int start = bounded(range[0], 0, capacity), stop = bounded(range[1], start, capacity);
    const int total = local + heavy;
    const int recent = min(local, stop - start);
    const int32_t* own = memory + static_cast<int64_t>(head) * remembered;
    const Candidates candidates{score + head, own, heads, remembered, start, sink, capacity - 1};
    const int count = remembered + (stop - start) - recent;
    const int wanted_total = min(total - recent, count);
    out += static_cast<int64_t>(head) * total;

    for (int i = threadIdx.x; i < min(count, kKept); i += kThreads) kept[i] = candidates.bits(i);
    const auto bits_of = [&](int i) { return i < kKept ? kept[i] : candidates.bits(i); };

    uint32_t prefix = 0, decided = 0;
    int wanted = wanted_total;
    for (int shift = 24; wanted > 0 && shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += kThreads) {
            const uint32_t bits = bits_of(i);
            if ((bits & decided) == prefix) atomicAdd(bins + (bits >> shift & 0xffu), 1);
        }
        __syncthreads();
        if (warp == 0) find_bin(bins, wanted, found);
        __syncthreads();
        prefix |= static_cast<uint32_t>(found->bin) << shift;
        decided |= 0xffu << shift;
        wanted = found->wanted;
        if (wanted == found->held) break;  // the whole bin gets in: lower bits decide nothing
    }

    // Every candidate above `prefix` gets in, and the first `wanted` of those equal to it.
    int above_before = 0, equal_before = 0;
    for (int first = 0; wanted_total > 0 && first < count; first += kThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        const uint32_t bits = i < count ? bits_of(i) & decided : 0;
        const bool above = i < count && bits > prefix, equal = i < count && bits == prefix;
        const unsigned above_lanes = __ballot_sync(kAllLanes, above);
        const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
        __syncthreads();  // the counts of the round before have been read
        if (lane == 0) {
            warp_above[warp] = __popc(above_lanes);
            warp_equal[warp] = __popc(equal_lanes);
        }
        __syncthreads();
        int above_rank = above_before + __popc(above_lanes & ((1u << lane) - 1));
        int equal_rank = equal_before + __popc(equal_lanes & ((1u << lane) - 1));
        for (int w = 0; w < kWarps; ++w) {
            if (w < warp) {
                above_rank += warp_above[w];
                equal_rank += warp_equal[w];
            }
            above_before += warp_above[w];
            equal_before += warp_equal[w];
        }
        if (above || (equal && equal_rank < wanted))
            out[above_rank + min(equal_rank, wanted)] = candidates.position(i);
    }
    for (int i = threadIdx.x; i < recent; i += kThreads) out[wanted_total + i] = stop - recent + i;
}

}  // namespace
}  // namespace h2o::cuda

extern "C" h2o_status h2o_cuda_memory_select(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                             int32_t previous_slots, int32_t local, int32_t heavy,
                                             int32_t sink, const float* score, const int32_t* memory,
                                             const int64_t* chunk_range, int32_t* memory_next) {
    using namespace h2o::cuda;
    if (score_heads <= 0 || capacity <= 0 || previous_slots < 0 || local < 0 || heavy < 0 ||
        local + heavy <= 0 || sink < 0)
        return H2O_BAD_ARGUMENT;
    if (!score || !chunk_range || !memory_next || (previous_slots > 0 && !memory) || memory == memory_next)
        return H2O_BAD_ARGUMENT;
    return launch(select_memory, dim3(static_cast<unsigned>(score_heads), 1, 1), kThreads, sizeof(Shared),
                  stream, score, memory, chunk_range, score_heads, capacity, previous_slots, local, heavy,
                  sink, memory_next);
}
