#include "isa.h"
#include "scalar/simd_scalar.h"
// clang-format off: each uses the ones before
#include "scalar/bfloat16_scalar.h"
#include "simd/blocks_words.h"
// clang-format on

const h2o::BlockAttention* h2o::scalar_bfloat16() {
    return &kBlocks<BFloat16>;
}
