// Launches a kernel and turns any error into a status. Nothing here throws or allocates.
#pragma once

#include <cuda_runtime.h>

#include "h2o/cuda.h"

namespace h2o::cuda {

constexpr int kMaxGridYZ = 65535;
constexpr size_t kDefaultSharedBytes = 48 * 1024;  // more than this needs an opt-in for each kernel

// Stores the error for h2o_cuda_last_error, and clears it in the CUDA runtime.
h2o_status status_of(cudaError_t error);

template <class... P, class... A>
h2o_status launch(void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                  A... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return H2O_OK;
    if (grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) return H2O_UNSUPPORTED;
    if (shared_bytes > kDefaultSharedBytes) {
        const h2o_status status = status_of(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
        if (status != H2O_OK) return status;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads), 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return status_of(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// Blocks of a kernel that run at once on a multiprocessor; 0 if none fits or the query fails.
template <class... P>
int blocks_that_fit(void (*kernel)(P...), int threads, size_t shared_bytes) {
    int blocks = 0;
    cudaError_t error = cudaSuccess;
    if (shared_bytes > kDefaultSharedBytes)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes));
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess ? blocks : 0;
}

// The same for kernels that are launched anyway: at least 1.
template <class... P>
int blocks_at_once(void (*kernel)(P...), int threads, size_t shared_bytes) {
    const int blocks = blocks_that_fit(kernel, threads, shared_bytes);
    return blocks > 0 ? blocks : 1;
}

// Calls f with head size d as a compile-time constant.
template <int D, int DV = D>
struct HeadSize {
    static constexpr int value = D;
    static constexpr int values = DV;
};

template <class F>
h2o_status dispatch_head_size(int d, F&& f) {
    switch (d) {
        case 32:
            return f(HeadSize<32>());
        case 64:
            return f(HeadSize<64>());
        case 80:
            return f(HeadSize<80>());
        case 96:
            return f(HeadSize<96>());
        case 128:
            return f(HeadSize<128>());
        default:
            return H2O_UNSUPPORTED;
    }
}

// The same for votes, which have tiles of more sizes.
template <class F>
h2o_status dispatch_vote_size(int d, F&& f) {
    switch (d) {
        case 160:
            return f(HeadSize<160>());
        case 192:
            return f(HeadSize<192>());
        case 256:
            return f(HeadSize<256>());
        default:
            return dispatch_head_size(d, f);
    }
}

// dispatch_head_size for head size d and value size dv.
template <class F>
h2o_status dispatch_sizes(int d, int dv, F&& f) {
    if (d == 192 && dv == 128) return f(HeadSize<192, 128>());
    return d == dv ? dispatch_head_size(d, f) : H2O_UNSUPPORTED;
}

inline unsigned ceil_div(int64_t a, int64_t b) {
    return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace h2o::cuda
