// What a decode step needs beside attention, so that all of it can be one graph: the new row goes to a
// position that the device reads, and the few numbers that change from step to step reach the device without
// a copy.

#include "checks.h"
#include "launch.h"
#include "ptx.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

// pieces: 16-byte pieces of one row, all heads together.
__global__ void __launch_bounds__(kThreads)
    append_row(const uint4* k, const uint4* v, const int64_t* position, uint4* k_cache, uint4* v_cache,
               int pieces) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= pieces) return;
    const int64_t to = *position * pieces + i;
    k_cache[to] = k[i];
    v_cache[to] = v[i];
}

struct Integers {
    int64_t values[H2O_CUDA_MAX_INTEGERS];
};

constexpr int kOneWarp = 32;

__global__ void __launch_bounds__(kOneWarp) put_integers(Integers integers, int count, int64_t* target) {
    const int i = threadIdx.x;
    if (i < count) target[i] = integers.values[i];
}

}  // namespace
}  // namespace h2o::cuda

using namespace h2o::cuda;

extern "C" h2o_status h2o_cuda_cache_append(h2o_cuda_stream stream, const h2o_cuda_shape* shape,
                                            const void* k, const void* v, const int64_t* position,
                                            const h2o_kv* kv) {
    if (const h2o_status status = check_shape(shape); status != H2O_OK) return status;
    if (any_null(k, v) || !position) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(kv, 1); status != H2O_OK) return status;
    const int pieces = shape->kv_heads * pieces_of(*shape);
    return launch(append_row, dim3(ceil_div(pieces, kThreads), 1, 1), kThreads, 0, stream,
                  static_cast<const uint4*>(k), static_cast<const uint4*>(v), position,
                  static_cast<uint4*>(kv->k), static_cast<uint4*>(kv->v), pieces);
}

extern "C" h2o_status h2o_cuda_write_integers(h2o_cuda_stream stream, int32_t count, const int64_t* values,
                                              int64_t* target) {
    if (count <= 0 || count > H2O_CUDA_MAX_INTEGERS || !values || !target) return H2O_BAD_ARGUMENT;
    Integers integers = {};
    for (int i = 0; i < count; ++i) integers.values[i] = values[i];
    return launch(put_integers, dim3(1, 1, 1), kOneWarp, 0, stream, integers, count, target);
}
