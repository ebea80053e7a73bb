#include "arm/simd_neon.h"
#include "isa.h"
// clang-format off: each uses the ones before
#include "arm/bfloat16_neon_matrices.h"
#include "simd/blocks_words.h"
// clang-format on

const h2o::BlockAttention* h2o::neon_bfloat16() {
    return &kBlocks<BFloat16>;
}
