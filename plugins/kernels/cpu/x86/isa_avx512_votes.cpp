#include "int8_votes.h"
#include "x86/simd_avx512.h"
// written over the instruction set:
#include "simd/votes.h"

void (*h2o::avx512_votes())(const h2o::VoteArgs& args) {
    return vote<VoteVectors>;
}
