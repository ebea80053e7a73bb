#include "isa.h"
#include "simd_neon.h"
// after the instruction set they are written over:
#include "bfloat16_neon.h"
// and after both:
#include "kernels_bfloat16.h"

const h2o::BlockAttention* h2o::neon_bfloat16() {
    return &kBFloat16;
}
