#include "attention.h"
#include "column_sums_f32.cuh"
#include "grid.cuh"
#include "launch.h"

namespace h2o::cuda {

h2o_status launch_column_sums_f32(const ColumnSumArgs& args, int head_size, cudaStream_t stream) {
    return dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        using Tile = ColumnSumTileF32<D>;
        return launch(column_sums_f32<D>, column_sum_grid(args, Tile::kKeys), Tile::kThreads,
                      Tile::kSharedBytes, stream, args);
    });
}

}  // namespace h2o::cuda
