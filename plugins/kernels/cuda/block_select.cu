// BlockSelect: some of a tile's queries (its votes) score the mean keys of blocks of the past, and the rows
// of the best blocks become the tile's candidates.
//
// One launch computes the means of all whole blocks, which reads the keys once for all tiles. In float16
// two others do the rest (choose_by_votes.cuh), over an eighth of the rows if a block has eight: votes sum as
// for single keys, and blocks are ranked, not their rows.

#include "choose_by_votes.cuh"
#include "numbers.cuh"

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

template <class S, int COUNT>
struct alignas(COUNT * sizeof(S)) Piece {
    S numbers[COUNT];
};

// means [places, width] = those of all whole blocks below the longest past; zeros for block 0 if there is
// none. whole [tiles] = a tile's whole blocks. A thread has COUNT numbers of a mean, 16 bytes of it, in one
// of `count` places; it reads as many of each row at once.
template <class S, class T, int COUNT = 16 / static_cast<int>(sizeof(T))>
__global__ void __launch_bounds__(kMeanThreads)
    average_blocks(const S* k, const float* scales, int d, int width, int rows, int block, int64_t count,
                   const int64_t* past, int tiles, T* means, int64_t* whole) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kMeanThreads + threadIdx.x;
    int longest = 0;
    for (int tile = 0; tile < tiles; ++tile) longest = max(longest, bounded(past[tile], 0, rows));
    if (i < tiles) whole[i] = bounded(past[i], 0, rows) / block;
    if (i >= count) return;
    const int64_t first = i * COUNT, index = first / width;
    if (index >= max(longest / block, 1)) return;
    float sum[COUNT] = {};
#pragma unroll 8
    for (int row = 0; row < block && index < longest / block; ++row) {
        const int64_t at = (index * block + row) * width + first % width;
        const auto piece = *reinterpret_cast<const Piece<S, COUNT>*>(k + at);
        const float scale = sizeof(S) == 1 ? scales[at / d] : 1.f;
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sum[j] = fmaf(to_float(piece.numbers[j]), scale, sum[j]);
    }
    Piece<T, COUNT> mean;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) put(mean.numbers + j, sum[j] / static_cast<float>(block));
    *reinterpret_cast<Piece<T, COUNT>*>(means + first) = mean;
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
struct BestBlocks {
    static constexpr size_t kSharedBytes = sizeof(SelectionShared);
    Lists lists;
    const int64_t* past;  // [t] cache rows that come before each tile
    int rows;             // of the cache
    int places;
    int32_t* best;  // [t, Hs, places] scratch: selected blocks, rising
    int32_t* out;   // [t, Hs, M] cache rows, rising

    template <int THREADS>
    __device__ void choose(const float* sums, int tile, int head, int heads, unsigned char* memory) const {
        SelectionShared& shared = *reinterpret_cast<SelectionShared*>(memory);
        const int block = lists.block, heavy = lists.heavy;
        const int64_t list = static_cast<int64_t>(tile) * heads + head;
        int32_t* const chosen_blocks = best + list * places;
        int32_t* const to = out + list * (lists.local + heavy);
        const int border = bounded(past[tile], lists.local, rows) - lists.local;
        const int ranked = min(border / block, places);
        const int first = ranked > 0 ? min(block, heavy) : 0;
        const int sure = min(border - ranked * block, heavy - first), left = heavy - sure;
        const int chosen = min((left + block - 1) / block, ranked);
        const RankedBlocks all{sums};
        if (threadIdx.x == 0) shared.lowest = 0xffffffffu, shared.worst = 0;
        __syncthreads();
        take_best_by<THREADS>(all, ranked, chosen, shared.select, [&](int place, int at) {
            chosen_blocks[place] = at;
            atomicMin(&shared.lowest, all.bits(at));
        });
        __syncthreads();
        for (int i = threadIdx.x; i < chosen; i += THREADS)
            if (all.bits(chosen_blocks[i]) == shared.lowest) atomicMax(&shared.worst, i);
        __syncthreads();
        const int without = max(chosen * block - left, 0);  // rows of the worst block that find no place
        for (int i = threadIdx.x; i < chosen * block; i += THREADS) {
            const int place = i / block, row = i - place * block;
            if (place == shared.worst && row >= block - without) continue;
            to[i - (place > shared.worst ? without : 0)] = chosen_blocks[place] * block + row;
        }
        for (int i = threadIdx.x; i < sure; i += THREADS) to[left + i] = ranked * block + i;
        for (int i = threadIdx.x; i < lists.local; i += THREADS) to[heavy + i] = border + i;
    }
};

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
        const int64_t count =
            static_cast<int64_t>(scratch.votes.places) * width * static_cast<int64_t>(sizeof(T)) / 16;
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
        const h2o_status status = shape.dtype == H2O_F16 ? average<half>(scratch) : average<float>(scratch);
        if (status != H2O_OK) return status;
        h2o_kv means{};
        means.k = scratch.means;
        means.rows = scratch.votes.places;
        means.dtype = shape.dtype;
        KeySource keys = cache_keys(shape, means, false, scratch.votes.places, own_heads(shape));
        keys.length = scratch.whole;
        const BestBlocks choice{lists, past, rows, scratch.votes.places, scratch.best, out};
        return choose_by_votes(shape, lists.votes, q, keys, {}, 1, scratch.votes, choice, stream);
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
