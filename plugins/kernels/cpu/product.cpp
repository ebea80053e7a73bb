#include "product.h"

#include <algorithm>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace h2o {
namespace {

bool runs_here(const h2o_products* kernels) {
#if defined(__x86_64__)
    if (kernels == avx512vnni_products()) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
    }
    if (kernels == avxvnni_products()) {
        return __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma");
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (kernels == dotprod_products()) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return kernels != nullptr;
}

int64_t panels_of(const h2o_block_matrix& matrix) {
    return (matrix.outputs + kPanel - 1) / kPanel;
}

size_t aligned(int64_t bytes) {
    return (static_cast<size_t>(bytes) + 63) / 64 * 64;
}

// The integers of n rows of x, in scratch of h2o_products_scratch_bytes.
Rounded rounded(const h2o_block_matrix& matrix, int64_t n, void* scratch) {
    const int64_t rows = n * matrix.parts, blocks = matrix.inputs / matrix.block;
    char* at = static_cast<char*>(scratch);
    const auto next = [&](int64_t bytes) {
        char* here = at;
        at += aligned(bytes);
        return here;
    };
    Rounded out;
    out.q = reinterpret_cast<int8_t*>(next(rows * matrix.inputs));
    out.scales = reinterpret_cast<float*>(next(rows * blocks * 4));
    out.starts = reinterpret_cast<int32_t*>(next(rows * blocks * 4));
    out.sums = reinterpret_cast<float*>(next(rows * blocks * 4));
    return out;
}

// As many rows as a tile has, but no short tile after a full one: 7 rows are 4 and 3.
int64_t even_rows(int64_t left, int64_t most, int64_t parts) {
    const int64_t tiles = (left + most - 1) / most;
    return (left / parts + tiles - 1) / tiles * parts;
}

Rounded from_row(const Rounded& all, int64_t row, int64_t inputs, int64_t blocks) {
    return {all.q + row * inputs, all.scales + row * blocks, all.starts + row * blocks,
            all.sums + row * blocks};
}

}  // namespace
}  // namespace h2o

h2o_status h2o_products_find(const char* isa, const h2o_products** kernels) {
    if (kernels == nullptr) return H2O_BAD_ARGUMENT;
    const h2o_products* const all[] = {
#if defined(__x86_64__)
        h2o::avx512vnni_products(), h2o::avxvnni_products(),
#elif defined(__aarch64__) && defined(__linux__)
        h2o::dotprod_products(),
#endif
        h2o::scalar_products()};
    *kernels = nullptr;
    for (const h2o_products* one : all) {
        if ((isa == nullptr || std::strcmp(isa, one->isa) == 0) && h2o::runs_here(one)) {
            *kernels = one;
            return H2O_OK;
        }
    }
    return H2O_UNSUPPORTED;
}

const char* h2o_products_isa(const h2o_products* kernels) {
    return kernels->isa;
}

h2o_status h2o_products_check(const h2o_block_matrix* matrix) {
    if (matrix == nullptr || matrix->inputs <= 0 || matrix->outputs <= 0 || matrix->block <= 0) {
        return H2O_BAD_ARGUMENT;
    }
    const bool good = matrix->block % 16 == 0 && matrix->block <= 256 &&
                      matrix->inputs % matrix->block == 0 && (matrix->bits == 4 || matrix->bits == 8) &&
                      (matrix->parts == 1 || matrix->parts == 2);
    return good ? H2O_OK : H2O_BAD_ARGUMENT;
}

size_t h2o_products_scratch_bytes(const h2o_block_matrix* matrix, int64_t n) {
    const int64_t rows = n * matrix->parts, blocks = matrix->inputs / matrix->block;
    return h2o::aligned(rows * matrix->inputs) + 3 * h2o::aligned(rows * blocks * 4);
}

void h2o_products_round(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                        const float* x, const float* up, int64_t first, int64_t count, void* scratch) {
    const int64_t inputs = matrix->inputs, blocks = inputs / matrix->block;
    const h2o::Rounded all = h2o::rounded(*matrix, n, scratch);
    const int32_t surplus = matrix->bits == 4 ? 8 : kernels->surplus;
    for (int64_t row = first; row < first + count; ++row) {
        const float* const factor = up == nullptr ? nullptr : up + row * inputs;
        kernels->round({x + row * inputs, factor, inputs, matrix->block, matrix->parts, surplus},
                       h2o::from_row(all, row * matrix->parts, inputs, blocks));
    }
}

void h2o_products_multiply(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                           const void* scratch, int64_t first, int64_t count, int64_t first_panel,
                           int64_t panels, const float* addend, float* y) {
    const int64_t inputs = matrix->inputs, blocks = inputs / matrix->block, parts = matrix->parts;
    const h2o::Rounded all = h2o::rounded(*matrix, n, const_cast<void*>(scratch));
    const int64_t stop = std::min(first_panel + panels, h2o::panels_of(*matrix));
    const int64_t last_row = (first + count) * parts;
    h2o::ProductTile tile;
    tile.inputs = inputs;
    tile.block = matrix->block;
    tile.blocks = blocks;
    tile.panel_bytes = inputs * h2o::kPanel * matrix->bits / 8;
    tile.y_stride = matrix->outputs;
    for (int64_t panel = first_panel, width; panel < stop; panel += width) {
        width = stop - panel >= kernels->panels ? kernels->panels : 1;
        const int64_t column = panel * h2o::kPanel, at = panel * blocks * h2o::kPanel;
        tile.weights = matrix->weights + panel * tile.panel_bytes;
        tile.scales = matrix->scales + at;
        tile.offsets = matrix->offsets == nullptr ? nullptr : matrix->offsets + at;
        tile.columns = std::min(width * h2o::kPanel, matrix->outputs - column);
        for (int64_t row = first * parts, rows; row < last_row; row += rows) {
            rows = h2o::even_rows(last_row - row, kernels->rows, parts);
            const int64_t to = row / parts * matrix->outputs + column;
            tile.x = h2o::from_row(all, row, inputs, blocks);
            tile.addend = addend == nullptr ? nullptr : addend + to;
            tile.y = y + to;
            kernels->multiply(tile, matrix->bits, static_cast<int>(parts), rows, width);
        }
    }
}
