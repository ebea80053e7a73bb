// Votes by int8 products: they choose keys and compute nothing that anyone reads.
#pragma once

#include "isa.h"

namespace h2o {

// A key's int8 numbers are multiplied with `scale`. Queries are 128 too large, and `excess` is what that
// adds.
struct KeyScale {
    float scale;     // a number of the key is the integer times it
    int32_t excess;  // to subtract from a sum of products
};

// Column sums of a block of queries over some keys, by int8 products.
struct VoteArgs {
    int64_t d;                 // numbers of a query and of a key
    int64_t keys;              // looked at
    int64_t unmasked;          // the first of them, which every query sees
    const float* visible;      // [R] the first of them, that each query sees
    const int32_t* rows;       // [keys] of k; null: the first ones
    int64_t lanes;             // queries in use
    const uint8_t* q;          // [d/4][R][4]
    const float* scales;       // [R] of queries, 0 of those not in use
    const int8_t* k;           // [rows][d]
    const KeyScale* k_scales;  // [rows]
    float* p;                  // [round_up(keys, P)][R] scratch
    float* m;                  // [R] scratch
    float* l;                  // [R] scratch
    float* tops;               // [keys / kKeyStep, rounded up][R] scratch
    float* sums;               // [round_up(keys, P)] column sums, added to; behind `keys` they are undefined
};

// For machines that have such products, by AVX-512 VNNI.
void (*avx512_votes())(const VoteArgs& args);
// By tiles of AMX beside it; null where there are none.
void (*amx_votes())(const VoteArgs& args);

}  // namespace h2o
