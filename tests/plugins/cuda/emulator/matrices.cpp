#include "matrices.h"

#include <cstring>

#include "cuda_fp16.h"
#include "emulator.h"
#include "races.h"

namespace emulator {
namespace {

const RowSlot& row_slot(void* const* lanes, int lane) {
    return *static_cast<const RowSlot*>(lanes[lane]);
}

}  // namespace

void load_8x8x4(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            const RowSlot& from = row_slot(lanes, matrix * 8 + lane / 4);
            std::memcpy(&row_slot(lanes, lane).out[matrix], from.row + lane % 4 * 4, 4);
        }
}

void load_8x8x4_transposed(void* const* lanes) {
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e)
                std::memcpy(&pair[e], row_slot(lanes, matrix * 8 + lane % 4 * 2 + e).row + lane / 4 * 2, 2);
            std::memcpy(&row_slot(lanes, lane).out[matrix], pair, 4);
        }
}

void load_matrices(uint32_t (&out)[4], const void* row, void (*load)(void* const*)) {
    check_alignment(row, 16);
    watch_read(row, 16);
    RowSlot slot{static_cast<const unsigned char*>(row), out};
    warp_collective(&slot, load);
}

void multiply_16x8x16(void* const* lanes) {
    float a[16][16], b[16][8], c[16][8] = {};
    for (int lane = 0; lane < 32; ++lane) {
        const auto& s = *static_cast<const ProductSlot*>(lanes[lane]);
        const int row = lane / 4, pair = (lane % 4) * 2;
        emulated_half of_a[8], of_b[4];
        std::memcpy(of_a, s.a, sizeof of_a);
        std::memcpy(of_b, s.b, sizeof of_b);
        for (int i = 0; i < 8; ++i)
            a[row + (i / 2 % 2) * 8][pair + i % 2 + (i / 4) * 8] = static_cast<float>(of_a[i]);
        for (int i = 0; i < 4; ++i) b[pair + i % 2 + (i / 2) * 8][row] = static_cast<float>(of_b[i]);
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
            static_cast<const ProductSlot*>(lanes[lane])->c[i] +=
                c[lane / 4 + (i / 2) * 8][(lane % 4) * 2 + i % 2];
}

}  // namespace emulator
