// PackedMlp: a whole gated MLP with its norm and its residual, y = addend + down(f(gate(x), up(x))), where f
// is an h2o_gate. Inputs and attributes are those of gated_mlp.h, and x, norm and addend as PackedProduct has
// them.
#include <atomic>

#include "gated_mlp.h"
#include "operator_of.h"
#include "operators.h"

namespace h2o::ort {
namespace {

enum Input : size_t {
    kX,
    kWeights,  // of gate and up
    kScales,
    kOffsets,
    kDownWeights,
    kDownScales,
    kDownOffsets,
    kNorm,
    kAddend,
    kBiases,  // of gate, up and down
    kInputs = kBiases + 3
};

constexpr int64_t kFewestRows = 48;  // rows of a unit of work that goes through the whole MLP

// One node: what does not change between runs.
struct Kernel {
    Interface ort;
    GatedMlp mlp;
    int64_t threads = 1;
    float epsilon = 0.0f;
    std::atomic<bool> ready{
        false};  // whether the matrices have the addresses of their weights, set in the first run

    explicit Kernel(const Table* table) : ort(table) {}
    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context);
};

// The inputs of one run.
struct Given {
    Tensor x, norm, addend;
    int64_t n = 0;  // rows

    Status* read(const Kernel& kernel, KernelContext* context) {
        const Interface& ort = kernel.ort;
        const GatedMlp& mlp = kernel.mlp;
        H2O_RETURN_IF(read_inputs(ort, context, {{&x, kX}, {&norm, kNorm}, {&addend, kAddend}}));
        if (x.dimensions == 0 || x.dimensions > kMostDimensions ||
            x.sizes[x.dimensions - 1] != mlp.inputs()) {
            return ort.error("the last dimension of x is not what its matrices take");
        }
        n = static_cast<int64_t>(x.elements) / mlp.inputs();
        if (!norm.is_of(mlp.inputs())) return ort.error("norm must have one number for each of x's columns");
        return addend.is_of(n * mlp.outputs()) ? nullptr
                                               : ort.error("the addend must be as large as the result");
    }
};

// How rows are cut into units.
struct Cut {
    int64_t n, tile, count;
    bool whole;  // whether units have enough rows to go through the whole MLP

    // The same number of units for each thread, which differ by a tile at most; where rows are too few for
    // that, threads share the columns.
    Cut(const Kernel& kernel, int64_t rows) : n(rows), tile(kernel.mlp.gate_up.tile_rows()) {
        const int64_t most = std::min(kernel.mlp.gate_up.unit_rows(), kernel.mlp.down.unit_rows());
        const int64_t least = pieces_of(n, most), pieces = pieces_of(least, kernel.threads) * kernel.threads;
        whole = n / pieces >= kFewestRows;
        count = whole ? pieces : least;
    }
    int64_t most_rows() const { return pieces_of(pieces_of(n, tile), count) * tile; }
    // Where a unit's rows begin, which are whole tiles; n behind the last.
    int64_t first_row(int64_t piece) const { return std::min(n, pieces_of(n, tile) * piece / count * tile); }
};

MlpUnit unit(const Kernel& kernel, const Given& given, const Cut& cut, int64_t piece, float* y) {
    const GatedMlp& mlp = kernel.mlp;
    const int64_t first = cut.first_row(piece), to = first * mlp.outputs();
    const float* const addend = given.addend.floats();
    const h2o_activations x{
        given.x.floats() + first * mlp.inputs(), nullptr, given.norm.floats(), kernel.epsilon, {}, nullptr};
    return {&mlp, x, cut.first_row(piece + 1) - first, addend == nullptr ? nullptr : addend + to, y + to, {}};
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(mlp.find(ort, context, kWeights));
        H2O_RETURN_IF(mlp.find_biases(ort, context, kBiases));
        ready = true;
    }
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    const size_t dimensions = given.x.dimensions;
    given.x.sizes[dimensions - 1] = mlp.outputs();
    float* y = nullptr;
    H2O_RETURN_IF(output(ort, context, 1, given.x.sizes, dimensions, &y));
    if (given.n == 0) return scratch(ort, context, 0, [](Memory*) {});
    const Cut cut(*this, given.n);
    MlpUnits units(mlp, threads, cut.count, cut.most_rows(), cut.whole);
    H2O_RETURN_IF(scratch(ort, context, 0, [&](Memory* memory) {
        units.lay_out(memory, [&](const auto& visit) {
            for (int64_t piece = 0; piece < cut.count; ++piece) visit(unit(*this, given, cut, piece, y));
        });
    }));
    return units.run(ort, context);
}

Status* Kernel::read(const KernelInfo* info) {
    H2O_RETURN_IF(mlp.read(ort, info));
    H2O_RETURN_IF(ort.attributes(info, "threads", &threads, "epsilon", &epsilon));
    return threads > 0 ? nullptr : ort.error("PackedMlp: threads must be one at least");
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel, kInputs, 2>([](const Operator*) { return "PackedMlp"; });
    op.input_type = [](const Operator*, size_t index) {
        return index == kWeights || index == kDownWeights ? kUint8 : kFloat;
    };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index == kX || index == kWeights || index == kDownWeights ? kRequired : kOptional;
    };
    op.output_type = [](const Operator*, size_t index) { return index == 0 ? kUint8 : kFloat; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_mlp() {
    return &kOperator;
}

}  // namespace h2o::ort
