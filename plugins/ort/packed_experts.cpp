// PackedExperts: a mixture of experts, y[row] = addend[row] + the sum over slots of share[row][slot] times
// what expert chosen[row][slot] makes of x[row]. An expert is a gated MLP. An operator of domain h2o.cpu,
// which is in no file: h2o_runtime puts it into graphs as it loads them.
//
// inputs      x float32 [n, K]; chosen int64 [n, slots]; shares float32, one for each of chosen
//             addend float32 [n, N], or none
//             of each expert those that GatedMlp::find names, without scales and offsets if there are none,
//             and those of find_biases
// outputs     order and scratch, uint8, for nobody; y float32 [n, N]
// attributes  those that GatedMlp::read names, of every expert; experts, how many; biased, whether they have
//             biases; threads, of the session
#include <atomic>
#include <vector>

#include "gated_mlp.h"
#include "operator_of.h"
#include "operators.h"

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
    H2O_RETURN_IF(
        read_inputs(ort, context, {{&x, kX}, {&chosen, kChosen}, {&shares, kShares}, {&addend, kAddend}}));
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

// visit(unit, the place of its first row in the order) for all units. Rows of one expert are a unit, or
// several about equal ones.
template <class Visit>
void each_unit(const Kernel& kernel, const Given& given, const Order& order, const Visit& visit) {
    const int64_t tile = kernel.experts[0].gate_up.tile_rows();
    for (int64_t expert = 0; expert < kernel.count(); ++expert) {
        const int64_t end = order.first[expert + 1];
        const int64_t rows = rows_of_a_piece(end - order.first[expert], tile, kMostRows / tile * tile);
        for (int64_t first = order.first[expert]; first < end; first += rows) {
            const h2o_activations x{given.x.floats(), nullptr, nullptr, 0.0f, {}, order.rows + first};
            visit(MlpUnit{&kernel.experts[static_cast<size_t>(expert)],
                          x,
                          std::min(rows, end - first),
                          nullptr,
                          nullptr,
                          {}},
                  first);
        }
    }
}

// y [columns] of a row, in the order of slots, so that it depends on no other row. said: [pairs, N], in
// order.
void sum_row(const Given& given, const Order& order, int64_t row, int64_t columns, const float* said,
             float* y) {
    const float* const addend = given.addend.floats();
    if (addend == nullptr) {
        std::fill_n(y, columns, 0.0f);
    } else {
        std::copy_n(addend + row * columns, columns, y);
    }
    for (int64_t pair = row * given.slots; pair < (row + 1) * given.slots; ++pair) {
        const float share = given.shares.floats()[pair];
        const float* const one = said + order.place[pair] * columns;
        for (int64_t column = 0; column < columns; ++column) y[column] += share * one[column];
    }
}

// y [n, N] of the run, with the order of its pairs.
Status* run(const Kernel& kernel, const Given& given, const Order& order, KernelContext* context) {
    const GatedMlp& any = kernel.experts[0];
    const int64_t columns = any.outputs(), sizes[] = {given.n, columns};
    int64_t count = 0, most_rows = 0;
    each_unit(kernel, given, order, [&](const MlpUnit& unit, int64_t) {
        ++count;
        most_rows = std::max(most_rows, unit.rows);
    });
    float *y = nullptr, *said = nullptr;
    H2O_RETURN_IF(output(kernel.ort, context, kY, sizes, 2, &y));
    MlpUnits units(any, kernel.threads, count, most_rows, count >= kFewestUnits * kernel.threads);
    H2O_RETURN_IF(scratch(kernel.ort, context, kScratch, [&](Memory* memory) {
        said = memory->take<float>(given.pairs() * columns);
        units.lay_out(memory, [&](const auto& visit) {
            each_unit(kernel, given, order, [&](MlpUnit unit, int64_t first) {
                unit.y = said + first * columns;
                visit(unit);
            });
        });
    }));
    if (given.n == 0) return nullptr;
    H2O_RETURN_IF(units.run(kernel.ort, context));
    return share(kernel.ort, context, pieces_of(given.n, kSumRows), [&](int64_t piece) {
        const int64_t end = std::min(given.n, (piece + 1) * kSumRows);
        for (int64_t row = piece * kSumRows; row < end; ++row)
            sum_row(given, order, row, columns, said, y + row * columns);
    });
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
    Order order;
    H2O_RETURN_IF(scratch(ort, context, kOrder, [&](Memory* memory) {
        order = {memory->take<int64_t>(count() + 1), memory->take<int64_t>(given.pairs()),
                 memory->take<int64_t>(given.pairs())};
    }));
    order.sort(given, count());
    return run(*this, given, order, context);
}

Status* Kernel::read(const KernelInfo* info) {
    GatedMlp any;
    int64_t count = 0;
    H2O_RETURN_IF(any.read(ort, info));
    H2O_RETURN_IF(ort.attributes(info, "experts", &count, "biased", &biased, "threads", &threads));
    if (count < 1 || threads < 1) return ort.error("PackedExperts: experts and threads must be one at least");
    experts.assign(static_cast<size_t>(count), any);
    return nullptr;
}

constexpr Operator make_operator() {
    Operator op =
        operator_of<Kernel, kMatrices + 1, kOutputs>([](const Operator*) { return "PackedExperts"; });
    op.input_type = [](const Operator*, size_t index) {
        return index == kChosen ? kInt64 : index == kMatrices ? kAny : kFloat;
    };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index == kMatrices ? kVariadic : index == kAddend ? kOptional : kRequired;
    };
    op.variadic_inputs = [](const Operator*) { return 1; };
    op.variadic_inputs_alike = [](const Operator*) { return 0; };
    op.output_type = [](const Operator*, size_t index) { return index == kY ? kFloat : kUint8; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* packed_experts() {
    return &kOperator;
}

}  // namespace h2o::ort
