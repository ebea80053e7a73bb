#include "attention.h"
#include "column_sums_f32.cuh"
#include "grid.cuh"
#include "launch.h"

namespace h2o::cuda {

h2o_status launch_column_sums_f32(const ColumnSumArgs& args, cudaStream_t stream) {
    return dispatch_head_size(args.head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        using Tile = ColumnSumTileF32<D>;
        const auto run = [&](auto kernel) {
            return launch(kernel, column_sum_grid(args, Tile::kKeys), Tile::kThreads, Tile::kSharedBytes,
                          stream, args);
        };
        if (args.keys.dtype == H2O_I8) return run(column_sums_f32<D, int8_t>);
        if (args.keys.dtype == H2O_F16) return run(column_sums_f32<D, half>);
        return run(column_sums_f32<D, float>);
    });
}

}  // namespace h2o::cuda
