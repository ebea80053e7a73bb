// Products of our own: what each instruction set offers, and what their code shares.
#pragma once

#include <cstdint>

#include "h2o/products.h"

namespace h2o {

constexpr int64_t kPanel = H2O_PANEL;
constexpr int kRowPanels = 4;  // that a tile of floats has where it has one row

// Rows of activations as integers; a row of x is `parts` of them. [rows][K], and of each block [rows][K /
// block]:
struct Rounded {
    int8_t* q;
    float* scales;
    int32_t* starts;  // what a sum of products starts from, because weights are stored as more than they are
    float* sums;      // of the numbers that q stands for; read where weights have offsets
};

// A row of activations: see h2o_activations.
struct RowOfX {
    const float* x;
    const float* up;
    const float* norm;
    float epsilon;
    h2o_gate gate;
    int64_t inputs;
};

// How it becomes integers: `parts` rows of them.
struct Rounding {
    int64_t block;
    int parts;
    int32_t surplus;  // how much more than it is each weight is read
};

// Where some rows of one or two panels go. Arrays begin with the first of these rows and columns.
struct TileOfY {
    const float* addend;  // to add to y, and laid out alike; or null
    float* y;
    int64_t stride;
    int64_t columns;  // that are stored
};

// Some rows of integers against one or two panels. Arrays begin with the first of these rows and panels.
struct ProductTile {
    int64_t inputs, block, blocks;
    Rounded x;
    const uint8_t* weights;
    int64_t panel_bytes;
    const float* scales;
    const float* offsets;  // or null
    TileOfY out;
};

// Likewise with weights and rows that are floats.
struct FloatTile {
    int64_t inputs;
    const float* x;  // [rows][K], one `stride` behind the other
    int64_t stride;
    const float* weights;  // [panels][K][16]
    TileOfY out;
};

}  // namespace h2o

struct h2o_products {
    const char* isa;
    int64_t rows;     // that a tile has at most; even
    int64_t panels;   // likewise
    int32_t surplus;  // how much more than it is a weight of 8 bits is read
    void (*round)(const h2o::RowOfX& row, const h2o::Rounding& how, const h2o::Rounded& out);
    void (*multiply)(const h2o::ProductTile& tile, int bits, int parts, int64_t rows, int64_t panels);
    int64_t float_rows;  // that a tile of floats has at most
    void (*prepare_floats)(const h2o::RowOfX& row, float* out);
    void (*multiply_floats)(const h2o::FloatTile& tile, int64_t rows, int64_t panels);
    void (*rotate)(int64_t heads, int64_t half, const float* cos, const float* sin, float* row);
};

namespace h2o {

const h2o_products* scalar_products();
const h2o_products* avxvnni_products();
const h2o_products* avx512vnni_products();
const h2o_products* dotprod_products();

}  // namespace h2o
