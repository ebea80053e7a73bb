// The C++ half of the stand-in: built-in variables, vector types, warp functions, kernel launches.
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cuda_runtime_api.h"
#include "emulator.h"

using std::max;
using std::min;

struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}

inline void __syncthreads() {
    emulator::block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::check_mask(mask);
    emulator::warp_barrier();
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
    emulator::check_mask(mask);
    struct Slot {
        T in, out;
        int lane_mask;
    } slot{value, value, lane_mask};
    emulator::warp_collective(
        &slot, +[](void* const* lanes) {
            for (int i = 0; i < 32; ++i) {
                auto* s = static_cast<Slot*>(lanes[i]);
                s->out = static_cast<Slot*>(lanes[i ^ s->lane_mask])->in;
            }
        });
    return slot.out;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
    emulator::check_mask(mask);
    struct Slot {
        T in, out;
        int lane;
    } slot{value, value, lane};
    emulator::warp_collective(
        &slot, +[](void* const* lanes) {
            for (int i = 0; i < 32; ++i) {
                auto* s = static_cast<Slot*>(lanes[i]);
                s->out = static_cast<Slot*>(lanes[s->lane])->in;
            }
        });
    return slot.out;
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, int delta) {
    emulator::check_mask(mask);
    struct Slot {
        T in, out;
        int delta;
    } slot{value, value, delta};
    emulator::warp_collective(
        &slot, +[](void* const* lanes) {
            for (int i = 0; i < 32; ++i) {
                auto* s = static_cast<Slot*>(lanes[i]);
                s->out = i >= s->delta ? static_cast<Slot*>(lanes[i - s->delta])->in : s->in;
            }
        });
    return slot.out;
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emulator::check_mask(mask);
    struct Slot {
        int in;
        unsigned out;
    } slot{predicate, 0};
    emulator::warp_collective(
        &slot, +[](void* const* lanes) {
            unsigned bits = 0;
            for (int i = 0; i < 32; ++i) bits |= (static_cast<Slot*>(lanes[i])->in ? 1u : 0u) << i;
            for (int i = 0; i < 32; ++i) static_cast<Slot*>(lanes[i])->out = bits;
        });
    return slot.out;
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>((uint64_t{x} * y) >> 32);
}
inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

// Threads run one at a time between switches, so a plain read-modify-write is atomic here.
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicAdd(T* address, T value) {
    T old = *address;
    *address = old + value;
    return old;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMin(T* address, T value) {
    T old = *address;
    if (value < old) *address = value;
    return old;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMax(T* address, T value) {
    T old = *address;
    if (old < value) *address = value;
    return old;
}

template <class K>
cudaError_t cudaFuncSetAttribute(K* kernel, cudaFuncAttribute, int shared_bytes) {
    return emulator::opt_in(reinterpret_cast<const void*>(kernel), static_cast<size_t>(shared_bytes));
}

// As the calculator would have it, as far as shared memory and threads go; registers are not emulated.
template <class K>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, K*, int threads, size_t shared_bytes) {
    constexpr size_t kReserved = 1024;
    constexpr int kThreads = 1536, kMost = 16;
    const size_t fit = emulator::shared_bytes_of_a_multiprocessor() / (shared_bytes + kReserved);
    *blocks = min(min(kMost, kThreads / threads), static_cast<int>(fit));
    return cudaSuccess;
}

// Arguments are copied at the call, as a launch does.
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
    const dim3 grid = config->gridDim, block = config->blockDim;
    const size_t shared_bytes = config->dynamicSmemBytes;
    const auto* const which = reinterpret_cast<const void*>(kernel);
    if (const cudaError_t error = emulator::check_launch(which, grid, block, shared_bytes)) return error;
    return emulator::enqueue(config->stream, [=, copies = std::tuple<P...>(arguments...)] {
        emulator::run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, copies); });
    });
}
