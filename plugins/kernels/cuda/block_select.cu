// BlockSelect: some of a tile's queries (its votes) score blocks of the past by the means and variances of
// their keys, and the rows of the best blocks become the tile's candidates.
//
// A block's score is scale * (q mean) + scale^2 / 2 * sum(q^2 variance): of log(mean(exp(scale * q k))) over
// its keys k the expansion to the second order, with a diagonal covariance. So it is one product of twice the
// head size, [q, scale / 2 * q^2] by [mean, variance]. One launch computes these moments of all whole blocks,
// which reads the keys once for all tiles, and another writes the voting queries of all tiles in that form.
// In float16 two others do the rest (choose_by_votes.cuh): votes sum as for single keys, and blocks are
// ranked, not their rows.
//
// Floor: 4 * d FLOP for each (vote, block) of a pass, with blocks of 32 a sixteenth of those for single keys;
// the keys once, 2 bytes a number in float16.

#include "choose_by_votes.cuh"
#include "numbers.cuh"
#include "pieces.cuh"

namespace h2o::cuda {
namespace {

constexpr int kMomentThreads = 128;

struct Lists {
    VotingTiles votes;
    int block;  // cache rows of a block
    int local;  // most recent cache rows, which every list has
    int heavy;  // other cache rows of a list: M - local

    bool good() const { return votes.good() && block > 0 && local >= 0 && heavy >= 0 && local + heavy > 0; }
};

// Variances and squares may be beyond the largest half.
__device__ __forceinline__ void put_within(float* to, float x) {
    *to = x;
}
__device__ __forceinline__ void put_within(half* to, float x) {
    put(to, fminf(x, 65504.f));
}

// moments [places, Hkv, 2d] = the means, then the variances, of all whole blocks below the longest past;
// zeros for block 0 if there is none. whole [tiles] = a tile's whole blocks. A thread has COUNT numbers of a
// mean, 16 bytes of it, in one of `count` places; it reads as many of each row at once. width = Hkv * d.
//
// One pass: sums are of distances from the block's first row. Its own distance from the mean is at most
// sqrt(block) deviations, so that little is cancelled, whatever the mean is.
template <class S, class T, int COUNT = kPieceWidth<T>>
__global__ void __launch_bounds__(kMomentThreads)
    find_moments(const S* k, const float* scales, int d, int width, int rows, int block, int64_t count,
                 const int64_t* past, int tiles, T* moments, int64_t* whole) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kMomentThreads + threadIdx.x;
    int longest = 0;
    for (int tile = 0; tile < tiles; ++tile) longest = max(longest, bounded(past[tile], 0, rows));
    if (i < tiles) whole[i] = bounded(past[i], 0, rows) / block;
    if (i >= count) return;
    const int64_t first = i * COUNT, index = first / width;
    if (index >= max(longest / block, 1)) return;
    const int summed = index < longest / block ? block : 0;
    // Numbers of a row, less those that are given.
    const auto less = [&](int row, float (&numbers)[COUNT]) {
        const int64_t at = (index * block + row) * width + first % width;
        const auto piece = load_piece<COUNT>(k + at);
        const float scale = sizeof(S) == 1 ? scales[at / d] : 1.f;
#pragma unroll
        for (int j = 0; j < COUNT; ++j) numbers[j] = fmaf(to_float(piece.of[j]), scale, -numbers[j]);
    };
    float origin[COUNT] = {}, sum[COUNT] = {}, squares[COUNT] = {};
    if (summed > 0) less(0, origin);
#pragma unroll 8
    for (int row = 1; row < summed; ++row) {
        float apart[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; ++j) apart[j] = origin[j];
        less(row, apart);
#pragma unroll
        for (int j = 0; j < COUNT; ++j) {
            sum[j] += apart[j];
            squares[j] = fmaf(apart[j], apart[j], squares[j]);
        }
    }
    Piece<T, COUNT> mean, variance;
    const float all = static_cast<float>(block);
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
        const float shift = sum[j] / all;
        put(mean.of + j, origin[j] + shift);
        put_within(variance.of + j, fmaxf(squares[j] / all - shift * shift, 0.f));
    }
    T* const to = moments + first / d * 2 * d + first % d;
    store_piece(to, mean);
    store_piece(to + d, variance);
}

// out [votes, Hq, 2d] = the voting rows of q, then scale / 2 times their squares. `together` heads vote for
// the same sums; a whole tile has `votes`.
template <class T, int COUNT = kPieceWidth<T>>
__global__ void __launch_bounds__(kMomentThreads)
    spread_votes(const T* q, VotingTiles tiles, int votes, int heads, int together, int d, float scale,
                 int64_t count, T* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kMomentThreads + threadIdx.x;
    if (i >= count) return;
    const int64_t number = i * COUNT / d, c = i * COUNT % d;  // of [votes, Hq], and of a head
    const int vote = static_cast<int>(number / heads), head = static_cast<int>(number % heads);
    const int64_t row = tiles.row(vote / votes, vote % votes, head, together);
    const auto query = load_piece<COUNT>(q + (row * heads + head) * d + c);
    Piece<T, COUNT> squares;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
        const float x = to_float(query.of[j]);
        put_within(squares.of + j, scale / 2 * x * x);
    }
    T* const to = out + number * 2 * d + c;
    store_piece(to, query);
    store_piece(to + d, squares);
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

// Of moments, and of votes for them.
h2o_shape wide(const h2o_shape& shape) {
    h2o_shape twice = shape;
    twice.head_size *= 2;
    return twice;
}

struct Scratch {
    VotingTiles spread;  // all of whose rows vote
    VoteScratch votes;
    void* rows;      // [votes, Hq, 2d] of shape.dtype: voting queries and their squares
    void* moments;   // [places, Hkv, 2d] of shape.dtype: means and variances
    int64_t* whole;  // [tiles] whole blocks below a tile's past
    int32_t* best;   // [tiles, Hs, places] selected blocks, rising

    Scratch(const h2o_shape& shape, const Lists& lists, int capacity, Workspace& workspace)
        : spread{lists.votes.votes(), lists.votes.votes_of_whole(), 1},
          votes(wide(shape), spread, Voted::kRows, capacity < lists.block ? 1 : capacity / lists.block,
                workspace) {
        const int64_t width = 2 * shape.head_size * static_cast<int64_t>(element_bytes(shape.dtype));
        rows = workspace.take<unsigned char>(static_cast<int64_t>(spread.n) * shape.query_heads * width);
        moments = workspace.take<unsigned char>(static_cast<int64_t>(votes.places) * shape.kv_heads * width);
        whole = workspace.take<int64_t>(lists.votes.count());
        best = workspace.take<int32_t>(static_cast<int64_t>(lists.votes.count()) * shape.score_heads *
                                       votes.places);
    }
};

struct BlockSelect {
    const calls::BlockSelect& call;
    Lists lists;

    template <class T>
    h2o_status prepare(const Scratch& scratch) const {
        const h2o_shape& shape = call.shape;
        const h2o_kv& kv = *call.kv;
        constexpr int kCount = kPieceWidth<T>;
        const int d = shape.head_size, width = shape.kv_heads * d, tiles = lists.votes.count();
        const int64_t queries = static_cast<int64_t>(scratch.spread.n) * shape.query_heads * d / kCount;
        const h2o_status status =
            launch(spread_votes<T>, dim3(ceil_div(queries, kMomentThreads), 1, 1), kMomentThreads, 0,
                   stream_of(call), static_cast<const T*>(call.q), lists.votes, lists.votes.votes_of_whole(),
                   shape.query_heads, shape.query_heads / shape.score_heads, d, shape.scale, queries,
                   static_cast<T*>(scratch.rows));
        if (status != H2O_OK) return status;
        const int64_t count = static_cast<int64_t>(scratch.votes.places) * width / kCount;
        const int64_t threads = count > tiles ? count : tiles;
        return with_stored<T>(kv.dtype, [&](auto zero) {
            using S = decltype(zero);
            return launch(find_moments<S, T>, dim3(ceil_div(threads, kMomentThreads), 1, 1), kMomentThreads,
                          0, stream_of(call), static_cast<const S*>(kv.k), kv.k_scales, d, width,
                          static_cast<int>(kv.rows), lists.block, count, call.past, tiles,
                          static_cast<T*>(scratch.moments), scratch.whole);
        });
    }

    h2o_status run() const {
        const h2o_shape& shape = call.shape;
        Workspace pieces(call.workspace, call.workspace_bytes);
        const int rows = static_cast<int>(call.kv->rows);
        const Scratch scratch(shape, lists, rows, pieces);
        if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
        const h2o_status status = shape.dtype == H2O_F16 ? prepare<half>(scratch) : prepare<float>(scratch);
        if (status != H2O_OK) return status;
        const h2o_shape twice = wide(shape);
        h2o_kv moments{};
        moments.k = scratch.moments;
        moments.rows = scratch.votes.places;
        moments.dtype = shape.dtype;
        KeySource keys = cache_keys(twice, moments, false, scratch.votes.places, own_heads(shape));
        keys.length = scratch.whole;
        const BestBlocks choice{lists, call.past, rows, scratch.votes.places, scratch.best, call.candidates};
        return choose_by_votes(twice, scratch.spread, scratch.rows, keys, {}, 1, scratch.votes, choice,
                               stream_of(call));
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
    return BlockSelect{call, lists}.run();
}

}  // namespace h2o::cuda
