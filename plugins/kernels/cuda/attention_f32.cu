#include "attention.h"
#include "attention_f32.cuh"
#include "grid.cuh"
#include "launch.h"
#include "tiles.h"

namespace h2o::cuda {
namespace {

template <int D, int WARPS, bool LISTED>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = AttentionTileF32<D, WARPS, LISTED>;
    const auto run = [&](auto kernel) {
        return launch(kernel, attention_grid(args, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, stream,
                      args);
    };
    if (args.keys.dtype == H2O_I8) return run(attention_f32<D, WARPS, LISTED, int8_t>);
    if (args.keys.dtype == H2O_F16) return run(attention_f32<D, WARPS, LISTED, half>);
    return run(attention_f32<D, WARPS, LISTED, float>);
}

template <int D, int WARPS>
int tile_blocks_at_once() {
    using Tile = AttentionTileF32<D, WARPS, false>;
    static const int blocks =
        blocks_at_once(attention_f32<D, WARPS, false, float>, Tile::kThreads, Tile::kSharedBytes);
    return blocks;
}

}  // namespace

BlockForm block_form_f32(bool small, int head_size) {
    BlockForm form{small ? kSmallTileRows : kLargeTileRowsF32, 1};
    dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        form.at_once = small ? tile_blocks_at_once<D, 1>() : tile_blocks_at_once<D, 4>();
        return H2O_OK;
    });
    return form;
}

h2o_status launch_attention_f32(const AttentionArgs& args, cudaStream_t stream) {
    const bool small = small_tile(tokens_together(args.rows) * args.rows.group);
    return dispatch_head_size(args.head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        if (args.keys.list.entries)
            return small ? launch_tile<D, 1, true>(args, stream) : launch_tile<D, 4, true>(args, stream);
        return small ? launch_tile<D, 1, false>(args, stream) : launch_tile<D, 4, false>(args, stream);
    });
}

}  // namespace h2o::cuda
