#include "isa.h"
#include "simd_scalar.h"
// clang-format off: each uses the ones before
#include "kernels_int16.h"
#include "int16_scalar.h"
#include "blocks_int16.h"
// clang-format on

const h2o::BlockAttention* h2o::scalar_int16() {
    return &kInt16;
}
