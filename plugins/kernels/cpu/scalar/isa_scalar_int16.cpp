#include "isa.h"
#include "scalar/simd_scalar.h"
// clang-format off: each uses the ones before
#include "simd/kernels_int16.h"
#include "scalar/int16_scalar.h"
#include "simd/blocks_int16.h"
// clang-format on

const h2o::BlockAttention* h2o::scalar_int16() {
    return &kInt16;
}
