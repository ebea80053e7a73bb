// SwiGLU, ClampedSwiGLU and GeGLU: a function of the gate, times `up`. Floor: their bytes, read and written
// once.

#include "checks.h"
#include "pieces.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float sigmoid(float x) {
    return 1.f / (1.f + expf(-x));
}

struct Silu {
    __device__ float operator()(float gate, float up) const { return gate * sigmoid(gate) * up; }
};

struct ClampedSilu {
    float limit, gain;
    __device__ float operator()(float gate, float up) const {
        const float g = fminf(gate, limit), u = fmaxf(fminf(up, limit), -limit);
        return g * sigmoid(g * gain) * (u + 1.f);
    }
};

// (1 + tanh(z)) / 2 is sigmoid(2 z).
struct Gelu {
    __device__ float operator()(float gate, float up) const {
        constexpr float kTwice = 1.5957691216057308f, kCubic = 0.07135481282052469f;
        return gate * sigmoid(gate * fmaf(gate * gate, kCubic, kTwice)) * up;
    }
};

template <class T, int WIDTH, class Gate>
__global__ void __launch_bounds__(kThreads)
    gate_rows(const T* gate, const T* up, T* y, int64_t count, Gate function) {
    const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * WIDTH;
    if (at >= count) return;
    Piece<T, WIDTH> piece = load_piece<WIDTH>(gate + at);
    const Piece<T, WIDTH> other = load_piece<WIDTH>(up + at);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) put(&piece.of[j], function(to_float(piece.of[j]), to_float(other.of[j])));
    store_piece<WIDTH>(y + at, piece);
}

template <class Arguments, class Gate>
h2o_status gated(const Arguments& call, Gate function) {
    if (call.n < 0 || call.K <= 0 || any_null(call.gate, call.up, call.y)) return H2O_BAD_ARGUMENT;
    const int64_t count = int64_t{call.n} * call.K;
    return with_pieces(call.shape.dtype, count, {call.gate, call.up, call.y}, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int kWidth = decltype(width)::value;
        return launch(gate_rows<T, kWidth, Gate>, dim3(ceil_div(count, kThreads * kWidth), 1, 1), kThreads, 0,
                      stream_of(call), static_cast<const T*>(call.gate), static_cast<const T*>(call.up),
                      static_cast<T*>(call.y), count, function);
    });
}

}  // namespace

h2o_status run(const calls::SwiGLU& call) {
    return gated(call, Silu{});
}
h2o_status run(const calls::ClampedSwiGLU& call) {
    return gated(call, ClampedSilu{call.limit, call.gain});
}
h2o_status run(const calls::GeGLU& call) {
    return gated(call, Gelu{});
}

}  // namespace h2o::cuda
