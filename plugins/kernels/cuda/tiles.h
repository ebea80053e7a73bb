// Sizes of the tiles that blocks work in, for the kernels and for the host code that cuts work into as many.
#pragma once

#include <cstdint>

#include "h2o/status.h"

namespace h2o::cuda {

constexpr int kSmallTileRows = 16;  // packed rows of a block of one warp: decode's, and all it takes
constexpr int kLargeTileRowsF16 = 128;
constexpr int kLargeTileRowsF32 = 64;
constexpr int kKeyTile = 64;  // keys that a block reads at a time
constexpr int kKeyTileF32 = 32;

constexpr int kColumnSumKeys = 128;  // keys that a block of the column sums keeps
constexpr int kColumnSumKeysF32 = 64;
constexpr int kColumnSumRows = 64;  // and packed rows that it reads at a time
constexpr int kColumnSumRowsF32 = 32;

inline bool small_tile(int64_t packed_rows) {
    return packed_rows <= kSmallTileRows;
}

// Packed rows of a block of launch_attention over keys that are not gathered.
inline int attention_tile_rows(int64_t packed_rows, h2o_dtype dtype) {
    if (small_tile(packed_rows)) return kSmallTileRows;
    return dtype == H2O_F16 ? kLargeTileRowsF16 : kLargeTileRowsF32;
}

}  // namespace h2o::cuda
