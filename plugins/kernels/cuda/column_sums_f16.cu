#include "attention.h"
#include "column_sums_f16.cuh"
#include "grid.cuh"
#include "launch.h"

namespace h2o::cuda {
namespace {

template <int D, bool MEMORY>
h2o_status launch_tile(const ColumnSumArgs& args, cudaStream_t stream) {
    using Tile = ColumnSumTile<D>;
    const auto run = [&](auto kernel) {
        return launch(kernel, column_sum_grid(args, Tile::kKeys), Tile::kThreads, Tile::kSharedBytes, stream,
                      args);
    };
    return args.keys.dtype == H2O_I8 ? run(column_sums_f16<D, MEMORY, int8_t>)
                                     : run(column_sums_f16<D, MEMORY, half>);
}

}  // namespace

h2o_status launch_column_sums_f16(const ColumnSumArgs& args, cudaStream_t stream) {
    const int d = args.head_size;
    const auto run = [&](auto size) {
        constexpr int D = decltype(size)::value;
        return args.keys.memory ? launch_tile<D, true>(args, stream) : launch_tile<D, false>(args, stream);
    };
    if (d == kMostHeadSize) return run(HeadSize<kMostHeadSize>());
    return dispatch_sizes(d, d == 192 ? 128 : d, run);
}

}  // namespace h2o::cuda
