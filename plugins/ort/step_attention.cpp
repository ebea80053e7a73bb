// StepAttention: attention of a decode step's rows, each to its own cache; first, the row's key and value
// become the cache's last row. An operator of domain h2o.cpu, with which a whole step is one graph: see
// h2o_runtime.dense_graphs.whole_step.
//
// inputs      q float32 [n, Hq, d], k [n, Hkv, d], v [n, Hkv, dv]; n is 16 at most
//             lengths int64 [n]: of each row's cache, with that row
//             caches uint8 [n, layers, sizeof(h2o_kv)]: an h2o_kv a row and layer, of h2o/kv.h. Where caches
//             lie changes from call to call, so graphs are given addresses
// outputs     o float32 [n, Hq, dv]
// attributes  layer, whose caches these are; scale, of scores; window, rows that a query sees, or 0
//             threads, of the session
#include <initializer_list>

#include "h2o/cpu.h"
#include "operator_of.h"
#include "operators.h"
#include "tensor.h"

namespace h2o::ort {
namespace {

enum Input : size_t { kQ, kK, kV, kLengths, kCaches, kInputs };

// One node. A session runs one call at a time, so `running` belongs to that call.
struct Kernel {
    Interface ort;
    float scale = 0.0f;
    float softcap = 0.0f;
    int32_t window = 0;
    int64_t layer = 0;
    h2o_cpu* cpu = nullptr;
    KernelContext* running = nullptr;
    Status* failed = nullptr;  // of the session's threads

    explicit Kernel(const Table* table) : ort(table) {}
    ~Kernel() { h2o_cpu_destroy(cpu); }
    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context);
};

struct Given {
    Tensor all[kInputs];

    Status* read(const Interface& ort, KernelContext* context) {
        size_t count = 0;
        H2O_RETURN_IF(ort.input_count(context, &count));
        for (size_t i = 0; i < kInputs; ++i) H2O_RETURN_IF(all[i].read(ort, context, count, i));
        for (size_t i : {kQ, kK, kV, kCaches}) {
            if (all[i].dimensions != 3)
                return ort.error("StepAttention: rows and caches have three dimensions");
        }
        return nullptr;
    }
    int64_t size(Input which, size_t axis) const { return all[which].sizes[axis]; }

    // Whether all sizes agree.
    bool good(int64_t layer) const {
        const int64_t rows = size(kQ, 0), heads = size(kK, 1);
        return rows > 0 && rows <= H2O_MOST_STEP_ROWS && size(kK, 0) == rows && size(kV, 0) == rows &&
               all[kLengths].is_of(rows) && size(kV, 1) == heads && heads > 0 && size(kQ, 2) == size(kK, 2) &&
               size(kCaches, 0) == rows && layer < size(kCaches, 1) &&
               size(kCaches, 2) == static_cast<int64_t>(sizeof(h2o_kv));
    }
};

Status* Kernel::compute(KernelContext* context) {
    Given given;
    H2O_RETURN_IF(given.read(ort, context));
    if (!given.good(layer)) return ort.error("StepAttention: sizes do not agree");
    const auto size = [&](Input which, size_t axis) { return static_cast<int32_t>(given.size(which, axis)); };
    h2o_step_rows step{};
    step.shape = {size(kQ, 1), size(kK, 1), size(kK, 1), size(kQ, 2), scale,
                  H2O_F32,     size(kV, 2), window,      softcap};
    step.count = given.size(kQ, 0);
    const int64_t sizes[] = {step.count, step.shape.query_heads, step.shape.value_size};
    H2O_RETURN_IF(output(ort, context, 0, sizes, 3, &step.o));
    step.q = given.all[kQ].data;
    step.k = given.all[kK].data;
    step.v = given.all[kV].data;
    step.lengths = static_cast<const int64_t*>(given.all[kLengths].data);
    step.kv = static_cast<const h2o_kv*>(given.all[kCaches].data) + layer;
    step.kv_stride = given.size(kCaches, 1);
    running = context;
    const h2o_status status = h2o_cpu_step_rows(cpu, &step);
    running = nullptr;
    if (Status* const thrown = failed; thrown != nullptr) {
        failed = nullptr;
        return thrown;
    }
    if (status == H2O_OUT_OF_WORKSPACE) return ort.error("StepAttention: no memory");
    return status == H2O_OK ? nullptr
                            : ort.error("StepAttention: the cache has no such row, or no kernel its sizes");
}

void run_on_session(void* self, int count, void (*work)(void*, size_t), void* data) {
    Kernel& kernel = *static_cast<Kernel*>(self);
    if (kernel.failed != nullptr) return;  // one tells enough
    kernel.failed = kernel.ort.parallel(kernel.running, work, static_cast<size_t>(count), data);
}

Status* Kernel::read(const KernelInfo* info) {
    int32_t threads = 0;
    H2O_RETURN_IF(ort.attributes(info, "threads", &threads, "scale", &scale, "softcap", &softcap, "window",
                                 &window, "layer", &layer));
    if (layer < 0) return ort.error("StepAttention: layers count from 0");
    const h2o_executor executor{this, threads, run_on_session};
    return h2o_cpu_create_on(&executor, nullptr, &cpu) == H2O_OK
               ? nullptr
               : ort.error("StepAttention: threads must be one at least");
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel, kInputs, 1>([](const Operator*) { return "StepAttention"; });
    op.input_type = [](const Operator*, size_t index) {
        return index == kLengths ? kInt64 : index == kCaches ? kUint8 : kFloat;
    };
    op.output_type = [](const Operator*, size_t) { return kFloat; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* step_attention() {
    return &kOperator;
}

}  // namespace h2o::ort
