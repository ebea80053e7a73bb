// Putting the parts of a launch together inside it: blocks leave their states behind, and whichever is the
// last of those that share rows adds them up. It does so in the order of the parts, so that it does not
// matter which one it is.
#pragma once

#include "attention_args.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

// The states of softmaxes over the same rows: m, l [count, rows] and normalised outputs o [count, rows, dv].
struct PartStates {
    const float *o, *m, *l;
    int count;
    int64_t rows;
};

// Of blocks alike but in z: whether this one is the last to have put its states. Its threads then see those
// of all. `flag` is a word of shared memory.
__device__ __forceinline__ bool is_last_part(unsigned* arrivals, int parts, unsigned* flag) {
    fence_between_blocks();
    __syncthreads();  // every thread has put what it has
    if (threadIdx.x == 0)
        *flag = count_arrival(arrivals + blockIdx.y * gridDim.x + blockIdx.x, static_cast<unsigned>(parts));
    __syncthreads();
    if (*flag != static_cast<unsigned>(parts) - 1) return false;
    fence_between_blocks();
    return true;
}

// A row's states of all parts become its output [dv]. A warp takes a row, a lane every 32nd column. `weights`
// are parts.count floats of shared memory for each warp.
template <int DV, class T>
__device__ __forceinline__ void combine_row(const PartStates& parts, int64_t row, float* weights, T* out) {
    constexpr int kNumbers = (DV + 31) / 32;  // that a lane has
    constexpr int kTogether = 64 / kNumbers;  // parts that are on their way at once
    const int lane = threadIdx.x % 32;
    const auto l_of = [&](int p) { return take_between_blocks(parts.l + p * parts.rows + row); };
    const auto m_of = [&](int p) { return take_between_blocks(parts.m + p * parts.rows + row); };
    float top = -INFINITY, total = 0;
    for (int p = lane; p < parts.count; p += 32)
        if (l_of(p) > 0) top = fmaxf(top, m_of(p));
    top = lanes_max<32>(top);
    for (int p = lane; p < parts.count; p += 32) {
        const float l = l_of(p);
        weights[p] = l > 0 ? l * expf(m_of(p) - top) : 0.f;
        total += weights[p];
    }
    total = lanes_sum<32>(total);
    __syncwarp();  // the weights of all parts

    float sum[kNumbers] = {};
    for (int first = 0; first < parts.count; first += kTogether) {
        float x[kTogether][kNumbers];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
            for (int j = 0; j < kNumbers; ++j) {
                const int p = first + i, c = lane + 32 * j;
                // An empty part's output need not be read.
                const bool counts = p < parts.count && c < DV && weights[p < parts.count ? p : 0] > 0;
                x[i][j] = counts ? take_between_blocks(parts.o + (p * parts.rows + row) * DV + c) : 0.f;
            }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            const float weight = first + i < parts.count ? weights[first + i] : 0.f;
#pragma unroll
            for (int j = 0; j < kNumbers; ++j) sum[j] = fmaf(weight, x[i][j], sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < kNumbers; ++j)
        if (lane + 32 * j < DV) put(out + lane + 32 * j, total > 0 ? sum[j] / total : 0.f);
    __syncwarp();  // the weights are read
}

// What a block of a parted launch does at its end, where it has counters: all threads come, and `shared` is
// read by nobody anymore.
template <int DV, class T>
__device__ __forceinline__ void combine_if_last(const AttentionArgs& args, const Extent& extent, int set,
                                                int first_row, int last_row, unsigned char* shared) {
    unsigned* const flag = reinterpret_cast<unsigned*>(shared);
    if (!is_last_part(args.arrivals, args.splits, flag)) return;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float* const weights = reinterpret_cast<float*>(shared) + 4 + warp * args.splits;
    const PartStates parts = {args.partial_o, args.partial_m, args.partial_l, args.splits,
                              static_cast<int64_t>(args.rows.tokens) * args.rows.heads};
    for (int row = first_row + warp; row <= last_row; row += warps) {
        const int64_t index = row_index(args.rows, extent, set, row);
        combine_row<DV>(parts, index, weights, static_cast<T*>(args.o) + index * DV);
    }
}

}  // namespace h2o::cuda
