// Stores one head of a new row in the cache's format; called by one warp, alone or in the attention that
// reads the row.
#pragma once

#include "attention_args.h"
#include "numbers.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

// d elements; integers get a scale, which is NaN if an element is NaN or infinite.
template <class T, class S>
__device__ __forceinline__ void store_head(const T* in, S* out, float* scale, int d) {
    const int lane = threadIdx.x % 32;
    if constexpr (sizeof(S) > 1) {
        for (int c = lane; c < d; c += 32) put(out + c, to_float(in[c]));
    } else {
        float top = 0, wrong = 0;
        for (int c = lane; c < d; c += 32) {
            const float x = to_float(in[c]);
            top = fmaxf(top, fabsf(x));
            wrong = fmaf(x, 0.f, wrong);
        }
        top = lanes_max<32>(top);
        wrong = lanes_sum<32>(wrong);
        const float inverse = top > 0 ? 127.f / top : 0.f;
        for (int c = lane; c < d; c += 32)
            out[c] = static_cast<int8_t>(fminf(fmaxf(rintf(to_float(in[c]) * inverse), -127.f), 127.f));
        if (lane == 0) *scale = top / 127.f + wrong;
    }
}

// Appends the last row of the set's head, in row tile `piece`, before the block reads it. Every block that
// reads this row writes the same bytes; if the length is out of range, none writes.
template <class T, class S>
__device__ __forceinline__ void append_last_row(const AttentionArgs& args, const SetRows<S>& k,
                                                const SetRows<S>& v, int set, int length, int piece = 0) {
    const bool latent = args.keys.v == args.keys.k;
    if (args.keys.length[piece] == length) {
        const int warp = threadIdx.x / 32, warps = blockDim.x / 32, row = length - 1;
        const auto store = [&](const SetRows<S>& to, const void* from, int d) {
            store_head(static_cast<const T*>(from) + (static_cast<int64_t>(piece) * args.rows.sets + set) * d,
                       const_cast<S*>(to.row(row)), const_cast<float*>(to.scales) + row * to.scale_stride, d);
        };
        if (warp == 0) store(k, args.new_k, args.head_size);
        if (warp == (warps > 1 ? 1 : 0) && !latent) store(v, args.new_v, args.value_size);
    }
    __syncthreads();  // the row is visible to every thread of the block
}

}  // namespace h2o::cuda
