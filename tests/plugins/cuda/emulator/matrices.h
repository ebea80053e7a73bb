// What a warp does with matrices: ldmatrix and mma.sync. They are in a source of their own because kernels
// are compiled slowly, with calls of races.cpp at every access.
#pragma once

#include <cstdint>

namespace emulator {

// What a lane gives to ldmatrix.x4: a row of one of four matrices of 8 x 8 halves, 16 bytes, and where its
// parts go.
struct RowSlot {
    const unsigned char* row;
    uint32_t* out;
};

// By the slots of all 32 lanes. Lane i gets elements 2 (i % 4) and the next of row i / 4 of each matrix.
void load_8x8x4(void* const* lanes);
void load_8x8x4_transposed(void* const* lanes);

// One lane's part of either, as the warp meets.
void load_matrices(uint32_t (&out)[4], const void* row, void (*load)(void* const* lanes));

// What a lane gives to mma.sync.m16n8k16: its parts of A [16, 16] and B [16, 8], both float16, and of C [16,
// 8].
struct ProductSlot {
    float* c;
    uint32_t a[4], b[2];
};

// C += A B, by the slots of all 32 lanes.
void multiply_16x8x16(void* const* lanes);

}  // namespace emulator
