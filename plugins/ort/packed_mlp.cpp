#include "packed_mlp.h"

#include <atomic>

#include "gated_mlp.h"
#include "operator_of.h"

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
        size_t count = 0;
        H2O_RETURN_IF(ort.input_count(context, &count));
        H2O_RETURN_IF(x.read(ort, context, count, kX));
        H2O_RETURN_IF(norm.read(ort, context, count, kNorm));
        H2O_RETURN_IF(addend.read(ort, context, count, kAddend));
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

class Run {
  public:
    Run(const Kernel& kernel, const Given& given, KernelContext* context)
        : kernel_(kernel),
          mlp_(kernel.mlp),
          given_(given),
          context_(context),
          x_{given.x.floats(), nullptr, given.norm.floats(), kernel.epsilon, mlp_.function, nullptr} {
        cut();
    }

    Status* outputs();
    Status* work() { return pieces_ > 0 ? by_rows() : by_products(); }

  private:
    void cut();
    Status* by_products() const;
    Status* by_rows() const;
    void pass(int64_t first, int64_t rows, const MlpRows& at) const;
    int64_t most_rows() const { return pieces_ > 0 ? rows_ : given_.n; }

    const Kernel& kernel_;
    const GatedMlp& mlp_;
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
    const int64_t n = given_.n, tile = mlp_.gate_up.tile_rows(), threads = kernel_.threads;
    const int64_t pieces = pieces_of(pieces_of(n, kMostRows / tile * tile), threads) * threads;
    columns_ = mlp_.inner();
    if (n / std::max<int64_t>(1, pieces) < kFewestRows) return;
    rows_ = pieces_of(pieces_of(n, pieces), tile) * tile;
    pieces_ = pieces_of(n, rows_);
    columns_ = mlp_.columns_of(rows_);
}

Status* Run::outputs() {
    const Interface& ort = kernel_.ort;
    int64_t sizes[kMostDimensions];
    const size_t dimensions = given_.x.dimensions;
    std::copy_n(given_.x.sizes, dimensions, sizes);
    sizes[dimensions - 1] = mlp_.outputs();
    Value* out = nullptr;
    void* at = nullptr;
    H2O_RETURN_IF(ort.output(context_, 1, sizes, dimensions, &out));
    H2O_RETURN_IF(ort.data(out, &at));
    y_ = static_cast<float*>(at);
    Memory measured(nullptr);
    mlp_.buffers(most_rows(), columns_, &measured);
    const int64_t workers = pieces_ > 0 ? std::min(pieces_, kernel_.threads) : 1;
    return scratch(ort, context_, 0, workers * measured.used(), &scratch_);
}

// Few rows: all threads share each product's columns.
Status* Run::by_products() const {
    Memory memory(scratch_);
    const MlpRows at = mlp_.buffers(given_.n, columns_, &memory);
    float* const between[] = {at.gate, at.up};
    H2O_RETURN_IF(Stage(mlp_.gate_up, given_.n, x_, at.x, between, nullptr).run(kernel_.ort, context_));
    const h2o_activations gated{at.gate, at.up, nullptr, 0.0f, mlp_.function, nullptr};
    return Stage(mlp_.down, given_.n, gated, at.inner, &y_, given_.addend.floats())
        .run(kernel_.ort, context_);
}

// Many rows: a thread takes some through the whole MLP, and intermediate results stay in its cache.
Status* Run::by_rows() const {
    Memory measured(nullptr);
    mlp_.buffers(rows_, columns_, &measured);
    return share(kernel_.ort, context_, pieces_, kernel_.threads, [&](int64_t piece, int64_t worker) {
        Memory memory(static_cast<char*>(scratch_) + worker * measured.used());
        const int64_t first = piece * rows_, rows = std::min(rows_, given_.n - first);
        pass(first, rows, mlp_.buffers(rows_, columns_, &memory));
    });
}

void Run::pass(int64_t first, int64_t rows, const MlpRows& at) const {
    h2o_activations x = x_;
    x.x += first * mlp_.inputs();
    const int64_t y = first * mlp_.outputs();
    const float* const addend = given_.addend.floats();
    mlp_.pass(x, rows, columns_, at, addend == nullptr ? nullptr : addend + y, y_ + y);
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(mlp.find(ort, context, kWeights));
        ready = true;
    }
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    Run run(*this, given, context);
    H2O_RETURN_IF(run.outputs());
    return given.n == 0 ? nullptr : run.work();
}

Status* Kernel::read(const KernelInfo* info) {
    H2O_RETURN_IF(mlp.read(ort, info));
    H2O_RETURN_IF(ort.attribute(info, "threads", &threads));
    H2O_RETURN_IF(ort.attribute(info, "epsilon", &epsilon));
    return threads > 0 ? nullptr : ort.error("PackedMlp: threads must be one at least");
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
