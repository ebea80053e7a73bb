// float16 of the stand-in, on the compiler's own _Float16 (conversions round to nearest even).
#pragma once

#include "cuda_runtime.h"

struct __half {
    _Float16 value;
};
struct alignas(4) __half2 {
    __half x, y;
};
inline __half __float2half_rn(float value) {
    return {static_cast<_Float16>(value)};
}
inline float __half2float(__half value) {
    return static_cast<float>(value.value);
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 v) {
    return {__half2float(v.x), __half2float(v.y)};
}
