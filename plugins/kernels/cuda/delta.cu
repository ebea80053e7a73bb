// GatedDelta: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// A block owns 32 columns of one head's state in shared memory, a lane a column. It takes tokens in groups
// (Yang et al., 2024, "Gated Delta Networks", section 3.3): products of the group's keys and queries with the
// state as it was, corrections among the tokens, one update. So a state is passed twice a group, not twice a
// token, and the block waits three times a group.

#include <type_traits>

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "state_columns.cuh"

namespace h2o::cuda {
namespace {

constexpr int kMostKeys = 256;
constexpr int kFew = 2, kMany = 16;  // tokens of a group

struct Delta {
    int n;               // tokens
    int heads;           // Hq
    int kv_heads;        // Hkv: of keys
    int d, dv;           // numbers of a key and of a value
    float scale;         // of queries
    const float* decay;  // [n, Hq] logarithms
    const float* beta;   // [n, Hq] share of a token's correction
    const float* state;  // [Hq, d, dv]
    float* state_next;   // [Hq, d, dv] out
};

// A block's shared memory, for groups of Tokens. Rows of keys are four numbers longer, so that different rows
// lie in different banks.
template <int Tokens>
struct Shared {
    int d, stride;
    float *state, *factors, *products, *between_keys, *between_queries, *decayed, *beta;

    __host__ __device__ explicit Shared(int head_size) : d(head_size), stride(head_size + 4) {}

    __host__ __device__ int place(float* memory) {
        float* const begin = memory;
        const auto take = [&memory](int count) {
            float* const taken = memory;
            memory += count;
            return taken;
        };
        state = take(d * kColumns);               // [d][kColumns]
        factors = take(2 * Tokens * stride);      // keys, then scaled queries
        products = take(2 * Tokens * kColumns);   // factors . state
        between_keys = take(Tokens * Tokens);     // [i][j < i]: k_i . k_j, decayed from j to i
        between_queries = take(Tokens * Tokens);  // [i][j <= i]: q_i . k_j, likewise
        decayed = take(Tokens);                   // logarithms, from the group's begin to behind a token
        beta = take(Tokens);
        return static_cast<int>(memory - begin);
    }
};

// The group's keys, queries, decays and betas. Tokens behind its `rows` are zeros, which change nothing.
template <int Tokens, class T>
__device__ void load_group(const Shared<Tokens>& shared, const Delta& args, int head, int first, int rows,
                           const T* q, const T* k) {
    const int kv_head = head / (args.heads / args.kv_heads);
    for (int at = threadIdx.x; at < Tokens * shared.d; at += kStateThreads) {
        const int row = at / shared.d, i = at % shared.d;
        const bool real = row < rows;
        const int64_t token = first + row;
        shared.factors[row * shared.stride + i] =
            real ? to_float(k[(token * args.kv_heads + kv_head) * args.d + i]) : 0.f;
        shared.factors[(Tokens + row) * shared.stride + i] =
            real ? to_float(q[(token * args.heads + head) * args.d + i]) * args.scale : 0.f;
    }
    if (threadIdx.x >= Tokens) return;
    const int token = threadIdx.x;
    float sum = 0.f;
    for (int i = 0; i <= token && i < rows; ++i)
        sum += args.decay[static_cast<int64_t>(first + i) * args.heads + head];
    shared.decayed[token] = sum;
    shared.beta[token] =
        token < rows ? args.beta[static_cast<int64_t>(first + token) * args.heads + head] : 0.f;
}

// What a token sees of each earlier one of its group, and with its query of itself.
template <int Tokens>
__device__ void compare(const Shared<Tokens>& shared) {
    for (int pair = threadIdx.x; pair < Tokens * Tokens; pair += kStateThreads) {
        const int i = pair / Tokens, j = pair % Tokens;
        float keys = 0.f, queries = 0.f;
        if (j <= i) {
            const float* const key = shared.factors + i * shared.stride;
            const float* const query = key + Tokens * shared.stride;
            const float* const row_factors = shared.factors + j * shared.stride;
            for (int u = 0; u < shared.d; u += 4) {
                const float4 x = *reinterpret_cast<const float4*>(row_factors + u);
                const float4 a = *reinterpret_cast<const float4*>(key + u);
                const float4 b = *reinterpret_cast<const float4*>(query + u);
                keys = fmaf(a.x, x.x, fmaf(a.y, x.y, fmaf(a.z, x.z, fmaf(a.w, x.w, keys))));
                queries = fmaf(b.x, x.x, fmaf(b.y, x.y, fmaf(b.z, x.z, fmaf(b.w, x.w, queries))));
            }
            const float left = expf(shared.decayed[i] - shared.decayed[j]);
            keys *= left;
            queries *= left;
        }
        shared.between_keys[pair] = keys;
        shared.between_queries[pair] = queries;
    }
}

// delta_i = beta_i (v_i - decayed_i k_i . state - sum over j < i of between_keys_ij delta_j). Every warp has
// all of them for its lanes' columns, so that none waits for another.
template <int Tokens, class T>
__device__ void correct(const Shared<Tokens>& shared, const T* v, int64_t token_size, int rows, bool used,
                        int lane, float (&delta)[Tokens]) {
#pragma unroll
    for (int i = 0; i < Tokens; ++i) {
        const float value = used && i < rows ? to_float(v[i * token_size]) : 0.f;
        float sum = value - expf(shared.decayed[i]) * shared.products[i * kColumns + lane];
#pragma unroll
        for (int j = 0; j < i; ++j) sum = fmaf(-shared.between_keys[i * Tokens + j], delta[j], sum);
        delta[i] = shared.beta[i] * sum;
    }
}

// o_i = decayed_i q_i . state + sum over j <= i of between_queries_ij delta_j, a warp every kStateWarps-th
// token.
template <int Tokens, class T>
__device__ void write_outputs(const Shared<Tokens>& shared, T* o, int64_t token_size, int rows, int warp,
                              int lane, const float (&delta)[Tokens]) {
    for (int i = warp; i < rows; i += kStateWarps) {
        float sum = expf(shared.decayed[i]) * shared.products[(Tokens + i) * kColumns + lane];
#pragma unroll
        for (int j = 0; j < Tokens; ++j) sum = fmaf(shared.between_queries[i * Tokens + j], delta[j], sum);
        put(o + i * token_size, sum);
    }
}

// state = decayed state + sum over j of k_j delta_j^T, each delta decayed to the group's end.
template <int Tokens>
__device__ void update(const Shared<Tokens>& shared, int warp, int lane, float (&delta)[Tokens]) {
    const float all = shared.decayed[Tokens - 1], keep = expf(all);
#pragma unroll
    for (int j = 0; j < Tokens; ++j) delta[j] *= expf(all - shared.decayed[j]);
    update_state(shared.factors, shared.stride, delta, keep, shared.state, shared.d, warp, lane);
}

template <int Tokens, class T>
__global__ void __launch_bounds__(kStateThreads)
    gated_delta(Delta args, const T* q, const T* k, const T* v, T* o) {
    Shared<Tokens> shared(args.d);
    shared.place(reinterpret_cast<float*>(dynamic_shared()));
    const int head = blockIdx.x;
    const StateColumn state(head, args.d, args.dv);
    const int warp = state.warp, lane = state.lane;
    const bool used = state.used;
    state.read(args.state, args.d, args.dv, shared.state);
    const int64_t token_size = static_cast<int64_t>(args.heads) * args.dv;
    for (int first = 0; first < args.n; first += Tokens) {
        const int rows = min(Tokens, args.n - first);
        const int64_t at = first * token_size + static_cast<int64_t>(head) * args.dv + state.column;
        __syncthreads();  // the group before has been read
        load_group(shared, args, head, first, rows, q, k);
        __syncthreads();
        multiply_state<2 * Tokens>(shared.factors, shared.stride, shared.state, shared.d, shared.products,
                                   warp, lane);
        compare(shared);
        __syncthreads();
        float delta[Tokens];
        correct(shared, v + at, token_size, rows, used, lane, delta);
        if (used) write_outputs(shared, o + at, token_size, rows, warp, lane, delta);
        update(shared, warp, lane, delta);
    }
    __syncthreads();
    state.write(shared.state, args.d, args.dv, args.state_next);
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
    const auto go = [&](auto zero, auto tokens) {
        using T = decltype(zero);
        constexpr int kTokens = decltype(tokens)::value;
        const size_t bytes = static_cast<size_t>(Shared<kTokens>(d).place(nullptr)) * sizeof(float);
        return launch(gated_delta<kTokens, T>, grid, kStateThreads, bytes, stream_of(call), args,
                      static_cast<const T*>(call.q), static_cast<const T*>(call.k),
                      static_cast<const T*>(call.v), static_cast<T*>(call.o));
    };
    const auto typed = [&](auto tokens) {
        return shape.dtype == H2O_F16 ? go(half(), tokens) : go(0.f, tokens);
    };
    return call.n <= kFew ? typed(std::integral_constant<int, kFew>())
                          : typed(std::integral_constant<int, kMany>());
}

size_t workspace(const calls::GatedDelta&) {
    return 0;
}

}  // namespace h2o::cuda
