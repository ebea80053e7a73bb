// The operators that only move or mix rows: MemoryGather, OnlineSoftmaxFusion, scores by position.
//
// Floor of each: its bytes, read and written once. Rows move 16 bytes a thread.

#include "checks.h"
#include "launch.h"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 256;

// pieces: 16-byte pieces of one row; a cache row holds heads * apart of them.
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

// Weights of two states in their sum; an empty state weighs nothing, whatever its maximum says.
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

// What an empty state's output holds is not read into the sum: it may be anything.
__device__ __forceinline__ float blend(const Mix& mix, float a, float b) {
    return (mix.a > 0 ? mix.a * a : 0.f) + (mix.b > 0 ? mix.b * b : 0.f);
}

__device__ __forceinline__ void blend_piece(const Mix& mix, const float* a, const float* b, float* to) {
    const float4 x = *reinterpret_cast<const float4*>(a), y = *reinterpret_cast<const float4*>(b);
    *reinterpret_cast<float4*>(to) =
        make_float4(blend(mix, x.x, y.x), blend(mix, x.y, y.y), blend(mix, x.z, y.z), blend(mix, x.w, y.w));
}

__device__ __forceinline__ void blend_piece(const Mix& mix, const half* a, const half* b, half* to) {
    union Piece {
        uint4 bits;
        __half2 pairs[4];
        __device__ Piece() {}
    } x, y, z;
    x.bits = *reinterpret_cast<const uint4*>(a);
    y.bits = *reinterpret_cast<const uint4*>(b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 p = __half22float2(x.pairs[i]), q = __half22float2(y.pairs[i]);
        z.pairs[i] = __floats2half2_rn(blend(mix, p.x, q.x), blend(mix, p.y, q.y));
    }
    *reinterpret_cast<uint4*>(to) = z.bits;
}

__host__ __device__ inline int rows_a_block(int pieces) {
    return kThreads / pieces;
}

// A block owns whole rows, so that the states can be read by all before any is written (the result may be one
// of the two).
template <class T>
__global__ void __launch_bounds__(kThreads)
    fuse_states(const T* oa, const float* ma, const float* la, const T* ob, const float* mb, const float* lb,
                T* o, float* m, float* l, int64_t rows, int pieces) {
    constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
    const int rows_here = rows_a_block(pieces);
    const int local = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * rows_here + local;
    const bool active = local < rows_here && row < rows;
    Mix mix = {};
    if (active) mix = mix_of(ma[row], la[row], mb[row], lb[row]);
    __syncthreads();
    if (!active) return;
    const int64_t at = (row * pieces + piece) * kWidth;
    blend_piece(mix, oa + at, ob + at, o + at);
    if (piece != 0) return;
    if (m) m[row] = mix.m;
    if (l) l[row] = mix.l;
}

// The entries of a memory set are distinct, so no two threads meet.
__global__ void __launch_bounds__(kThreads) update_scores(const int32_t* memory, const float* addend,
                                                          int heads, int slots, bool replace, float* score) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= heads * slots) return;
    float* to = score + static_cast<int64_t>(memory[i]) * heads + i / slots;
    *to = replace ? addend[i] : *to + addend[i];
}

template <class T>
h2o_status fuse(const h2o_cuda_shape& shape, int64_t rows, const h2o_cuda_state& a, const h2o_cuda_state& b,
                const h2o_cuda_state& fused, cudaStream_t stream) {
    const int pieces = pieces_of(shape, value_size(shape));
    return launch(fuse_states<T>, dim3(ceil_div(rows, rows_a_block(pieces)), 1, 1), kThreads, 0, stream,
                  static_cast<const T*>(a.o), static_cast<const float*>(a.m), static_cast<const float*>(a.l),
                  static_cast<const T*>(b.o), static_cast<const float*>(b.m), static_cast<const float*>(b.l),
                  static_cast<T*>(fused.o), fused.m, fused.l, rows, pieces);
}

}  // namespace
}  // namespace h2o::cuda

using namespace h2o::cuda;

extern "C" h2o_status h2o_cuda_memory_gather(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                             int32_t slots, const h2o_kv* kv, const int32_t* memory,
                                             void* k_mem, void* v_mem) {
    if (const h2o_status status = check_heads(shape); status != H2O_OK) return status;
    if (slots <= 0 || !memory || !k_mem || !v_mem) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(*shape, kv, 1); status != H2O_OK) return status;
    if (kv->dtype != shape->dtype) return H2O_UNSUPPORTED;  // it only moves
    const int keys = pieces_of(*shape, shape->head_size), values = pieces_of(*shape, value_size(*shape));
    const auto gather = [&](const void* cache, int apart, int pieces, void* out) {
        const int64_t count = static_cast<int64_t>(shape->score_heads) * slots * pieces;
        return launch(gather_rows, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0, stream,
                      static_cast<const uint4*>(cache), memory, static_cast<uint4*>(out),
                      static_cast<int>(kv->rows - 1), static_cast<int64_t>(slots),
                      shape->score_heads / shape->kv_heads, shape->kv_heads, apart, pieces, count);
    };
    const h2o_status status = gather(kv->k, keys, keys, k_mem);
    return status == H2O_OK ? gather(kv->v, h2o_kv_latent(kv) ? keys : values, values, v_mem) : status;
}

extern "C" h2o_status h2o_cuda_online_softmax_fusion(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                                     int32_t n, const h2o_cuda_state* a,
                                                     const h2o_cuda_state* b, const h2o_cuda_state* fused) {
    if (const h2o_status status = check_shape(shape); status != H2O_OK) return status;
    if (n <= 0 || !complete(a) || !complete(b) || !fused || !fused->o) return H2O_BAD_ARGUMENT;
    const int64_t rows = static_cast<int64_t>(n) * shape->query_heads;
    return shape->dtype == H2O_F16 ? fuse<half>(*shape, rows, *a, *b, *fused, stream)
                                   : fuse<float>(*shape, rows, *a, *b, *fused, stream);
}

extern "C" h2o_status h2o_cuda_score_update(h2o_cuda_stream stream, int32_t score_heads, int32_t slots,
                                            const int32_t* memory, const float* addend, int32_t replace,
                                            float* score) {
    if (score_heads <= 0 || slots <= 0 || !memory || !addend || !score) return H2O_BAD_ARGUMENT;
    const int64_t count = static_cast<int64_t>(score_heads) * slots;
    return launch(update_scores, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0, stream, memory, addend,
                  score_heads, slots, replace != 0, score);
}
