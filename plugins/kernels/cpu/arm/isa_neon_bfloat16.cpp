#include "arm/simd_neon.h"
#include "isa.h"
// must come after the instruction set:
#include "arm/bfloat16_neon_matrices.h"
// and after both:
#include "simd/kernels_bfloat16.h"

const h2o::BlockAttention* h2o::neon_bfloat16() {
    return &kBFloat16;
}
