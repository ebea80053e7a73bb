#include "isa.h"
#include "scalar/simd_scalar.h"
// must come after the instruction set:
#include "scalar/bfloat16_scalar.h"
// and after both:
#include "simd/kernels_bfloat16.h"

const h2o::BlockAttention* h2o::scalar_bfloat16() {
    return &kBFloat16;
}
