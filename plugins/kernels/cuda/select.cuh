// Selects the best candidates by score, with one block. Nothing is sorted: candidates are already in order of
// position. A radix search over the bits of the scores, 8 bits at a time, finds the lowest selected score and
// how many of its equals are selected. One ordered compaction then writes the result, with ties to the lower
// position.
#pragma once

#include "launch.h"
#include "ptx.cuh"

namespace h2o::cuda {

constexpr int kSelectThreads = 512;  // at most
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kKept = 8192;  // candidates whose score bits stay in shared memory
constexpr int kBins = 256;
constexpr float kNegligible =
    1e-30f;  // so close to float32's minimum, engines differ in what they flush to zero

// Bits that order like the scores (which are never negative); what is forced ranks above every score.
__device__ __forceinline__ uint32_t rank_bits(float score, bool forced = false) {
    if (forced) return 0xffffffffu;
    return __float_as_uint(score >= kNegligible ? score : 0.f) | 0x80000000u;
}

struct Found {
    int bin;
    int wanted;  // how many entries of the bin are selected
    int held;    // how many it holds
};

// Of a block.
struct SelectShared {
    uint32_t kept[kKept];
    int bins[kBins];
    Found found;
    int warp_above[kSelectWarps];  // of each warp: candidates above the threshold,
    int warp_equal[kSelectWarps];  // and at it
};

// The bin, counted from the top, that holds the `wanted`-th entry. Called by one warp.
__device__ __forceinline__ void find_bin(const int* bins, int wanted, Found* found) {
    constexpr int kEach = kBins / 32;
    const int lane = threadIdx.x % 32;
    const int high = kBins - 1 - lane * kEach;  // this lane looks at bins high .. high - kEach + 1
    int counted = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) counted += bins[high - i];
    int above = counted;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const int before = __shfl_up_sync(kAllLanes, above, i);
        if (lane >= i) above += before;
    }
    above -= counted;  // entries in bins above this lane's
    if (above >= wanted || above + counted < wanted) return;
    int bin = high;
    while (above + bins[bin] < wanted) above += bins[bin--];
    *found = {bin, wanted - above, bins[bin]};
}

// Calls put(place, position) for each of the best `wanted_total` of `count` candidates, which have
// position(i) and bits(i). Places count from 0 in order of position. Thread t of the block's THREADS handles
// the candidates t, t + THREADS and so on, and nothing else touches them.
template <int THREADS, class Candidates, class Put>
__device__ void take_best(const Candidates& candidates, int count, int wanted_total, SelectShared& shared,
                          Put&& put) {
    constexpr int kWarps = THREADS / 32;
    static_assert(kWarps <= kSelectWarps, "each warp has its counts");
    uint32_t* kept = shared.kept;
    int *bins = shared.bins, *warp_above = shared.warp_above, *warp_equal = shared.warp_equal;
    Found* found = &shared.found;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int i = threadIdx.x; i < min(count, kKept); i += THREADS) kept[i] = candidates.bits(i);
    const auto bits_of = [&](int i) { return i < kKept ? kept[i] : candidates.bits(i); };

    uint32_t prefix = 0, decided = 0;
    int wanted = wanted_total;
    for (int shift = 24; wanted > 0 && shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < kBins; i += THREADS) bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const uint32_t bits = bits_of(i);
            if ((bits & decided) == prefix) atomicAdd(bins + (bits >> shift & 0xffu), 1);
        }
        __syncthreads();
        if (warp == 0) find_bin(bins, wanted, found);
        __syncthreads();
        prefix |= static_cast<uint32_t>(found->bin) << shift;
        decided |= 0xffu << shift;
        wanted = found->wanted;
        if (wanted == found->held) break;  // the whole bin is selected: lower bits decide nothing
    }

    // Selects every candidate above `prefix`, and the first `wanted` of those equal to it.
    int above_before = 0, equal_before = 0;
    for (int first = 0; wanted_total > 0 && first < count; first += THREADS) {
        const int i = first + static_cast<int>(threadIdx.x);
        const uint32_t bits = i < count ? bits_of(i) & decided : 0;
        const bool above = i < count && bits > prefix, equal = i < count && bits == prefix;
        const unsigned above_lanes = __ballot_sync(kAllLanes, above);
        const unsigned equal_lanes = __ballot_sync(kAllLanes, equal);
        __syncthreads();  // the previous counts have been read
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
            put(above_rank + min(equal_rank, wanted), candidates.position(i));
    }
}

// out [wanted_total] = their positions.
template <int THREADS, class Candidates>
__device__ void take_best(const Candidates& candidates, int count, int wanted_total, SelectShared& shared,
                          int32_t* out) {
    take_best<THREADS>(candidates, count, wanted_total, shared,
                       [out](int place, int at) { out[place] = at; });
}

}  // namespace h2o::cuda
