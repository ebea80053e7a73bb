#include "packed_product.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "h2o/products.h"

namespace h2o::ort {
namespace {

constexpr size_t kMostDimensions = 4, kMostMatrices = 8;
constexpr int64_t kPanel = H2O_PANEL;
// A piece of work: so many rows at most, and panels with so many bytes of weights at least. Smaller ones cost
// more in being handed out than threads gain.
constexpr int64_t kMostRows = 96, kPieceBytes = 48 << 10;

#define H2O_RETURN_IF(call)                                                     \
    do {                                                                        \
        if (Status* const status_ = (call); status_ != nullptr) return status_; \
    } while (false)

int64_t pieces_of(int64_t all, int64_t one) {
    return (all + one - 1) / one;
}

enum Input : size_t { kX, kWeights, kScales, kOffsets, kUp, kAddend, kInputs };

struct Tensor {
    const void* data = nullptr;  // null where it was left out
    size_t elements = 0;
    size_t dimensions = 0;
    int64_t sizes[kMostDimensions] = {};

    Status* read(const Interface& ort, KernelContext* context, Input index);
};

Status* Tensor::read(const Interface& ort, KernelContext* context, Input index) {
    size_t inputs = 0;
    H2O_RETURN_IF(ort.input_count(context, &inputs));
    const Value* value = nullptr;
    if (index < inputs) H2O_RETURN_IF(ort.input(context, index, &value));
    if (value == nullptr) return nullptr;
    Shape* shape = nullptr;
    H2O_RETURN_IF(ort.shape(value, &shape));
    Status* status = ort.elements(shape, &elements);
    if (status == nullptr) status = ort.dimensions(shape, &dimensions);
    if (status == nullptr && dimensions <= kMostDimensions) status = ort.dimensions(shape, sizes, dimensions);
    ort.release(shape);
    H2O_RETURN_IF(status);
    void* at = nullptr;
    H2O_RETURN_IF(ort.data(const_cast<Value*>(value), &at));
    data = at;
    return nullptr;
}

// One node: what does not change from run to run.
struct Kernel {
    Interface ort;
    const h2o_products* products;
    size_t count;
    int64_t rows;  // of a piece
    h2o_block_matrix matrices[kMostMatrices];
    std::atomic<bool> ready{false};  // whether the matrices know where their weights lie: at the first run

    Status* compute(KernelContext* context);
    Status* find_weights(KernelContext* context);
};

// One run. Rows and panels of all matrices are cut into pieces, which are taken one after the other by
// whichever thread is free.
class Run {
  public:
    Run(const Kernel& kernel, int64_t n, const Tensor& x, const Tensor& up, const Tensor& addend)
        : kernel_(kernel),
          n_(n),
          x_(static_cast<const float*>(x.data)),
          up_(static_cast<const float*>(up.data)),
          addend_(static_cast<const float*>(addend.data)) {}

    Status* outputs(KernelContext* context, const Tensor& x);
    Status* work(KernelContext* context);

  private:
    void prepare(int64_t piece) const {
        const int64_t row = piece * kernel_.rows;
        h2o_products_prepare(kernel_.products, kernel_.matrices, n_, x_, up_, row,
                             std::min(kernel_.rows, n_ - row), scratch_);
    }
    void multiply(int64_t piece) const;

    template <void (Run::*kWork)(int64_t) const>
    Status* share(KernelContext* context, int64_t pieces);

    const Kernel& kernel_;
    int64_t n_;
    const float *x_, *up_, *addend_;
    float* y_[kMostMatrices];
    void* scratch_ = nullptr;
    const void* prepared_ = nullptr;  // scratch, or x where it stays as it is
    int64_t wide_ = 0;                // panels of a piece
    int64_t pieces_ = 0;
    std::atomic<int64_t> next_{0};
};

bool is_float(const h2o_block_matrix& matrix) {
    return matrix.bits == 32;
}

int64_t panels_of(const h2o_block_matrix& matrix) {
    return pieces_of(matrix.outputs, kPanel);
}

Status* Run::outputs(KernelContext* context, const Tensor& x) {
    int64_t sizes[kMostDimensions];
    std::copy_n(x.sizes, x.dimensions, sizes);
    Value* out = nullptr;
    for (size_t i = 0; i < kernel_.count; ++i) {
        void* at = nullptr;
        sizes[x.dimensions - 1] = kernel_.matrices[i].outputs;
        H2O_RETURN_IF(kernel_.ort.output(context, 1 + i, sizes, x.dimensions, &out));
        H2O_RETURN_IF(kernel_.ort.data(out, &at));
        y_[i] = static_cast<float*>(at);
    }
    const bool as_it_is = is_float(kernel_.matrices[0]) && up_ == nullptr;
    const size_t bytes = as_it_is ? 0 : h2o_products_scratch_bytes(kernel_.matrices, n_);
    const int64_t size = static_cast<int64_t>(bytes);
    H2O_RETURN_IF(kernel_.ort.output(context, 0, &size, 1, &out));
    H2O_RETURN_IF(kernel_.ort.data(out, &scratch_));
    prepared_ = as_it_is ? x_ : scratch_;
    return nullptr;
}

Status* Run::work(KernelContext* context) {
    const h2o_block_matrix& first = kernel_.matrices[0];
    wide_ = std::max<int64_t>(4, pieces_of(kPieceBytes, first.inputs * kPanel * first.bits / 8));
    const int64_t down = pieces_of(n_, kernel_.rows);
    int64_t across = 0;
    for (size_t i = 0; i < kernel_.count; ++i) across += pieces_of(panels_of(kernel_.matrices[i]), wide_);
    if (prepared_ == scratch_) H2O_RETURN_IF(share<&Run::prepare>(context, down));
    return share<&Run::multiply>(context, down * across);
}

// Matrix by matrix, of each all panels of some rows, then the next rows.
void Run::multiply(int64_t piece) const {
    const int64_t down = pieces_of(n_, kernel_.rows);
    for (size_t i = 0; i < kernel_.count; ++i) {
        const h2o_block_matrix& matrix = kernel_.matrices[i];
        const int64_t panels = panels_of(matrix), across = pieces_of(panels, wide_);
        if (piece < down * across) {
            const int64_t row = piece / across * kernel_.rows, panel = piece % across * wide_;
            return h2o_products_multiply(kernel_.products, &matrix, n_, prepared_, row,
                                         std::min(kernel_.rows, n_ - row), panel, std::min(wide_, panels - panel),
                                         addend_, y_[i]);
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
    Tensor weights, scales, offsets;
    H2O_RETURN_IF(weights.read(ort, context, kWeights));
    H2O_RETURN_IF(scales.read(ort, context, kScales));
    H2O_RETURN_IF(offsets.read(ort, context, kOffsets));
    size_t bytes = 0, blocks = 0;
    for (size_t i = 0; i < count; ++i) {
        h2o_block_matrix& matrix = matrices[i];
        const int64_t elements = panels_of(matrix) * kPanel * matrix.inputs;
        matrix.weights = static_cast<const uint8_t*>(weights.data) + bytes;
        bytes += static_cast<size_t>(elements * matrix.bits / 8);
        if (is_float(matrix)) continue;
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

Status* Kernel::compute(KernelContext* context) {
    if (!ready) H2O_RETURN_IF(find_weights(context));
    Tensor x, up, addend;
    H2O_RETURN_IF(x.read(ort, context, kX));
    H2O_RETURN_IF(up.read(ort, context, kUp));
    H2O_RETURN_IF(addend.read(ort, context, kAddend));
    const int64_t inputs = matrices[0].inputs;
    if (x.dimensions == 0 || x.dimensions > kMostDimensions || x.sizes[x.dimensions - 1] != inputs) {
        return ort.error("PackedProduct: the last dimension of x is not what its matrix takes");
    }
    const int64_t n = static_cast<int64_t>(x.elements) / inputs;
    if (up.data != nullptr && up.elements != x.elements) {
        return ort.error("PackedProduct: up must be as large as x");
    }
    if (addend.data != nullptr && addend.elements != static_cast<size_t>(n * matrices[0].outputs)) {
        return ort.error("PackedProduct: the addend must be as large as the product");
    }
    Run run(*this, n, x, up, addend);
    H2O_RETURN_IF(run.outputs(context, x));
    return n == 0 ? nullptr : run.work(context);
}

Status* create(const Operator*, const Table* table, const KernelInfo* info, void** out) {
    const Interface ort(table);
    int64_t bits = 0, parts = 0, outputs[kMostMatrices];
    size_t count = kMostMatrices;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attribute(info, "K", &matrix.inputs));
    H2O_RETURN_IF(ort.attribute(info, "block", &matrix.block));
    H2O_RETURN_IF(ort.attribute(info, "bits", &bits));
    H2O_RETURN_IF(ort.attribute(info, "parts", &parts));
    H2O_RETURN_IF(ort.attribute(info, "N", outputs, &count));
    matrix.bits = static_cast<int>(bits);
    matrix.parts = static_cast<int>(parts);
    const h2o_products* products = nullptr;
    if (count == 0 || h2o_products_find(nullptr, &products) != H2O_OK) {
        return ort.error("PackedProduct: no matrix, or no kernel");
    }
    Kernel* const kernel = new (std::nothrow) Kernel{ort, products, count, 0, {}};
    if (kernel == nullptr) return ort.error("PackedProduct: no memory");
    for (size_t i = 0; i < count; ++i) {
        matrix.outputs = outputs[i];
        kernel->matrices[i] = matrix;
        if (h2o_products_check(&matrix) != H2O_OK) {
            delete kernel;
            return ort.error("PackedProduct: sizes that no kernel takes");
        }
    }
    const int64_t tile = h2o_products_tile_rows(products, kernel->matrices);
    kernel->rows = kMostRows / tile * tile;
    *out = kernel;
    return nullptr;
}

constexpr Operator make_operator() {
    Operator op{};
    op.version = kVersion;
    op.name = [](const Operator*) { return "PackedProduct"; };
    op.provider = [](const Operator*) -> const char* { return nullptr; };
    op.inputs = [](const Operator*) -> size_t { return kInputs; };
    op.input_type = [](const Operator*, size_t index) { return index == kWeights ? kUint8 : kFloat; };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index <= kWeights ? kRequired : kOptional;
    };
    op.input_memory = [](const Operator*, size_t) { return 0; };
    op.outputs = [](const Operator*) -> size_t { return 2; };
    op.output_type = [](const Operator*, size_t index) { return index == 0 ? kUint8 : kFloat; };
    op.output_characteristic = [](const Operator*, size_t index) {
        return index == 0 ? kRequired : kVariadic;
    };
    op.variadic_outputs = [](const Operator*) { return 1; };
    op.variadic_outputs_alike = [](const Operator*) { return 1; };
    op.first_version = [](const Operator*) { return 1; };
    op.last_version = [](const Operator*) { return 1; };
    op.create = create;
    op.compute = [](void* kernel, KernelContext* context) {
        return static_cast<Kernel*>(kernel)->compute(context);
    };
    op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_product() {
    return &kOperator;
}

}  // namespace h2o::ort
