// BlockSelect: some of a tile's queries (its votes) score the mean keys of blocks of the past, and the rows
// of the best blocks become the tile's candidates.
//
// One launch computes the means of all whole blocks, which reads the keys once; votes sum as for single keys
// (tile_votes.h), over an eighth of the rows if a block has eight. The last launch selects blocks, an
// eighth of the numbers to rank, and writes their rows.

#include "numbers.cuh"
#include "row_range.cuh"
#include "select.cuh"
#include "tile_votes.h"

namespace h2o::cuda {
namespace {

constexpr int kMeanThreads = 256;

struct Lists {
    VotingTiles votes;
    int block;  // cache rows of a block
    int local;  // most recent cache rows, which every list has
    int heavy;  // other cache rows of a list: M - local

    bool good() const { return votes.good() && block > 0 && local >= 0 && heavy >= 0 && local + heavy > 0; }
};

// means [places, width] = those of all whole blocks below the longest past; zeros for block 0 if there is
// none. whole [tiles] = a tile's whole blocks.
template <class S, class T>
__global__ void __launch_bounds__(kMeanThreads)
    average_blocks(const S* k, const float* scales, int d, int width, int rows, int block, int64_t count,
                   const int64_t* past, int tiles, T* means, int64_t* whole) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kMeanThreads + threadIdx.x;
    int longest = 0;
    for (int tile = 0; tile < tiles; ++tile) longest = max(longest, bounded(past[tile], 0, rows));
    if (i < tiles) whole[i] = bounded(past[i], 0, rows) / block;
    if (i >= count) return;
    const int64_t index = i / width;
    if (index >= max(longest / block, 1)) return;
    float sum = 0;
    for (int row = 0; row < block && index < longest / block; ++row)
        sum += scaled(k, (index * block + row) * width + i % width, scales, d);
    put(means + i, sum / static_cast<float>(block));
}

struct RankedBlocks {
    const float* sums;  // [places]

    __device__ __forceinline__ int position(int i) const { return i; }
    __device__ __forceinline__ uint32_t bits(int i) const { return rank_bits(sums[i], i == 0); }
};

// Of a block of threads.
struct SelectionShared {
    SelectShared select;
    uint32_t lowest;  // bits of the lowest sum of a selected block
    int worst;        // the last place of a block with that sum
};

// The rows of the best blocks before the one in which the local window begins, block 0 always among them, of
// the worst only as many as are left; then all rows from that block on. Equal sums go to the lower block.
// best [tiles, Hs, places]. One block of threads for each score head and tile.
__global__ void __launch_bounds__(kSelectThreads)
    select_blocks(const float* sums, int places, const int64_t* past, int rows, Lists lists, int32_t* best,
                  int32_t* out) {
    SelectionShared& shared = *reinterpret_cast<SelectionShared*>(dynamic_shared());
    const int block = lists.block, heavy = lists.heavy;
    const int64_t list = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    best += list * places;
    out += list * (lists.local + heavy);
    const int border = bounded(past[blockIdx.y], lists.local, rows) - lists.local;
    const int ranked = min(border / block, places);
    const int first = ranked > 0 ? min(block, heavy) : 0;
    const int sure = min(border - ranked * block, heavy - first), left = heavy - sure;
    const int chosen = min((left + block - 1) / block, ranked);
    const RankedBlocks all{sums + list * places};
    if (threadIdx.x == 0) shared.lowest = 0xffffffffu, shared.worst = 0;
    __syncthreads();
    take_best(all, ranked, chosen, shared.select, [&](int place, int at) {
        best[place] = at;
        atomicMin(&shared.lowest, all.bits(at));
    });
    __syncthreads();
    for (int i = threadIdx.x; i < chosen; i += kSelectThreads)
        if (all.bits(best[i]) == shared.lowest) atomicMax(&shared.worst, i);
    __syncthreads();
    const int without = max(chosen * block - left, 0);  // rows of the worst block that find no place
    for (int i = threadIdx.x; i < chosen * block; i += kSelectThreads) {
        const int place = i / block, row = i - place * block;
        if (place == shared.worst && row >= block - without) continue;
        out[i - (place > shared.worst ? without : 0)] = best[place] * block + row;
    }
    for (int i = threadIdx.x; i < sure; i += kSelectThreads) out[left + i] = ranked * block + i;
    for (int i = threadIdx.x; i < lists.local; i += kSelectThreads) out[heavy + i] = border + i;
}

struct Scratch {
    VoteScratch votes;
    void* means;     // [places, Hkv, d] of shape.dtype
    int64_t* whole;  // [tiles] whole blocks below a tile's past
    int32_t* best;   // [tiles, Hs, places] selected blocks, rising

    Scratch(const h2o_shape& shape, const Lists& lists, int capacity, Workspace& workspace)
        : votes(shape, lists.votes, capacity < lists.block ? 1 : capacity / lists.block, workspace) {
        const int64_t numbers = static_cast<int64_t>(votes.places) * shape.kv_heads * shape.head_size;
        means = workspace.take<unsigned char>(numbers * element_bytes(shape.dtype));
        whole = workspace.take<int64_t>(lists.votes.count());
        best = workspace.take<int32_t>(static_cast<int64_t>(lists.votes.count()) * shape.score_heads *
                                       votes.places);
    }
};

struct BlockSelect {
    const h2o_shape& shape;
    Lists lists;
    const void* q;        // [n, Hq, d] of shape.dtype
    const h2o_kv& kv;     // keys of the cache; values are not read
    const int64_t* past;  // [t] cache rows that come before each tile
    int32_t* out;         // [t, Hs, M] cache rows, rising
    cudaStream_t stream;

    template <class T>
    h2o_status average(const Scratch& scratch) const {
        const int width = shape.kv_heads * shape.head_size, tiles = lists.votes.count();
        const int64_t count = static_cast<int64_t>(scratch.votes.places) * width;
        const int64_t threads = count > tiles ? count : tiles;
        return with_stored<T>(kv, [&](auto zero) {
            using S = decltype(zero);
            return launch(average_blocks<S, T>, dim3(ceil_div(threads, kMeanThreads), 1, 1), kMeanThreads, 0,
                          stream, static_cast<const S*>(kv.k), kv.k_scales, shape.head_size, width,
                          static_cast<int>(kv.rows), lists.block, count, past, tiles,
                          static_cast<T*>(scratch.means), scratch.whole);
        });
    }

    h2o_status run(Workspace pieces) const {
        const int rows = static_cast<int>(kv.rows);
        const Scratch scratch(shape, lists, rows, pieces);
        if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
        h2o_status status = shape.dtype == H2O_F16 ? average<half>(scratch) : average<float>(scratch);
        if (status != H2O_OK) return status;
        h2o_kv means{};
        means.k = scratch.means;
        means.rows = scratch.votes.places;
        means.dtype = shape.dtype;
        KeySource keys = cache_keys(shape, means, false, scratch.votes.places, own_heads(shape));
        keys.length = scratch.whole;
        status = sum_votes(shape, lists.votes, q, keys, 1, scratch.votes, stream);
        if (status != H2O_OK) return status;
        const dim3 grid(static_cast<unsigned>(shape.score_heads), static_cast<unsigned>(lists.votes.count()),
                        1);
        return launch(select_blocks, grid, kSelectThreads, sizeof(SelectionShared), stream,
                      static_cast<const float*>(scratch.votes.score), scratch.votes.places, past, rows, lists,
                      scratch.best, out);
    }
};

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

size_t workspace(const calls::BlockSelect& call) {
    const Lists lists{{call.n, call.tile, call.stride}, call.block_size, 1, 0};
    if (check_shape(&call.shape) != H2O_OK || !lists.good() || call.cap <= 0) return 0;
    Workspace room;
    Scratch scratch(call.shape, lists, call.cap, room);
    return room.used();
}

h2o_status run(const calls::BlockSelect& call) {
    const Lists lists{{call.n, call.tile, call.stride}, call.block_size, call.local, call.M - call.local};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (!lists.good() || any_null(call.q) || !call.past || !call.candidates) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.shape, call.kv, 1); status != H2O_OK) return status;
    if (const h2o_status status = check_tokens(call.shape, call.tile, call.n); status != H2O_OK)
        return status;
    const BlockSelect op{call.shape, lists, call.q, *call.kv, call.past, call.candidates, stream_of(call)};
    return op.run(Workspace(call.workspace, call.workspace_bytes));
}

}  // namespace h2o::cuda
