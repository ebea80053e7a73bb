#include "isa.h"
#include "x86/simd_avx512.h"
// clang-format off: each uses the ones before
#include "simd/kernels_int16.h"
#include "x86/ints_avx512.h"
#include "simd/int16.h"
#include "simd/blocks_int16.h"
// clang-format on

const h2o::BlockAttention* h2o::avx512_int16() {
    return &kInt16;
}
