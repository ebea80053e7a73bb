// Machine instructions without a C++ equivalent, one function each; no other file here has inline assembly.
// All of them exist from SM80 on, so Orin (SM87) and later GPUs run the same code. Without nvcc, the CPU
// emulation of the tests provides the same names.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace h2o::cuda {

using half = __half;
constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace h2o::cuda

#ifndef __CUDACC__
#include "emulated_ptx.h"
#else

namespace h2o::cuda {

// An address in shared memory, in bytes. It has 32 bits, so address arithmetic is cheap.
using shared_t = uint32_t;

__device__ __forceinline__ unsigned char* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char h2o_dynamic_shared[];
    return h2o_dynamic_shared;
}

__device__ __forceinline__ shared_t shared_address(const void* pointer) {
    return static_cast<shared_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory without a register; writes zeros if `valid` is false.
__device__ __forceinline__ void copy16_async(shared_t to, const void* from, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy4_async(shared_t to, const void* from, bool valid) {
    const int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void store16(shared_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int LEFT>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory");
}

// Data that blocks of one launch exchange: one block puts it, another takes it after the first has published
// it. Reads bypass L1, which may hold stale data.
template <class T>
__device__ __forceinline__ void put_between_blocks(T* to, T x) {
    *to = x;
}
template <class T>
__device__ __forceinline__ T take_between_blocks(const T* from) {
    return __ldcg(from);
}

// Release and acquire: other threads see what this thread put before the fence, and after it this thread sees
// what others published.
__device__ __forceinline__ void fence_between_blocks() {
    __threadfence();
}

// Increments and returns the old count; after the last of `all` increments, the count is 0 again.
__device__ __forceinline__ unsigned count_arrival(unsigned* count, unsigned all) {
    return atomicInc(count, all - 1);
}

// Loads four 8x8 matrices of half; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], shared_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], shared_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8], with half operands and float32 sums.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (x & mask) | bits in one instruction; compilers use two if both are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(x), "r"(mask), "r"(bits));
    return result;
}

// 2 to the power x, with a relative error near 2^-22; exactly 0 at minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x, with a relative error near 2^-23; 0 at infinity.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Two floats rounded to half, `low` in the low half of the word.
__device__ __forceinline__ uint32_t pack_half2(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Sum or maximum over an aligned group of COUNT neighbouring lanes.
template <int COUNT>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
    for (int i = COUNT / 2; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, i));
    return x;
}

template <int COUNT>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int i = COUNT / 2; i > 0; i /= 2) x += __shfl_xor_sync(kAllLanes, x, i);
    return x;
}

}  // namespace h2o::cuda
#endif
