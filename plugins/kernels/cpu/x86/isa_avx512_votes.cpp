#include "int8_votes.h"
#include "x86/simd_avx512.h"
// clang-format off: each uses the ones before
#include "x86/ints_avx512.h"
#include "simd/votes.h"
#include "x86/votes_avx512.h"
// clang-format on

h2o::Int8Votes h2o::avx512_votes() {
    return vote<VoteVectors>;
}
