// From dot products to what softmax takes, in units of Scores::scale: the product, or its capped value, a
// tanh.
#pragma once

#include "attention_args.h"
#include "ptx.cuh"
#include "tile_copy.cuh"

namespace h2o::cuda {

__device__ __forceinline__ float capped(const Scores& scores, float product) {
    return scores.squeeze > 0 ? tanhf(product * scores.squeeze) : product;
}

// The same for a warp's tile in mma layout. tanh(x) is 1 - 2 / (1 + exp(2 x)): its absolute error is near
// 2^-23, so a score is off by that share of its cap.
template <int MT, int KEYS>
__device__ __forceinline__ void cap_tile(const Scores& scores, float (&s)[MT][KEYS][4]) {
    if (scores.squeeze == 0) return;
    const float factor = 2 * kLog2E * scores.squeeze;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int nn = 0; nn < KEYS; ++nn)
#pragma unroll
            for (float& x : s[i][nn]) x = fmaf(-2.f, reciprocal_fast(1.f + exp2_fast(x * factor)), 1.f);
}

}  // namespace h2o::cuda
