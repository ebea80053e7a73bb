// Tile sizes, for the kernels and for the host code that splits work.
#pragma once

#include <cstdint>

#include "h2o/status.h"

namespace h2o::cuda {

constexpr int kSmallTileRows = 16;  // packed rows of a one-warp block, for decode
constexpr int kLargeTileRows = 128;
constexpr int kMediumTileRows = 64;  // of blocks with listed keys, and with a memory set for few rows
constexpr int kAnyTileRows = 8;
constexpr int kLatentKeys = 32;  // of a tile of the latent kernel
constexpr int kLatentRows = 64;  // of its larger blocks
constexpr int kLatentWarps = 4;  // of its smaller ones

// The largest sizes that any kernel supports.
constexpr int kMostHeadSize = 576;       // of latents
constexpr int kMostTiledHeadSize = 192;  // of all other tiled kernels
constexpr int kMostValueSize = 512;
constexpr int kMostHeads = 1 << 16;  // of keys and values: the bytes of a row are an int

constexpr int kKeyTile = 64;  // keys that a block reads at a time
constexpr int kAnyKeyTile = 32;

constexpr int kColumnSumKeys = 128;  // keys that a block of the column sums keeps
constexpr int kColumnSumRows = 64;   // and packed rows that it reads at a time
constexpr int kAnyColumnSumRows = 32;

inline bool small_tile(int64_t packed_rows) {
    return packed_rows <= kSmallTileRows;
}

// How keys and values of a size are handled.
enum class Form {
    kTiles,   // attention_f16.cuh
    kLatent,  // latent_f16.cuh: wide keys whose first elements are the values
    kAny      // attention_any.cu
};

constexpr bool has_tiles(int d) {
    return d == 32 || d == 64 || d == 80 || d == 96 || d == 128;
}

inline Form form_of(int d, int dv, h2o_dtype dtype, bool latent) {
    if (dtype != H2O_F16) return Form::kAny;
    if ((d == dv && has_tiles(d)) || (d == 192 && dv == 128)) return Form::kTiles;
    return latent && d == 576 && dv == 512 ? Form::kLatent : Form::kAny;
}

}  // namespace h2o::cuda
