#include "product.h"

#include <algorithm>

namespace h2o {
namespace {

int64_t panels_of(const h2o_block_matrix& matrix) {
    return (matrix.outputs + kPanel - 1) / kPanel;
}

size_t aligned(int64_t bytes) {
    return (static_cast<size_t>(bytes) + 63) / 64 * 64;
}

// Of n rows of x.
size_t integer_bytes(const h2o_products& kernels, const h2o_block_matrix& matrix, int64_t n) {
    return aligned((n * matrix.parts + kernels.spare_rows) * matrix.inputs);
}

// The integers of n rows of x, in scratch of h2o_products_scratch_bytes.
Rounded rounded(const h2o_products& kernels, const h2o_block_matrix& matrix, int64_t n, void* scratch) {
    const int64_t rows = n * matrix.parts, blocks = matrix.inputs / matrix.block;
    char* at = static_cast<char*>(scratch);
    const auto next = [&](size_t bytes) {
        char* here = at;
        at += bytes;
        return here;
    };
    Rounded out;
    out.q = reinterpret_cast<int8_t*>(next(integer_bytes(kernels, matrix, n)));
    out.scales = reinterpret_cast<float*>(next(aligned(rows * blocks * 4)));
    out.starts = reinterpret_cast<int32_t*>(next(aligned(rows * blocks * 4)));
    out.sums = reinterpret_cast<float*>(next(aligned(rows * blocks * 4)));
    return out;
}

// Rows of the next tile: full tiles, but no short tile after a full one: 7 rows are 4 and 3.
int64_t even_rows(int64_t left, int64_t most) {
    const int64_t tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

bool has_integers(const h2o_block_matrix& matrix) {
    return matrix.bits < 16;
}

// Whether rows become words of floats or of bfloat16.
bool is_float(const h2o_block_matrix& matrix) {
    return !has_integers(matrix) || matrix.parts == 0;
}

const FloatProducts& floats_of(const h2o_products* kernels, const h2o_block_matrix& matrix) {
    return matrix.bits == 32 ? kernels->floats : bfloat16_products_of(kernels);
}

// Words from one prepared row to the next. Rows a whole number of pages apart would share a few L1 lines,
// and a tile reads all rows at once.
int64_t prepared_stride(const h2o_block_matrix& matrix, int64_t numbers) {
    constexpr int64_t kPage = 1024, kLine = 16;
    const int64_t words = matrix.inputs / numbers;
    return words % kPage == 0 ? words + kLine : words;
}

// A range of rows and panels of y.
struct Part {
    int64_t row, rows, panel, end_panel;
};

// work(panel, width) for the panels of a part, `wide` at a time.
template <class Work>
void each_panel(const Part& part, int64_t wide, Work work) {
    for (int64_t panel = part.panel, width; panel < part.end_panel; panel += width) {
        width = part.end_panel - panel >= wide ? wide : 1;
        work(panel, width);
    }
}

// work(row, rows) for the rows of a part, `most` at once.
template <class Work>
void each_rows(const Part& part, int64_t most, Work work) {
    const int64_t end = part.row + part.rows;
    for (int64_t row = part.row, rows; row < end; row += rows) {
        rows = even_rows(end - row, most);
        work(row, rows);
    }
}

TileOfY from(const TileOfY& all, int64_t row, int64_t panel, int64_t width) {
    const int64_t column = panel * kPanel, at = row * all.stride + column;
    return {all.addend == nullptr ? nullptr : all.addend + at, all.y + at, all.stride,
            std::min(width * kPanel, all.stride - column)};
}

Rounded from_row(const Rounded& all, int64_t row, int64_t inputs, int64_t blocks) {
    return {all.q + row * inputs, all.scales + row * blocks, all.starts + row * blocks,
            all.sums + row * blocks};
}

void multiply_integers(const h2o_products& kernels, const h2o_block_matrix& matrix, const Rounded& x,
                       const Part& part, const TileOfY& out) {
    const int64_t inputs = matrix.inputs, blocks = inputs / matrix.block, parts = matrix.parts;
    ProductTile tile;
    tile.inputs = inputs;
    tile.block = matrix.block;
    tile.blocks = blocks;
    tile.parts = parts;
    tile.panel_bytes = inputs * kPanel * matrix.bits / 8;
    if (kernels.begin != nullptr) kernels.begin(matrix.block);
    const int64_t most = h2o_products_tile_rows(&kernels, &matrix);
    each_panel(part, kernels.panels, [&](int64_t panel, int64_t width) {
        const int64_t at = panel * blocks * kPanel;
        tile.weights = static_cast<const uint8_t*>(matrix.weights) + panel * tile.panel_bytes;
        tile.scales = matrix.scales + at;
        tile.offsets = matrix.offsets == nullptr ? nullptr : matrix.offsets + at;
        each_rows(part, most, [&](int64_t row, int64_t rows) {
            tile.x = from_row(x, row * parts, inputs, blocks);
            tile.out = from(out, row, panel, width);
            kernels.multiply(tile, matrix.bits, rows * parts, width);
        });
    });
    if (kernels.end != nullptr) kernels.end();
}

// The rows of a part times `words` of some columns. Those behind the first are added to what is there.
void multiply_words(const FloatProducts& products, FloatTile tile, const Part& part, const TileOfY& out,
                    int64_t panel, int64_t width) {
    if (products.begin != nullptr) products.begin(tile.words);
    const float* const x = tile.x;
    each_rows(part, products.rows, [&](int64_t row, int64_t rows) {
        tile.x = x + row * tile.stride;
        tile.out = from(out, row, panel, width);
        products.multiply(tile, rows, width);
    });
    if (products.end != nullptr) products.end();
}

void multiply_floats(const FloatProducts& products, const h2o_block_matrix& matrix, const float* x,
                     const Part& part, const TileOfY& out) {
    const int64_t words = matrix.inputs * matrix.bits / 32;
    const int64_t some = products.inputs > 0 ? std::min(words, products.inputs / products.numbers) : words;
    const float* const weights = static_cast<const float*>(matrix.weights);
    FloatTile tile{};
    tile.stride = prepared_stride(matrix, products.numbers);
    tile.panel_words = words;
    const int64_t wide = part.rows == 1 ? kRowPanels : products.panels;
    each_panel(part, wide, [&](int64_t panel, int64_t width) {
        for (int64_t first = 0; first < words; first += some) {
            tile.words = std::min(some, words - first);
            tile.x = x + first;
            tile.weights = weights + (panel * words + first) * kPanel;
            multiply_words(products, tile, part, first == 0 ? out : TileOfY{out.y, out.y, out.stride, 0},
                           panel, width);
        }
    });
}

// Blocks of a matrix's integers.
IntegerPanel integers_at(const h2o_block_matrix& matrix, int64_t panel, int64_t block, int64_t blocks) {
    const int64_t at = (panel * (matrix.inputs / matrix.block) + block) * kPanel;
    return {static_cast<const uint8_t*>(matrix.weights) + at * matrix.block * matrix.bits / 8,
            matrix.scales + at, matrix.offsets == nullptr ? nullptr : matrix.offsets + at, matrix.block,
            blocks};
}

// Integers become bfloat16, so many inputs of two panels at a time as L1 has room for. They serve all rows of
// the part.
void multiply_widened(const FloatProducts& products, const h2o_block_matrix& matrix, const float* x,
                      const Part& part, const TileOfY& out) {
    constexpr int64_t kInputs = 512, kPanels = 2;
    alignas(64) float words[kPanels * kInputs / 2 * kPanel];
    const int64_t blocks = matrix.inputs / matrix.block, some = kInputs / matrix.block;
    FloatTile tile{};
    tile.stride = prepared_stride(matrix, products.numbers);
    tile.weights = words;
    each_panel(part, std::min(kPanels, products.panels), [&](int64_t panel, int64_t width) {
        for (int64_t first = 0; first < blocks; first += some) {
            const int64_t count = std::min(some, blocks - first);
            tile.words = tile.panel_words = count * matrix.block / 2;
            tile.x = x + first * matrix.block / 2;
            for (int64_t i = 0; i < width; ++i) {
                products.widen(integers_at(matrix, panel + i, first, count), matrix.bits,
                               words + i * tile.words * kPanel);
            }
            multiply_words(products, tile, part, first == 0 ? out : TileOfY{out.y, out.y, out.stride, 0},
                           panel, width);
        }
    });
}

// Rows first ... first + count, which become columns from `first_column` on of what is prepared.
template <class RowAt>
void prepare(const h2o_products& kernels, const h2o_block_matrix& matrix, int64_t n, const RowAt& row_at,
             int64_t first, int64_t count, int64_t first_column, void* scratch) {
    if (is_float(matrix)) {
        const FloatProducts& products = floats_of(&kernels, matrix);
        const int64_t stride = prepared_stride(matrix, products.numbers);
        float* const words = static_cast<float*>(scratch) + first_column / products.numbers;
        for (int64_t row = first; row < first + count; ++row)
            products.prepare(row_at(row), words + row * stride);
        return;
    }
    const Rounded all = rounded(kernels, matrix, n, scratch);
    const int64_t blocks = matrix.inputs / matrix.block, first_block = first_column / matrix.block;
    const Rounding how{matrix.block, matrix.parts, matrix.bits == 4 ? 8 : kernels.surplus};
    for (int64_t row = first; row < first + count; ++row) {
        const Rounded out = from_row(all, row * matrix.parts, matrix.inputs, blocks);
        kernels.round(row_at(row), how,
                      {out.q + first_column, out.scales + first_block, out.starts + first_block,
                       out.sums + first_block});
    }
}

}  // namespace
}  // namespace h2o

h2o_status h2o_products_check(const h2o_block_matrix* matrix) {
    if (matrix == nullptr || matrix->inputs <= 0 || matrix->outputs <= 0) return H2O_BAD_ARGUMENT;
    if (!h2o::has_integers(*matrix)) {
        return matrix->inputs % 16 == 0 && matrix->parts == 1 ? H2O_OK : H2O_BAD_ARGUMENT;
    }
    const bool good = matrix->block > 0 && matrix->block % 16 == 0 && matrix->block <= 256 &&
                      matrix->inputs % matrix->block == 0 && (matrix->bits == 4 || matrix->bits == 8) &&
                      matrix->parts >= 0 && matrix->parts <= 2;
    return good ? H2O_OK : H2O_BAD_ARGUMENT;
}

int64_t h2o_products_tile_rows(const h2o_products* kernels, const h2o_block_matrix* matrix) {
    return h2o::is_float(*matrix) ? h2o::floats_of(kernels, *matrix).rows : kernels->rows / matrix->parts;
}

size_t h2o_products_scratch_bytes(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n) {
    if (h2o::is_float(*matrix)) {
        const h2o::FloatProducts& products = h2o::floats_of(kernels, *matrix);
        return h2o::aligned((n + products.spare_rows) * h2o::prepared_stride(*matrix, products.numbers) * 4);
    }
    const int64_t rows = n * matrix->parts, blocks = matrix->inputs / matrix->block;
    return h2o::integer_bytes(*kernels, *matrix, n) + 3 * h2o::aligned(rows * blocks * 4);
}

int h2o_products_as_it_is(const h2o_block_matrix* matrix, const h2o_activations* x) {
    const bool plain = x->up == nullptr && x->norm == nullptr && x->order == nullptr;
    return matrix->bits == 32 && plain && h2o::prepared_stride(*matrix, 1) == matrix->inputs;
}

void h2o_products_prepare(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                          const h2o_activations* x, int64_t first, int64_t count, void* scratch) {
    const auto row_of_x = [&](int64_t row) -> h2o::RowOfX {
        const int64_t at = (x->order == nullptr ? row : x->order[row]) * matrix->inputs;
        return {x->x + at,     x->up == nullptr ? nullptr : x->up + at, x->norm, x->epsilon, x->gate,
                matrix->inputs};
    };
    h2o::prepare(*kernels, *matrix, n, row_of_x, first, count, 0, scratch);
}

void h2o_products_prepare_columns(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                                  const h2o_activations* x, int64_t first_column, int64_t columns,
                                  void* scratch) {
    const auto row_of_x = [&](int64_t row) -> h2o::RowOfX {
        const int64_t at = row * columns;
        return {x->x + at, x->up == nullptr ? nullptr : x->up + at, nullptr, 0.0f, x->gate, columns};
    };
    h2o::prepare(*kernels, *matrix, n, row_of_x, 0, n, first_column, scratch);
}

void h2o_products_multiply(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                           const void* prepared, int64_t first, int64_t count, int64_t first_panel,
                           int64_t panels, const float* addend, float* y) {
    const h2o::Part part{first, count, first_panel, std::min(first_panel + panels, h2o::panels_of(*matrix))};
    const h2o::TileOfY out{addend, y, matrix->outputs, 0};
    if (h2o::is_float(*matrix)) {
        const auto multiply = h2o::has_integers(*matrix) ? h2o::multiply_widened : h2o::multiply_floats;
        multiply(h2o::floats_of(kernels, *matrix), *matrix, static_cast<const float*>(prepared), part, out);
    } else {
        const h2o::Rounded x = h2o::rounded(*kernels, *matrix, n, const_cast<void*>(prepared));
        h2o::multiply_integers(*kernels, *matrix, x, part, out);
    }
}

void h2o_products_rotate(const h2o_products* kernels, int64_t heads, int64_t size, const float* cos,
                         const float* sin, int64_t first, int64_t count, float* y) {
    const int64_t half = size / 2;
    for (int64_t row = first; row < first + count; ++row) {
        kernels->rotate(heads, half, cos + row * half, sin + row * half, y + row * heads * size);
    }
}
