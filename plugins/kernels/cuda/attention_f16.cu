#include "attention.h"
#include "attention_f16.cuh"
#include "grid.cuh"
#include "launch.h"
#include "tiles.h"

namespace h2o::cuda {
namespace {

template <int D, int WARPS, int MT, int KEYS, bool GATHER>
int tile_blocks_at_once() {
    using Tile = AttentionTile<D, WARPS, MT, KEYS, GATHER>;
    static const int blocks =
        blocks_at_once(attention_f16<D, WARPS, MT, KEYS, GATHER, half>, Tile::kThreads, Tile::kSharedBytes);
    return blocks;
}

template <int D, int WARPS, int MT, int KEYS, bool GATHER>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = AttentionTile<D, WARPS, MT, KEYS, GATHER>;
    const auto run = [&](auto kernel) {
        return launch(kernel, attention_grid(args, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, stream,
                      args);
    };
    return args.keys.dtype == H2O_I8 ? run(attention_f16<D, WARPS, MT, KEYS, GATHER, int8_t>)
                                     : run(attention_f16<D, WARPS, MT, KEYS, GATHER, half>);
}

// One block of four warps cannot hide its own latencies. Where a multiprocessor has no room for two with
// whole tiles of keys, halves of them make room: with 100 KB, as on GeForce parts, that is so at the widest
// heads.
constexpr int kLeastShared = 100 * 1024, kReserved = 1024;  // of a multiprocessor; for each block

template <int D, bool GATHER>
constexpr bool may_need_half() {
    return 2 * (AttentionTile<D, 4, 2, kKeyTile, GATHER>::kSharedBytes + kReserved) > kLeastShared;
}

template <int D, bool GATHER>
bool takes_half() {
    return tile_blocks_at_once<D, 4, 2, kKeyTile, GATHER>() < 2;
}

template <int D, bool GATHER>
h2o_status launch_large_tile(const AttentionArgs& args, cudaStream_t stream) {
    if constexpr (may_need_half<D, GATHER>()) {
        if (takes_half<D, GATHER>()) return launch_tile<D, 4, 2, kKeyTile / 2, GATHER>(args, stream);
    }
    return launch_tile<D, 4, 2, kKeyTile, GATHER>(args, stream);
}

template <int D>
int large_tile_blocks_at_once() {
    if constexpr (may_need_half<D, false>()) {
        if (takes_half<D, false>()) return tile_blocks_at_once<D, 4, 2, kKeyTile / 2, false>();
    }
    return tile_blocks_at_once<D, 4, 2, kKeyTile, false>();
}

}  // namespace

int attention_blocks_at_once_f16(bool small, int head_size) {
    int blocks = 1;
    dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        blocks = small ? tile_blocks_at_once<D, 1, 1, kKeyTile, false>() : large_tile_blocks_at_once<D>();
        return H2O_OK;
    });
    return blocks;
}

h2o_status launch_attention_f16(const AttentionArgs& args, int head_size, cudaStream_t stream) {
    return dispatch_head_size(head_size, [&](auto size) {
        constexpr int D = decltype(size)::value;
        if (args.keys.memory) return launch_large_tile<D, true>(args, stream);
        if (small_tile(args.rows.tokens * args.rows.group))
            return launch_tile<D, 1, 1, kKeyTile, false>(args, stream);
        return launch_large_tile<D, false>(args, stream);
    });
}

}  // namespace h2o::cuda
