// Tiles of AMX: eight registers of up to 16 rows of 64 bytes. Their shapes are a thread's state; whoever
// multiplies sets them before and releases them after.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;  // of a row

struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {};  // of a row of each tile
    uint8_t rows[16] = {};

    void set(int tile, int64_t count, int64_t row_bytes) {
        rows[tile] = static_cast<uint8_t>(count);
        bytes[tile] = static_cast<uint16_t>(row_bytes);
    }
};
static_assert(sizeof(TileShapes) == 64, "the processor's layout");

// Bytes of `depth` in one instruction, a multiple of 4: as few equal steps as possible.
inline int64_t tile_step(int64_t depth) {
    int64_t steps = (depth + kTileBytes - 1) / kTileBytes;
    while (depth % (4 * steps) != 0) ++steps;
    return depth / steps;
}

// Compilers do not know that loading tiles reads memory: what was written before must be there.
__attribute__((always_inline)) inline void finish_writes(const void* at) {
    asm volatile("" : : "r"(at) : "memory");
}

inline void set_tiles(const TileShapes& shapes) {
    finish_writes(&shapes);
    _tile_loadconfig(&shapes);
}

}  // namespace
