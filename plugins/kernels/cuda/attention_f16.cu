#include "attention.h"
#include "attention_f16.cuh"
#include "launch.h"

namespace h2o::cuda {
namespace {

template <int D, int WARPS, int MT, bool GATHER>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = AttentionTile<D, WARPS, MT>;
    const RowSource& rows = args.rows;
    const int tokens = rows.chunk > 0 ? (rows.chunk < rows.tokens ? rows.chunk : rows.tokens) : rows.tokens;
    const unsigned depth = args.partial_m   ? static_cast<unsigned>(args.splits)
                           : rows.chunk > 0 ? ceil_div(rows.tokens, rows.chunk)
                                            : 1;
    const dim3 grid(ceil_div(static_cast<int64_t>(tokens) * rows.group, Tile::kRows),
                    static_cast<unsigned>(rows.sets), depth);
    return launch(attention_f16<D, WARPS, MT, GATHER>, grid, Tile::kThreads, Tile::kSharedBytes, stream,
                  args);
}

}  // namespace

h2o_status launch_attention_f16(const AttentionArgs& args, int head_size, cudaStream_t stream) {
    return dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        if (args.keys.memory) return launch_tile<D, 4, 2, true>(args, stream);
        if (args.rows.tokens * args.rows.group <= 16) return launch_tile<D, 1, 1, false>(args, stream);
        return launch_tile<D, 4, 2, false>(args, stream);
    });
}

}  // namespace h2o::cuda
