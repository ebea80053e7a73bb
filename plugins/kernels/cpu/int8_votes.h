// Votes by int8 products: they choose keys and compute nothing that anyone reads.
#pragma once

#include "isa.h"

namespace h2o {

// Queries have 7 bits, and an excess is added to each: as unsigned bytes, two products with bytes of keys fit
// 16 bits, which is how AVX2 sums them.
constexpr int kQueryMost = 63, kQueryExcess = 64;

// A key's int8 numbers are multiplied with `scale`. `excess` is what the queries' excess adds.
struct KeyScale {
    float scale;     // a number of the key is the integer times it
    int32_t excess;  // to subtract from a sum of products
};

// Votes of a block of queries for some keys (simd/sample.h), by int8 products.
struct VoteArgs {
    int64_t d;                 // numbers of a query and of a key
    int64_t keys;              // looked at
    int64_t voted;             // the first of them, which get sums; every query sees them
    int64_t unmasked;          // the first of them, which every query sees
    const float* visible;      // [R] the first of them, that each query sees
    const int32_t* rows;       // [keys] of k; null: the first ones
    int64_t lanes;             // queries in use
    const void* q;             // [d/4][R][4] unsigned bytes
    const float* scales;       // [R] of queries, 0 of those not in use
    const int8_t* k;           // [rows][d]
    const KeyScale* k_scales;  // [rows]
    float* p;                  // [kKeyStep][R] scratch
    float* m;                  // [R] scratch
    float* l;                  // [R] scratch
    float* sums;               // [round_up(voted, P)] votes, added to; behind `voted` they are undefined
};

// Votes of one instruction set; null where it has none.
using Int8Votes = void (*)(const VoteArgs& args);

Int8Votes avx2_votes();
Int8Votes avx512_votes();  // by VNNI
Int8Votes amx_votes();     // by tiles beside it

}  // namespace h2o
