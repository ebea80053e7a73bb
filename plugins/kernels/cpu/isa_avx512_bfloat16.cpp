#include "isa.h"
#include "simd_avx512.h"
// must come after the instruction set:
#include "bfloat16_avx512.h"
// and after both:
#include "kernels_bfloat16.h"

const h2o::BlockAttention* h2o::avx512_bfloat16() {
    return &kBFloat16;
}
