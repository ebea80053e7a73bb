// The subquadratic pattern: which keys the query at position i sees.
#pragma once

#include <math.h>
#include <stdint.h>

// The tokens i - window ... i, the global rows up to i and, with strides, the tokens i - 2^k. With a block
// size, also means of complete blocks: the newest two and, with strides, those 2^k before the newest. Each
// token and each mean counts once, all in one softmax.
typedef struct h2o_subquadratic {
    int64_t window;       // tokens before the query that it sees
    int64_t block_size;   // tokens, of the landmarks; 0: none
    int32_t strides;      // 0 or 1
    float landmark_bias;  // added to the scores of landmarks: ln(block_size) weights each like its tokens
} h2o_subquadratic;

// From an operator's attributes; the last two are 0 or 1.
static inline h2o_subquadratic h2o_subquadratic_of(int64_t window, int64_t block_size, int64_t strides,
                                                   int64_t count_bias) {
    h2o_subquadratic pattern;
    pattern.window = window;
    pattern.block_size = block_size;
    pattern.strides = strides != 0;
    pattern.landmark_bias = count_bias != 0 && block_size > 0 ? logf((float)block_size) : 0.0f;
    return pattern;
}
