// Numbers of the model's dtype as float32, and dot products with a query that is float32 already.
#pragma once

#include "ptx.cuh"

namespace h2o::cuda {

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(half x) {
    return __half2float(x);
}
__device__ __forceinline__ void put(float* to, float x) {
    *to = x;
}
__device__ __forceinline__ void put(half* to, float x) {
    *to = __float2half_rn(x);
}

__device__ __forceinline__ float dot_piece(const float* q, const float* k) {
    const float4 x = *reinterpret_cast<const float4*>(k);
    return fmaf(q[0], x.x, fmaf(q[1], x.y, fmaf(q[2], x.z, q[3] * x.w)));
}
__device__ __forceinline__ float dot_piece(const float* q, const half* k) {
    union Piece {
        uint4 bits;
        __half2 pairs[4];
        __device__ Piece() {}
    } piece;
    piece.bits = *reinterpret_cast<const uint4*>(k);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 x = __half22float2(piece.pairs[i]);
        sum = fmaf(q[2 * i], x.x, fmaf(q[2 * i + 1], x.y, sum));
    }
    return sum;
}

template <int D, class T>
__device__ __forceinline__ float dot(const float* q, const T* k) {
    constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
    float sum = 0;
#pragma unroll 4
    for (int c = 0; c < D; c += kWidth) sum += dot_piece(q + c, k + c);
    return sum;
}

}  // namespace h2o::cuda
