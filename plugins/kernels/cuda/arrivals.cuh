// Combines the partial results of a split launch inside that launch. Each block stores its softmax state; the
// last block to finish among those that share rows combines all states. It always adds them in order of the
// parts, so the result does not depend on which block is last.
#pragma once

#include "attention_args.h"
#include "grid.cuh"
#include "numbers.cuh"
#include "parts.h"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

// Softmax states of the same rows: m, l [count, rows] and normalised outputs o [count, rows, dv].
struct PartStates {
    const float *o, *m, *l;
    int count;
    int64_t rows;
};

// Whether this block is the last to store its states, among the blocks that differ only in their part. If so,
// its threads see the states of all of them. `flag` is a word in shared memory; `piece` is the row tile.
__device__ __forceinline__ bool is_last_part(unsigned* arrivals, int parts, int piece, unsigned* flag) {
    fence_between_blocks();
    __syncthreads();  // every thread has stored its state
    if (threadIdx.x == 0) {
        const unsigned place =
            (static_cast<unsigned>(piece) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        *flag = count_arrival(arrivals + place, static_cast<unsigned>(parts));
    }
    __syncthreads();
    if (*flag != static_cast<unsigned>(parts) - 1) return false;
    fence_between_blocks();
    return true;
}

// The weight of each part's output in its row: weights [rows, parts.count] in shared memory. The weights of a
// row sum to 1; they are 0 if no part saw a key. Called by one warp, for at most ROWS rows. The warp issues
// all loads of m and l at once and waits for memory once.
template <int ROWS, class RowAt>
__device__ __forceinline__ void weigh_parts(const PartStates& parts, int rows, RowAt&& row_at,
                                            float* weights) {
    constexpr int kEach = kMostParts / 32;  // parts for each lane
    const int lane = threadIdx.x % 32;
    float m[ROWS][kEach], l[ROWS][kEach];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int64_t row = row_at(min(r, rows - 1));
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const int64_t at = min(lane + 32 * e, parts.count - 1) * parts.rows + row;
            m[r][e] = take_between_blocks(parts.m + at);
            l[r][e] = take_between_blocks(parts.l + at);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            if (lane + 32 * e >= parts.count) l[r][e] = 0;
            if (l[r][e] > 0) top = fmaxf(top, m[r][e]);
        }
        top = lanes_max<32>(top);
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            l[r][e] = l[r][e] > 0 ? l[r][e] * expf(m[r][e] - top) : 0.f;
            total += l[r][e];
        }
        total = lanes_sum<32>(total);
        const float factor = total > 0 ? 1.f / total : 0.f;
#pragma unroll
        for (int e = 0; e < kEach; ++e)
            if (r < rows && lane + 32 * e < parts.count)
                weights[r * parts.count + lane + 32 * e] = l[r][e] * factor;
    }
}

__device__ __forceinline__ void put4(half* to, float4 x) {
    *reinterpret_cast<uint2*>(to) = {pack_half2(x.x, x.y), pack_half2(x.z, x.w)};
}

// A row's output [dv] as the weighted sum of all parts' outputs. Called by one warp. A lane loads four
// columns at once; empty parts hold zeros and are loaded too. If the row is narrower than the warp, the warp
// reads several parts side by side.
template <int DV>
__device__ __forceinline__ void combine_row(const PartStates& parts, int64_t row, const float* weights,
                                            half* out) {
    constexpr int kPieces = DV / 4;                            // of four columns
    constexpr int kNumbers = (kPieces + 31) / 32;              // of those, the columns of each lane
    constexpr int kBeside = kPieces <= 16 ? 32 / kPieces : 1;  // parts side by side
    constexpr int kTogether = 16 / kNumbers;                   // loads in flight for each lane
    static_assert(kBeside == 1 || 32 % kPieces == 0, "all lanes have a piece");
    const int lane = threadIdx.x % 32, piece = lane % kPieces, beside = lane / kPieces;
    const bool idle = kBeside == 1 && lane >= kPieces;
    const char* const from = reinterpret_cast<const char*>(parts.o + row * DV + 4 * (idle ? 0 : piece));
    const unsigned stride = static_cast<unsigned>(parts.rows) * DV * 4;  // bytes; the host bounds the rows
    float4 sum[kNumbers] = {};
    for (int round = 0; round < parts.count; round += kTogether * kBeside) {
        const int first = round + (kBeside == 1 ? 0 : beside);
        float4 x[kTogether][kNumbers];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            // 64-bit base plus a 32 x 32 bit product: one instruction.
            const unsigned p = static_cast<unsigned>(min(first + i * kBeside, parts.count - 1));
            const char* const part = from + static_cast<uint64_t>(p) * stride;
#pragma unroll
            for (int j = 0; j < kNumbers; ++j)
                x[i][j] = take_between_blocks(reinterpret_cast<const float4*>(part + 512 * j));
        }
        __syncwarp();  // otherwise the compiler issues these loads one by one, in few registers
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const int p = first + i * kBeside;
            const float weight = p < parts.count ? weights[p] : 0.f;
#pragma unroll
            for (int j = 0; j < kNumbers; ++j) {
                sum[j].x = fmaf(weight, x[i][j].x, sum[j].x);
                sum[j].y = fmaf(weight, x[i][j].y, sum[j].y);
                sum[j].z = fmaf(weight, x[i][j].z, sum[j].z);
                sum[j].w = fmaf(weight, x[i][j].w, sum[j].w);
            }
        }
    }
#pragma unroll
    for (int distance = kPieces; distance < kPieces * kBeside; distance *= 2) {  // kNumbers is 1
        sum[0].x += __shfl_xor_sync(kAllLanes, sum[0].x, distance);
        sum[0].y += __shfl_xor_sync(kAllLanes, sum[0].y, distance);
        sum[0].z += __shfl_xor_sync(kAllLanes, sum[0].z, distance);
        sum[0].w += __shfl_xor_sync(kAllLanes, sum[0].w, distance);
    }
    if (idle || (kBeside > 1 && beside > 0)) return;
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) put4(out + 4 * (piece + 32 * j), sum[j]);
}

// The end of a block of a split launch, if the launch has counters. All threads call it, and nothing reads
// `shared` any more.
template <int DV>
__device__ __forceinline__ void combine_if_last(const AttentionArgs& args, const Extent& extent, int set,
                                                int first_row, int last_row, unsigned char* shared) {
    unsigned* const flag = reinterpret_cast<unsigned*>(shared);
    if (!is_last_part(args.arrivals, args.splits, piece_index(args), flag)) return;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    constexpr int kTogether = 4;  // rows
    float* const weights = reinterpret_cast<float*>(shared) + 4 + warp * kTogether * args.splits;
    const PartStates parts = {args.partial_o, args.partial_m, args.partial_l, args.splits,
                              static_cast<int64_t>(args.rows.tokens) * args.rows.heads};
    for (int first = first_row + warp; first <= last_row; first += kTogether * warps) {
        const int count = min((last_row - first) / warps + 1, kTogether);
        const auto row_at = [&](int i) { return row_index(args.rows, extent, set, first + i * warps); };
        __syncwarp();  // the previous weights have been read
        weigh_parts<kTogether>(parts, count, row_at, weights);
        __syncwarp();
        for (int i = 0; i < count; ++i)
            combine_row<DV>(parts, row_at(i), weights + i * args.splits,
                            static_cast<half*>(args.o) + row_at(i) * DV);
    }
}

}  // namespace h2o::cuda
