// Stores new rows in the cache, and does the other work of a decode step beside attention, so that one CUDA
// graph holds the whole step. The device reads the position of the new row. The few values that change each
// step reach the device as kernel arguments, without a copy.

#include "checks.h"
#include "launch.h"
#include "new_row.cuh"
#include "numbers.cuh"
#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 128;

struct Append {
    const int64_t* position;  // [] on the device: the cache row of the first new one; or null:
    int64_t first;            // the same
    int heads;                // Hkv
    int rows;                 // n: new rows
    int d, dv;                // numbers of a key and of a value
    int64_t capacity;         // rows of the cache

    __device__ __forceinline__ int64_t row(int i) const { return (position ? *position : first) + i; }
};

// A warp stores one head of one row, of the keys (y = 0) or the values.
template <class T, class S>
__global__ void __launch_bounds__(kThreads) append_rows(Append args, const T* k, const T* v, S* k_cache,
                                                        S* v_cache, float* k_scales, float* v_scales) {
    const int index = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
    if (index >= args.rows * args.heads) return;  // the whole warp
    const int64_t row = args.row(index / args.heads);
    if (row < 0 || row >= args.capacity) return;
    const bool keys = blockIdx.y == 0;
    const int d = keys ? args.d : args.dv;
    const int64_t place = row * args.heads + index % args.heads;
    store_head((keys ? k : v) + static_cast<int64_t>(index) * d, (keys ? k_cache : v_cache) + place * d,
               (keys ? k_scales : v_scales) + place, d);
}

template <class T>
h2o_status append(const Append& args, const void* k, const void* v, const h2o_kv& kv, cudaStream_t stream) {
    const int64_t warps = static_cast<int64_t>(args.rows) * args.heads;
    return with_stored<T>(kv.dtype, [&](auto zero) {
        using S = decltype(zero);
        const unsigned kinds = h2o_kv_latent(&kv) ? 1 : 2;
        return launch(append_rows<T, S>, dim3(ceil_div(warps, kThreads / 32), kinds, 1), kThreads, 0, stream,
                      args, static_cast<const T*>(k), static_cast<const T*>(v), static_cast<S*>(kv.k),
                      static_cast<S*>(kv.v), kv.k_scales, kv.v_scales);
    });
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

namespace h2o::cuda {

h2o_status run(const calls::CacheAppend& call) {
    const cudaStream_t stream = stream_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || call.first < 0 || !call.k) return H2O_BAD_ARGUMENT;
    const int64_t needed = call.at ? call.n : call.first + call.n;
    if (const h2o_status status = check_kv(call.shape, call.kv, needed); status != H2O_OK) return status;
    if (!call.v && !h2o_kv_latent(call.kv)) return H2O_BAD_ARGUMENT;
    const Append args = {call.at,      call.first,           call.shape.kv_heads,
                         call.n,       call.shape.head_size, value_size(call.shape),
                         call.kv->rows};
    return call.shape.dtype == H2O_F16 ? append<half>(args, call.k, call.v, *call.kv, stream)
                                       : append<float>(args, call.k, call.v, *call.kv, stream);
}

}  // namespace h2o::cuda

extern "C" h2o_status h2o_cuda_write_integers(h2o_cuda_stream stream, int32_t count, const int64_t* values,
                                              int64_t* target) {
    if (count <= 0 || count > H2O_CUDA_MAX_INTEGERS || !values || !target) return H2O_BAD_ARGUMENT;
    h2o::cuda::Integers integers = {};
    for (int i = 0; i < count; ++i) integers.values[i] = values[i];
    return h2o::cuda::launch(h2o::cuda::put_integers, dim3(1, 1, 1), h2o::cuda::kOneWarp, 0, stream, integers,
                             count, target);
}
