// BlockSelect: a tile's queries score blocks of the past by the means and variances of their keys, and the
// rows of the best blocks are the tile's candidates. An item of work is one list: a score head of a tile.
//
// A score is one product of twice the head size, [q, q^2] by [mean, variance]: so votes are summed as they
// are for keys. Means and variances (moments) are computed first, once for all tiles.

#include "rank.h"
#include "tile_votes.h"

namespace h2o {
namespace {

// Squares of queries are divided by it and variances multiplied, so that both halves of a row have numbers of
// about the same size: int8 has one scale a row.
constexpr float kBalance = 32.0f;

// One thread's arrays.
struct Own {
    float* rows;      // [max(block, votes)][2d] keys of a block, or votes of a head
    float* sums;      // [round_up(blocks, P)] probabilities of each block, summed over the votes
    uint32_t* order;  // [take_room(blocks)] bits that order like the sums
    int32_t* best;    // [blocks]
    Int8Block block;  // for sum_votes
};

struct BlockSelect {
    const calls::BlockSelect& call;

    VotingTiles votes() const { return {call.n, call.tile, call.stride}; }
    int64_t size() const { return call.block_size; }  // cache rows of a block
    int64_t sets() const { return call.shape.score_heads; }
    int64_t heads() const { return own_heads(call.shape); }
    int64_t spanned() const { return heads() / sets(); }  // that share a list
    int64_t longest() const { return *std::max_element(call.past, call.past + votes().tiles()); }
    int64_t blocks() const { return longest() / size(); }

    bool enough() const {
        for (int64_t tile = 0; tile < votes().tiles(); ++tile)
            if (call.past[tile] < call.M || call.past[tile] > call.kv->rows) return false;
        return pages_in_range(*call.kv, longest());
    }

    // The shape of moments, and of votes for them.
    h2o_shape wide() const {
        h2o_shape twice = call.shape;
        twice.head_size *= 2;
        twice.dtype = H2O_F32;
        return twice;
    }

    // out [2d] = means and variances of the keys of block `index`; rows [block][d] scratch. Variances are
    // those of the scores: times scale / 2, and balanced.
    void moments(const KernelTable* kernels, int64_t index, int64_t head, float* rows, float* out) const {
        const int64_t d = call.shape.head_size, bytes = element_size(call.kv->dtype);
        for (int64_t i = 0; i < size(); ++i) {
            const int64_t place = place_of(*call.kv, index * size() + i) * call.shape.kv_heads + head;
            const float scale = call.kv->k_scales ? call.kv->k_scales[place] : 1.0f;
            kernels->to_float(static_cast<const char*>(call.kv->k) + place * d * bytes, call.kv->dtype, d,
                              scale, rows + i * d);
        }
        const float share = 1.0f / static_cast<float>(size());
        float *const mean = out, *const variance = out + d;
        std::fill_n(out, 2 * d, 0.0f);
        for (int64_t i = 0; i < size(); ++i)
            for (int64_t c = 0; c < d; ++c) mean[c] += rows[i * d + c] * share;
        for (int64_t i = 0; i < size(); ++i) {
            for (int64_t c = 0; c < d; ++c) {
                const float apart = rows[i * d + c] - mean[c];
                variance[c] += apart * apart;
            }
        }
        for (int64_t c = 0; c < d; ++c) variance[c] *= share * kBalance * call.shape.scale / 2;
    }

    // A tile's votes of a head as float32 queries of the moments, packed: rows [votes][2d].
    Sweep spread(const h2o_cpu* context, int64_t tile, int64_t head, float* rows) const {
        const int64_t d = call.shape.head_size;
        Sweep votes = this->votes().sweep(context, call.shape, call.q, tile, heads(), spanned(), head);
        for (int64_t i = 0; i < votes.rows(); ++i) {
            float *const query = rows + i * 2 * d, *const squares = query + d;
            context->kernels->to_float(votes.q + votes.at(i) * d * element_size(call.shape.dtype),
                                       call.shape.dtype, d, 1.0f, query);
            for (int64_t c = 0; c < d; ++c) squares[c] = query[c] * query[c] / kBalance;
        }
        votes.q = reinterpret_cast<const char*>(rows);
        votes.dtype = H2O_F32;
        votes.d = 2 * d;
        votes.query_heads = votes.group;
        votes.first_head = 0;
        votes.stride = 1;
        votes.voters = 0;
        return votes;
    }

    // Lists of a head follow each other, the longest past first: so a thread packs moments once for all
    // of them.
    void item(const h2o_cpu* context, SweepScratch& scratch, const Own& own, const h2o_kv& moments,
              const Int8Keys* packed, int64_t index) const {
        const int64_t tiles = votes().tiles(), tile = tiles - 1 - index % tiles, set = index / tiles;
        const int64_t count = call.past[tile] / size();
        std::memset(own.sums, 0, static_cast<size_t>(round_up(count, kPanel)) * sizeof(float));
        for (int64_t i = 0; count > 0 && i < spanned(); ++i) {
            const int64_t head = set * spanned() + i, kv_head_of = kv_head(call.shape, heads(), head);
            Sweep votes = spread(context, tile, head, own.rows);
            votes.keys = cache_rows(wide(), kv_head_of, moments, nullptr, count);
            votes.unit = kv_head_of;
            votes.offset = count;
            sum_votes(context, votes, scratch, own.block, packed, kv_head_of, count, own.sums);
        }
        choose(call.past[tile], own, call.candidates + (tile * sets() + set) * call.M);
    }

    // The rows of the best whole blocks before the one in which the local window begins, the first block
    // always among them, of the worst only as many as are left; then all rows from that block on.
    void choose(int64_t end, const Own& own, int32_t* out) const {
        const int64_t border = end - call.local, heavy = call.M - call.local;
        const int64_t ranked = border / size(), last = ranked * size();
        const int64_t first = ranked > 0 ? std::min(size(), heavy) : 0;
        const int64_t sure = std::min(border - last, heavy - first), left = heavy - sure;
        const int64_t chosen = (left + size() - 1) / size();
        for (int64_t i = 0; i < ranked; ++i) own.order[i] = i == 0 ? UINT32_MAX : order(own.sums[i]);
        take_first_best(own.order, ranked, chosen, own.best);
        int64_t worst = 0;
        for (int64_t i = 1; i < chosen; ++i)
            if (own.order[own.best[i]] <= own.order[own.best[worst]]) worst = i;
        for (int64_t i = 0; i < chosen; ++i) {
            const int64_t rows = i == worst ? left - (chosen - 1) * size() : size();
            for (int64_t row = 0; row < rows; ++row)
                *out++ = static_cast<int32_t>(own.best[i] * size() + row);
        }
        for (int64_t i = 0; i < sure; ++i) *out++ = static_cast<int32_t>(last + i);
        for (int64_t i = 0; i < call.local; ++i) *out++ = static_cast<int32_t>(border + i);
    }

    Own carve(Carver& carver) const {
        const int64_t votes =
            (int64_t{call.tile} + call.stride - 1) / call.stride * (call.shape.query_heads / heads());
        return {carver.take<float>(std::max(size(), votes) * 2 * call.shape.head_size),
                carver.take<float>(round_up(blocks(), kPanel)), carver.take<uint32_t>(take_room(blocks())),
                carver.take<int32_t>(blocks()), Int8Block::carve(carver, 2 * call.shape.head_size)};
    }

    void run(h2o_cpu* context) const {
        const h2o_shape twice = wide();
        prepare_votes(context, twice.head_size, blocks());
        const int64_t int8_rows = votes_are_int8(context, call.shape) ? blocks() : 0;
        struct Memory {
            Own* own;          // of each thread
            float* of_blocks;  // [blocks][Hkv][2d] moments
            Int8Keys int8;
        };
        const Memory memory = carve_shared(context, [&](Carver& carver) {
            return Memory{
                carve_each(carver, context->pool.size(), [this](Carver& own) { return carve(own); }),
                carver.take<float>(blocks() * call.shape.kv_heads * twice.head_size),
                Int8Keys::carve(carver, twice, int8_rows)};
        });
        context->pool.each(blocks() * call.shape.kv_heads, [&](int64_t i, int thread) {
            moments(context->kernels, i / call.shape.kv_heads, i % call.shape.kv_heads,
                    memory.own[thread].rows, memory.of_blocks + i * twice.head_size);
        });
        h2o_kv rows{};
        rows.k = memory.of_blocks;
        rows.rows = blocks();
        rows.dtype = H2O_F32;
        for (int64_t head = 0; head < call.shape.kv_heads; ++head) memory.int8.want(head, true);
        context->pool.each(memory.int8.blocks(),
                           [&](int64_t index, int) { memory.int8.pack(context, twice, rows, index); });
        const Int8Keys* const packed = int8_rows > 0 ? &memory.int8 : nullptr;
        context->pool.each(votes().tiles() * sets(), [&](int64_t index, int thread) {
            item(context, *context->scratch[static_cast<size_t>(thread)], memory.own[thread], rows, packed,
                 index);
        });
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::BlockSelect& call) {
    h2o_cpu* const context = cpu_of(call);
    const BlockSelect op{call};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || !op.votes().good() || op.votes().tiles() != call.t) return H2O_BAD_ARGUMENT;
    if (call.block_size <= 0 || call.local < 0 || call.M < call.local || call.M <= 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.past || !call.candidates) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(call.kv, 1); status != H2O_OK) return status;
    if (call.kv->rows > INT32_MAX || !op.enough()) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] { op.run(context); });
}

}  // namespace h2o::cpu
