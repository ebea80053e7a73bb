// The operators that only move or combine rows: MemoryGather, OnlineSoftmaxFusion, scores by position. Floor
// of each: its bytes, read and written once. A thread moves 16 bytes at a time.

#include "checks.h"
#include "pieces.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 256;

// pieces: 16-byte units of one row; cache rows are heads * apart units apart.
__global__ void __launch_bounds__(kThreads)
    gather_rows(const uint4* cache, const int32_t* memory, uint4* out, int last_row, int64_t slots,
                int sets_per_head, int heads, int apart, int pieces, int64_t count) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= count) return;
    const int64_t slot = i / pieces;  // in [Hs, M]
    const int piece = static_cast<int>(i - slot * pieces);
    const int head = static_cast<int>(slot / slots) / sets_per_head;
    const int64_t row = row_within(memory[slot], last_row);
    out[i] = __ldg(cache + (row * heads + head) * apart + piece);
}

// The weights of two states in their sum; an empty state has weight zero, whatever its maximum.
struct Mix {
    float m, l, a, b;
};

__device__ __forceinline__ Mix mix_of(float ma, float la, float mb, float lb) {
    Mix mix;
    mix.m = fmaxf(la > 0 ? ma : -INFINITY, lb > 0 ? mb : -INFINITY);
    const float wa = la > 0 ? la * expf(ma - mix.m) : 0.f;
    const float wb = lb > 0 ? lb * expf(mb - mix.m) : 0.f;
    mix.l = wa + wb;
    mix.a = mix.l > 0 ? wa / mix.l : 0.f;
    mix.b = mix.l > 0 ? wb / mix.l : 0.f;
    return mix;
}

// The output of an empty state is arbitrary and is not added.
__device__ __forceinline__ float blend(const Mix& mix, float a, float b) {
    return (mix.a > 0 ? mix.a * a : 0.f) + (mix.b > 0 ? mix.b * b : 0.f);
}

__host__ __device__ inline int rows_a_block(int pieces) {
    return kThreads / pieces;
}

// A block owns whole rows, so all states are read before any is written (the result may overwrite an input).
template <class T>
__global__ void __launch_bounds__(kThreads)
    fuse_states(const T* oa, const float* ma, const float* la, const T* ob, const float* mb, const float* lb,
                T* o, float* m, float* l, int64_t rows, int pieces) {
    constexpr int kWidth = kPieceWidth<T>;
    const int rows_here = rows_a_block(pieces);
    const int local = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * rows_here + local;
    const bool active = local < rows_here && row < rows;
    Mix mix = {};
    if (active) mix = mix_of(ma[row], la[row], mb[row], lb[row]);
    __syncthreads();
    if (!active) return;
    const int64_t at = (row * pieces + piece) * kWidth;
    Piece<T, kWidth> blended = load_piece<kWidth>(oa + at);
    const Piece<T, kWidth> other = load_piece<kWidth>(ob + at);
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
        put(&blended.of[j], blend(mix, to_float(blended.of[j]), to_float(other.of[j])));
    store_piece<kWidth>(o + at, blended);
    if (piece != 0) return;
    if (m) m[row] = mix.m;
    if (l) l[row] = mix.l;
}

// The entries of a memory set are distinct, so no two threads write to one address.
__global__ void __launch_bounds__(kThreads) update_scores(const int32_t* memory, const float* addend,
                                                          int heads, int slots, bool replace, float* score) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= heads * slots) return;
    float* to = score + static_cast<int64_t>(memory[i]) * heads + i / slots;
    *to = replace ? addend[i] : *to + addend[i];
}

template <class T>
h2o_status fuse(const h2o_shape& shape, int64_t rows, const State& a, const State& b, const State& fused,
                cudaStream_t stream) {
    const int pieces = pieces_of(shape, value_size(shape));
    return launch(fuse_states<T>, dim3(ceil_div(rows, rows_a_block(pieces)), 1, 1), kThreads, 0, stream,
                  static_cast<const T*>(a.o), static_cast<const float*>(a.m), static_cast<const float*>(a.l),
                  static_cast<const T*>(b.o), static_cast<const float*>(b.m), static_cast<const float*>(b.l),
                  static_cast<T*>(fused.o), fused.m, fused.l, rows, pieces);
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::MemoryGather& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (call.M <= 0 || !call.memory || !call.k_mem || !call.v_mem) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    if (call.kv->dtype != call.shape.dtype) return H2O_UNSUPPORTED;  // it only moves
    const int keys = pieces_of(call.shape, call.shape.head_size),
              values = pieces_of(call.shape, value_size(call.shape));
    const auto gather = [&](const void* cache, int apart, int pieces, void* out) {
        const int64_t count = static_cast<int64_t>(call.shape.score_heads) * call.M * pieces;
        return launch(gather_rows, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0, stream,
                      static_cast<const uint4*>(cache), call.memory, static_cast<uint4*>(out),
                      static_cast<int>(call.kv->rows - 1), static_cast<int64_t>(call.M),
                      call.shape.score_heads / call.shape.kv_heads, call.shape.kv_heads, apart, pieces,
                      count);
    };
    const h2o_status status = gather(call.kv->k, keys, keys, call.k_mem);
    return status == H2O_OK ? gather(call.kv->v, h2o_kv_latent(call.kv) ? keys : values, values, call.v_mem)
                            : status;
}

h2o_status run(const calls::OnlineSoftmaxFusion& call) {
    const cudaStream_t stream = stream_of(call);
    const State a = given(call.o_a, call.m_a, call.l_a), b = given(call.o_b, call.m_b, call.l_b);
    const State fused{call.o, call.m, call.l};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || !complete(a) || !complete(b) || !fused.o) return H2O_BAD_ARGUMENT;
    const int64_t rows = static_cast<int64_t>(call.n) * call.shape.query_heads;
    return call.shape.dtype == H2O_F16 ? fuse<half>(call.shape, rows, a, b, fused, stream)
                                       : fuse<float>(call.shape, rows, a, b, fused, stream);
}

h2o_status run(const calls::ScatterScores& call) {
    const cudaStream_t stream = stream_of(call);
    if (call.Hs <= 0 || call.M <= 0 || !call.memory || !call.values || !call.score) return H2O_BAD_ARGUMENT;
    const int64_t count = static_cast<int64_t>(call.Hs) * call.M;
    return launch(update_scores, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0, stream, call.memory,
                  call.values, call.Hs, call.M, call.add == 0, call.score);
}

}  // namespace h2o::cuda
