// Elements of the model's dtype, and of stored rows, as float32.
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

// Calls `run` with a zero of the rows' storage type; T is the type of the queries.
template <class T, class Run>
h2o_status with_stored(h2o_dtype dtype, Run&& run) {
    if (dtype == H2O_I8) return run(int8_t{});
    if (dtype == H2O_F16) return run(half{});
    if constexpr (sizeof(T) == 4) return run(0.f);
    return H2O_UNSUPPORTED;
}

// Element `at` of rows of D elements; integers have a scale for each row.
template <class S>
__device__ __forceinline__ float scaled(const S* numbers, int64_t at, const float* scales, int d) {
    return sizeof(S) == 1 ? to_float(numbers[at]) * scales[at / d] : to_float(numbers[at]);
}

}  // namespace h2o::cuda
