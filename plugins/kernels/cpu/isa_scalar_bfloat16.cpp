#include "isa.h"
#include "simd_scalar.h"
// must come after the instruction set:
#include "bfloat16_scalar.h"
// and after both:
#include "kernels_bfloat16.h"

const h2o::BlockAttention* h2o::scalar_bfloat16() {
    return &kBFloat16;
}
