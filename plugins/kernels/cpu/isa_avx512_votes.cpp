#include "int8_votes.h"
#include "simd_avx512.h"
// written over the instruction set:
#include "votes.h"

void (*h2o::avx512_votes())(const h2o::VoteArgs& args) {
    return vote;
}
