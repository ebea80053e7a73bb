#include "attention.h"
#include "numbers.cuh"
#include "ptx.cuh"
#include "scores.cuh"
#include "tile_votes.h"
#include "vote_sample.cuh"

namespace h2o::cuda {
namespace {

constexpr int kCopyThreads = 256;
constexpr int kStateThreads = 128;

// votes [tiles * votes_of_whole] = a row of q for each stride of rows, for each of the `group` query heads
// that vote together another one. If the last tile has fewer, the rest are its last row.
__global__ void __launch_bounds__(kCopyThreads)
    take_votes(const uint4* q, VotingTiles tiles, int votes, int group, int64_t head_pieces,
               int64_t row_pieces, int64_t count, uint4* out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
    if (i >= count) return;
    const int vote = static_cast<int>(i / row_pieces);
    const int64_t piece = i - vote * row_pieces;
    const int64_t row = tiles.row(vote / votes, vote % votes, static_cast<int>(piece / head_pieces), group);
    out[i] = __ldg(q + row * row_pieces + piece);
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

// m, l [votes, Hq] = the state of each vote over the sample of its keys (vote_sample.cuh), the first of them
// and its own rows. A warp has a vote of one head, and a lane every 32nd of these keys. A whole tile has
// `votes`. `together` heads vote together; `group` read the same keys.
template <class T, class S>
__global__ void __launch_bounds__(kStateThreads)
    sampled_states(const T* q, VotingTiles tiles, int votes, OwnRows own, KeySource keys, Scores scores,
                   int heads, int together, int group, int d, int64_t count, float* m, float* l) {
    const int64_t item = (static_cast<int64_t>(blockIdx.x) * kStateThreads + threadIdx.x) / 32;
    if (item >= count) return;  // the whole warp
    const int vote = static_cast<int>(item / heads), head = static_cast<int>(item % heads);
    const int tile = vote / votes, start = tile * tiles.tile, set = head / group;
    const int row = tiles.row(tile, vote % votes, head, together);
    const T* const query = q + (static_cast<int64_t>(row) * heads + head) * d;

    const SetRows<S> rows = set_keys<S>(keys, set, 0);
    const int64_t number = (static_cast<int64_t>(tile) * (heads / group) + set) / keys.sets_per_list;
    const int32_t* const list = keys.memory ? keys.memory + number * keys.keys : nullptr;
    const VoteSample sample(keys.length ? bounded(keys.length[tile], 1, keys.keys) : keys.keys, 1);
    const int shift = own.past ? own.begin(tile) - sample.count : 0;
    const int last_row = own.past ? own.last_row : sample.count - 1;
    const int seen = sample.end + (own.past ? own.before_tile(tile) + row - start + 1 : 0);
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x % 32; i < seen; i += 32) {
        const int place = sample.place(i);
        const int at = row_within(place >= sample.count ? place + shift
                                  : list                ? list[place]
                                                        : place,
                                  last_row);
        const S* const key = rows.row(at);
        float product = 0;
        for (int c = 0; c < d; ++c) product = fmaf(to_float(query[c]), to_float(key[c]), product);
        const float score = capped(scores, product * rows.scale(at)) * scores.scale;
        if (score > top) {
            sum *= expf(top - score);
            top = score;
        }
        sum += expf(score - top) * (i < sample.begin ? kSampleWeight : 1.f);
    }
    const float most = lanes_max<32>(top), total = lanes_sum<32>(sum * expf(top - most));
    if (threadIdx.x % 32 != 0) return;
    m[item] = most;
    l[item] = total;
}

template <class T>
h2o_status find_states(const h2o_shape& shape, const VotingTiles& tiles, const void* q, const KeySource& keys,
                       const OwnRows& own, const VoteScratch& scratch, cudaStream_t stream) {
    const int64_t count = static_cast<int64_t>(tiles.votes()) * shape.query_heads;
    return with_stored<T>(keys.dtype, [&](auto zero) {
        return launch(sampled_states<T, decltype(zero)>, dim3(ceil_div(count * 32, kStateThreads), 1, 1),
                      kStateThreads, 0, stream, static_cast<const T*>(q), tiles, tiles.votes_of_whole(), own,
                      keys, scores_of(shape), shape.query_heads, shape.query_heads / shape.score_heads,
                      shape.query_heads / own_heads(shape), shape.head_size, count, scratch.m, scratch.l);
    });
}

}  // namespace

VoteScratch::VoteScratch(const h2o_shape& shape, const VotingTiles& tiles, Voted voted, int most_keys,
                         Workspace& workspace)
    : places(most_keys),
      on_tensor_cores(votes_on_tensor_cores(shape, voted)),
      pieces(vote_pieces(shape, tiles, on_tensor_cores)) {
    score = workspace.take<float>(static_cast<int64_t>(tiles.count()) * shape.score_heads * pieces * places);
    if (on_tensor_cores) return;
    const int64_t rows = static_cast<int64_t>(tiles.count()) * tiles.votes_of_whole() * shape.query_heads;
    const int64_t row = static_cast<int64_t>(shape.head_size) * element_bytes(shape.dtype);
    if (tiles.stride > 1) votes = workspace.take<unsigned char>(rows * row);
    m = workspace.take<float>(rows);
    l = workspace.take<float>(rows);
}

h2o_status sum_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q, const KeySource& keys,
                     const OwnRows& own, const VoteScratch& scratch, cudaStream_t stream) {
    const bool all = tiles.stride == 1;
    h2o_status status = all ? H2O_OK : copy_votes(shape, tiles, q, scratch, stream);
    if (status != H2O_OK) return status;
    status = shape.dtype == H2O_F16 ? find_states<half>(shape, tiles, q, keys, own, scratch, stream)
                                    : find_states<float>(shape, tiles, q, keys, own, scratch, stream);
    if (status != H2O_OK) return status;
    RowSource voters = rows_of(shape, all ? q : scratch.votes, tiles.votes(), own_heads(shape));
    voters.tile = tiles.votes_of_whole();
    ColumnSumArgs sums = column_sums_of(shape, voters, keys);
    sums.m = scratch.m;
    sums.l = scratch.l;
    sums.at_most_one = true;
    sums.out = scratch.score;
    sums.key_stride = 1;
    sums.set_stride = scratch.places;
    sums.spanned = own_heads(shape) / shape.score_heads;
    sums.split_stride = static_cast<int64_t>(shape.score_heads) * scratch.places;
    return launch_column_sums(sums, stream);
}

}  // namespace h2o::cuda
