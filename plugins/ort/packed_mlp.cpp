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
        : kernel_(kernel), mlp_(kernel.mlp), given_(given), context_(context) {
        cut();
    }

    Status* outputs();
    Status* work() const {
        return whole_ ? by_rows() : by_columns(kernel_.ort, context_, units_, count_, kernel_.threads);
    }

  private:
    void cut();
    int64_t first_row(int64_t piece) const;
    void lay_out(Memory* memory);
    MlpUnit unit(int64_t piece) const;
    Status* by_rows() const;

    const Kernel& kernel_;
    const GatedMlp& mlp_;
    const Given& given_;
    KernelContext* context_;
    bool whole_ = false;   // whether one thread takes a unit through the whole MLP
    int64_t count_ = 0;    // of units
    int64_t rows_ = 0;     // the most of a unit
    int64_t columns_ = 0;  // of gate and up at a time
    float* y_ = nullptr;
    MlpUnit* units_ = nullptr;  // that all threads share
    char* buffers_ = nullptr;   // of threads, where each takes whole units
    int64_t buffer_bytes_ = 0;
};

// The same number of units for each thread, which differ by a tile at most; where rows are too few for that,
// threads share the columns.
void Run::cut() {
    const int64_t n = given_.n, tile = mlp_.gate_up.tile_rows(), threads = kernel_.threads;
    const int64_t most = std::min(mlp_.gate_up.unit_rows(), mlp_.down.unit_rows());
    const int64_t least = pieces_of(n, most), pieces = pieces_of(least, threads) * threads;
    whole_ = n / std::max<int64_t>(1, pieces) >= kFewestRows;
    count_ = whole_ ? pieces : least;
    rows_ = pieces_of(pieces_of(n, tile), std::max<int64_t>(1, count_)) * tile;
    columns_ = whole_ ? mlp_.columns_of(rows_) : mlp_.inner();
}

// Where a unit's rows begin, which are whole tiles; n behind the last.
int64_t Run::first_row(int64_t piece) const {
    const int64_t n = given_.n, tile = mlp_.gate_up.tile_rows();
    return std::min(n, pieces_of(n, tile) * piece / count_ * tile);
}

MlpUnit Run::unit(int64_t piece) const {
    const int64_t first = first_row(piece), to = first * mlp_.outputs();
    const float* const addend = given_.addend.floats();
    return {&mlp_,
            {given_.x.floats() + first * mlp_.inputs(),
             nullptr,
             given_.norm.floats(),
             kernel_.epsilon,
             {},
             nullptr},
            first_row(piece + 1) - first,
            addend == nullptr ? nullptr : addend + to,
            y_ + to,
            {}};
}

void Run::lay_out(Memory* memory) {
    if (whole_) {
        Memory one(nullptr);
        mlp_.buffers(rows_, columns_, &one);
        buffer_bytes_ = one.used();
        buffers_ = memory->take<char>(std::min(count_, kernel_.threads) * buffer_bytes_);
        return;
    }
    units_ = memory->take<MlpUnit>(count_);
    for (int64_t piece = 0; piece < count_; ++piece) {
        MlpUnit made = unit(piece);
        made.at = mlp_.buffers(made.rows, columns_, memory);
        if (units_ != nullptr) units_[piece] = made;
    }
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
    lay_out(&measured);
    H2O_RETURN_IF(scratch(ort, context_, 0, measured.used(), &at));
    Memory memory(at);
    lay_out(&memory);
    return nullptr;
}

// Many rows: a thread takes some through the whole MLP, and intermediate results stay in its cache.
Status* Run::by_rows() const {
    return share(kernel_.ort, context_, count_, kernel_.threads, [this](int64_t piece, int64_t worker) {
        Memory memory(buffers_ + worker * buffer_bytes_);
        MlpUnit made = unit(piece);
        made.at = mlp_.buffers(rows_, columns_, &memory);
        made.pass(columns_);
    });
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(mlp.find(ort, context, kWeights));
        H2O_RETURN_IF(mlp.find_biases(ort, context, kBiases));
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
