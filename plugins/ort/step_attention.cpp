#include "step_attention.h"

#include <initializer_list>
#include <new>

#include "h2o/cpu.h"
#include "h2o/operator.h"
#include "operator_of.h"
#include "tensor.h"

namespace h2o::ort {
namespace {

enum Input : size_t { kQ, kK, kV, kKCache, kVCache, kLength, kKScales, kVScales, kInputs };

// One node. A session runs one at a time, so `running` is that of the call in progress.
struct Kernel {
    Interface ort;
    float scale = 0.0f;
    int32_t window = 0;
    h2o_cpu* cpu = nullptr;
    KernelContext* running = nullptr;
    Status* failed = nullptr;  // of the session's threads

    ~Kernel() { h2o_cpu_destroy(cpu); }
    Status* compute(KernelContext* context);
};

struct Given {
    Tensor all[kInputs];

    Status* read(const Interface& ort, KernelContext* context) {
        size_t count = 0;
        H2O_RETURN_IF(ort.input_count(context, &count));
        for (size_t i = 0; i < kInputs; ++i) H2O_RETURN_IF(all[i].read(ort, context, count, i));
        for (size_t i : {kQ, kK, kV, kKCache, kVCache}) {
            if (all[i].dimensions != 3)
                return ort.error("StepAttention: rows and caches have three dimensions");
        }
        return all[kLength].is_of(1) ? nullptr : ort.error("StepAttention: length must be one number");
    }
    int64_t size(Input which, size_t axis) const { return all[which].sizes[axis]; }

    h2o_kv cache() const {
        h2o_kv kv{};
        kv.k = all[kKCache].data;
        kv.v = all[kVCache].data;
        kv.rows = size(kKCache, 0);
        const ElementType type = all[kKCache].type;
        kv.dtype = type == kInt8 ? H2O_I8 : type == kHalf ? H2O_F16 : H2O_F32;
        kv.k_scales = all[kKScales].floats();
        kv.v_scales = all[kVScales].floats();
        return kv;
    }

    // Whether all sizes agree.
    bool good() const {
        const Tensor& k = all[kKCache];
        const int64_t rows = size(kKCache, 0), heads = size(kK, 1);
        const bool scaled = k.type == kInt8;
        return size(kQ, 0) == 1 && size(kK, 0) == 1 && size(kV, 0) == 1 && size(kV, 1) == heads &&
               size(kQ, 2) == size(kK, 2) && heads > 0 && size(kKCache, 1) == heads &&
               size(kVCache, 1) == heads && size(kKCache, 2) == size(kK, 2) &&
               size(kVCache, 2) == size(kV, 2) && size(kVCache, 0) == rows &&
               (k.type == kFloat || k.type == kHalf || scaled) && all[kVCache].type == k.type &&
               (all[kKScales].data != nullptr) == scaled && (all[kVScales].data != nullptr) == scaled &&
               all[kKScales].is_of(rows * heads) && all[kVScales].is_of(rows * heads);
    }
};

Status* Kernel::compute(KernelContext* context) {
    Given given;
    H2O_RETURN_IF(given.read(ort, context));
    if (!given.good()) return ort.error("StepAttention: sizes or types do not agree");
    const int64_t length = *static_cast<const int64_t*>(given.all[kLength].data);
    const auto size = [&](Input which, size_t axis) { return static_cast<int32_t>(given.size(which, axis)); };
    const h2o_shape shape{size(kQ, 1), size(kK, 1), size(kK, 1), size(kQ, 2),
                          scale,       H2O_F32,     size(kV, 2), window};
    const int64_t sizes[] = {1, shape.query_heads, shape.value_size};
    Value* out = nullptr;
    void* o = nullptr;
    H2O_RETURN_IF(ort.output(context, 0, sizes, 3, &out));
    H2O_RETURN_IF(ort.data(out, &o));
    const h2o_kv kv = given.cache();
    calls::StepAttention call;
    call.shape = shape;
    call.kv = &kv;
    call.context = cpu;
    call.q = given.all[kQ].data;
    call.k = given.all[kK].data;
    call.v = given.all[kV].data;
    call.length = &length;
    call.o = o;
    running = context;
    const h2o_status status = h2o::cpu::run(call);
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

Status* create(const Operator*, const Table* table, const KernelInfo* info, void** out) {
    const Interface ort(table);
    int64_t threads = 0, window = 0;
    float scale = 0.0f;
    H2O_RETURN_IF(ort.attribute(info, "threads", &threads));
    H2O_RETURN_IF(ort.attribute(info, "scale", &scale));
    H2O_RETURN_IF(ort.attribute(info, "window", &window));
    Kernel* const kernel = new (std::nothrow) Kernel{ort, scale, static_cast<int32_t>(window)};
    if (kernel == nullptr) return ort.error("StepAttention: no memory");
    const h2o_executor executor{kernel, static_cast<int>(threads), run_on_session};
    if (h2o_cpu_create_on(&executor, nullptr, &kernel->cpu) != H2O_OK) {
        delete kernel;
        return ort.error("StepAttention: threads must be one at least");
    }
    *out = kernel;
    return nullptr;
}

constexpr Operator make_operator() {
    Operator op = operator_of<Kernel>([](const Operator*) { return "StepAttention"; }, create);
    op.inputs = [](const Operator*) -> size_t { return kInputs; };
    op.input_type = [](const Operator*, size_t index) {
        return index == kLength ? kInt64 : index == kKCache || index == kVCache ? kAny : kFloat;
    };
    op.input_characteristic = [](const Operator*, size_t index) {
        return index <= kLength ? kRequired : kOptional;
    };
    op.outputs = [](const Operator*) -> size_t { return 1; };
    op.output_type = [](const Operator*, size_t) { return kFloat; };
    op.output_characteristic = [](const Operator*, size_t) { return kRequired; };
    return op;
}

constexpr Operator kOperator = make_operator();

}  // namespace

const Operator* step_attention() {
    return &kOperator;
}

}  // namespace h2o::ort
