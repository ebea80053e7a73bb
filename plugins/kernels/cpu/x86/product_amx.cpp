// Products with integer weights by tiles of AMX. A tile of a row's integers, 16 rows of up to 64, meets a
// tile of 16 columns as weights lie in memory: words of four, 16 of them side by side.
//
// Tiles hold the sums of 32 rows and two panels, of one block of K. They are stored, and vectors multiply
// them with scales, as in product_tile.h. Sums of integers are exact, and those of blocks are added in the
// same order. Therefore a row has the same result as there. Few rows are left to it.
#include "product.h"
#include "x86/amx.h"
#include "x86/processor.h"
#include "x86/simd_avx512.h"

namespace {

using h2o::kPanel;
using h2o::ProductTile;
using h2o::TileOfY;

constexpr int64_t kRows = 2 * kTileRows;
constexpr int64_t kPanels = 2;
constexpr int kTogether = 2;  // blocks whose sums vectors take at a time
constexpr int64_t kMostBlock = 256;

struct Sums {
    alignas(64) int32_t of[kTogether][kPanels][kRows][kPanel];
};
struct Totals {
    alignas(64) float of[kPanels][kRows][kPanel] = {};
};
struct Weights {
    alignas(64) uint8_t of[kPanels][kMostBlock * kPanel];
};

// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns.
void begin(int64_t block) {
    const int64_t step = tile_step(block);
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, kTileRows, kTileBytes);
    for (int tile = 4; tile < 6; ++tile) shapes.set(tile, kTileRows, step);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, step / 4, kTileBytes);
    set_tiles(shapes);
}

void end() {
    _tile_release();
}

// One block's weights of a panel as bytes in the order of K: 8 bits where they are, 4 bits in `made`.
const uint8_t* bytes_of(const ProductTile& tile, int bits, int64_t block, int64_t panel, uint8_t* unpacked) {
    const uint8_t* const at =
        tile.weights + panel * tile.panel_bytes + block * tile.block * kPanel * bits / 8;
    if (bits == 8) return at;
    const int64_t half = tile.block / 2 * kPanel;
    const __m512i low = _mm512_set1_epi8(15);
    for (int64_t i = 0; i < half; i += 64) {
        const __m512i both = _mm512_loadu_si512(at + i);
        _mm512_store_si512(unpacked + i, _mm512_and_si512(both, low));
        _mm512_store_si512(unpacked + half + i, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
    finish_writes(unpacked);
    return unpacked;
}

// Sums of one block: of 16 rows or 32, and one panel or two. Rows behind those in use are read as well.
void multiply_block(const ProductTile& tile, int64_t step, int64_t block, bool more_rows,
                    const uint8_t* weights, const uint8_t* more_weights, int32_t (*sums)[kRows][kPanel]) {
    const int64_t stride = tile.inputs;
    const int8_t* q = tile.x.q + block * tile.block;
    const int8_t* const stop = q + tile.block;
    const bool more = more_weights != nullptr;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; q < stop; q += step, at += step * kPanel) {
        _tile_loadd(4, q, stride);
        _tile_loadd(6, weights + at, kTileBytes);
        _tile_dpbsud(0, 4, 6);
        if (more) {
            _tile_loadd(7, more_weights + at, kTileBytes);
            _tile_dpbsud(1, 4, 7);
        }
        if (!more_rows) continue;
        _tile_loadd(5, q + kTileRows * stride, stride);
        _tile_dpbsud(2, 5, 6);
        if (more) _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, sums[0], kTileBytes);
    if (more) _tile_stored(1, sums[1], kTileBytes);
    if (!more_rows) return;
    _tile_stored(2, sums[0][kTileRows], kTileBytes);
    if (more) _tile_stored(3, sums[1][kTileRows], kTileBytes);
}

// totals += the sums of kCount blocks times their scales, for one panel.
template <int kCount>
void add_blocks(const ProductTile& tile, int64_t block, int64_t rows, int64_t panel, const Sums& sums,
                Totals& totals) {
    using S = Simd;
    const int64_t at = (panel * tile.blocks + block) * kPanel;
    S::Vec scale[kCount], offset[kCount];
    for (int b = 0; b < kCount; ++b) {
        scale[b] = S::load(tile.scales + at + b * kPanel);
        offset[b] = tile.offsets == nullptr ? S::zero() : S::load(tile.offsets + at + b * kPanel);
    }
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t first = row * tile.blocks + block;
        S::Vec total = S::load(totals.of[panel][row]);
        for (int b = 0; b < kCount; ++b) {
            const __m512i start = _mm512_set1_epi32(tile.x.starts[first + b]);
            const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums.of[b][panel][row]), start);
            const S::Vec both = S::mul(scale[b], S::set(tile.x.scales[first + b]));
            total = S::fma(_mm512_cvtepi32_ps(sum), both, total);
            if (tile.offsets != nullptr) total = S::fma(offset[b], S::set(tile.x.sums[first + b]), total);
        }
        S::store(totals.of[panel][row], total);
    }
}

void store(const TileOfY& out, int64_t parts, int64_t rows, int64_t panel, const Totals& totals) {
    using S = Simd;
    const int64_t column = panel * kPanel, left = out.columns - column;
    const int columns = static_cast<int>(left < kPanel ? left : kPanel);
    for (int64_t row = 0, at = column; row < rows; row += parts, at += out.stride) {
        S::Vec sum = S::load(totals.of[panel][row]);
        if (parts == 2) sum = S::add(sum, S::load(totals.of[panel][row + 1]));
        if (out.addend != nullptr) sum = S::add(sum, S::load_some(out.addend + at, columns));
        S::store_some(out.y + at, sum, columns);
    }
}

void multiply(const ProductTile& tile, int bits, int64_t rows, int64_t panels) {
    const h2o_products* const vectors = h2o::avx512vnni_products();
    if (rows <= vectors->rows) return vectors->multiply(tile, bits, rows, panels);
    const int64_t step = tile_step(tile.block);
    Sums sums;
    Totals totals;
    Weights unpacked;
    for (int64_t block = 0; block < tile.blocks; block += kTogether) {
        const int64_t count = tile.blocks - block < kTogether ? 1 : kTogether;
        for (int64_t b = 0; b < count; ++b) {
            const uint8_t* weights[kPanels] = {};
            for (int64_t panel = 0; panel < panels; ++panel)
                weights[panel] = bytes_of(tile, bits, block + b, panel, unpacked.of[panel]);
            multiply_block(tile, step, block + b, rows > kTileRows, weights[0], weights[1], sums.of[b]);
        }
        for (int64_t panel = 0; panel < panels; ++panel) {
            count == 1 ? add_blocks<1>(tile, block, rows, panel, sums, totals)
                       : add_blocks<kTogether>(tile, block, rows, panel, sums, totals);
        }
    }
    for (int64_t panel = 0; panel < panels; ++panel) store(tile.out, tile.parts, rows, panel, totals);
}

}  // namespace

bool h2o::amx_int8_is_right() {
    constexpr int64_t kNumbers = kTileRows * kTileBytes;
    alignas(64) int8_t a[kNumbers];
    alignas(64) uint8_t b[kNumbers];
    alignas(64) int32_t sums[kTileRows][kPanel];
    for (int64_t i = 0; i < kNumbers; ++i) {
        a[i] = static_cast<int8_t>(i * 37 % 251 - 125);
        b[i] = static_cast<uint8_t>(i * 91 % 256);
    }
    begin(kTileBytes);
    finish_writes(a);
    _tile_zero(0);
    _tile_loadd(4, a, kTileBytes);
    _tile_loadd(6, b, kTileBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_stored(0, sums, kTileBytes);
    end();
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t column = 0; column < kPanel; ++column) {
            int32_t sum = 0;
            for (int64_t k = 0; k < kTileBytes; ++k)
                sum += a[row * kTileBytes + k] * b[(k / 4 * kPanel + column) * 4 + k % 4];
            if (sums[row][column] != sum) return false;
        }
    }
    return true;
}

const h2o::IntegerTiles* h2o::amx_integer_tiles() {
    static constexpr IntegerTiles kTiles = {kRows, kPanels, kTileRows - 1, multiply, begin, end};
    return &kTiles;
}
