// Mamba2: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// A block owns 32 columns of one head's state in shared memory, a lane a column. It takes tokens in groups
// (Dao and Gu, 2024, "Transformers are SSMs", section 6): products of the group with the state as it was,
// products among its tokens, one update. So a state is passed twice a group, not once a token, and the block
// waits three times a group.

#include <type_traits>

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "state_columns.cuh"

namespace h2o::cuda {
namespace {

constexpr int kMostRows = 256;       // of a state
constexpr int kFew = 4, kMany = 16;  // tokens of a group

struct Mamba2 {
    int n;                             // tokens
    int heads;                         // Hq
    int kv_heads;                      // Hkv: of b and c
    int d, dv;                         // rows and columns of a state
    const float *decay, *step, *skip;  // [n, Hq]; decays are logarithms
    const float* state;                // [Hq, d, dv]
    float* state_next;                 // [Hq, d, dv] out
};

// A block's shared memory, for groups of Tokens. Rows of b and c are four numbers longer, so that different
// rows lie in different banks.
template <int Tokens>
struct Shared {
    int d, stride;
    double*
        decayed;  // logarithms, from the group's begin to behind a token: differences of doubles are exact
    float *state, *b, *c, *products, *between, *step, *skip;

    __host__ __device__ explicit Shared(int rows) : d(rows), stride(rows + 4) {}

    __host__ __device__ int place(float* memory) {
        float* const begin = memory;
        const auto take = [&memory](int count) {
            float* const taken = memory;
            memory += count;
            return taken;
        };
        decayed = reinterpret_cast<double*>(take(2 * Tokens));
        state = take(d * kColumns);          // [d][kColumns]
        b = take(Tokens * stride);           // what the group's tokens are written by,
        c = take(Tokens * stride);           // and read by
        products = take(Tokens * kColumns);  // c . state
        between = take(Tokens * Tokens);     // [i][j <= i]: c_i . b_j, decayed from j to i
        step = take(Tokens);
        skip = take(Tokens);
        return static_cast<int>(memory - begin);
    }
};

// What does not depend on columns. Tokens behind the group's `rows` are zeros, which change nothing.
template <int Tokens, class T>
__device__ void load_group(const Shared<Tokens>& shared, const Mamba2& args, int head, int first, int rows,
                           const T* b, const T* c) {
    const int kv_head = head / (args.heads / args.kv_heads);
    for (int at = threadIdx.x; at < Tokens * shared.d; at += kStateThreads) {
        const int row = at / shared.d, i = at % shared.d;
        const int64_t from = (static_cast<int64_t>(first + row) * args.kv_heads + kv_head) * args.d + i;
        shared.b[row * shared.stride + i] = row < rows ? to_float(b[from]) : 0.f;
        shared.c[row * shared.stride + i] = row < rows ? to_float(c[from]) : 0.f;
    }
    if (threadIdx.x >= Tokens) return;
    const int token = threadIdx.x;
    double sum = 0;
    for (int i = 0; i <= token && i < rows; ++i)
        sum += args.decay[static_cast<int64_t>(first + i) * args.heads + head];
    const int64_t at = static_cast<int64_t>(first + token) * args.heads + head;
    shared.decayed[token] = sum;
    shared.step[token] = token < rows ? args.step[at] : 0.f;
    shared.skip[token] = token < rows ? args.skip[at] : 0.f;
}

// What a token reads of each one up to itself.
template <int Tokens>
__device__ void compare(const Shared<Tokens>& shared) {
    for (int pair = threadIdx.x; pair < Tokens * Tokens; pair += kStateThreads) {
        const int i = pair / Tokens, j = pair % Tokens;
        float sum = 0.f;
        if (j <= i) {
            for (int u = 0; u < shared.d; u += 4) {
                const float4 x = *reinterpret_cast<const float4*>(shared.b + j * shared.stride + u);
                const float4 y = *reinterpret_cast<const float4*>(shared.c + i * shared.stride + u);
                sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
            }
            sum *= expf(static_cast<float>(shared.decayed[i] - shared.decayed[j]));
        }
        shared.between[pair] = sum;
    }
}

// o_i = decayed_i c_i . state + sum over j <= i of between_ij added_j + skip_i x_i, a warp every
// kStateWarps-th token.
template <int Tokens, class T>
__device__ void write_outputs(const Shared<Tokens>& shared, const T* x, T* o, int64_t token_size, int rows,
                              int warp, int lane, const float (&added)[Tokens]) {
    for (int i = warp; i < rows; i += kStateWarps) {
        float sum = expf(static_cast<float>(shared.decayed[i])) * shared.products[i * kColumns + lane];
#pragma unroll
        for (int j = 0; j < Tokens; ++j) sum = fmaf(shared.between[i * Tokens + j], added[j], sum);
        put(o + i * token_size, fmaf(shared.skip[i], to_float(x[i * token_size]), sum));
    }
}

// state = decayed state + sum over j of b_j added_j^T, each decayed to the group's end.
template <int Tokens>
__device__ void update(const Shared<Tokens>& shared, int warp, int lane, float (&added)[Tokens]) {
    const double all = shared.decayed[Tokens - 1];
    const float keep = expf(static_cast<float>(all));
#pragma unroll
    for (int j = 0; j < Tokens; ++j) added[j] *= expf(static_cast<float>(all - shared.decayed[j]));
    update_state(shared.b, shared.stride, added, keep, shared.state, shared.d, warp, lane);
}

template <int Tokens, class T>
__global__ void __launch_bounds__(kStateThreads)
    mamba2(Mamba2 args, const T* x, const T* b, const T* c, T* o) {
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
        load_group(shared, args, head, first, rows, b, c);
        __syncthreads();
        multiply_state<Tokens>(shared.c, shared.stride, shared.state, shared.d, shared.products, warp, lane);
        compare(shared);
        __syncthreads();
        float added[Tokens];  // every warp has all of its lanes' columns, so that none waits for another
#pragma unroll
        for (int j = 0; j < Tokens; ++j)
            added[j] = used && j < rows ? shared.step[j] * to_float(x[at + j * token_size]) : 0.f;
        if (used) write_outputs(shared, x + at, o + at, token_size, rows, warp, lane, added);
        update(shared, warp, lane, added);
    }
    __syncthreads();
    state.write(shared.state, args.d, args.dv, args.state_next);
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::Mamba2& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (any_null(call.x, call.b, call.c, call.decay, call.step, call.skip, call.state, call.o,
                 call.state_next))
        return H2O_BAD_ARGUMENT;
    const h2o_shape& shape = call.shape;
    const int d = shape.head_size, dv = shape.value_size == 0 ? d : shape.value_size;
    if (d > kMostRows) return H2O_UNSUPPORTED;
    const Mamba2 args = {call.n,     shape.query_heads, shape.kv_heads, d,          dv,
                         call.decay, call.step,         call.skip,      call.state, call.state_next};
    const dim3 grid(static_cast<unsigned>(shape.query_heads), ceil_div(dv, kColumns), 1);
    const auto go = [&](auto zero, auto tokens) {
        using T = decltype(zero);
        constexpr int kTokens = decltype(tokens)::value;
        const size_t bytes = static_cast<size_t>(Shared<kTokens>(d).place(nullptr)) * sizeof(float);
        return launch(mamba2<kTokens, T>, grid, kStateThreads, bytes, stream_of(call), args,
                      static_cast<const T*>(call.x), static_cast<const T*>(call.b),
                      static_cast<const T*>(call.c), static_cast<T*>(call.o));
    };
    const auto typed = [&](auto tokens) {
        return shape.dtype == H2O_F16 ? go(half(), tokens) : go(0.f, tokens);
    };
    return call.n <= kFew ? typed(std::integral_constant<int, kFew>())
                          : typed(std::integral_constant<int, kMany>());
}

size_t workspace(const calls::Mamba2&) {
    return 0;
}

}  // namespace h2o::cuda
