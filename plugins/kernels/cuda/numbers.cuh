// Elements of the model's dtype as float32, and dot products with float32 queries.
#pragma once

#include "h2o/kv.h"
#include "ptx.cuh"

namespace h2o::cuda {

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(half x) {
    return __half2float(x);
}
__device__ __forceinline__ float to_float(int8_t x) {
    return static_cast<float>(x);
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

__device__ __forceinline__ float dot_piece(const float* q, const int8_t* k) {
    union Piece {
        uint4 bits;
        int8_t numbers[16];
        __device__ Piece() {}
    } piece;
    piece.bits = *reinterpret_cast<const uint4*>(k);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) sum = fmaf(q[i], to_float(piece.numbers[i]), sum);
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

// Calls `run` with a zero of the rows' storage type; T is the type of the queries.
template <class T, class Run>
h2o_status with_stored(const h2o_kv& kv, Run&& run) {
    if (kv.dtype == H2O_I8) return run(int8_t{});
    if (kv.dtype == H2O_F16) return run(half{});
    if constexpr (sizeof(T) == 4) return run(0.f);
    return H2O_UNSUPPORTED;
}

// Element `at` of rows of D elements; integers have a scale for each row.
template <class S>
__device__ __forceinline__ float scaled(const S* numbers, int64_t at, const float* scales, int d) {
    return sizeof(S) == 1 ? to_float(numbers[at]) * scales[at / d] : to_float(numbers[at]);
}

// Keys or values of a cache [rows, heads, D] in any format.
template <int D, class S>
struct Stored {
    const S* numbers;
    const float* scales;  // [rows, heads], of integers
    int heads;

    __device__ __forceinline__ const S* row(int64_t row, int head) const {
        return numbers + (row * heads + head) * D;
    }
    __device__ __forceinline__ float scale(int64_t row, int head) const {
        return sizeof(S) == 1 ? scales[row * heads + head] : 1.f;
    }
    __device__ __forceinline__ float number(int64_t at, int head, int c) const {
        return to_float(row(at, head)[c]) * scale(at, head);
    }
    __device__ __forceinline__ float times(const float* q, int64_t at, int head) const {
        return dot<D>(q, row(at, head)) * scale(at, head);
    }
};

template <int D, class S>
Stored<D, S> stored(const void* numbers, const float* scales, int heads) {
    return {static_cast<const S*>(numbers), scales, heads};
}

}  // namespace h2o::cuda
