// Tiles of half-precision rows on their way into shared memory.
#pragma once

#include "ptx.cuh"

namespace h2o::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// ROWS rows of D halves, each padded by 16 bytes so that ldmatrix meets no bank twice. pointer_of(row) is
// null for rows that are to be zero; `somewhere` is any address that may be named in their place.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows_async(shared_t to, const half* somewhere, F&& pointer_of) {
    constexpr int kPieces = D / 8;  // 16 bytes each
    static_assert(ROWS * kPieces % THREADS == 0, "every thread copies equally many pieces");
#pragma unroll 4  // more keeps too many addresses in registers
    for (int i = 0; i < ROWS * kPieces / THREADS; ++i) {
        const int index = i * THREADS + static_cast<int>(threadIdx.x);
        const int row = index / kPieces, piece = index % kPieces;
        const half* from = pointer_of(row);
        copy16_async(to + (row * (D + 8) + piece * 8) * 2, (from ? from : somewhere) + piece * 8,
                     from != nullptr);
    }
}

}  // namespace h2o::cuda
