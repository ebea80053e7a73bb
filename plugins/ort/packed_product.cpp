#include "packed_product.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "h2o/products.h"
#include "operator_of.h"
#include "tensor.h"

namespace h2o::ort {
namespace {

constexpr size_t kMostMatrices = 8;
constexpr int64_t kPanel = H2O_PANEL;
// A piece of work: so many rows at most, and panels with so many bytes of weights at least. Smaller ones cost
// more in being handed out than threads gain.
constexpr int64_t kMostRows = 96, kPieceBytes = 48 << 10;

int64_t pieces_of(int64_t all, int64_t one) {
    return (all + one - 1) / one;
}

// Pieces have about as many rows, whole tiles of them: a few that are left would cost all weights once more.
int64_t rows_of_a_piece(int64_t n, int64_t tile) {
    const int64_t most = kMostRows / tile * tile, pieces = std::max<int64_t>(1, pieces_of(n, most));
    return std::max<int64_t>(1, pieces_of(pieces_of(n, pieces), tile)) * tile;
}

enum Input : size_t { kX, kWeights, kScales, kOffsets, kUp, kNorm, kAddend, kCos, kSin, kInputs };

// One node: what does not change from run to run.
struct Kernel {
    Interface ort;
    const h2o_products* products;
    size_t count;
    int64_t rotated;  // matrices whose y is turned
    float epsilon;
    int64_t tile_rows;
    int64_t heads[kMostMatrices];
    h2o_block_matrix matrices[kMostMatrices];
    std::atomic<bool> ready{false};  // whether the matrices know where their weights lie: at the first run

    Status* compute(KernelContext* context);
    Status* find_weights(KernelContext* context);
};

// What one run is given.
struct Given {
    Tensor x, up, norm, addend, cos, sin;
    size_t leading = 0;  // dimensions of x in front of K
    int64_t n = 0;       // rows

    Status* read(const Kernel& kernel, KernelContext* context);
};

// One run. Rows and panels of all matrices are cut into pieces, which are taken one after the other by
// whichever thread is free.
class Run {
  public:
    Run(const Kernel& kernel, const Given& given)
        : kernel_(kernel),
          given_(given),
          n_(given.n),
          rows_(rows_of_a_piece(given.n, kernel.tile_rows)),
          x_{given.x.floats(), given.up.floats(), given.norm.floats(), kernel.epsilon} {}

    Status* outputs(KernelContext* context);
    Status* work(KernelContext* context);

  private:
    int64_t rows_of(int64_t piece) const { return std::min(rows_, n_ - piece * rows_); }
    void prepare(int64_t piece) const {
        h2o_products_prepare(kernel_.products, kernel_.matrices, n_, &x_, piece * rows_, rows_of(piece),
                             scratch_);
    }
    void multiply(int64_t piece) const;
    void rotate(int64_t piece) const;

    template <void (Run::*kWork)(int64_t) const>
    Status* share(KernelContext* context, int64_t pieces);

    const Kernel& kernel_;
    const Given& given_;
    int64_t n_;
    int64_t rows_;  // of a piece
    h2o_activations x_;
    float* y_[kMostMatrices];
    void* scratch_ = nullptr;
    const void* prepared_ = nullptr;  // scratch, or x where it stays as it is
    int64_t wide_ = 0;                // panels of a piece
    int64_t pieces_ = 0;
    std::atomic<int64_t> next_{0};
};

int64_t panels_of(const h2o_block_matrix& matrix) {
    return pieces_of(matrix.outputs, kPanel);
}

Status* Run::outputs(KernelContext* context) {
    int64_t sizes[kMostDimensions + 2];
    std::copy_n(given_.x.sizes, given_.leading, sizes);
    Value* out = nullptr;
    for (size_t i = 0; i < kernel_.count; ++i) {
        const int64_t all = kernel_.matrices[i].outputs, heads = kernel_.heads[i];
        size_t dimensions = given_.leading;
        if (heads > 0) sizes[dimensions++] = heads;
        sizes[dimensions++] = heads > 0 ? all / heads : all;
        void* at = nullptr;
        H2O_RETURN_IF(kernel_.ort.output(context, 1 + i, sizes, dimensions, &out));
        H2O_RETURN_IF(kernel_.ort.data(out, &at));
        y_[i] = static_cast<float*>(at);
    }
    const bool as_it_is = h2o_products_as_it_is(kernel_.matrices, &x_) != 0;
    const size_t bytes = as_it_is ? 0 : h2o_products_scratch_bytes(kernel_.matrices, n_);
    const int64_t size = static_cast<int64_t>(bytes);
    H2O_RETURN_IF(kernel_.ort.output(context, 0, &size, 1, &out));
    H2O_RETURN_IF(kernel_.ort.data(out, &scratch_));
    prepared_ = as_it_is ? x_.x : scratch_;
    return nullptr;
}

Status* Run::work(KernelContext* context) {
    const h2o_block_matrix& first = kernel_.matrices[0];
    wide_ = std::max<int64_t>(4, pieces_of(kPieceBytes, first.inputs * kPanel * first.bits / 8));
    const int64_t down = pieces_of(n_, rows_);
    int64_t across = 0;
    for (size_t i = 0; i < kernel_.count; ++i) across += pieces_of(panels_of(kernel_.matrices[i]), wide_);
    if (prepared_ == scratch_) H2O_RETURN_IF(share<&Run::prepare>(context, down));
    H2O_RETURN_IF(share<&Run::multiply>(context, down * across));
    return kernel_.rotated > 0 ? share<&Run::rotate>(context, down) : nullptr;
}

void Run::rotate(int64_t piece) const {
    for (int64_t i = 0; i < kernel_.rotated; ++i) {
        const int64_t heads = kernel_.heads[i];
        h2o_products_rotate(kernel_.products, heads, kernel_.matrices[i].outputs / heads, given_.cos.floats(),
                            given_.sin.floats(), piece * rows_, rows_of(piece), y_[i]);
    }
}

// Matrix by matrix, of each all panels of some rows, then the next rows.
void Run::multiply(int64_t piece) const {
    const int64_t down = pieces_of(n_, rows_);
    for (size_t i = 0; i < kernel_.count; ++i) {
        const h2o_block_matrix& matrix = kernel_.matrices[i];
        const int64_t panels = panels_of(matrix), across = pieces_of(panels, wide_);
        if (piece < down * across) {
            const int64_t rows = piece / across, panel = piece % across * wide_;
            return h2o_products_multiply(kernel_.products, &matrix, n_, prepared_, rows * rows_,
                                         rows_of(rows), panel, std::min(wide_, panels - panel),
                                         given_.addend.floats(), y_[i]);
        }
        piece -= down * across;
    }
}

template <void (Run::*kWork)(int64_t) const>
Status* Run::share(KernelContext* context, int64_t pieces) {
    if (pieces == 1) {
        (this->*kWork)(0);
        return nullptr;
    }
    next_ = 0;
    pieces_ = pieces;
    const auto drain = [](void* self, size_t) {
        Run& run = *static_cast<Run*>(self);
        for (int64_t piece; (piece = run.next_++) < run.pieces_;) (run.*kWork)(piece);
    };
    return kernel_.ort.parallel(context, drain, static_cast<size_t>(pieces), this);
}

Status* Kernel::find_weights(KernelContext* context) {
    size_t inputs = 0;
    H2O_RETURN_IF(ort.input_count(context, &inputs));
    Tensor weights, scales, offsets;
    H2O_RETURN_IF(weights.read(ort, context, inputs, kWeights));
    H2O_RETURN_IF(scales.read(ort, context, inputs, kScales));
    H2O_RETURN_IF(offsets.read(ort, context, inputs, kOffsets));
    size_t bytes = 0, blocks = 0;
    for (size_t i = 0; i < count; ++i) {
        h2o_block_matrix& matrix = matrices[i];
        const int64_t elements = panels_of(matrix) * kPanel * matrix.inputs;
        matrix.weights = static_cast<const uint8_t*>(weights.data) + bytes;
        bytes += static_cast<size_t>(elements * matrix.bits / 8);
        if (matrix.bits == 32) continue;  // floats have no scales
        matrix.scales = static_cast<const float*>(scales.data) + blocks;
        if (offsets.data != nullptr) matrix.offsets = static_cast<const float*>(offsets.data) + blocks;
        blocks += static_cast<size_t>(elements / matrix.block);
    }
    if (weights.elements != bytes)
        return ort.error("PackedProduct: weights are not as long as K, N and bits say");
    if (scales.elements != blocks || (offsets.data != nullptr && offsets.elements != blocks)) {
        return ort.error("PackedProduct: a block and column must have one scale, and one offset or none");
    }
    ready = true;
    return nullptr;
}

Status* Given::read(const Kernel& kernel, KernelContext* context) {
    const Interface& ort = kernel.ort;
    size_t count = 0;
    H2O_RETURN_IF(ort.input_count(context, &count));
    H2O_RETURN_IF(x.read(ort, context, count, kX));
    H2O_RETURN_IF(up.read(ort, context, count, kUp));
    H2O_RETURN_IF(norm.read(ort, context, count, kNorm));
    H2O_RETURN_IF(addend.read(ort, context, count, kAddend));
    H2O_RETURN_IF(cos.read(ort, context, count, kCos));
    H2O_RETURN_IF(sin.read(ort, context, count, kSin));
    const int64_t inputs = kernel.matrices[0].inputs;
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
    if (!addend.is_of(n * kernel.matrices[0].outputs)) {
        return ort.error("PackedProduct: the addend must be as large as the product");
    }
    for (int64_t i = 0; i < kernel.rotated; ++i) {
        const int64_t half = kernel.matrices[i].outputs / kernel.heads[i] / 2;
        if (cos.data == nullptr || sin.data == nullptr || !cos.is_of(n * half) || !sin.is_of(n * half)) {
            return ort.error(
                "PackedProduct: cos and sin must have half as many numbers as a head, for each row");
        }
    }
    return nullptr;
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) H2O_RETURN_IF(find_weights(context));
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    Run run(*this, given);
    H2O_RETURN_IF(run.outputs(context));
    return given.n == 0 ? nullptr : run.work(context);
}

// Where heads are told, columns are cut into them evenly; those that are turned have even halves.
bool good_heads(const Kernel& kernel) {
    for (size_t i = 0; i < kernel.count; ++i) {
        const int64_t heads = kernel.heads[i], outputs = kernel.matrices[i].outputs;
        const bool turned = static_cast<int64_t>(i) < kernel.rotated;
        if (heads < 0 || (heads > 0 && outputs % heads != 0)) return false;
        if (turned && (heads == 0 || outputs / heads % 32 != 0)) return false;
    }
    return kernel.rotated >= 0 && kernel.rotated <= static_cast<int64_t>(kernel.count);
}

Status* read_attributes(const KernelInfo* info, Kernel* kernel) {
    const Interface& ort = kernel->ort;
    int64_t bits = 0, parts = 0, outputs[kMostMatrices];
    size_t count = kMostMatrices, headed = kMostMatrices;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attribute(info, "K", &matrix.inputs));
    H2O_RETURN_IF(ort.attribute(info, "block", &matrix.block));
    H2O_RETURN_IF(ort.attribute(info, "bits", &bits));
    H2O_RETURN_IF(ort.attribute(info, "parts", &parts));
    H2O_RETURN_IF(ort.attribute(info, "rotated", &kernel->rotated));
    H2O_RETURN_IF(ort.attribute(info, "epsilon", &kernel->epsilon));
    H2O_RETURN_IF(ort.attribute(info, "N", outputs, &count));
    H2O_RETURN_IF(ort.attribute(info, "heads", kernel->heads, &headed));
    matrix.bits = static_cast<int>(bits);
    matrix.parts = static_cast<int>(parts);
    bool good = count > 0 && headed == count;
    for (size_t i = 0; i < count; ++i) {
        matrix.outputs = outputs[i];
        kernel->matrices[i] = matrix;
        good = good && h2o_products_check(&matrix) == H2O_OK;
    }
    kernel->count = count;
    return good && good_heads(*kernel) ? nullptr : ort.error("PackedProduct: sizes that no kernel takes");
}

Status* create(const Operator*, const Table* table, const KernelInfo* info, void** out) {
    const Interface ort(table);
    const h2o_products* products = nullptr;
    if (h2o_products_find(nullptr, &products) != H2O_OK) return ort.error("PackedProduct: no kernel");
    Kernel* const kernel = new (std::nothrow) Kernel{ort, products, 0, 0, 0.0f, 0, {}, {}};
    if (kernel == nullptr) return ort.error("PackedProduct: no memory");
    if (Status* const status = read_attributes(info, kernel); status != nullptr) {
        delete kernel;
        return status;
    }
    kernel->tile_rows = h2o_products_tile_rows(products, kernel->matrices);
    *out = kernel;
    return nullptr;
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel>([](const Operator*) { return "PackedProduct"; }, create);
    op.inputs = [](const Operator*) -> size_t { return kInputs; };
    op.input_type = [](const Operator*, size_t index) { return index == kWeights ? kUint8 : kFloat; };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index <= kWeights ? kRequired : kOptional;
    };
    op.outputs = [](const Operator*) -> size_t { return 2; };
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
