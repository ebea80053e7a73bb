#include "isa.h"
#include "x86/simd_avx512.h"
// clang-format off: each uses the ones before
#include "x86/bfloat16_avx512.h"
#include "simd/blocks_words.h"
// clang-format on

const h2o::BlockAttention* h2o::avx512_bfloat16() {
    return &kBlocks<BFloat16>;
}
