#include "attention.h"
#include "numbers.cuh"
#include "parts.h"
#include "ptx.cuh"
#include "scores.cuh"
#include "tile_votes.h"

namespace h2o::cuda {
namespace {

constexpr int kKeysAPart = 128;
constexpr int kMaxParts = 16;
constexpr int kCopyThreads = 256;
constexpr int kOwnThreads = 128;

// votes [tiles * votes_of_whole] = a row of q for each stride of rows, for each of the `group` query heads
// that vote together another one. If the last tile has fewer, the rest keep their old contents.
__global__ void __launch_bounds__(kCopyThreads)
    take_votes(const uint4* q, VotingTiles tiles, int votes, int group, int64_t head_pieces,
               int64_t row_pieces, int64_t count, uint4* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
    if (i >= count) return;
    const int64_t vote = i / row_pieces;
    const int64_t start = vote / votes * tiles.tile, run = start + vote % votes * tiles.stride;
    if (run >= tiles.n) return;
    const int64_t piece = i - vote * row_pieces, head = piece / head_pieces % group;
    const int64_t end = start + tiles.tile < tiles.n ? start + tiles.tile : tiles.n;
    const int64_t own = run + head * tiles.stride / group;
    out[i] = __ldg(q + (own < end ? own : end - 1) * row_pieces + piece);
}

h2o_status copy_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                      const VoteScratch& scratch, cudaStream_t stream) {
    const int64_t head_pieces = pieces_of(shape, shape.head_size);
    const int64_t row_pieces = shape.query_heads * head_pieces;
    const int64_t count = tiles.count() * tiles.votes_of_whole() * row_pieces;
    return launch(take_votes, dim3(ceil_div(count, kCopyThreads), 1, 1), kCopyThreads, 0, stream,
                  static_cast<const uint4*>(q), tiles, tiles.votes_of_whole(),
                  static_cast<int>(shape.query_heads / shape.score_heads), head_pieces, row_pieces, count,
                  static_cast<uint4*>(scratch.votes));
}

// m, l [votes, Hq] = the state of each vote over its own rows. A warp owns a vote of one head, and a lane
// every 32nd of its rows. A whole tile has `votes`. `together` heads vote together; `group` read the same
// keys.
template <class T, class S>
__global__ void __launch_bounds__(kOwnThreads)
    own_states(const T* q, VotingTiles tiles, int votes, OwnRows own, KeySource keys, Scores scores,
               int heads, int together, int group, int d, int64_t count, float* m, float* l) {
    const int64_t item = (static_cast<int64_t>(blockIdx.x) * kOwnThreads + threadIdx.x) / 32;
    if (item >= count) return;  // the whole warp
    const int vote = static_cast<int>(item / heads), head = static_cast<int>(item % heads);
    const int tile = vote / votes, start = tile * tiles.tile;
    const int last = min(start + tiles.tile, tiles.n) - 1;
    const int run = start + vote % votes * tiles.stride;
    const int row = min(run + head % together * tiles.stride / together, last);
    const T* const query = q + (static_cast<int64_t>(row) * heads + head) * d;
    const SetRows<S> rows = set_keys<S>(keys, head / group, 0);
    const int begin = own.begin(tile), seen = own.before_tile(tile) + row - start + 1;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x % 32; i < seen; i += 32) {
        const int at = row_within(begin + i, own.last_row);
        const S* const key = rows.row(at);
        float product = 0;
        for (int c = 0; c < d; ++c) product = fmaf(to_float(query[c]), to_float(key[c]), product);
        const float score = capped(scores, product * rows.scale(at)) * scores.scale;
        if (score > top) {
            sum *= expf(top - score);
            top = score;
        }
        sum += expf(score - top);
    }
    const float most = lanes_max<32>(top), total = lanes_sum<32>(sum * expf(top - most));
    if (threadIdx.x % 32 != 0) return;
    m[item] = most;
    l[item] = total;
}

template <class T>
h2o_status find_own_states(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                           const KeySource& keys, const OwnRows& own, float* m, float* l,
                           cudaStream_t stream) {
    const int64_t count = static_cast<int64_t>(tiles.votes()) * shape.query_heads;
    const auto run = [&](auto zero) {
        return launch(own_states<T, decltype(zero)>, dim3(ceil_div(count * 32, kOwnThreads), 1, 1),
                      kOwnThreads, 0, stream, static_cast<const T*>(q), tiles, tiles.votes_of_whole(), own,
                      keys, scores_of(shape), shape.query_heads, shape.query_heads / shape.score_heads,
                      shape.query_heads / own_heads(shape), shape.head_size, count, m, l);
    };
    if (keys.dtype == H2O_I8) return run(int8_t{});
    if (keys.dtype == H2O_F16) return run(half{});
    if constexpr (sizeof(T) == 4) return run(0.f);
    return H2O_UNSUPPORTED;
}

}  // namespace

VoteScratch::VoteScratch(const h2o_shape& shape, const VotingTiles& tiles, int most_keys,
                         Workspace& workspace)
    : places(most_keys), pieces(vote_pieces(shape, tiles)) {
    score = workspace.take<float>(static_cast<int64_t>(tiles.count()) * shape.score_heads * pieces * places);
    if (votes_on_tensor_cores(shape)) return;
    while (parts < kMaxParts && 2 * parts * kKeysAPart <= places && 2 * parts * tiles.count() <= kMaxGridYZ)
        parts *= 2;  // a power of two
    const int64_t rows = static_cast<int64_t>(tiles.count()) * tiles.votes_of_whole() * shape.query_heads;
    const int64_t row = static_cast<int64_t>(shape.head_size) * element_bytes(shape.dtype);
    votes = workspace.take<unsigned char>(rows * row);
    m_parts = workspace.take<float>((parts + 1) * rows);
    l_parts = workspace.take<float>((parts + 1) * rows);
    m = workspace.take<float>(rows);
    l = workspace.take<float>(rows);
}

h2o_status sum_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q, const KeySource& keys,
                     const OwnRows& own, const VoteScratch& scratch, cudaStream_t stream) {
    h2o_status status = copy_votes(shape, tiles, q, scratch, stream);
    if (status != H2O_OK) return status;
    const int votes = tiles.votes();
    RowSource voters = rows_of(shape, scratch.votes, votes, own_heads(shape));
    voters.tile = tiles.votes_of_whole();
    AttentionArgs attention = attention_of(shape, voters, keys);
    attention.splits = scratch.parts;
    attention.partial_m = scratch.m_parts;
    attention.partial_l = scratch.l_parts;
    status = launch_attention(attention, stream);
    if (status != H2O_OK) return status;
    const int64_t rows = static_cast<int64_t>(votes) * shape.query_heads;
    if (own.past) {
        float *const m = scratch.m_parts + scratch.parts * rows, *const l =
                                                                     scratch.l_parts + scratch.parts * rows;
        status = shape.dtype == H2O_F16 ? find_own_states<half>(shape, tiles, q, keys, own, m, l, stream)
                                        : find_own_states<float>(shape, tiles, q, keys, own, m, l, stream);
        if (status != H2O_OK) return status;
    }
    status = launch_combine_states(scratch.m_parts, scratch.l_parts, scratch.parts + (own.past ? 1 : 0), rows,
                                   scratch.m, scratch.l, stream);
    if (status != H2O_OK) return status;
    ColumnSumArgs sums = column_sums_of(shape, voters, attention.keys);
    sums.m = scratch.m;
    sums.l = scratch.l;
    sums.out = scratch.score;
    sums.key_stride = 1;
    sums.set_stride = scratch.places;
    sums.spanned = own_heads(shape) / shape.score_heads;
    sums.split_stride = static_cast<int64_t>(shape.score_heads) * scratch.places;
    return launch_column_sums(sums, stream);
}

}  // namespace h2o::cuda
