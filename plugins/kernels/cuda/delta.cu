// GatedDelta: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// A block owns 32 columns of one head's state in shared memory, a thread every fourth number of a column, and
// goes through the tokens one after the other. It is made to be right; a prompt wants tokens in groups, as
// the CPU's kernel takes them.

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"

namespace h2o::cuda {
namespace {

constexpr int kColumns = 32, kSlices = 4, kThreads = kColumns * kSlices;
constexpr int kMostKeys = 256;

struct Delta {
    int n, heads, kv_heads, d, dv;
    float scale;
    const float *decay, *beta, *state;
    float* state_next;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    gated_delta(Delta args, const T* q, const T* k, const T* v, T* o) {
    const int d = args.d, head = blockIdx.x, kv_head = head / (args.heads / args.kv_heads);
    float* const state = reinterpret_cast<float*>(dynamic_shared());  // [d][kColumns]
    float* const key = state + d * kColumns;                          // [d]
    float* const query = key + d;                                     // [d]
    float* const parts = query + d;                                   // [2][kSlices][kColumns]
    const int lane = threadIdx.x % kColumns, slice = threadIdx.x / kColumns;
    const int column = blockIdx.y * kColumns + lane;
    const bool used = column < args.dv;
    const int64_t first = static_cast<int64_t>(head) * d * args.dv + column;
    for (int i = slice; i < d; i += kSlices)
        state[i * kColumns + lane] = used ? args.state[first + static_cast<int64_t>(i) * args.dv] : 0.f;
    for (int token = 0; token < args.n; ++token) {
        const int64_t row = static_cast<int64_t>(token) * args.heads + head;
        const int64_t key_row = static_cast<int64_t>(token) * args.kv_heads + kv_head;
        __syncthreads();  // the token before has been read
        for (int i = threadIdx.x; i < d; i += kThreads) {
            key[i] = to_float(k[key_row * d + i]);
            query[i] = to_float(q[row * d + i]) * args.scale;
        }
        __syncthreads();
        float sum = 0.f;
        for (int i = slice; i < d; i += kSlices) sum = fmaf(state[i * kColumns + lane], key[i], sum);
        parts[slice * kColumns + lane] = sum;
        __syncthreads();
        float known = 0.f;
        for (int s = 0; s < kSlices; ++s) known += parts[s * kColumns + lane];
        const float keep = expf(args.decay[row]);
        const float value = used ? to_float(v[row * args.dv + column]) : 0.f;
        const float delta = args.beta[row] * (value - keep * known);
        sum = 0.f;
        for (int i = slice; i < d; i += kSlices) {
            const float next = fmaf(key[i], delta, keep * state[i * kColumns + lane]);
            state[i * kColumns + lane] = next;
            sum = fmaf(next, query[i], sum);
        }
        float* const out = parts + kSlices * kColumns;
        out[slice * kColumns + lane] = sum;
        __syncthreads();
        if (slice != 0 || !used) continue;
        float total = 0.f;
        for (int s = 0; s < kSlices; ++s) total += out[s * kColumns + lane];
        put(o + row * args.dv + column, total);
    }
    if (!used) return;
    for (int i = slice; i < d; i += kSlices)
        args.state_next[first + static_cast<int64_t>(i) * args.dv] = state[i * kColumns + lane];
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::GatedDelta& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (any_null(call.q, call.k, call.v, call.decay, call.beta, call.state, call.o, call.state_next))
        return H2O_BAD_ARGUMENT;
    const h2o_shape& shape = call.shape;
    const int d = shape.head_size, dv = shape.value_size == 0 ? d : shape.value_size;
    if (d > kMostKeys) return H2O_UNSUPPORTED;
    const Delta args = {call.n,      shape.query_heads, shape.kv_heads, d,          dv,
                        shape.scale, call.decay,        call.beta,      call.state, call.state_next};
    const dim3 grid(static_cast<unsigned>(shape.query_heads), ceil_div(dv, kColumns), 1);
    const size_t bytes = (static_cast<size_t>(d) * (kColumns + 2) + 2 * kSlices * kColumns) * sizeof(float);
    const auto go = [&](auto zero) {
        using T = decltype(zero);
        return launch(gated_delta<T>, grid, kThreads, bytes, stream_of(call), args,
                      static_cast<const T*>(call.q), static_cast<const T*>(call.k),
                      static_cast<const T*>(call.v), static_cast<T*>(call.o));
    };
    return shape.dtype == H2O_F16 ? go(half()) : go(0.f);
}

size_t workspace(const calls::GatedDelta&) {
    return 0;
}

}  // namespace h2o::cuda
