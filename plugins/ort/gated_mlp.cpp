#include "gated_mlp.h"

#include <numeric>

namespace h2o::ort {
namespace {

constexpr int64_t kBetweenBytes = 256 << 10;  // bytes of gate and up at a time: a quarter of an L2 cache
constexpr int64_t kStepPanels = 4;            // as many as a float tile of one row has
constexpr int64_t kGateBytes = 384 << 10;     // bytes of gate and up that threads share in pieces of
constexpr int64_t kPiecesOfThread = 2;        // at least, where there are enough columns
constexpr int64_t kPreparedUnits = 8;         // that a thread prepares at a time

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

// Columns that gate and up can be cut into.
int64_t column_step(const GatedMlp& mlp) {
    return std::lcm(kStepPanels * kPanel, std::max<int64_t>(1, mlp.down.all[0].block));
}

// Columns of gate and up in a piece of work, where `threads` share those of `units`.
int64_t columns_of_a_piece(const GatedMlp& mlp, int64_t units, int64_t threads) {
    const h2o_block_matrix& matrix = mlp.gate_up.all[0];
    const int64_t step = column_step(mlp), step_bytes = 2 * step * matrix.inputs * matrix.bits / 8;
    const int64_t even = pieces_of(units * mlp.inner(), kPiecesOfThread * threads);
    return std::min(mlp.inner(), std::min(pieces_of(kGateBytes, step_bytes), pieces_of(even, step)) * step);
}

// Some columns of y [rows, stride] become the bias, and `addend` if there is one. Returns what a product then
// adds: y, or without a bias the addend.
const float* with_bias(const float* bias, const float* addend, int64_t rows, int64_t columns, int64_t stride,
                       float* y) {
    if (bias == nullptr) return addend;
    for (int64_t at = 0; at < rows * stride; at += stride) {
        for (int64_t column = 0; column < columns; ++column) {
            y[at + column] = bias[column] + (addend == nullptr ? 0.0f : addend[at + column]);
        }
    }
    return y;
}

bool is_prepared(const MlpUnit& unit) {
    return h2o_products_as_it_is(unit.mlp->gate_up.all, &unit.x) != 0;
}

void prepare(const MlpUnit& unit) {
    const Matrices& gate_up = unit.mlp->gate_up;
    if (is_prepared(unit)) return;
    h2o_products_prepare(gate_up.products, gate_up.all, unit.rows, &unit.x, 0, unit.rows, unit.at.x);
}

// `count` columns from `column` on of gate and up, which become those columns of down's prepared input.
void gate_columns(const MlpUnit& unit, int64_t column, int64_t count, float* gate, float* up) {
    const GatedMlp& mlp = *unit.mlp;
    const void* const x = is_prepared(unit) ? static_cast<const void*>(unit.x.x) : unit.at.x;
    const auto multiply = [&](const h2o_block_matrix& matrix, const float* bias, float* y) {
        const h2o_block_matrix cut = some_columns(matrix, column, count);
        const float* const there = bias == nullptr ? nullptr : bias + column;
        h2o_products_multiply(mlp.gate_up.products, &cut, unit.rows, x, 0, unit.rows, 0, panels_of(cut),
                              with_bias(there, nullptr, unit.rows, count, count, y), y);
    };
    multiply(mlp.gate_up.all[0], mlp.gate_bias, gate);
    multiply(mlp.gate_up.all[1], mlp.up_bias, up);
    const h2o_activations gated{gate, up, nullptr, 0.0f, mlp.function, nullptr};
    h2o_products_prepare_columns(mlp.down.products, mlp.down.all, unit.rows, &gated, column, count,
                                 unit.at.inner);
}

// Some panels of the result.
void down_columns(const MlpUnit& unit, int64_t panel, int64_t panels) {
    const GatedMlp& mlp = *unit.mlp;
    const float* addend = unit.addend;
    if (mlp.down_bias != nullptr) {
        const int64_t stride = mlp.outputs(), first = panel * kPanel;
        const int64_t columns = std::min(stride, first + panels * kPanel) - first;
        with_bias(mlp.down_bias + first, addend == nullptr ? nullptr : addend + first, unit.rows, columns,
                  stride, unit.y + first);
        addend = unit.y;
    }
    h2o_products_multiply(mlp.down.products, mlp.down.all, unit.rows, unit.at.inner, 0, unit.rows, panel,
                          panels, addend, unit.y);
}

}  // namespace

Status* GatedMlp::read(const Interface& ort, const KernelInfo* info) {
    H2O_RETURN_IF(gate_up.find_kernels(ort));
    down.products = gate_up.products;
    int64_t inside = 0, columns = 0;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attributes(info, "K", &matrix.inputs, "inner", &inside, "N", &columns, "block",
                                 &matrix.block, "bits", &matrix.bits, "parts", &matrix.parts));
    H2O_RETURN_IF(read_gate(ort, info, &function));
    matrix.outputs = inside;
    gate_up.count = 2;
    gate_up.all[0] = gate_up.all[1] = matrix;
    matrix.inputs = inside;
    matrix.outputs = columns;
    down.count = 1;
    down.all[0] = matrix;
    const bool good = gate_up.good() && down.good();
    return good ? nullptr : ort.error("a gated MLP has sizes that no kernel takes");
}

Status* GatedMlp::find(const Interface& ort, KernelContext* context, size_t first, size_t given) {
    H2O_RETURN_IF(gate_up.find(ort, context, first, given));
    return down.find(ort, context, first + given, given);
}

Status* GatedMlp::find_biases(const Interface& ort, KernelContext* context, size_t first) {
    Tensor gate, up, last;
    H2O_RETURN_IF(read_inputs(ort, context, {{&gate, first}, {&up, first + 1}, {&last, first + 2}}));
    const bool together =
        (gate.data == nullptr) == (up.data == nullptr) && (gate.data == nullptr) == (last.data == nullptr);
    if (!together || !gate.is_of(inner()) || !up.is_of(inner()) || !last.is_of(outputs())) {
        return ort.error("biases must have one number for each column, of gate, up and down or of none");
    }
    gate_bias = gate.floats();
    up_bias = up.floats();
    down_bias = last.floats();
    return nullptr;
}

int64_t GatedMlp::columns_of(int64_t rows) const {
    const int64_t step = column_step(*this), row_bytes = 2 * static_cast<int64_t>(sizeof(float)) * rows;
    return std::min(inner(), std::max<int64_t>(1, kBetweenBytes / row_bytes / step) * step);
}

MlpRows GatedMlp::buffers(int64_t rows, int64_t columns, Memory* memory) const {
    MlpRows made{};
    made.x = memory->take(h2o_products_scratch_bytes(gate_up.products, gate_up.all, rows));
    made.gate = memory->take<float>(rows * columns);
    made.up = memory->take<float>(rows * columns);
    made.inner = memory->take(h2o_products_scratch_bytes(down.products, down.all, rows));
    return made;
}

void MlpUnit::pass(int64_t columns) const {
    const int64_t inner = mlp->inner();
    prepare(*this);
    for (int64_t column = 0; column < inner; column += columns) {
        gate_columns(*this, column, std::min(columns, inner - column), at.gate, at.up);
    }
    down_columns(*this, 0, panels_of(mlp->down.all[0]));
}

Status* MlpUnits::run(const Interface& ort, KernelContext* context) const {
    if (!whole_) return by_columns(ort, context);
    return share(ort, context, count_, threads_, [this](int64_t piece, int64_t worker) {
        Memory memory(buffers_ + worker * buffer_bytes_);
        MlpUnit unit = units_[piece];
        unit.at = mlp_.buffers(rows_, columns_, &memory);
        unit.pass(columns_);
    });
}

Status* MlpUnits::by_columns(const Interface& ort, KernelContext* context) const {
    H2O_RETURN_IF(share(ort, context, pieces_of(count_, kPreparedUnits), [this](int64_t piece) {
        const int64_t first = piece * kPreparedUnits;
        std::for_each(units_ + first, units_ + std::min(count_, first + kPreparedUnits), prepare);
    }));
    const int64_t columns = columns_of_a_piece(mlp_, count_, threads_),
                  cuts = pieces_of(mlp_.inner(), columns);
    H2O_RETURN_IF(share(ort, context, count_ * cuts, [&](int64_t piece) {
        const MlpUnit& unit = units_[piece / cuts];
        const int64_t column = piece % cuts * columns, at = unit.rows * column;
        gate_columns(unit, column, std::min(columns, mlp_.inner() - column), unit.at.gate + at,
                     unit.at.up + at);
    }));
    const int64_t panels = panels_of(mlp_.down.all[0]), wide = panels_of_a_piece(mlp_.down.all[0]);
    const int64_t across = pieces_of(panels, wide);
    return share(ort, context, count_ * across, [&](int64_t piece) {
        const int64_t panel = piece % across * wide;
        down_columns(units_[piece / across], panel, std::min(wide, panels - panel));
    });
}

}  // namespace h2o::ort
