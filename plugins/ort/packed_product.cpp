// PackedProduct: y = x w for one or more matrices w, as h2o/products.h has them, which are given the same x.
// An operator of domain h2o.cpu, which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// Inputs, of which all behind the weights may be left out:
//
// x        float32 [..., K] or [..., heads, K / heads]
//
// weights  uint8, those of all matrices, one after the other
//
// scales   float32, of integers, likewise; offsets float32, likewise
//
// up       float32, as x: gate(x) * up takes the place of x
//
// norm     float32 [K]: x / sqrt(mean of x^2 + epsilon) * norm takes its place
//
// addend   float32, as y: is added to y; with one matrix alone
//
// cos, sin float32 [n, size / 2]: the first `rotated` of y are turned by them
//
// Outputs: scratch uint8, for nobody, so that ONNX Runtime's arena has the memory; y float32 [..., N] or
// [..., heads, N / heads], one a matrix.
//
// Attributes: K, block, bits, parts, epsilon, rotated; gate, an h2o_gate; of each matrix N, and heads, 0
// where y has none.
#include <algorithm>
#include <atomic>

#include "matrices.h"
#include "operator_of.h"
#include "operators.h"

namespace h2o::ort {
namespace {

enum Input : size_t { kX, kWeights, kScales, kOffsets, kUp, kNorm, kAddend, kCos, kSin, kInputs };

// One node: what does not change between runs.
struct Kernel {
    Interface ort;
    Matrices matrices;
    int64_t rotated = 0;  // matrices whose y is rotated
    float epsilon = 0.0f;
    h2o_gate gate{};
    int64_t heads[kMostMatrices] = {};
    std::atomic<bool> ready{
        false};  // whether the matrices have the addresses of their weights, set in the first run

    explicit Kernel(const Table* table) : ort(table) {}
    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context);
};

// The inputs of one run.
struct Given {
    Tensor x, up, norm, addend, cos, sin;
    size_t leading = 0;  // dimensions of x before K
    int64_t n = 0;       // rows

    Status* read(const Kernel& kernel, KernelContext* context);
};

// Products of x with all matrices, in units of some rows and of some panels of one matrix.
class Run {
  public:
    Run(const Kernel& kernel, const Given& given, KernelContext* context)
        : kernel_(kernel),
          matrices_(kernel.matrices),
          given_(given),
          context_(context),
          x_{given.x.floats(), given.up.floats(), given.norm.floats(), kernel.epsilon, kernel.gate, nullptr},
          as_it_is_(h2o_products_as_it_is(matrices_.all, &x_) != 0),
          rows_(rows_of_a_piece(given.n, matrices_.tile_rows(), matrices_.unit_rows())),
          wide_(panels_of_a_piece(matrices_.all[0])) {}

    Status* outputs();
    Status* work() const;

  private:
    int64_t row_pieces() const { return pieces_of(given_.n, rows_); }
    int64_t rows_of(int64_t piece) const { return std::min(rows_, given_.n - piece * rows_); }
    int64_t across(const h2o_block_matrix& matrix) const { return pieces_of(panels_of(matrix), wide_); }
    void multiply(int64_t piece) const;
    void rotate(int64_t piece) const;

    const Kernel& kernel_;
    const Matrices& matrices_;
    const Given& given_;
    KernelContext* context_;
    h2o_activations x_;
    bool as_it_is_;  // whether x needs no preparation
    int64_t rows_;   // of a piece
    int64_t wide_;   // panels of a unit
    float* y_[kMostMatrices];
    void* scratch_ = nullptr;
};

Status* Run::outputs() {
    int64_t sizes[kMostDimensions + 2];
    std::copy_n(given_.x.sizes, given_.leading, sizes);
    for (size_t i = 0; i < matrices_.count; ++i) {
        const int64_t all = matrices_.all[i].outputs, heads = kernel_.heads[i];
        size_t dimensions = given_.leading;
        if (heads > 0) sizes[dimensions++] = heads;
        sizes[dimensions++] = heads > 0 ? all / heads : all;
        H2O_RETURN_IF(output(kernel_.ort, context_, 1 + i, sizes, dimensions, &y_[i]));
    }
    const size_t bytes = h2o_products_scratch_bytes(matrices_.products, matrices_.all, given_.n);
    const int64_t size = as_it_is_ ? 0 : static_cast<int64_t>(bytes);
    return output(kernel_.ort, context_, 0, &size, 1, &scratch_);
}

Status* Run::work() const {
    const Interface& ort = kernel_.ort;
    int64_t across_all = 0;
    for (size_t i = 0; i < matrices_.count; ++i) across_all += across(matrices_.all[i]);
    if (!as_it_is_) {
        H2O_RETURN_IF(share(ort, context_, row_pieces(), [this](int64_t piece) {
            h2o_products_prepare(matrices_.products, matrices_.all, given_.n, &x_, piece * rows_,
                                 rows_of(piece), scratch_);
        }));
    }
    H2O_RETURN_IF(
        share(ort, context_, row_pieces() * across_all, [this](int64_t piece) { multiply(piece); }));
    if (kernel_.rotated == 0) return nullptr;
    return share(ort, context_, row_pieces(), [this](int64_t piece) { rotate(piece); });
}

// Matrix by matrix: all panels of some rows, then the next rows.
void Run::multiply(int64_t piece) const {
    size_t i = 0;
    for (; piece >= row_pieces() * across(matrices_.all[i]); ++i)
        piece -= row_pieces() * across(matrices_.all[i]);
    const h2o_block_matrix& matrix = matrices_.all[i];
    const int64_t rows = piece / across(matrix), panel = piece % across(matrix) * wide_;
    h2o_products_multiply(matrices_.products, &matrix, given_.n,
                          as_it_is_ ? static_cast<const void*>(x_.x) : scratch_, rows * rows_, rows_of(rows),
                          panel, std::min(wide_, panels_of(matrix) - panel), given_.addend.floats(), y_[i]);
}

void Run::rotate(int64_t piece) const {
    for (int64_t i = 0; i < kernel_.rotated; ++i) {
        const int64_t heads = kernel_.heads[i];
        h2o_products_rotate(matrices_.products, heads, matrices_.all[i].outputs / heads, given_.cos.floats(),
                            given_.sin.floats(), piece * rows_, rows_of(piece), y_[i]);
    }
}

Status* Given::read(const Kernel& kernel, KernelContext* context) {
    const Interface& ort = kernel.ort;
    H2O_RETURN_IF(
        read_inputs(ort, context,
                    {{&x, kX}, {&up, kUp}, {&norm, kNorm}, {&addend, kAddend}, {&cos, kCos}, {&sin, kSin}}));
    const int64_t inputs = kernel.matrices.all[0].inputs;
    leading = x.dimensions;
    int64_t behind = 1;
    if (x.dimensions <= kMostDimensions) {
        while (leading > 0 && behind < inputs) behind *= x.sizes[--leading];
    }
    if (behind != inputs)
        return ort.error("PackedProduct: the last dimension of x is not what its matrix takes");
    n = static_cast<int64_t>(x.elements) / inputs;
    if (!up.is_of(n * inputs)) return ort.error("PackedProduct: up must be as large as x");
    if (!norm.is_of(inputs))
        return ort.error("PackedProduct: norm must have one number for each of x's columns");
    if (!addend.is_of(n * kernel.matrices.all[0].outputs)) {
        return ort.error("PackedProduct: the addend must be as large as the product");
    }
    for (int64_t i = 0; i < kernel.rotated; ++i) {
        const int64_t half = kernel.matrices.all[i].outputs / kernel.heads[i] / 2;
        if (cos.data == nullptr || sin.data == nullptr || !cos.is_of(n * half) || !sin.is_of(n * half)) {
            return ort.error(
                "PackedProduct: cos and sin must have half as many numbers as a head, for each row");
        }
    }
    return nullptr;
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(matrices.find(ort, context, kWeights));
        ready = true;
    }
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    Run run(*this, given, context);
    H2O_RETURN_IF(run.outputs());
    return given.n == 0 ? nullptr : run.work();
}

// With heads, columns are divided evenly; rotated heads have even halves.
bool good_heads(const Kernel& kernel) {
    const int64_t count = static_cast<int64_t>(kernel.matrices.count);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t heads = kernel.heads[i], outputs = kernel.matrices.all[i].outputs;
        if (heads < 0 || (heads > 0 && outputs % heads != 0)) return false;
        if (i < kernel.rotated && (heads == 0 || outputs / heads % 32 != 0)) return false;
    }
    return kernel.rotated >= 0 && kernel.rotated <= count;
}

Status* Kernel::read(const KernelInfo* info) {
    H2O_RETURN_IF(matrices.find_kernels(ort));
    int64_t outputs[kMostMatrices];
    size_t count = kMostMatrices, headed = kMostMatrices;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attributes(info, "K", &matrix.inputs, "block", &matrix.block, "bits", &matrix.bits,
                                 "parts", &matrix.parts, "rotated", &rotated, "epsilon", &epsilon));
    H2O_RETURN_IF(read_gate(ort, info, &gate));
    H2O_RETURN_IF(ort.attribute(info, "N", outputs, &count));
    H2O_RETURN_IF(ort.attribute(info, "heads", heads, &headed));
    matrices.count = count;
    for (size_t i = 0; i < count; ++i) {
        matrix.outputs = outputs[i];
        matrices.all[i] = matrix;
    }
    const bool good = headed == count && matrices.good() && good_heads(*this);
    return good ? nullptr : ort.error("PackedProduct: sizes that no kernel takes");
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel, kInputs, 2>([](const Operator*) { return "PackedProduct"; });
    op.input_type = [](const Operator*, size_t index) { return index == kWeights ? kUint8 : kFloat; };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index <= kWeights ? kRequired : kOptional;
    };
    op.output_type = [](const Operator*, size_t index) { return index == 0 ? kUint8 : kFloat; };
    op.output_characteristic = [](const Operator*, size_t index) {
        return index == 0 ? kRequired : kVariadic;
    };
    op.variadic_outputs = [](const Operator*) { return 1; };
    op.variadic_outputs_alike = [](const Operator*) { return 1; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_product() {
    return &kOperator;
}

}  // namespace h2o::ort
