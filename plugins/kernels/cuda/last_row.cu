// Appends a decode step's new row, for attention kernels that do not append it themselves: one block for each
// head.

#include "attention.h"
#include "launch.h"
#include "new_row.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 64;  // one warp for the key, one for the value

template <class T, class S>
__global__ void __launch_bounds__(kThreads) append_step_row(const AttentionArgs args) {
    const Extent extent = extent_of(args.rows, args.keys, 0);
    const int set = blockIdx.x;
    append_last_row<T>(args, set_keys<S>(args.keys, set, 0), set_values<S>(args.keys, set, 0), set,
                       extent.keys);
}

template <class T>
h2o_status append(const AttentionArgs& args, cudaStream_t stream) {
    const auto run = [&](auto kernel) {
        return launch(kernel, dim3(static_cast<unsigned>(args.rows.sets), 1, 1), kThreads, 0, stream, args);
    };
    if (args.keys.dtype == H2O_I8) return run(append_step_row<T, int8_t>);
    if (args.keys.dtype == H2O_F16) return run(append_step_row<T, half>);
    if constexpr (sizeof(T) == 4) return run(append_step_row<T, float>);
    return H2O_UNSUPPORTED;
}

}  // namespace

h2o_status launch_append_last_row(const AttentionArgs& args, cudaStream_t stream) {
    return args.dtype == H2O_F16 ? append<half>(args, stream) : append<float>(args, stream);
}

}  // namespace h2o::cuda
