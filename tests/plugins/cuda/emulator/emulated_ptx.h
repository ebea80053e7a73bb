// plugins/kernels/cuda/ptx.cuh for the CPU: each instruction written out from its description in the PTX
// manual, for a whole warp at once.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>

#include "cuda_fp16.h"
#include "emulator.h"
#include "matrices.h"

namespace h2o::cuda {

using shared_t = uintptr_t;

inline unsigned char* dynamic_shared() {
    return emulator::shared_memory();
}
inline shared_t shared_address(const void* pointer) {
    return reinterpret_cast<shared_t>(pointer);
}

inline void copy16_async(shared_t to, const void* from, bool valid) {
    emulator::copy_async(reinterpret_cast<void*>(to), from, 16, valid ? 16 : 0);
}
inline void copy4_async(shared_t to, const void* from, bool valid) {
    emulator::copy_async(reinterpret_cast<void*>(to), from, 4, valid ? 4 : 0);
}
inline void store16(shared_t to, uint4 x) {
    emulator::check_alignment(reinterpret_cast<const void*>(to), 16);
    std::memcpy(reinterpret_cast<void*>(to), &x, 16);
}
inline void copy_commit() {
    emulator::copy_commit();
}
template <int LEFT>
void copy_wait() {
    emulator::copy_wait(LEFT);
}

template <class T>
void put_between_blocks(T* to, T x) {
    emulator::put_between_blocks(to, &x, sizeof(T));
}
template <class T>
T take_between_blocks(const T* from) {
    T x;
    emulator::take_between_blocks(&x, from, sizeof(T));
    return x;
}
inline void fence_between_blocks() {
    emulator::fence_between_blocks();
}
inline unsigned count_arrival(unsigned* count, unsigned all) {
    return emulator::count_arrival(count, all);
}

inline void load_matrices(uint32_t (&r)[4], shared_t row) {
    emulator::load_matrices(r, reinterpret_cast<const void*>(row), emulator::load_8x8x4);
}
inline void load_matrices_transposed(uint32_t (&r)[4], shared_t row) {
    emulator::load_matrices(r, reinterpret_cast<const void*>(row), emulator::load_8x8x4_transposed);
}

inline void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulator::ProductSlot slot{c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    emulator::warp_collective(&slot, emulator::multiply_16x8x16);
}

inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    return (x & mask) | bits;
}

inline float exp2_fast(float x) {
    return std::exp2(x);
}

inline float reciprocal_fast(float x) {
    return 1 / x;
}

inline uint32_t pack_half2(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t packed;
    std::memcpy(&packed, &pair, 4);
    return packed;
}

// All steps of the butterfly at once: lanes that wait for each other are what the emulation takes longest
// for.
template <int COUNT, class Join>
float over_lanes(float x) {
    emulator::warp_collective(
        &x, +[](void* const* lanes) {
            for (int step = COUNT / 2; step > 0; step /= 2) {
                float before[32];
                for (int i = 0; i < 32; ++i) before[i] = *static_cast<float*>(lanes[i]);
                for (int i = 0; i < 32; ++i)
                    *static_cast<float*>(lanes[i]) = Join()(before[i], before[i ^ step]);
            }
        });
    return x;
}

struct Larger {
    float operator()(float a, float b) const { return std::fmax(a, b); }
};

template <int COUNT>
float lanes_max(float x) {
    return over_lanes<COUNT, Larger>(x);
}
template <int COUNT>
float lanes_sum(float x) {
    return over_lanes<COUNT, std::plus<float>>(x);
}

}  // namespace h2o::cuda
