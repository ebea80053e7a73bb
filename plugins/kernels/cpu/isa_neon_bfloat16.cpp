#include "isa.h"
#include "simd_neon.h"
// must come after the instruction set:
#include "bfloat16_neon_matrices.h"
// and after both:
#include "kernels_bfloat16.h"

const h2o::BlockAttention* h2o::neon_bfloat16() {
    return &kBFloat16;
}
