#include "packed_experts.h"

#include <atomic>
#include <vector>

#include "gated_mlp.h"
#include "operator_of.h"

namespace h2o::ort {
namespace {

enum Input : size_t { kX, kChosen, kShares, kAddend, kMatrices };
enum Output : size_t { kOrder, kScratch, kY, kOutputs };

constexpr int64_t kFewestUnits = 4;  // for each thread: fewer are divided by columns
constexpr int64_t kSumRows = 16;     // that a thread sums at a time
constexpr size_t kBiases = 3;        // of an expert that has any

// One node: what does not change between runs.
struct Kernel {
    Interface ort;
    std::vector<GatedMlp> experts;
    int64_t threads = 1, biased = 0;
    std::atomic<bool> ready{
        false};  // whether the matrices have the addresses of their weights, set in the first run

    explicit Kernel(const Table* table) : ort(table) {}
    int64_t count() const { return static_cast<int64_t>(experts.size()); }
    Status* read(const KernelInfo* info);
    Status* find(KernelContext* context);
    Status* compute(KernelContext* context);
};

// The inputs of one run.
struct Given {
    Tensor x, chosen, shares, addend;
    int64_t n = 0, slots = 0;

    Status* read(const Kernel& kernel, KernelContext* context);
    int64_t pairs() const { return n * slots; }
    const int64_t* experts() const { return static_cast<const int64_t*>(chosen.data); }
};

Status* Given::read(const Kernel& kernel, KernelContext* context) {
    const Interface& ort = kernel.ort;
    const GatedMlp& any = kernel.experts[0];
    size_t count = 0;
    H2O_RETURN_IF(ort.input_count(context, &count));
    H2O_RETURN_IF(x.read(ort, context, count, kX));
    H2O_RETURN_IF(chosen.read(ort, context, count, kChosen));
    H2O_RETURN_IF(shares.read(ort, context, count, kShares));
    H2O_RETURN_IF(addend.read(ort, context, count, kAddend));
    if (x.dimensions != 2 || x.sizes[1] != any.inputs()) {
        return ort.error(
            "PackedExperts: x must have two dimensions, the last as the experts' matrices take it");
    }
    n = x.sizes[0];
    if (chosen.dimensions != 2 || chosen.sizes[0] != n) {
        return ort.error("PackedExperts: each row of x must have a row of chosen experts");
    }
    slots = chosen.sizes[1];
    if (!shares.is_of(pairs())) return ort.error("PackedExperts: each chosen expert must have one share");
    if (!addend.is_of(n * any.outputs())) {
        return ort.error("PackedExperts: the addend must be as large as the result");
    }
    const bool known = std::all_of(experts(), experts() + pairs(), [&kernel](int64_t expert) {
        return expert >= 0 && expert < kernel.count();
    });
    return known ? nullptr : ort.error("PackedExperts: a row has an expert that is not there");
}

// Pairs of a row and a slot, in the order of their experts.
struct Order {
    int64_t* first;  // [experts + 1]: of each expert's pairs
    int64_t* rows;   // [pairs]: of x
    int64_t* place;  // [n, slots]: of a pair in the order

    Order(const Kernel& kernel, const Given& given, Memory* memory)
        : first(memory->take<int64_t>(kernel.count() + 1)),
          rows(memory->take<int64_t>(given.pairs())),
          place(memory->take<int64_t>(given.pairs())) {}
    void sort(const Given& given, int64_t experts) const;
};

// A counting sort: pairs of one expert stay in the order of rows.
void Order::sort(const Given& given, int64_t experts) const {
    std::fill_n(first, experts + 1, 0);
    const int64_t* const chosen = given.experts();
    for (int64_t pair = 0; pair < given.pairs(); ++pair) ++first[chosen[pair]];
    int64_t end = 0;
    for (int64_t expert = 0; expert <= experts; ++expert) {
        end += first[expert];
        first[expert] = end - first[expert];
    }
    for (int64_t pair = 0; pair < given.pairs(); ++pair) {
        place[pair] = first[chosen[pair]]++;
        rows[place[pair]] = pair / given.slots;
    }
    std::copy_backward(first, first + experts, first + experts + 1);
    first[0] = 0;
}

class Run {
  public:
    Run(const Kernel& kernel, const Given& given, const Order& order, KernelContext* context)
        : kernel_(kernel), any_(kernel.experts[0]), given_(given), order_(order), context_(context) {
        each_unit([this](const MlpUnit& unit, int64_t) {
            ++count_;
            most_rows_ = std::max(most_rows_, unit.rows);
        });
        whole_ = count_ >= kFewestUnits * kernel.threads;
        columns_ = whole_ ? any_.columns_of(most_rows_) : any_.inner();
    }

    Status* outputs();
    Status* work() const {
        H2O_RETURN_IF(whole_ ? by_units()
                             : by_columns(kernel_.ort, context_, units_, count_, kernel_.threads));
        return sum();
    }

  private:
    template <class Visit>
    void each_unit(const Visit& visit) const;
    void lay_out(Memory* memory);
    Status* by_units() const;
    Status* sum() const;
    void sum_row(int64_t row) const;

    const Kernel& kernel_;
    const GatedMlp& any_;  // all have the same sizes
    const Given& given_;
    const Order& order_;
    KernelContext* context_;
    int64_t count_ = 0;  // of units
    int64_t most_rows_ = 0;
    int64_t columns_ = 0;  // of gate and up at a time
    bool whole_ = false;   // whether one thread takes a unit through the whole MLP
    MlpUnit* units_ = nullptr;
    float* said_ = nullptr;    // [pairs, N], in order
    char* buffers_ = nullptr;  // of threads, where each takes whole units
    int64_t buffer_bytes_ = 0;
    float* y_ = nullptr;
};

// Rows of one expert are a unit, or several about equal ones.
template <class Visit>
void Run::each_unit(const Visit& visit) const {
    const int64_t tile = any_.gate_up.tile_rows();
    for (int64_t expert = 0; expert < kernel_.count(); ++expert) {
        const int64_t end = order_.first[expert + 1];
        const int64_t rows = rows_of_a_piece(end - order_.first[expert], tile, kMostRows / tile * tile);
        for (int64_t first = order_.first[expert]; first < end; first += rows) {
            visit(MlpUnit{&kernel_.experts[static_cast<size_t>(expert)],
                          {given_.x.floats(), nullptr, nullptr, 0.0f, {}, order_.rows + first},
                          std::min(rows, end - first),
                          nullptr,
                          nullptr,
                          {}},
                  first);
        }
    }
}

void Run::lay_out(Memory* memory) {
    units_ = memory->take<MlpUnit>(count_);
    said_ = memory->take<float>(given_.pairs() * any_.outputs());
    if (whole_) {
        Memory one(nullptr);
        any_.buffers(most_rows_, columns_, &one);
        buffer_bytes_ = one.used();
        buffers_ = memory->take<char>(kernel_.threads * buffer_bytes_);
    }
    MlpUnit* next = units_;
    each_unit([&](MlpUnit unit, int64_t first) {
        if (!whole_) unit.at = any_.buffers(unit.rows, columns_, memory);
        if (next == nullptr) return;
        unit.y = said_ + first * any_.outputs();
        *next++ = unit;
    });
}

Status* Run::outputs() {
    const Interface& ort = kernel_.ort;
    const int64_t sizes[] = {given_.n, any_.outputs()};
    Value* out = nullptr;
    void* at = nullptr;
    H2O_RETURN_IF(ort.output(context_, kY, sizes, 2, &out));
    H2O_RETURN_IF(ort.data(out, &at));
    y_ = static_cast<float*>(at);
    Memory measured(nullptr);
    lay_out(&measured);
    H2O_RETURN_IF(scratch(ort, context_, kScratch, measured.used(), &at));
    Memory memory(at);
    lay_out(&memory);
    return nullptr;
}

// Each thread takes units through the whole MLP.
Status* Run::by_units() const {
    return share(kernel_.ort, context_, count_, kernel_.threads, [this](int64_t piece, int64_t worker) {
        Memory memory(buffers_ + worker * buffer_bytes_);
        MlpUnit unit = units_[piece];
        unit.at = any_.buffers(most_rows_, columns_, &memory);
        unit.pass(columns_);
    });
}

Status* Run::sum() const {
    return share(kernel_.ort, context_, pieces_of(given_.n, kSumRows), [this](int64_t piece) {
        const int64_t end = std::min(given_.n, (piece + 1) * kSumRows);
        for (int64_t row = piece * kSumRows; row < end; ++row) sum_row(row);
    });
}

// In the order of slots, so that it depends on no other row.
void Run::sum_row(int64_t row) const {
    const int64_t columns = any_.outputs();
    const float* const addend = given_.addend.floats();
    float* const y = y_ + row * columns;
    if (addend == nullptr) {
        std::fill_n(y, columns, 0.0f);
    } else {
        std::copy_n(addend + row * columns, columns, y);
    }
    for (int64_t pair = row * given_.slots; pair < (row + 1) * given_.slots; ++pair) {
        const float share = given_.shares.floats()[pair];
        const float* const said = said_ + order_.place[pair] * columns;
        for (int64_t column = 0; column < columns; ++column) y[column] += share * said[column];
    }
}

// A variadic input cannot be left out: all experts have the same arrays, and those that there are.
Status* Kernel::find(KernelContext* context) {
    size_t inputs = 0;
    H2O_RETURN_IF(ort.input_count(context, &inputs));
    const size_t arrays = inputs - kMatrices, of_one = arrays / experts.size(), biases = biased ? kBiases : 0;
    if (arrays % experts.size() != 0 || of_one < biases || (of_one - biases) % 2 != 0 ||
        of_one - biases > 2 * kMostArrays) {
        return ort.error("PackedExperts: every expert must have the same arrays");
    }
    size_t first = kMatrices;
    for (GatedMlp& expert : experts) {
        H2O_RETURN_IF(expert.find(ort, context, first, (of_one - biases) / 2));
        if (biased) H2O_RETURN_IF(expert.find_biases(ort, context, first + of_one - biases));
        first += of_one;
    }
    return nullptr;
}

Status* Kernel::compute(KernelContext* context) {
    if (!ready) {
        H2O_RETURN_IF(find(context));
        ready = true;
    }
    Given given;
    H2O_RETURN_IF(given.read(*this, context));
    Memory measured(nullptr);
    Order(*this, given, &measured);
    void* at = nullptr;
    H2O_RETURN_IF(scratch(ort, context, kOrder, measured.used(), &at));
    Memory memory(at);
    const Order order(*this, given, &memory);
    order.sort(given, count());
    Run run(*this, given, order, context);
    H2O_RETURN_IF(run.outputs());
    return given.n == 0 ? nullptr : run.work();
}

Status* Kernel::read(const KernelInfo* info) {
    GatedMlp any;
    int64_t count = 0;
    H2O_RETURN_IF(any.read(ort, info));
    H2O_RETURN_IF(ort.attribute(info, "experts", &count));
    H2O_RETURN_IF(ort.attribute(info, "biased", &biased));
    H2O_RETURN_IF(ort.attribute(info, "threads", &threads));
    if (count < 1 || threads < 1) return ort.error("PackedExperts: experts and threads must be one at least");
    experts.assign(static_cast<size_t>(count), any);
    return nullptr;
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel>([](const Operator*) { return "PackedExperts"; });
    op.inputs = [](const Operator*) -> size_t { return kMatrices + 1; };
    op.input_type = [](const Operator*, size_t index) {
        return index == kChosen ? kInt64 : index == kMatrices ? kAny : kFloat;
    };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index == kMatrices ? kVariadic : index == kAddend ? kOptional : kRequired;
    };
    op.variadic_inputs = [](const Operator*) { return 1; };
    op.variadic_inputs_alike = [](const Operator*) { return 0; };
    op.outputs = [](const Operator*) -> size_t { return kOutputs; };
    op.output_type = [](const Operator*, size_t index) { return index == kY ? kFloat : kUint8; };
    op.output_characteristic = [](const Operator*, size_t) { return kRequired; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_experts() {
    return &kOperator;
}

}  // namespace h2o::ort
