#include "isa.h"
#include "x86/simd_avx2.h"
// clang-format off: each uses the ones before
#include "x86/ints_avx2.h"
#include "simd/int16.h"
#include "simd/blocks_words.h"
// clang-format on

const h2o::BlockAttention* h2o::avx2_int16() {
    return &kBlocks<Int16>;
}
