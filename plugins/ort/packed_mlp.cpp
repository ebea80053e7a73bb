#include "packed_mlp.h"

#include <atomic>
#include <numeric>

#include "operator_of.h"
#include "stage.h"

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
    kInputs
};

constexpr int64_t kFewestRows = 48;           // rows of a unit of work that goes through the whole MLP
constexpr int64_t kBetweenBytes = 256 << 10;  // bytes of gate and up at a time: a quarter of an L2 cache

int64_t aligned(int64_t bytes) {
    return pieces_of(bytes, 64) * 64;
}

// One node: what does not change between runs.
struct Kernel {
    Interface ort;
    Matrices gate_up, down;
    int64_t threads = 1;
    float epsilon = 0.0f;
    h2o_gate function = H2O_SILU;
    std::atomic<bool> ready{
        false};  // whether the matrices have the addresses of their weights, set in the first run

    explicit Kernel(const Table* table) : ort(table) {}
    int64_t inputs() const { return gate_up.all[0].inputs; }
    int64_t inner() const { return down.all[0].inputs; }
    int64_t outputs() const { return down.all[0].outputs; }
    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context);
};

// The inputs of one run.
struct Given {
    Tensor x, norm, addend;
    int64_t n = 0;  // rows

    Status* read(const Kernel& kernel, KernelContext* context) {
        const Interface& ort = kernel.ort;
        size_t count = 0;
        H2O_RETURN_IF(ort.input_count(context, &count));
        H2O_RETURN_IF(x.read(ort, context, count, kX));
        H2O_RETURN_IF(norm.read(ort, context, count, kNorm));
        H2O_RETURN_IF(addend.read(ort, context, count, kAddend));
        if (x.dimensions == 0 || x.dimensions > kMostDimensions ||
            x.sizes[x.dimensions - 1] != kernel.inputs()) {
            return ort.error("the last dimension of x is not what its matrices take");
        }
        n = static_cast<int64_t>(x.elements) / kernel.inputs();
        if (!norm.is_of(kernel.inputs()))
            return ort.error("norm must have one number for each of x's columns");
        return addend.is_of(n * kernel.outputs()) ? nullptr
                                                  : ort.error("the addend must be as large as the result");
    }
};

// Memory that grows with each request; with `base` null it only measures.
class Memory {
  public:
    explicit Memory(void* base) : base_(static_cast<char*>(base)) {}
    void* take(size_t bytes) {
        char* const at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += aligned(static_cast<int64_t>(bytes));
        return at;
    }
    float* floats(int64_t count) {
        return static_cast<float*>(take(static_cast<size_t>(count) * sizeof(float)));
    }
    int64_t used() const { return used_; }

  private:
    char* base_;
    int64_t used_ = 0;
};

// Activations of some rows: the prepared x, gate and up of some columns, and the input of the last product.
struct Rows {
    void* x;
    float* gate;
    float* up;
    void* inner;

    Rows(const Kernel& kernel, int64_t rows, int64_t columns, Memory* memory)
        : x(memory->take(h2o_products_scratch_bytes(kernel.gate_up.all, rows))),
          gate(memory->floats(rows * columns)),
          up(memory->floats(rows * columns)),
          inner(memory->take(h2o_products_scratch_bytes(kernel.down.all, rows))) {}
};

class Run {
  public:
    Run(const Kernel& kernel, const Given& given, KernelContext* context)
        : kernel_(kernel),
          given_(given),
          context_(context),
          x_{given.x.floats(), nullptr, given.norm.floats(), kernel.epsilon, kernel.function} {
        cut();
    }

    Status* outputs();
    Status* work() { return pieces_ > 0 ? by_rows() : by_products(); }

  private:
    void cut();
    Status* by_products() const;
    Status* by_rows() const;
    void pass(int64_t first, int64_t rows, const Rows& at) const;
    int64_t most_rows() const { return pieces_ > 0 ? rows_ : given_.n; }

    const Kernel& kernel_;
    const Given& given_;
    KernelContext* context_;
    h2o_activations x_;
    int64_t pieces_ = 0;   // rows of each unit that goes through the whole MLP; 0: too few for all threads
    int64_t rows_ = 0;     // of a piece
    int64_t columns_ = 0;  // columns of gate and up at a time
    float* y_ = nullptr;
    void* scratch_ = nullptr;
};

// The same number of units for each thread.
void Run::cut() {
    const int64_t n = given_.n, tile = kernel_.gate_up.tile_rows(), threads = kernel_.threads;
    const int64_t pieces = pieces_of(pieces_of(n, kMostRows / tile * tile), threads) * threads;
    columns_ = kernel_.inner();
    if (n / std::max<int64_t>(1, pieces) < kFewestRows) return;
    rows_ = pieces_of(pieces_of(n, pieces), tile) * tile;
    pieces_ = pieces_of(n, rows_);
    const int64_t block = std::max<int64_t>(1, kernel_.down.all[0].block);
    const int64_t step = std::lcm(2 * kPanel, block);
    const int64_t wanted = kBetweenBytes / (2 * static_cast<int64_t>(sizeof(float)) * rows_);
    columns_ = std::min(columns_, std::max<int64_t>(1, wanted / step) * step);
}

Status* Run::outputs() {
    const Interface& ort = kernel_.ort;
    int64_t sizes[kMostDimensions];
    const size_t dimensions = given_.x.dimensions;
    std::copy_n(given_.x.sizes, dimensions, sizes);
    sizes[dimensions - 1] = kernel_.outputs();
    Value* out = nullptr;
    void* at = nullptr;
    H2O_RETURN_IF(ort.output(context_, 1, sizes, dimensions, &out));
    H2O_RETURN_IF(ort.data(out, &at));
    y_ = static_cast<float*>(at);
    Memory measured(nullptr);
    Rows(kernel_, most_rows(), columns_, &measured);
    const int64_t size = measured.used() * (pieces_ > 0 ? std::min(pieces_, kernel_.threads) : 1);
    H2O_RETURN_IF(ort.output(context_, 0, &size, 1, &out));
    return ort.data(out, &scratch_);
}

// Few rows: all threads share each product's columns.
Status* Run::by_products() const {
    Memory memory(scratch_);
    const Rows at(kernel_, given_.n, columns_, &memory);
    float* const between[] = {at.gate, at.up};
    H2O_RETURN_IF(Stage(kernel_.gate_up, given_.n, x_, at.x, between, nullptr).run(kernel_.ort, context_));
    const h2o_activations gated{at.gate, at.up, nullptr, 0.0f, kernel_.function};
    return Stage(kernel_.down, given_.n, gated, at.inner, &y_, given_.addend.floats())
        .run(kernel_.ort, context_);
}

// Many rows: a thread takes some through the whole MLP, and intermediate results stay in its cache.
Status* Run::by_rows() const {
    Memory measured(nullptr);
    Rows(kernel_, rows_, columns_, &measured);
    return share(kernel_.ort, context_, pieces_, kernel_.threads, [&](int64_t piece, int64_t worker) {
        Memory memory(static_cast<char*>(scratch_) + worker * measured.used());
        const int64_t first = piece * rows_, rows = std::min(rows_, given_.n - first);
        pass(first, rows, Rows(kernel_, rows_, columns_, &memory));
    });
}

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

void Run::pass(int64_t first, int64_t rows, const Rows& at) const {
    const h2o_products* const products = kernel_.gate_up.products;
    const h2o_block_matrix &gate = kernel_.gate_up.all[0], &up = kernel_.gate_up.all[1];
    const h2o_block_matrix& down = kernel_.down.all[0];
    h2o_activations x = x_;
    x.x += first * kernel_.inputs();
    const bool as_it_is = h2o_products_as_it_is(&gate, &x) != 0;
    if (!as_it_is) h2o_products_prepare(products, &gate, rows, &x, 0, rows, at.x);
    const void* const prepared = as_it_is ? static_cast<const void*>(x.x) : at.x;
    for (int64_t column = 0; column < kernel_.inner(); column += columns_) {
        const int64_t count = std::min(columns_, kernel_.inner() - column);
        const auto multiply = [&](const h2o_block_matrix& matrix, float* y) {
            const h2o_block_matrix cut = some_columns(matrix, column, count);
            h2o_products_multiply(products, &cut, rows, prepared, 0, rows, 0, panels_of(cut), nullptr, y);
        };
        multiply(gate, at.gate);
        multiply(up, at.up);
        const h2o_activations gated{at.gate, at.up, nullptr, 0.0f, kernel_.function};
        h2o_products_prepare_columns(products, &down, rows, &gated, column, count, at.inner);
    }
    const int64_t y = first * kernel_.outputs();
    const float* const addend = given_.addend.floats();
    h2o_products_multiply(products, &down, rows, at.inner, 0, rows, 0, panels_of(down),
                          addend == nullptr ? nullptr : addend + y, y_ + y);
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(gate_up.find(ort, context, kWeights));
        H2O_RETURN_IF(down.find(ort, context, kDownWeights));
        ready = true;
    }
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    Run run(*this, given, context);
    H2O_RETURN_IF(run.outputs());
    return given.n == 0 ? nullptr : run.work();
}

Status* Kernel::read(const KernelInfo* info) {
    H2O_RETURN_IF(gate_up.find_kernels(ort));
    down.products = gate_up.products;
    int64_t bits = 0, inside = 0, columns = 0, gate = 0;
    h2o_block_matrix matrix{};
    H2O_RETURN_IF(ort.attribute(info, "K", &matrix.inputs));
    H2O_RETURN_IF(ort.attribute(info, "inner", &inside));
    H2O_RETURN_IF(ort.attribute(info, "N", &columns));
    H2O_RETURN_IF(ort.attribute(info, "block", &matrix.block));
    H2O_RETURN_IF(ort.attribute(info, "bits", &bits));
    H2O_RETURN_IF(ort.attribute(info, "threads", &threads));
    H2O_RETURN_IF(ort.attribute(info, "epsilon", &epsilon));
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
    const bool good = gate_up.good() && down.good() && threads > 0 && is_gate(gate);
    return good ? nullptr : ort.error("PackedMlp: sizes that no kernel takes");
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel>([](const Operator*) { return "PackedMlp"; });
    op.inputs = [](const Operator*) -> size_t { return kInputs; };
    op.input_type = [](const Operator*, size_t index) {
        return index == kWeights || index == kDownWeights ? kUint8 : kFloat;
    };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index == kX || index == kWeights || index == kDownWeights ? kRequired : kOptional;
    };
    op.outputs = [](const Operator*) -> size_t { return 2; };
    op.output_type = [](const Operator*, size_t index) { return index == 0 ? kUint8 : kFloat; };
    op.output_characteristic = [](const Operator*, size_t) { return kRequired; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_mlp() {
    return &kOperator;
}

}  // namespace h2o::ort
