#include "gated_mlp.h"

#include <numeric>

namespace h2o::ort {
namespace {

constexpr int64_t kBetweenBytes = 256 << 10;  // bytes of gate and up at a time: a quarter of an L2 cache
constexpr int64_t kStepPanels = 4;            // as many as a float tile of one row has

// Panels that begin at a column.
h2o_block_matrix some_columns(const h2o_block_matrix& matrix, int64_t first, int64_t count) {
    h2o_block_matrix cut = matrix;
    cut.outputs = count;
    cut.weights = static_cast<const uint8_t*>(matrix.weights) + first * matrix.inputs * matrix.bits / 8;
    if (!has_blocks(matrix)) return cut;
    const int64_t blocks = matrix.inputs / matrix.block;
    cut.scales = matrix.scales + first * blocks;
    if (matrix.offsets != nullptr) cut.offsets = matrix.offsets + first * blocks;
    return cut;
}

}  // namespace

Status* GatedMlp::read(const Interface& ort, const KernelInfo* info) {
    H2O_RETURN_IF(gate_up.find_kernels(ort));
    down.products = gate_up.products;
    int64_t bits = 0, inside = 0, columns = 0, gate = 0;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attribute(info, "K", &matrix.inputs));
    H2O_RETURN_IF(ort.attribute(info, "inner", &inside));
    H2O_RETURN_IF(ort.attribute(info, "N", &columns));
    H2O_RETURN_IF(ort.attribute(info, "block", &matrix.block));
    H2O_RETURN_IF(ort.attribute(info, "bits", &bits));
    H2O_RETURN_IF(ort.attribute(info, "gate", &gate));
    function = gate_of(gate);
    matrix.bits = static_cast<int>(bits);
    matrix.parts = 1;
    matrix.outputs = inside;
    gate_up.count = 2;
    gate_up.all[0] = gate_up.all[1] = matrix;
    matrix.inputs = inside;
    matrix.outputs = columns;
    down.count = 1;
    down.all[0] = matrix;
    const bool good = gate_up.good() && down.good() && is_gate(gate);
    return good ? nullptr : ort.error("a gated MLP has sizes that no kernel takes");
}

Status* GatedMlp::find(const Interface& ort, KernelContext* context, size_t first, size_t given) {
    H2O_RETURN_IF(gate_up.find(ort, context, first, given));
    return down.find(ort, context, first + given, given);
}

int64_t GatedMlp::column_step() const {
    return std::lcm(kStepPanels * kPanel, std::max<int64_t>(1, down.all[0].block));
}

int64_t GatedMlp::columns_of(int64_t rows) const {
    const int64_t step = column_step(), row_bytes = 2 * static_cast<int64_t>(sizeof(float)) * rows;
    return std::min(inner(), std::max<int64_t>(1, kBetweenBytes / row_bytes / step) * step);
}

MlpRows GatedMlp::buffers(int64_t rows, int64_t columns, Memory* memory) const {
    MlpRows made{};
    made.x = memory->take(h2o_products_scratch_bytes(gate_up.all, rows));
    made.gate = memory->take<float>(rows * columns);
    made.up = memory->take<float>(rows * columns);
    made.inner = memory->take(h2o_products_scratch_bytes(down.all, rows));
    return made;
}

void GatedMlp::gate_columns(int64_t rows, const void* prepared, int64_t column, int64_t count,
                            const MlpRows& at) const {
    const auto multiply = [&](const h2o_block_matrix& matrix, float* y) {
        const h2o_block_matrix cut = some_columns(matrix, column, count);
        h2o_products_multiply(gate_up.products, &cut, rows, prepared, 0, rows, 0, panels_of(cut), nullptr, y);
    };
    multiply(gate_up.all[0], at.gate);
    multiply(gate_up.all[1], at.up);
    const h2o_activations gated{at.gate, at.up, nullptr, 0.0f, function, nullptr};
    h2o_products_prepare_columns(down.products, down.all, rows, &gated, column, count, at.inner);
}

void GatedMlp::pass(const h2o_activations& x, int64_t rows, int64_t columns, const MlpRows& at,
                    const float* addend, float* y) const {
    const bool as_it_is = h2o_products_as_it_is(gate_up.all, &x) != 0;
    if (!as_it_is) h2o_products_prepare(gate_up.products, gate_up.all, rows, &x, 0, rows, at.x);
    const void* const prepared = as_it_is ? static_cast<const void*>(x.x) : at.x;
    for (int64_t column = 0; column < inner(); column += columns) {
        gate_columns(rows, prepared, column, std::min(columns, inner() - column), at);
    }
    h2o_products_multiply(down.products, down.all, rows, at.inner, 0, rows, 0, panels_of(down.all[0]), addend,
                          y);
}

}  // namespace h2o::ort
