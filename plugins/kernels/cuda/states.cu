// GatedDelta and Mamba2: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// A token decays the state, adds k added^T to it, and reads q . state: Mamba2 names k and q b and c. What it
// adds is step x in Mamba2, whose output also has skip x. In GatedDelta it is a correction, beta (v - k .
// state), of the state as the token finds it.
//
// A block owns 32 columns of one head's state in shared memory, a lane a column. It takes tokens in groups
// (Yang et al., 2024, "Gated Delta Networks", section 3.3; Dao and Gu, 2024, "Transformers are SSMs", section
// 6): products of the group with the state as it was, products among its tokens, one update. So a state is
// passed twice a group, not twice a token, and the block waits three times a group.

#include <type_traits>

#include "checks.h"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"

namespace h2o::cuda {
namespace {

constexpr int kMostRows = 256;  // of a state
constexpr int kColumns = 32, kWarps = 4, kThreads = kColumns * kWarps;

struct States {
    int n;               // tokens
    int heads;           // Hq: of states
    int kv_heads;        // Hkv: of k
    int q_heads;         // of q: Hq or Hkv
    int d, dv;           // rows and columns of a state
    float scale;         // of q
    const float* decay;  // [n, Hq] logarithms
    const float* rate;   // [n, Hq] beta or step
    const float* skip;   // [n, Hq] of Mamba2
    const float* state;  // [Hq, d, dv]
    float* state_next;   // [Hq, d, dv] out
};

// A block's shared memory, for groups of TOKENS. Rows of factors are four numbers longer, so that different
// rows lie in different banks.
template <int TOKENS>
struct Shared {
    int d, stride;
    double* decayed;  // logarithms, from the group's begin to after a token: differences of doubles are exact
    float *state, *k, *q, *products, *between_k, *between_q, *rate, *skip;

    __host__ __device__ explicit Shared(int rows) : d(rows), stride(rows + 4) {}

    __host__ __device__ int place(float* memory) {
        float* const begin = memory;
        const auto take = [&memory](int count) {
            float* const taken = memory;
            memory += count;
            return taken;
        };
        decayed = reinterpret_cast<double*>(take(2 * TOKENS));
        state = take(d * kColumns);              // [d][kColumns]
        k = take(TOKENS * stride);               // followed by q
        q = take(TOKENS * stride);               // scaled
        products = take(2 * TOKENS * kColumns);  // k . state and q . state
        between_k = take(TOKENS * TOKENS);       // [i][j < i]: k_i . k_j, decayed from j to i
        between_q = take(TOKENS * TOKENS);       // [i][j <= i]: q_i . k_j, likewise
        rate = take(TOKENS);
        skip = take(TOKENS);
        return static_cast<int>(memory - begin);
    }
};

// Where a thread stands in states [Hq, d, dv].
struct StateColumn {
    int warp, lane, column;
    bool used;      // whether the head has so many columns
    int64_t begin;  // of the column in the head's state

    __device__ explicit StateColumn(const States& args)
        : warp(threadIdx.x / kColumns),
          lane(threadIdx.x % kColumns),
          column(blockIdx.y * kColumns + lane),
          used(column < args.dv),
          begin(static_cast<int64_t>(blockIdx.x) * args.d * args.dv + column) {}

    // shared [d][kColumns]; columns that the head has not are zeros.
    __device__ void read(const States& args, float* shared) const {
        for (int i = warp; i < args.d; i += kWarps)
            shared[i * kColumns + lane] = used ? args.state[begin + static_cast<int64_t>(i) * args.dv] : 0.f;
    }

    __device__ void write(const States& args, const float* shared) const {
        if (!used) return;
        for (int i = warp; i < args.d; i += kWarps)
            args.state_next[begin + static_cast<int64_t>(i) * args.dv] = shared[i * kColumns + lane];
    }
};

// What does not depend on columns. Tokens after the group's `rows` are zeros, which change nothing.
template <int TOKENS, class T>
__device__ void load_group(const Shared<TOKENS>& shared, const States& args, int first, int rows, const T* k,
                           const T* q) {
    const int head = blockIdx.x;
    const int k_head = head / (args.heads / args.kv_heads), q_head = head / (args.heads / args.q_heads);
    for (int at = threadIdx.x; at < TOKENS * shared.d; at += kThreads) {
        const int row = at / shared.d, i = at % shared.d, to = row * shared.stride + i;
        const int64_t token = first + row;
        const bool real = row < rows;
        shared.k[to] = real ? to_float(k[(token * args.kv_heads + k_head) * args.d + i]) : 0.f;
        shared.q[to] = real ? to_float(q[(token * args.q_heads + q_head) * args.d + i]) * args.scale : 0.f;
    }
    if (threadIdx.x >= TOKENS) return;
    const int token = threadIdx.x;
    double sum = 0;
    for (int i = 0; i <= token && i < rows; ++i)
        sum += args.decay[static_cast<int64_t>(first + i) * args.heads + head];
    const int64_t at = static_cast<int64_t>(first + token) * args.heads + head;
    shared.decayed[token] = sum;
    shared.rate[token] = token < rows ? args.rate[at] : 0.f;
    shared.skip[token] = token < rows && args.skip ? args.skip[at] : 0.f;
}

// products [ROWS][kColumns] = factors [ROWS][stride] . state: a warp some rows.
template <int ROWS, int TOKENS>
__device__ void multiply_state(const Shared<TOKENS>& shared, const float* factors, float* products, int warp,
                               int lane) {
    constexpr int kOwn = ROWS / kWarps;
    float sum[kOwn] = {};
    factors += warp * kOwn * shared.stride;
    for (int i = 0; i < shared.d; i += 4) {
        float column[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) column[u] = shared.state[(i + u) * kColumns + lane];
#pragma unroll
        for (int row = 0; row < kOwn; ++row) {
            const float4 f = *reinterpret_cast<const float4*>(factors + row * shared.stride + i);
            sum[row] = fmaf(f.x, column[0], sum[row]);
            sum[row] = fmaf(f.y, column[1], sum[row]);
            sum[row] = fmaf(f.z, column[2], sum[row]);
            sum[row] = fmaf(f.w, column[3], sum[row]);
        }
    }
#pragma unroll
    for (int row = 0; row < kOwn; ++row) products[(warp * kOwn + row) * kColumns + lane] = sum[row];
}

// What a token sees of each earlier one of its group, and with its q of itself.
template <bool CORRECTS, int TOKENS>
__device__ void compare(const Shared<TOKENS>& shared) {
    const auto add = [](const float* a, const float4& x, float sum) {
        const float4 y = *reinterpret_cast<const float4*>(a);
        return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
    };
    for (int pair = threadIdx.x; pair < TOKENS * TOKENS; pair += kThreads) {
        const int i = pair / TOKENS, j = pair % TOKENS;
        float of_k = 0.f, of_q = 0.f;
        if (j <= i) {
            for (int u = 0; u < shared.d; u += 4) {
                const float4 x = *reinterpret_cast<const float4*>(shared.k + j * shared.stride + u);
                if (CORRECTS) of_k = add(shared.k + i * shared.stride + u, x, of_k);
                of_q = add(shared.q + i * shared.stride + u, x, of_q);
            }
            const float left = expf(static_cast<float>(shared.decayed[i] - shared.decayed[j]));
            of_k *= left;
            of_q *= left;
        }
        shared.between_k[pair] = of_k;
        shared.between_q[pair] = of_q;
    }
}

// added_i = rate_i x_i; of corrections, x_i less what the state and the tokens before have added for k_i.
// Every warp has all of them for its lanes' columns, so that none waits for another.
template <bool CORRECTS, int TOKENS, class T>
__device__ void find_added(const Shared<TOKENS>& shared, const T* x, int64_t token_size, int rows, bool used,
                           int lane, float (&added)[TOKENS]) {
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
        float sum = used && i < rows ? to_float(x[i * token_size]) : 0.f;
        if (CORRECTS) {
            sum -= expf(static_cast<float>(shared.decayed[i])) * shared.products[i * kColumns + lane];
#pragma unroll
            for (int j = 0; j < i; ++j) sum = fmaf(-shared.between_k[i * TOKENS + j], added[j], sum);
        }
        added[i] = shared.rate[i] * sum;
    }
}

// o_i = decayed_i q_i . state + sum over j <= i of between_q_ij added_j (+ skip_i x_i), a warp every
// kWarps-th token.
template <bool CORRECTS, int TOKENS, class T>
__device__ void write_outputs(const Shared<TOKENS>& shared, const T* x, T* o, int64_t token_size, int rows,
                              int warp, int lane, const float (&added)[TOKENS]) {
    for (int i = warp; i < rows; i += kWarps) {
        const float product = shared.products[(TOKENS + i) * kColumns + lane];
        float sum = expf(static_cast<float>(shared.decayed[i])) * product;
#pragma unroll
        for (int j = 0; j < TOKENS; ++j) sum = fmaf(shared.between_q[i * TOKENS + j], added[j], sum);
        put(o + i * token_size, CORRECTS ? sum : fmaf(shared.skip[i], to_float(x[i * token_size]), sum));
    }
}

// state = decayed state + sum over j of k_j added_j^T, each decayed to the group's end.
template <int TOKENS>
__device__ void update(const Shared<TOKENS>& shared, int warp, int lane, float (&added)[TOKENS]) {
    const double all = shared.decayed[TOKENS - 1];
    const float keep = expf(static_cast<float>(all));
#pragma unroll
    for (int j = 0; j < TOKENS; ++j) added[j] *= expf(static_cast<float>(all - shared.decayed[j]));
    for (int i = 4 * warp; i < shared.d; i += 4 * kWarps) {
        float* const column = shared.state + i * kColumns + lane;
        float next[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) next[u] = keep * column[u * kColumns];
#pragma unroll
        for (int j = 0; j < TOKENS; ++j) {
            const float4 f = *reinterpret_cast<const float4*>(shared.k + j * shared.stride + i);
            next[0] = fmaf(f.x, added[j], next[0]);
            next[1] = fmaf(f.y, added[j], next[1]);
            next[2] = fmaf(f.z, added[j], next[2]);
            next[3] = fmaf(f.w, added[j], next[3]);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) column[u * kColumns] = next[u];
    }
}

template <bool CORRECTS, int TOKENS, class T>
__global__ void __launch_bounds__(kThreads)
    take_tokens(States args, const T* x, const T* k, const T* q, T* o) {
    Shared<TOKENS> shared(args.d);
    shared.place(reinterpret_cast<float*>(dynamic_shared()));
    const StateColumn state(args);
    const int warp = state.warp, lane = state.lane;
    state.read(args, shared.state);
    const int64_t token_size = static_cast<int64_t>(args.heads) * args.dv;
    for (int first = 0; first < args.n; first += TOKENS) {
        const int rows = min(TOKENS, args.n - first);
        const int64_t at = first * token_size + static_cast<int64_t>(blockIdx.x) * args.dv + state.column;
        __syncthreads();  // the group before has been read
        load_group(shared, args, first, rows, k, q);
        __syncthreads();
        if constexpr (CORRECTS)
            multiply_state<2 * TOKENS>(shared, shared.k, shared.products, warp, lane);
        else
            multiply_state<TOKENS>(shared, shared.q, shared.products + TOKENS * kColumns, warp, lane);
        compare<CORRECTS>(shared);
        __syncthreads();
        float added[TOKENS];
        find_added<CORRECTS>(shared, x + at, token_size, rows, state.used, lane, added);
        if (state.used) write_outputs<CORRECTS>(shared, x + at, o + at, token_size, rows, warp, lane, added);
        update(shared, warp, lane, added);
    }
    __syncthreads();
    state.write(args, shared.state);
}

template <bool CORRECTS>
h2o_status take(const h2o_shape& shape, const States& args, const void* x, const void* k, const void* q,
                void* o, cudaStream_t stream) {
    constexpr int kFew = CORRECTS ? 2 : 4,
                  kMany = 16;  // tokens of a group: products of one row for each warp
    if (args.d > kMostRows) return H2O_UNSUPPORTED;
    const dim3 grid(static_cast<unsigned>(args.heads), ceil_div(args.dv, kColumns), 1);
    const auto go = [&](auto zero, auto tokens) {
        using T = decltype(zero);
        constexpr int kTokens = decltype(tokens)::value;
        const size_t bytes = static_cast<size_t>(Shared<kTokens>(args.d).place(nullptr)) * sizeof(float);
        return launch(take_tokens<CORRECTS, kTokens, T>, grid, kThreads, bytes, stream, args,
                      static_cast<const T*>(x), static_cast<const T*>(k), static_cast<const T*>(q),
                      static_cast<T*>(o));
    };
    const auto typed = [&](auto tokens) {
        return shape.dtype == H2O_F16 ? go(half(), tokens) : go(0.f, tokens);
    };
    return args.n <= kFew ? typed(std::integral_constant<int, kFew>())
                          : typed(std::integral_constant<int, kMany>());
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::GatedDelta& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (any_null(call.q, call.k, call.v, call.decay, call.beta, call.state, call.o, call.state_next))
        return H2O_BAD_ARGUMENT;
    const h2o_shape& shape = call.shape;
    const States args = {call.n,          shape.query_heads, shape.kv_heads, shape.query_heads,
                         shape.head_size, value_size(shape), shape.scale,    call.decay,
                         call.beta,       nullptr,           call.state,     call.state_next};
    return take<true>(shape, args, call.v, call.k, call.q, call.o, stream_of(call));
}

h2o_status run(const calls::Mamba2& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (any_null(call.x, call.b, call.c, call.decay, call.step, call.skip, call.state, call.o,
                 call.state_next))
        return H2O_BAD_ARGUMENT;
    const h2o_shape& shape = call.shape;
    const States args = {
        call.n, shape.query_heads, shape.kv_heads, shape.kv_heads, shape.head_size, value_size(shape),
        1.f,    call.decay,        call.step,      call.skip,      call.state,      call.state_next};
    return take<false>(shape, args, call.x, call.b, call.c, call.o, stream_of(call));
}

}  // namespace h2o::cuda
