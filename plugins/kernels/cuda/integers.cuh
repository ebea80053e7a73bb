// Small integers as halves: integers become halves exactly, and are rounded once, with their scale, as
// DequantizeLinear does.
#pragma once

#include "ptx.cuh"

namespace h2o::cuda {

union Pair {
    uint32_t bits;
    __half2 halves;
    __device__ Pair() {}
    __device__ explicit Pair(uint32_t given) : bits(given) {}
    __device__ explicit Pair(__half2 given) : halves(given) {}
};

// The eight integers of a word times their scale, as pairs of halves in the order of their inputs. Four bits
// u in the low bits of the half 1024 give 1024 + u, and four bits higher 1024 + 16 u; the integer is u - 8.
__device__ __forceinline__ void unpack(uint32_t word, __half2 scale, uint32_t (&pairs)[4]) {
    const Pair middle(0x64086408u), sixteenth(0x2c002c00u), minus_72(0xd480d480u);
#pragma unroll
    for (int i = 0; i < 2; ++i, word >>= 8) {
        const Pair low(and_or(word, 0x000f000fu, 0x64006400u));
        const Pair high(and_or(word, 0x00f000f0u, 0x64006400u));
        pairs[2 * i] = Pair(__hmul2(__hsub2(low.halves, middle.halves), scale)).bits;
        pairs[2 * i + 1] = Pair(__hmul2(__hfma2(high.halves, sixteenth.halves, minus_72.halves), scale)).bits;
    }
}

// The same for two words of four integers of 8 bits each: integers 0 and 2, 1 and 3, 4 and 6, 5 and 7. The
// half 1024 has room for 8 bits u too; the integer is u - 128.
__device__ __forceinline__ void unpack(uint32_t low, uint32_t high, __half2 scale, uint32_t (&pairs)[4]) {
    const Pair middle(0x64806480u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t word = (i < 2 ? low : high) >> (i % 2 * 8);
        const Pair bits(and_or(word, 0x00ff00ffu, 0x64006400u));
        pairs[i] = Pair(__hmul2(__hsub2(bits.halves, middle.halves), scale)).bits;
    }
}

}  // namespace h2o::cuda
