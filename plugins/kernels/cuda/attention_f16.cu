#include "attention.h"
#include "attention_f16.cuh"
#include "grid.cuh"
#include "launch.h"
#include "tiles.h"

namespace h2o::cuda {
namespace {

template <int D, int WARPS, int MT, bool GATHER>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = AttentionTile<D, WARPS, MT>;
    return launch(attention_f16<D, WARPS, MT, GATHER>, attention_grid(args, Tile::kRows), Tile::kThreads,
                  Tile::kSharedBytes, stream, args);
}

template <int D, int WARPS, int MT>
int tile_blocks_at_once() {
    using Tile = AttentionTile<D, WARPS, MT>;
    static const int blocks =
        blocks_at_once(attention_f16<D, WARPS, MT, false>, Tile::kThreads, Tile::kSharedBytes);
    return blocks;
}

}  // namespace

int attention_blocks_at_once_f16(bool small, int head_size) {
    int blocks = 1;
    dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        blocks = small ? tile_blocks_at_once<D, 1, 1>() : tile_blocks_at_once<D, 4, 2>();
        return H2O_OK;
    });
    return blocks;
}

h2o_status launch_attention_f16(const AttentionArgs& args, int head_size, cudaStream_t stream) {
    return dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        if (args.keys.memory) return launch_tile<D, 4, 2, true>(args, stream);
        if (small_tile(args.rows.tokens * args.rows.group)) return launch_tile<D, 1, 1, false>(args, stream);
        return launch_tile<D, 4, 2, false>(args, stream);
    });
}

}  // namespace h2o::cuda
