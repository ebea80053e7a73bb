// float16 of the stand-in, on the compiler's own type (conversions round to nearest even).
#pragma once

#include "cuda_runtime.h"

#ifdef __aarch64__
typedef __fp16 emulated_half;  // older compilers know _Float16 in C++ on x86 only
#else
typedef _Float16 emulated_half;
#endif

struct __half {
    emulated_half value;
};
struct alignas(4) __half2 {
    __half x, y;
};
inline __half __float2half_rn(float value) {
    return {static_cast<emulated_half>(value)};
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
