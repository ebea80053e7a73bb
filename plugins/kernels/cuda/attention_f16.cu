#include "attention.h"
#include "attention_f16.cuh"
#include "grid.cuh"
#include "launch.h"
#include "tiles.h"

namespace h2o::cuda {
namespace {

template <int D, int DV, int WARPS, int MT, int KEYS, Lookup LOOKUP>
int tile_blocks_at_once() {
    using Tile = AttentionTile<D, DV, WARPS, MT, KEYS, LOOKUP>;
    static const int blocks = blocks_at_once(attention_f16<D, DV, WARPS, MT, KEYS, LOOKUP, half>,
                                             Tile::kThreads, Tile::kSharedBytes);
    return blocks;
}

template <int D, int DV, int WARPS, int MT, int KEYS, Lookup LOOKUP>
h2o_status launch_tile(const AttentionArgs& args, cudaStream_t stream) {
    using Tile = AttentionTile<D, DV, WARPS, MT, KEYS, LOOKUP>;
    const auto run = [&](auto kernel) {
        return launch(kernel, attention_grid(args, Tile::kRows), Tile::kThreads, Tile::kSharedBytes, stream,
                      args);
    };
    return args.keys.dtype == H2O_I8 ? run(attention_f16<D, DV, WARPS, MT, KEYS, LOOKUP, int8_t>)
                                     : run(attention_f16<D, DV, WARPS, MT, KEYS, LOOKUP, half>);
}

// One block of four warps cannot hide its own latencies. If two blocks with full key tiles do not fit on a
// multiprocessor, use half tiles. With 100 KB of shared memory, as on GeForce, this happens at the widest
// heads.
constexpr int kLeastShared = 100 * 1024,
              kReserved = 1024;  // shared memory of a multiprocessor; reserved for each block

template <int D, int DV, Lookup LOOKUP>
constexpr bool may_need_half() {
    return 2 * (AttentionTile<D, DV, 4, 2, kKeyTile, LOOKUP>::kSharedBytes + kReserved) > kLeastShared;
}

template <int D, int DV, Lookup LOOKUP>
bool takes_half() {
    return tile_blocks_at_once<D, DV, 4, 2, kKeyTile, LOOKUP>() < 2;
}

template <int D, int DV, Lookup LOOKUP>
h2o_status launch_large_tile(const AttentionArgs& args, cudaStream_t stream) {
    if constexpr (may_need_half<D, DV, LOOKUP>()) {
        if (takes_half<D, DV, LOOKUP>()) return launch_tile<D, DV, 4, 2, kKeyTile / 2, LOOKUP>(args, stream);
    }
    return launch_tile<D, DV, 4, 2, kKeyTile, LOOKUP>(args, stream);
}

template <int D, int DV>
int large_tile_blocks_at_once() {
    if constexpr (may_need_half<D, DV, Lookup::kNone>()) {
        if (takes_half<D, DV, Lookup::kNone>())
            return tile_blocks_at_once<D, DV, 4, 2, kKeyTile / 2, Lookup::kNone>();
    }
    return tile_blocks_at_once<D, DV, 4, 2, kKeyTile, Lookup::kNone>();
}

}  // namespace

BlockForm block_form_f16(bool small, int head_size, int value_size) {
    BlockForm form{small ? kSmallTileRows : kLargeTileRows, 1};
    dispatch_sizes(head_size, value_size, [&](auto size) {
        constexpr int D = decltype(size)::value, DV = decltype(size)::values;
        form.at_once = small ? tile_blocks_at_once<D, DV, 1, 1, kKeyTile, Lookup::kNone>()
                             : large_tile_blocks_at_once<D, DV>();
        return H2O_OK;
    });
    return form;
}

h2o_status launch_attention_f16(const AttentionArgs& args, cudaStream_t stream) {
    const int64_t packed_rows = tokens_together(args.rows) * args.rows.group;
    const bool small = small_tile(packed_rows);
    if (args.keys.list.entries)
        return dispatch_head_size(args.head_size, [&](auto size) {
            constexpr int D = decltype(size)::value;
            if (small) return launch_tile<D, D, 1, 1, kKeyTile, Lookup::kList>(args, stream);
            return launch_tile<D, D, 2, 2, kKeyTile, Lookup::kList>(args, stream);
        });
    return dispatch_sizes(args.head_size, args.value_size, [&](auto size) {
        constexpr int D = decltype(size)::value, DV = decltype(size)::values;
        if (args.keys.memory) {
            if constexpr (D == DV) {
                if (packed_rows <= kMediumTileRows)
                    return launch_tile<D, DV, 2, 2, kKeyTile, Lookup::kMemory>(args, stream);
            }
            return launch_large_tile<D, DV, Lookup::kMemory>(args, stream);
        }
        if (small) return launch_tile<D, DV, 1, 1, kKeyTile, Lookup::kNone>(args, stream);
        return launch_large_tile<D, DV, Lookup::kNone>(args, stream);
    });
}

}  // namespace h2o::cuda
