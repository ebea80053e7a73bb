// Products of words of two bfloat16 by tiles of AMX: 16 rows of x times 16 columns, 32 inputs an instruction.
//
// 32 rows and two panels have four tiles of sums. In each step two tiles of x and two of weights are loaded
// for four products of 16 cycles, 1 KiB every 16 cycles. Weights lie in L1, 32 KiB of them, and meet all rows
// of a part; x comes from L2. Sums begin with what they are added to, so in every tile a row has the same
// bits.
#include "product.h"
#include "x86/amx.h"

namespace {

using h2o::FloatTile;
using h2o::kPanel;
using h2o::TileOfY;

constexpr int64_t kRows = 2 * kTileRows;
constexpr int64_t kPanels = 2;
constexpr int64_t kColumns = kPanels * kPanel;
constexpr int64_t kInputs = 512;  // of two panels, 32 KiB
constexpr int64_t kMostWords = kTileBytes / 4;

// Words of one instruction. A column has a multiple of eight.
int64_t step_of(int64_t words) {
    return words % kMostWords == 0 ? kMostWords : kMostWords / 2;
}

// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns.
void begin(int64_t words) {
    const int64_t step = step_of(words);
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, kTileRows, kTileBytes);
    for (int tile = 4; tile < 6; ++tile) shapes.set(tile, kTileRows, 4 * step);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, step, kTileBytes);
    set_tiles(shapes);
}

void end() {
    _tile_release();
}

// Sums of some tiles: [kRows][stride], from zero on where `from` is null.
struct Sums {
    const float* from;
    float* to;
    int64_t stride;
};

template <bool kMoreRows, bool kMorePanels>
void multiply_steps(const FloatTile& tile, const Sums& sums) {
    const int64_t stride = tile.stride * 4, step = step_of(tile.words), to = sums.stride * 4;
    const float* const more_rows = tile.x + kTileRows * tile.stride;
    const float* const more_columns = tile.weights + tile.panel_words * kPanel;
    const int64_t down = kTileRows * sums.stride;
    if (sums.from == nullptr) {
        _tile_zero(0);
        if constexpr (kMorePanels) _tile_zero(1);
        if constexpr (kMoreRows) _tile_zero(2);
        if constexpr (kMoreRows && kMorePanels) _tile_zero(3);
    } else {
        _tile_loadd(0, sums.from, to);
        if constexpr (kMorePanels) _tile_loadd(1, sums.from + kPanel, to);
        if constexpr (kMoreRows) _tile_loadd(2, sums.from + down, to);
        if constexpr (kMoreRows && kMorePanels) _tile_loadd(3, sums.from + down + kPanel, to);
    }
    for (int64_t word = 0; word < tile.words; word += step) {
        _tile_loadd(4, tile.x + word, stride);
        _tile_loadd(6, tile.weights + word * kPanel, kTileBytes);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (kMorePanels) {
            _tile_loadd(7, more_columns + word * kPanel, kTileBytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (kMoreRows) {
            _tile_loadd(5, more_rows + word, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (kMoreRows && kMorePanels) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums.to, to);
    if constexpr (kMorePanels) _tile_stored(1, sums.to + kPanel, to);
    if constexpr (kMoreRows) _tile_stored(2, sums.to + down, to);
    if constexpr (kMoreRows && kMorePanels) _tile_stored(3, sums.to + down + kPanel, to);
}

void multiply_sums(const FloatTile& tile, int64_t rows, int64_t panels, const Sums& sums) {
    if (rows > kTileRows) {
        panels > 1 ? multiply_steps<true, true>(tile, sums) : multiply_steps<true, false>(tile, sums);
    } else {
        panels > 1 ? multiply_steps<false, true>(tile, sums) : multiply_steps<false, false>(tile, sums);
    }
}

void copy_rows(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
               int64_t to_stride) {
    for (int64_t row = 0; row < rows; ++row)
        __builtin_memcpy(to + row * to_stride, from + row * from_stride,
                         static_cast<size_t>(columns) * sizeof(float));
}

// Whole tiles are stored where they belong, others by way of a buffer.
void multiply_pair(const FloatTile& tile, int64_t rows, int64_t panels) {
    const TileOfY& out = tile.out;
    finish_writes(tile.weights);
    if (rows % kTileRows == 0 && out.columns == panels * kPanel) {
        return multiply_sums(tile, rows, panels, {out.addend, out.y, out.stride});
    }
    alignas(64) float sums[kRows * kColumns] = {};
    if (out.addend != nullptr) copy_rows(out.addend, out.stride, rows, out.columns, sums, kColumns);
    finish_writes(sums);
    multiply_sums(tile, rows, panels, {sums, sums, kColumns});
    copy_rows(sums, kColumns, rows, out.columns, out.y, out.stride);
}

// One row has more panels at once in kernels with vectors.
void multiply(const FloatTile& tile, int64_t rows, int64_t panels) {
    FloatTile pair = tile;
    for (int64_t first = 0; first < panels; first += kPanels) {
        const int64_t width = panels - first < kPanels ? panels - first : kPanels;
        const int64_t column = first * kPanel, left = tile.out.columns - column;
        pair.weights = tile.weights + first * tile.panel_words * kPanel;
        pair.out.addend = tile.out.addend == nullptr ? nullptr : tile.out.addend + column;
        pair.out.y = tile.out.y + column;
        pair.out.columns = left < width * kPanel ? left : width * kPanel;
        multiply_pair(pair, rows, width);
    }
}

}  // namespace

const h2o::FloatProducts* h2o::amx_bfloat16_tiles() {
    static constexpr FloatProducts kTiles = {
        kRows, kPanels, 2, nullptr, multiply, nullptr, kInputs, kTileRows - 1, begin, end,
    };
    return &kTiles;
}
