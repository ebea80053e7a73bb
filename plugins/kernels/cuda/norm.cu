// RMSNorm and ResidualNorm. Floor: their bytes, x and the residual read once, the sum and y written once.
//
// The sum is rounded before it is squared, because the residual stream holds it rounded. A row's second
// reading comes from the caches: its threads read what they have read or written themselves.

#include "checks.h"
#include "pieces.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kPiecesOfAWarp = 128;  // in longer rows all warps of a block share one

// A sum over the lanes of each WARPS neighbouring warps. Every thread of the block calls it, once.
template <int WARPS>
__device__ __forceinline__ float rows_sum(float x) {
    x = lanes_sum<32>(x);
    if constexpr (WARPS > 1) {
        float* const shared = reinterpret_cast<float*>(dynamic_shared());
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) shared[warp] = x;
        __syncthreads();
        x = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) x += shared[warp / WARPS * WARPS + i];
    }
    return x;
}

template <class T, int WIDTH, int WARPS>
__global__ void __launch_bounds__(kThreads) norm_rows(const T* x, const T* residual, const T* weight, T* sum,
                                                      T* y, int64_t rows, int size, float epsilon) {
    constexpr int kTogether = 32 * WARPS, kStep = kTogether * WIDTH;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (kWarps / WARPS) + threadIdx.x / kTogether;
    const int first = static_cast<int>(threadIdx.x) % kTogether * WIDTH;
    const int64_t at = row * size;
    float squares = 0;
    for (int i = first; row < rows && i < size; i += kStep) {
        Piece<T, WIDTH> piece = load_piece<WIDTH>(x + at + i);
        if (residual) {
            const Piece<T, WIDTH> other = load_piece<WIDTH>(residual + at + i);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) put(&piece.of[j], to_float(piece.of[j]) + to_float(other.of[j]));
            store_piece<WIDTH>(sum + at + i, piece);
        }
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) squares = fmaf(to_float(piece.of[j]), to_float(piece.of[j]), squares);
    }
    squares = rows_sum<WARPS>(squares);
    if (row >= rows) return;
    const float scale = 1.f / sqrtf(squares / static_cast<float>(size) + epsilon);
    const T* const from = residual ? sum : x;
    for (int i = first; i < size; i += kStep) {
        Piece<T, WIDTH> piece = load_piece<WIDTH>(from + at + i);
        const Piece<T, WIDTH> factor = load_piece<WIDTH>(weight + i);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            put(&piece.of[j], to_float(piece.of[j]) * scale * to_float(factor.of[j]));
        store_piece<WIDTH>(y + at + i, piece);
    }
}

template <class Arguments>
h2o_status norm(const Arguments& call, const void* residual, void* sum) {
    if (call.n < 0 || call.K <= 0 || any_null(call.x, call.weight, call.y)) return H2O_BAD_ARGUMENT;
    const auto with = [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int kWidth = decltype(width)::value;
        const auto run = [&](auto kernel, int rows_a_block) {
            return launch(kernel, dim3(ceil_div(call.n, rows_a_block), 1, 1), kThreads,
                          kWarps * sizeof(float), stream_of(call), static_cast<const T*>(call.x),
                          static_cast<const T*>(residual), static_cast<const T*>(call.weight),
                          static_cast<T*>(sum), static_cast<T*>(call.y), static_cast<int64_t>(call.n), call.K,
                          call.epsilon);
        };
        return call.K <= kPiecesOfAWarp * kWidth ? run(norm_rows<T, kWidth, 1>, kWarps)
                                                 : run(norm_rows<T, kWidth, kWarps>, 1);
    };
    return with_pieces(call.shape.dtype, call.K, {call.x, residual, call.weight, sum, call.y}, with);
}

}  // namespace

h2o_status run(const calls::RMSNorm& call) {
    return norm(call, nullptr, nullptr);
}
h2o_status run(const calls::ResidualNorm& call) {
    return any_null(call.residual, call.sum) ? H2O_BAD_ARGUMENT : norm(call, call.residual, call.sum);
}

}  // namespace h2o::cuda
