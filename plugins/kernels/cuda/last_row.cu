// Appends the new rows of a decode step, for launches that do not append them themselves: one block for each
// head of a row.

#include "attention.h"
#include "grid.cuh"
#include "launch.h"
#include "new_row.cuh"

namespace h2o::cuda {
namespace {

constexpr int kThreads = 64;  // one warp for the key, one for the value

template <class T, class S>
__global__ void __launch_bounds__(kThreads) append_step_row(const AttentionArgs args) {
    const int set = blockIdx.x, piece = blockIdx.y;
    const Extent extent = extent_of(args.rows, args.keys, piece);
    const h2o_kv* const cache = args.keys.caches ? args.keys.caches + piece : nullptr;
    append_last_row<T>(args, set_keys<S>(args.keys, set, 0, cache), set_values<S>(args.keys, set, 0, cache),
                       set, extent.keys, piece);
}

template <class T>
h2o_status append(const AttentionArgs& args, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(args.rows.sets), pieces_of(args.rows), 1);
    return with_stored<T>(args.keys.dtype, [&](auto zero) {
        return launch(append_step_row<T, decltype(zero)>, grid, kThreads, 0, stream, args);
    });
}

}  // namespace

h2o_status launch_append_last_row(const AttentionArgs& args, cudaStream_t stream) {
    return args.dtype == H2O_F16 ? append<half>(args, stream) : append<float>(args, stream);
}

}  // namespace h2o::cuda
