// The product of a warp's matrices. It is a source of its own because kernels are compiled slowly, with calls
// of races.cpp at every access, and it is most of what they compute.
#pragma once

#include <cstdint>

namespace emulator {

// What a lane gives to mma.sync.m16n8k16: its parts of A [16, 16] and B [16, 8], both float16, and of C [16,
// 8].
struct ProductSlot {
    float* c;
    uint32_t a[4], b[2];
};

// C += A B, by the slots of all 32 lanes.
void multiply_16x8x16(void* const* lanes);

}  // namespace emulator
