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
inline __half2 __low2half2(__half2 v) {
    return {v.x, v.x};
}
inline __half2 __high2half2(__half2 v) {
    return {v.y, v.y};
}
// Arithmetic of pairs: products of halves are exact in double, so each result is rounded once.
inline __half __emulated_fma(__half x, __half y, __half z) {
    return {static_cast<emulated_half>(static_cast<double>(x.value) * static_cast<double>(y.value) +
                                       static_cast<double>(z.value))};
}
inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) {
    return {__emulated_fma(x.x, y.x, z.x), __emulated_fma(x.y, y.y, z.y)};
}
inline __half2 __hmul2(__half2 x, __half2 y) {
    const __half zero = __float2half_rn(-0.f);
    return __hfma2(x, y, {zero, zero});
}
inline __half2 __hsub2(__half2 x, __half2 y) {
    const __half minus = __float2half_rn(-1);
    return __hfma2(y, {minus, minus}, x);
}
