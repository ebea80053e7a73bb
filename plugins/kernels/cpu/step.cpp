// A decode step's attention: rows of any sequences; each row is first appended to its cache.
#include "cached.h"

namespace h2o {
namespace {

// Row i of [n, heads, size].
template <class T>
T* row_of(T* rows, h2o_dtype dtype, int64_t i, int64_t heads, int64_t size) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return rows == nullptr ? nullptr : static_cast<Byte*>(rows) + i * heads * size * element_size(dtype);
}

h2o_status append(h2o_cpu* context, const h2o_step_rows& step, int64_t i) {
    const h2o_shape& shape = step.shape;
    const int64_t at = step.lengths[i] - 1;
    calls::CacheAppend call;
    call.shape = shape;
    call.kv = &step.kv[i * step.kv_stride];
    call.context = context;
    call.k = row_of(step.k, shape.dtype, i, shape.kv_heads, shape.head_size);
    call.v = row_of(step.v, shape.dtype, i, shape.kv_heads, value_size(shape));
    call.n = 1;
    call.at = &at;
    return cpu::run(call);
}

h2o_status check(const h2o_cpu* context, const h2o_step_rows& step) {
    if (const h2o_status status = check_shape(&step.shape); status != H2O_OK) return status;
    const bool given = context != nullptr && step.q && step.o && step.lengths && step.kv;
    if (!given || step.count < 1 || step.count > kMostCalls) return H2O_BAD_ARGUMENT;
    for (int64_t i = 0; i < step.count; ++i) {
        if (step.lengths[i] < 1) return H2O_BAD_ARGUMENT;
        const h2o_status status = check_kv(&step.kv[i * step.kv_stride], step.lengths[i]);
        if (status != H2O_OK) return status;
    }
    return H2O_OK;
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_step_rows(h2o_cpu* context, const h2o_step_rows* rows) {
    const h2o_step_rows& step = *rows;
    if (const h2o_status status = h2o::check(context, step); status != H2O_OK) return status;
    h2o::Cached ops[h2o::kMostCalls];
    for (int64_t i = 0; i < step.count; ++i) {
        // All rows are appended before any attends: rows of one sequence see those before them.
        if (const h2o_status status = h2o::append(context, step, i); status != H2O_OK) return status;
        const h2o_shape& shape = step.shape;
        const void* const q = h2o::row_of(step.q, shape.dtype, i, shape.query_heads, shape.head_size);
        void* const o = h2o::row_of(step.o, shape.dtype, i, shape.query_heads, h2o::value_size(shape));
        ops[i] = {shape, 1, step.lengths[i], q, step.kv[i * step.kv_stride], o, nullptr};
    }
    return h2o::guarded(context, [&] { h2o::attend(context, ops, step.count); });
}

namespace h2o::cpu {

h2o_status run(const calls::StepAttention& call) {
    const h2o_step_rows step{call.shape, 1, call.q, call.k, call.v, call.length, call.kv, 0, call.o};
    return h2o_cpu_step_rows(cpu_of(call), &step);
}

}  // namespace h2o::cpu
