// Native products: the functions of each instruction set, and their shared code.
#pragma once

#include <cstdint>

#include "h2o/products.h"

namespace h2o {

constexpr int64_t kPanel = H2O_PANEL;
constexpr int kRowPanels = 4;  // panels of a float tile with one row

// Rows of activations as integers; a row of x is `parts` of them. [rows][K], and per block [rows][K / block]:
struct Rounded {
    int8_t* q;        // [rows][parts][K]
    float* scales;    // [rows][parts][K / block], like the next two
    int32_t* starts;  // the start value of a sum, because weights are stored with a bias
    float* sums;      // sums of the values that q represents; read if weights have offsets
};

// A row of activations: see h2o_activations.
struct RowOfX {
    const float* x;     // [inputs]
    const float* up;    // [inputs], or null
    const float* norm;  // [inputs], or null
    float epsilon;      // added to the mean square, with norm
    h2o_gate gate;      // with up
    int64_t inputs;     // K
};

// How it becomes integers: `parts` rows of them.
struct Rounding {
    int64_t block;    // numbers that share a scale
    int parts;        // 1 or 2: see h2o_block_matrix
    int32_t surplus;  // the bias of each stored weight
};

// The destination of some rows of one or two panels. Arrays begin with the first of these rows and columns.
struct TileOfY {
    const float* addend;  // to add to y, in the same layout; or null
    float* y;             // [rows][stride]
    int64_t stride;       // floats from one row to the next
    int64_t columns;      // that are stored
};

// Some rows of integers against one or two panels. Arrays begin with the first of these rows and panels.
struct ProductTile {
    int64_t inputs;  // K
    int64_t block;   // inputs that share a scale
    int64_t blocks;  // inputs / block
    Rounded x;
    const uint8_t* weights;  // panels, panel_bytes apart: products.h has the layout
    int64_t panel_bytes;
    const float* scales;   // [panels][blocks][16]
    const float* offsets;  // [panels][blocks][16], or null
    int64_t parts;         // 1, or 2: sums of two rows are added up to one of y
    TileOfY out;
};

// The same with float weights and rows. A word is a float, or two bfloat16 that are neighbours in K.
struct FloatTile {
    int64_t words;         // of a column
    const float* x;        // [rows][stride] words
    int64_t stride;        // words from one row to the next
    const float* weights;  // [panels][words][16], panels panel_words * 16 words apart
    int64_t panel_words;
    TileOfY out;
};

// Blocks of one panel's integers, as they are stored.
struct IntegerPanel {
    const uint8_t* weights;  // products.h has the layout
    const float* scales;     // [blocks][16]
    const float* offsets;    // [blocks][16], or null
    int64_t block, blocks;
};

// Products of one kind of words.
struct FloatProducts {
    int64_t rows;     // the most of a tile
    int64_t panels;   // likewise
    int64_t numbers;  // of x in a word: 2 if rows become bfloat16, as weights are
    void (*prepare)(const RowOfX& row, float* words);
    void (*multiply)(const FloatTile& tile, int64_t rows, int64_t panels);
    // Integers times scales as words of two bfloat16, [block * blocks / 2][16], each rounded once; null but
    // for tiles of AMX, which alone gain by it.
    void (*widen)(const IntegerPanel& panel, int bits, float* words) = nullptr;
    int64_t inputs = 0;      // the most that all rows of a part go through before the next ones; 0: all
    int64_t spare_rows = 0;  // that a tile reads behind its own; no result depends on them
    // What a thread does before and after products of columns with so many words; or null.
    void (*begin)(int64_t words) = nullptr;
    void (*end)() = nullptr;
};

}  // namespace h2o

struct h2o_products {
    const char* isa;
    int64_t rows;     // the most of a tile; even
    int64_t panels;   // likewise
    int32_t surplus;  // the bias of a stored 8-bit weight
    void (*round)(const h2o::RowOfX& row, const h2o::Rounding& how, const h2o::Rounded& out);
    void (*multiply)(const h2o::ProductTile& tile, int bits, int64_t rows, int64_t panels);
    h2o::FloatProducts floats;
    h2o::FloatProducts bfloat16;  // of such weights
    void (*rotate)(int64_t heads, int64_t half, const float* cos, const float* sin, float* row);
    int64_t spare_rows = 0;  // of integers that a tile reads behind its own; no result depends on them
    // What a thread does before and after products of integers; or null.
    void (*begin)(int64_t block) = nullptr;
    void (*end)() = nullptr;
};

namespace h2o {

const h2o_products* scalar_products();
const h2o_products* avx2_products();
const h2o_products* avxvnni_products();
const h2o_products* avx512vnni_products();
const h2o_products* dotprod_products();
const h2o_products* i8mm_products();

// Those of `kernels` with weights of bfloat16.
const FloatProducts& bfloat16_products_of(const h2o_products* kernels);

// That round rows to bfloat16 too, for processors that have further instructions for it.
const FloatProducts* avx512_bfloat16_products();
const FloatProducts* neon_bfloat16_products();

// What tiles of AMX replace among the products of avx512bf16.
struct IntegerTiles {
    int64_t rows, panels, spare_rows;
    void (*multiply)(const ProductTile& tile, int bits, int64_t rows, int64_t panels);
    void (*begin)(int64_t block);
    void (*end)();
};
const IntegerTiles* amx_integer_tiles();
const FloatProducts* amx_bfloat16_tiles();  // that neither prepare nor widen

}  // namespace h2o
