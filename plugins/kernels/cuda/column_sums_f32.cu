#include "attention.h"
#include "column_sums_f32.cuh"
#include "launch.h"

namespace h2o::cuda {

h2o_status launch_column_sums_f32(const ColumnSumArgs& args, int head_size, cudaStream_t stream) {
    return dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        using Tile = ColumnSumTileF32<D>;
        const RowSource& rows = args.rows;
        const bool chunked = rows.chunk > 0;
        const int keys = chunked ? (rows.chunk < rows.tokens ? rows.chunk : rows.tokens) : args.keys.keys;
        const unsigned depth =
            chunked ? ceil_div(rows.tokens, rows.chunk) : static_cast<unsigned>(args.splits);
        const dim3 grid(ceil_div(keys, Tile::kKeys), static_cast<unsigned>(rows.sets), depth);
        return launch(column_sums_f32<D>, grid, Tile::kThreads, Tile::kSharedBytes, stream, args);
    });
}

}  // namespace h2o::cuda
