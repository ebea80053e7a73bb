// Selects the best candidates by score, with one block. Nothing is sorted: candidates are already in order of
// position. A thread keeps the bits of its candidates' scores in registers. A search bit by bit, in which all
// threads count, finds the lowest selected score and how many of its equals are selected. One ordered
// compaction then writes the result, with ties to the lower position. Counts in bins would need atomic
// additions, and scores are so alike that these would wait for each other.
#pragma once

#include "launch.h"
#include "ptx.cuh"

namespace h2o::cuda {

constexpr int kSelectThreads = 512;  // at most
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kKept = 8192;  // candidates of a block whose score bits stay in registers
constexpr float kNegligible =
    1e-30f;  // so close to float32's minimum, engines differ in what they flush to zero

// Bits that order like the scores (which are never negative); what is forced ranks above every score.
__device__ __forceinline__ uint32_t rank_bits(float score, bool forced = false) {
    if (forced) return 0xffffffffu;
    return __float_as_uint(score >= kNegligible ? score : 0.f) | 0x80000000u;
}

// Of a block.
struct SelectShared {
    int counted[3];                // of three rounds in turn
    int warp_above[kSelectWarps];  // of each warp: candidates above the threshold,
    int warp_equal[kSelectWarps];  // and at it
};

__device__ __forceinline__ int sum_of_warp(int x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
    return x;
}

// Of the warps before `warp`, and of all. Called by whole warps.
struct WarpSums {
    int before, all;

    __device__ __forceinline__ WarpSums(const int* of_warps, int warps, int warp) {
        const int lane = threadIdx.x % 32, own = lane < warps ? of_warps[lane] : 0;
        before = sum_of_warp(lane < warp ? own : 0);
        all = sum_of_warp(own);
    }
};

// The candidates of one thread, of `count`. A warp has a run of them, so that its places follow each other.
// Bits of up to KEPT candidates of the block are in registers; the others are asked for each time.
template <int THREADS, int KEPT, class Candidates>
struct OwnCandidates {
    static constexpr int kOwn = KEPT / THREADS;
    const Candidates& candidates;
    int first, end;  // the thread has every 32nd from `first` on
    uint32_t own[kOwn];

    __device__ __forceinline__ OwnCandidates(const Candidates& candidates, int count)
        : candidates(candidates) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int run = (count + THREADS - 1) / THREADS * 32;
        first = warp * run + lane;
        end = min(warp * run + run, count);
#pragma unroll
        for (int j = 0; j < kOwn; ++j) own[j] = first + j * 32 < end ? candidates.bits(first + j * 32) : 0;
    }
    // How many have bits of `lowest` or more, which is above 0.
    __device__ __forceinline__ int reaching(uint32_t lowest) const {
        int counted = 0;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) counted += own[j] >= lowest ? 1 : 0;
        for (int i = first + kOwn * 32; i < end; i += 32) counted += candidates.bits(i) >= lowest ? 1 : 0;
        return counted;
    }
    // Calls use(i, bits) for each, and as often in every lane of a warp: with bits 0 where there is none.
    template <class Use>
    __device__ __forceinline__ void each(Use&& use) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            if (first - lane + j * 32 >= end) return;
            use(first + j * 32, own[j]);
        }
        for (int i = first + kOwn * 32; i - lane < end; i += 32) use(i, i < end ? candidates.bits(i) : 0);
    }
};

// Calls put(place, position) for each of the best `wanted` of `count` candidates, which have position(i), and
// bits(i) above 0. Places count from 0 in order of position. KEPT: see OwnCandidates.
template <int THREADS, int KEPT = kKept, class Candidates, class Put>
__device__ void take_best_by(const Candidates& candidates, int count, int wanted, SelectShared& shared,
                             Put&& put) {
    constexpr int kWarps = THREADS / 32;
    static_assert(kWarps <= kSelectWarps, "each warp has its counts");
    if (wanted <= 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const OwnCandidates<THREADS, KEPT, Candidates> own(candidates, count);

    // The highest number that `wanted` candidates reach, or a lower one that exactly these reach.
    uint32_t lowest = 0;
    int reached = count, round = 0;
    if (threadIdx.x < 3) shared.counted[threadIdx.x] = 0;
    for (int bit = 31; bit >= 0 && reached != wanted; --bit) {
        const uint32_t tried = lowest | 1u << bit;
        int counted = sum_of_warp(own.reaching(tried));
        if (bit == 31) __syncthreads();  // the counts are zeros
        if (lane == 0) atomicAdd(shared.counted + round, counted);
        if (threadIdx.x == 0) shared.counted[round == 2 ? 0 : round + 1] = 0;
        __syncthreads();
        counted = shared.counted[round];
        round = round == 2 ? 0 : round + 1;
        if (counted >= wanted) lowest = tried, reached = counted;
    }

    // Selects every candidate above `lowest`, and the first of those equal to it.
    const auto is_above = [lowest](uint32_t bits) { return bits > lowest; };
    const auto is_equal = [lowest](uint32_t bits) { return bits != 0 && bits == lowest; };
    int above = lowest < 0xffffffffu ? sum_of_warp(own.reaching(lowest + 1)) : 0;
    int equal = lowest > 0 ? sum_of_warp(own.reaching(lowest)) - above : 0;
    if (lane == 0) shared.warp_above[warp] = above, shared.warp_equal[warp] = equal;
    __syncthreads();
    const WarpSums all_above(shared.warp_above, kWarps, warp), all_equal(shared.warp_equal, kWarps, warp);
    const int of_equal = wanted - all_above.all;
    const unsigned earlier = (1u << lane) - 1;
    above = all_above.before, equal = all_equal.before;
    own.each([&](int i, uint32_t bits) {
        const unsigned above_lanes = __ballot_sync(kAllLanes, is_above(bits));
        const unsigned equal_lanes = __ballot_sync(kAllLanes, is_equal(bits));
        const int rank = equal + __popc(equal_lanes & earlier);
        if (is_above(bits) || (is_equal(bits) && rank < of_equal))
            put(above + __popc(above_lanes & earlier) + min(rank, of_equal), candidates.position(i));
        above += __popc(above_lanes);
        equal += __popc(equal_lanes);
    });
}

// out [wanted] = their positions.
template <int THREADS, int KEPT = kKept, class Candidates>
__device__ void take_best(const Candidates& candidates, int count, int wanted, SelectShared& shared,
                          int32_t* out) {
    take_best_by<THREADS, KEPT>(candidates, count, wanted, shared,
                                [out](int place, int at) { out[place] = at; });
}

}  // namespace h2o::cuda
