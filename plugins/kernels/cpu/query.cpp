// QuerySelect: some of a tile's queries score the rows of the past, and the best are the tile's memory. An
// item of work is one score head of one tile. Scores are column sums, and no value is read.
#include <cstdlib>

#include "rank.h"
#include "sweep.h"

namespace h2o {
namespace {

struct Query {
    const h2o_shape& shape;
    const h2o_tiles& sizes;
    const void* q;
    const h2o_kv& kv;
    const int32_t* candidates;
    const int64_t* past;
    int32_t* memory_next;

    int64_t heads() const { return shape.score_heads; }
    bool listed() const { return sizes.candidates > 0; }

    const int32_t* list(int64_t tile, int64_t head) const {
        return listed() ? candidates + (tile / sizes.share * heads() + head) * sizes.candidates : nullptr;
    }
    int64_t keys(int64_t tile) const { return listed() ? sizes.candidates : past[tile]; }
    int64_t most_keys() const {
        return listed() ? sizes.candidates : *std::max_element(past, past + sizes.tiles);
    }
    // How many of the rows that the tile looks at lie before its local window; they are the first ones.
    int64_t early(int64_t tile, int64_t head) const {
        const int64_t border = past[tile] - sizes.local;
        const int32_t* const rows = list(tile, head);
        return listed() ? std::lower_bound(rows, rows + sizes.candidates, border) - rows : border;
    }
    bool enough() const {
        for (int64_t tile = 0; tile < sizes.tiles; ++tile) {
            if (past[tile] < sizes.slots || past[tile] > kv.rows) return false;
            for (int64_t head = 0; listed() && head < heads(); ++head) {
                if (list(tile, head)[sizes.candidates - 1] >= past[tile]) return false;
                if (early(tile, head) < sizes.slots - sizes.local) return false;
            }
        }
        return true;
    }

    // Tiles that look at the same rows follow each other, those that see the most first: so a thread packs
    // keys once for all of them.
    void item(const h2o_cpu* context, SweepScratch& scratch, char* own, int64_t index) const {
        const int64_t together = listed() ? sizes.share : sizes.tiles;
        const int64_t group = index / (together * heads()), within = index % (together * heads());
        const int64_t tile = group * together + together - 1 - within % together;
        if (tile >= sizes.tiles) return;
        const int64_t head = within / together;
        Carver carver(own);
        float* const sums = carver.take<float>(most_keys());
        score(context, scratch, group * heads() + head, tile, head, sums);
        choose(tile, head, sums, carver.take<uint64_t>(rank_room(most_keys())));
    }

    void score(const h2o_cpu* context, SweepScratch& scratch, int64_t unit, int64_t tile, int64_t head,
               float* sums) const {
        const int64_t count = keys(tile);
        const int64_t first = tile * sizes.tile, rows = std::min(sizes.tile, sizes.n - first);
        const int64_t row = shape.query_heads * shape.head_size * element_size(shape.dtype);
        Sweep votes = head_sweep(context, shape, heads(), head, static_cast<const char*>(q) + first * row,
                                 (rows + sizes.stride - 1) / sizes.stride);
        votes.query_heads *= sizes.stride;  // from one vote to the next
        votes.keys =
            cache_rows(shape, kv_head(shape, heads(), head), keys_alone(kv), list(tile, head), count);
        votes.total_keys = votes.offset = votes.key_block = count;
        votes.unit = unit;
        std::memset(scratch.colsum, 0, static_cast<size_t>(count * kColsumLanes) * sizeof(float));
        votes.run(scratch, 0, votes.blocks(), 0, count, true, [](int64_t, int64_t) {});
        std::memset(sums, 0, static_cast<size_t>(count) * sizeof(float));
        context->kernels->sum_lanes(scratch.colsum, count, sums);
    }

    // What place i has with a quarter of what its neighbours have.
    float with_neighbours(const float* sums, const int32_t* rows, int64_t i, int64_t count) const {
        const auto near = [&](int64_t j) {
            return std::abs(listed() ? int64_t{rows[j]} - rows[i] : j - i) <= sizes.reach;
        };
        float beside = 0.0f;
        for (int64_t j = i - 1; j >= 0 && near(j); --j) beside += sums[j];
        for (int64_t j = i + 1; j < count && near(j); ++j) beside += sums[j];
        return sums[i] + 0.25f * beside;
    }

    void choose(int64_t tile, int64_t head, const float* sums, uint64_t* ranks) const {
        const int64_t border = past[tile] - sizes.local, best = sizes.slots - sizes.local;
        const int32_t* const rows = list(tile, head);
        const int64_t count = early(tile, head);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = listed() ? rows[i] : i;
            ranks[i] = rank(with_neighbours(sums, rows, i, keys(tile)), at, at < sizes.sink);
        }
        int32_t* const out = memory_next + (tile * heads() + head) * sizes.slots;
        take_best(ranks, count, best, out);
        for (int64_t i = 0; i < sizes.local; ++i) out[best + i] = static_cast<int32_t>(border + i);
    }

    void run(h2o_cpu* context) const {
        const SweepSize size{shape.head_size, most_keys(), 1, false, true};
        prepare(context, size, context->scratch.data());
        Carver measure(nullptr);
        measure.take<float>(most_keys());
        measure.take<uint64_t>(rank_room(most_keys()));
        char* const shared = context->shared.at_least(measure.used() * context->own.size());
        const int64_t together = listed() ? sizes.share : sizes.tiles;
        const int64_t groups = (sizes.tiles + together - 1) / together;
        context->pool.each(groups * together * heads(), [&](int64_t index, int thread) {
            const size_t own = static_cast<size_t>(thread);
            item(context, *context->scratch[own], shared + own * measure.used(), index);
        });
    }
};

bool good(const h2o_tiles& sizes) {
    if (sizes.n <= 0 || sizes.tile <= 0 || sizes.stride <= 0 || sizes.share <= 0 || sizes.reach < 0)
        return false;
    if (sizes.tiles != (sizes.n + sizes.tile - 1) / sizes.tile || sizes.candidates < 0) return false;
    if (sizes.candidates > 0 && sizes.lists * sizes.share < sizes.tiles) return false;
    return sizes.local >= 0 && sizes.slots >= sizes.local && sizes.slots > 0 && sizes.sink >= 0;
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_query_select(h2o_cpu* context, const h2o_shape* shape, const h2o_tiles* tiles,
                                const void* q, const h2o_kv* kv, const int32_t* candidates,
                                const int64_t* past, int32_t* memory_next) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || tiles == nullptr || !h2o::good(*tiles)) return H2O_BAD_ARGUMENT;
    if (!q || !past || !memory_next) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(kv, 1); status != H2O_OK) return status;
    const int64_t listed = tiles->lists * shape->score_heads * tiles->candidates;
    if (tiles->candidates > 0 && (!candidates || !h2o::rows_in_range(*kv, candidates, listed)))
        return H2O_BAD_ARGUMENT;
    const h2o::Query op{*shape, *tiles, q, *kv, candidates, past, memory_next};
    if (kv->rows > INT32_MAX || !op.enough()) return H2O_BAD_ARGUMENT;
    if (tiles->candidates == 0 && !h2o::pages_in_range(*kv, op.most_keys())) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context, [&] { op.run(context); });
}
