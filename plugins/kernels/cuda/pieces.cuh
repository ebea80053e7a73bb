// Arrays in pieces of 16 bytes: a load or a store of a thread each. Single elements where sizes or addresses
// do not allow it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "h2o/kv.h"
#include "launch.h"
#include "numbers.cuh"

namespace h2o::cuda {

template <class T, int WIDTH>
struct alignas(sizeof(T) * WIDTH < 16 ? sizeof(T) * WIDTH : 16) Piece {
    T of[WIDTH];
};

template <int WIDTH, class T>
__device__ __forceinline__ Piece<T, WIDTH> load_piece(const T* from) {
    return *reinterpret_cast<const Piece<T, WIDTH>*>(from);
}
template <int WIDTH, class T>
__device__ __forceinline__ void store_piece(T* to, const Piece<T, WIDTH>& piece) {
    *reinterpret_cast<Piece<T, WIDTH>*>(to) = piece;
}

template <class T>
constexpr int kPieceWidth = 16 / static_cast<int>(sizeof(T));

inline bool on_16_bytes(std::initializer_list<const void*> pointers) {
    for (const void* pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
    return true;
}

// Calls f(zero of the type, elements of a piece). `size`: what pieces must divide; `pointers`: where arrays
// begin.
template <class F>
h2o_status with_pieces(h2o_dtype dtype, int64_t size, std::initializer_list<const void*> pointers, F&& f) {
    const auto with = [&](auto zero) {
        constexpr int kWidth = kPieceWidth<decltype(zero)>;
        if (size % kWidth == 0 && on_16_bytes(pointers))
            return f(zero, std::integral_constant<int, kWidth>());
        return f(zero, std::integral_constant<int, 1>());
    };
    if (dtype == H2O_F16) return with(half{});
    return dtype == H2O_F32 ? with(0.f) : H2O_UNSUPPORTED;
}

}  // namespace h2o::cuda
