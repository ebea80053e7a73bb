#include "isa.h"
#include "x86/simd_avx512.h"
// must come after the instruction set:
#include "x86/bfloat16_avx512.h"
// and after both:
#include "simd/kernels_bfloat16.h"

const h2o::BlockAttention* h2o::avx512_bfloat16() {
    return &kBFloat16;
}
