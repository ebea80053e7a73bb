#include "isa.h"
#include "simd_avx512.h"
// clang-format off: each uses the ones before
#include "kernels_int16.h"
#include "int16_avx512.h"
#include "blocks_int16.h"
// clang-format on

const h2o::BlockAttention* h2o::avx512_int16() {
    return &kInt16;
}
