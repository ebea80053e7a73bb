#include "attention.h"
#include "latent_f16.cuh"
#include "launch.h"

namespace h2o::cuda {
namespace {

constexpr int kKeySize = 576, kValueSize = 512, kSmall = kSmallTileRows / 16, kLarge = kLatentRows / 16;

template <int MT>
int tile_blocks() {
    using Tile = LatentTile<kKeySize, kValueSize, MT>;
    static const int blocks =
        blocks_that_fit(latent_f16<kKeySize, kValueSize, MT, half>, Tile::kThreads, Tile::kSharedBytes);
    return blocks;
}

template <int MT>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = LatentTile<kKeySize, kValueSize, MT>;
    const auto run = [&](auto kernel) {
        return launch(kernel, attention_grid(args, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, stream,
                      args);
    };
    return args.keys.dtype == H2O_I8 ? run(latent_f16<kKeySize, kValueSize, MT, int8_t>)
                                     : run(latent_f16<kKeySize, kValueSize, MT, half>);
}

bool takes_small(int64_t packed_rows) {
    return small_tile(packed_rows) || tile_blocks<kLarge>() == 0;
}

}  // namespace

BlockForm block_form_latent(int64_t packed_rows) {
    if (!takes_small(packed_rows)) return {kLatentRows, tile_blocks<kLarge>()};
    const int blocks = tile_blocks<kSmall>();
    return {kSmallTileRows, blocks > 0 ? blocks : 1};
}

h2o_status launch_latent_f16(const AttentionArgs& args, cudaStream_t stream) {
    if (takes_small(tokens_together(args.rows) * args.rows.group)) return launch_tile<kSmall>(args, stream);
    return launch_tile<kLarge>(args, stream);
}

}  // namespace h2o::cuda
