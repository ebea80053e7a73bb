// Rotation: RoPE on the halves of a head's first 2 r numbers; the others are copied. A thread turns one piece
// of the first half with that of the second, or copies one piece. Floor: the bytes of x and y; the tables are
// read once a token from memory, and for its other heads from the caches.

#include <numeric>

#include "checks.h"
#include "pieces.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, int WIDTH>
__global__ void __launch_bounds__(kThreads)
    rotate_heads(const T* x, const float* cos, const float* sin, T* y, unsigned count, unsigned heads,
                 unsigned turned, unsigned copied) {
    const unsigned i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= count) return;
    const unsigned head = i / (turned + copied), piece = i - head * (turned + copied);
    const unsigned half_size = turned * WIDTH;
    const int64_t at = int64_t{head} * (2 * half_size + copied * WIDTH) + piece * WIDTH;
    if (piece >= turned) {
        store_piece<WIDTH>(y + at + half_size, load_piece<WIDTH>(x + at + half_size));
        return;
    }
    const int64_t angle = int64_t{head / heads} * half_size + piece * WIDTH;
    const auto a = load_piece<WIDTH>(x + at), b = load_piece<WIDTH>(x + at + half_size);
    const auto c = load_piece<WIDTH>(cos + angle), s = load_piece<WIDTH>(sin + angle);
    Piece<T, WIDTH> first, second;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
        const float left = to_float(a.of[j]), right = to_float(b.of[j]);
        put(&first.of[j], left * c.of[j] - right * s.of[j]);
        put(&second.of[j], right * c.of[j] + left * s.of[j]);
    }
    store_piece<WIDTH>(y + at, first);
    store_piece<WIDTH>(y + at + half_size, second);
}

}  // namespace

h2o_status run(const calls::Rotation& call) {
    if (call.n < 0 || call.Hq <= 0 || call.r <= 0 || call.d / 2 < call.r) return H2O_BAD_ARGUMENT;
    if (any_null(call.x, call.y) || any_null(call.cos, call.sin)) return H2O_BAD_ARGUMENT;
    const int rest = call.d - 2 * call.r;
    const int64_t threads = int64_t{call.n} * call.Hq * (call.r + rest);  // of pieces of one number
    if (threads >= INT32_MAX) return H2O_UNSUPPORTED;
    const auto with = [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr unsigned kWidth = decltype(width)::value;
        const unsigned count = static_cast<unsigned>(threads) / kWidth;
        return launch(rotate_heads<T, kWidth>, dim3(ceil_div(count, kThreads), 1, 1), kThreads, 0,
                      stream_of(call), static_cast<const T*>(call.x), call.cos, call.sin,
                      static_cast<T*>(call.y), count, static_cast<unsigned>(call.Hq),
                      static_cast<unsigned>(call.r) / kWidth, static_cast<unsigned>(rest) / kWidth);
    };
    return with_pieces(call.shape.dtype, std::gcd(call.r, rest), {call.x, call.cos, call.sin, call.y}, with);
}

}  // namespace h2o::cuda
