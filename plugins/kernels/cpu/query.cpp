// QuerySelect: some of a tile's queries score the rows of the past, and the best are the tile's memory. An
// item of work is one head of one tile: a score head; or one of the key/value heads that it spans, whose sums
// wait until those of the others are there. No value is read.
//
// The keys of an item are the rows of the past, and behind them the own rows: those of the tile's chunk up to
// its end, of which a query sees the ones up to itself. They take part in its softmax and get no sums.

#include <numeric>

#include "rank.h"
#include "tile_votes.h"

namespace h2o {
namespace {

constexpr int64_t kNearBlock = 512;  // places whose neighbours are added up at a time

// out[i] += sums[i] where the rows low[i] < high[i] are within reach of each other. Gaps are as if at random:
// a branch would be guessed wrong.
inline void add_near(const float* __restrict sums, const int32_t* low, const int32_t* high, int64_t count,
                     int64_t reach, float* __restrict out) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(reach, INT32_MAX));
    for (int64_t i = 0; i < count; ++i) {
        const float sum = sums[i];
        out[i] += high[i] - low[i] <= most ? sum : 0.0f;
    }
}

// One thread's arrays.
struct Own {
    int32_t* rows;    // [keys] candidates and own rows; unused without candidates
    float* sums;      // [room] probabilities of each key, summed over the votes
    float* scores;    // [keys] these, with a quarter of what the rows within reach have
    float* of_power;  // [kNearBlock + reach] sums of runs of rows
    uint32_t* order;  // [take_room(keys)] bits that order like the scores
    Int8Block block;  // for sum_votes
};

struct Query {
    const calls::QuerySelect& call;

    VotingTiles votes() const { return {call.n, call.tile, call.stride}; }
    int64_t sets() const { return call.shape.score_heads; }
    int64_t heads() const { return own_heads(call.shape); }
    int64_t spanned() const { return heads() / sets(); }  // that share a memory set
    int64_t alike() const {
        return std::gcd(heads() / call.Hl, heads() / call.shape.kv_heads);
    }  // that share keys
    bool listed() const { return call.Mp > 0; }

    const int32_t* list(int64_t tile, int64_t set) const {
        const int64_t of_tile = tile * call.Hl + set / (sets() / call.Hl);
        return listed() ? call.candidates + of_tile * call.Mp : nullptr;
    }
    int64_t looked_at(int64_t tile) const { return listed() ? call.Mp : call.past[tile]; }
    int64_t end(int64_t tile) const {
        return call.first[tile] + votes().rows(tile);
    }  // its last row's, plus 1
    int64_t keys(int64_t tile) const { return looked_at(tile) + end(tile) - call.past[tile]; }
    template <class Count>
    int64_t most(Count&& count) const {
        int64_t found = 0;
        for (int64_t tile = 0; tile < votes().tiles(); ++tile) found = std::max(found, count(tile));
        return found;
    }
    int64_t most_keys() const {
        return most([&](int64_t tile) { return keys(tile); });
    }
    int64_t longest() const {
        return most([&](int64_t tile) { return end(tile); });
    }
    int64_t reach() const { return std::min<int64_t>(call.reach, most_keys()); }
    int64_t room() const {  // of a head's sums
        return round_up(most([&](int64_t tile) { return looked_at(tile); }), kPanel);
    }
    // The number of rows looked at before the tile's local window; they come first.
    int64_t early(int64_t tile, int64_t set) const {
        const int64_t border = call.past[tile] - call.local;
        const int32_t* const rows = list(tile, set);
        return listed() ? std::lower_bound(rows, rows + call.Mp, border) - rows : border;
    }
    bool enough() const {
        for (int64_t tile = 0; tile < votes().tiles(); ++tile) {
            if (call.past[tile] < call.M || call.first[tile] < call.past[tile] ||
                call.first[tile] > call.kv->rows)
                return false;
            if (end(tile) > call.kv->rows) return false;
            for (int64_t set = 0; listed() && set < sets(); set += sets() / call.Hl) {
                if (list(tile, set)[call.Mp - 1] >= call.past[tile]) return false;
                if (early(tile, set) < call.M - call.local) return false;
            }
        }
        return pages_in_range(*call.kv, longest());
    }

    // Heads that look at the same keys follow each other, in the tiles that see the most first: a thread
    // packs the keys of a list, or without candidates all keys, once for these heads.
    void item(const h2o_cpu* context, SweepScratch& scratch, const Own& own, const Int8Keys* packed,
              float* waiting, int64_t index) const {
        const int64_t tiles = votes().tiles(), first = index / (tiles * alike());
        const int64_t tile = tiles - 1 - index / alike() % tiles;
        const int64_t head = first * alike() + index % alike();
        float* const sums = waiting ? waiting + (tile * heads() + head) * room() : own.sums;
        score(context, scratch, own, packed, listed() ? first * tiles + tile : first, tile, head, sums);
        if (!waiting) choose(tile, head, sums, own);
    }

    // Adds the sums of a score head's key/value heads, in order.
    void join(const Own& own, float* waiting, int64_t index) const {
        const int64_t tile = index / sets(), set = index % sets(), count = looked_at(tile);
        float* const sums = waiting + (tile * heads() + set * spanned()) * room();
        for (int64_t head = 1; head < spanned(); ++head)
            for (int64_t i = 0; i < count; ++i) sums[i] += sums[head * room() + i];
        choose(tile, set, sums, own);
    }

    void score(const h2o_cpu* context, SweepScratch& scratch, const Own& own, const Int8Keys* packed,
               int64_t unit, int64_t tile, int64_t head, float* sums) const {
        const int64_t count = keys(tile), own_keys = kv_head(call.shape, heads(), head);
        Sweep votes = this->votes().sweep(context, call.shape, call.q, tile, heads(), spanned(), head);
        votes.keys = cache_rows(call.shape, own_keys, keys_alone(*call.kv),
                                rows_of(tile, head / spanned(), own), count);
        votes.unit = unit;
        votes.offset = looked_at(tile) + call.first[tile] - call.past[tile];
        std::memset(sums, 0, static_cast<size_t>(room()) * sizeof(float));
        sum_votes(context, votes, scratch, own.block, packed, own_keys, looked_at(tile), sums);
    }

    // The list of a tile's keys; null: the first cache rows.
    const int32_t* rows_of(int64_t tile, int64_t set, const Own& own) const {
        if (!listed()) return nullptr;
        std::copy_n(list(tile, set), call.Mp, own.rows);
        std::iota(own.rows + call.Mp, own.rows + keys(tile), static_cast<int32_t>(call.past[tile]));
        return own.rows;
    }

    // What places [0, count) have with a quarter of what their neighbours have, of all `filled` places.
    void with_neighbours(const float* sums, const int32_t* rows, int64_t count, int64_t filled,
                         float* of_power, float* out) const {
        if (listed()) {
            std::fill(out, out + count, 0.0f);
            for (int64_t step = 1; step <= reach(); ++step)
                add_near(sums, rows, rows + step, count - step, call.reach, out + step);
            for (int64_t step = 1; step <= reach(); ++step)
                add_near(sums + step, rows, rows + step, std::min(count, filled - step), call.reach, out);
            for (int64_t i = 0; i < count; ++i) out[i] = sums[i] + 0.25f * out[i];
            return;
        }
        float before[kNearBlock], after[kNearBlock];
        for (int64_t first = 0; first < count; first += kNearBlock) {
            const int64_t stop = std::min(first + kNearBlock, count);
            runs(sums, first - reach(), stop - reach(), filled, of_power, before);
            runs(sums, first + 1, stop + 1, filled, of_power, after);
            for (int64_t i = first; i < stop; ++i)
                out[i] = sums[i] + 0.25f * (before[i - first] + after[i - first]);
        }
    }

    // out[i - first] = the sum of places [i, i + reach) for every i of [first, stop): runs of one, two, four
    // and more places, each of two shorter ones. There is nothing outside [0, filled).
    void runs(const float* sums, int64_t first, int64_t stop, int64_t filled, float* of_power,
              float* out) const {
        const int64_t count = stop - first;
        int64_t length = count + reach();
        for (int64_t i = 0; i < length; ++i)
            of_power[i] = first + i >= 0 && first + i < filled ? sums[first + i] : 0.0f;
        std::fill(out, out + count, 0.0f);
        int64_t summed = 0;  // of a run's places, that are in `out`
        for (int64_t power = 1; power <= reach(); power *= 2) {
            if (reach() & power) {
                for (int64_t i = 0; i < count; ++i) out[i] += of_power[i + summed];
                summed += power;
            }
            length -= power;
            for (int64_t i = 0; i < length; ++i) of_power[i] += of_power[i + power];
        }
    }

    void choose(int64_t tile, int64_t set, const float* sums, const Own& own) const {
        const int64_t border = call.past[tile] - call.local, best = call.M - call.local;
        const int32_t* const rows = list(tile, set);
        const int64_t count = early(tile, set);
        with_neighbours(sums, rows, count, looked_at(tile), own.of_power, own.scores);
        for (int64_t i = 0; i < count; ++i) own.order[i] = order(own.scores[i]);
        int32_t* const out = call.memory_next + (tile * sets() + set) * call.M;
        take_first_best(own.order, count, best, out);
        if (listed())
            for (int64_t i = 0; i < best; ++i) out[i] = rows[out[i]];
        for (int64_t i = 0; i < call.local; ++i) out[best + i] = static_cast<int32_t>(border + i);
    }

    Own carve(Carver& carver) const {
        return {carver.take<int32_t>(most_keys()),
                carver.take<float>(room()),
                carver.take<float>(most_keys()),
                carver.take<float>(kNearBlock + reach()),
                carver.take<uint32_t>(take_room(most_keys())),
                Int8Block::carve(carver, call.shape.head_size)};
    }

    // The keys that tiles look at.
    void pack(h2o_cpu* context, const Int8Keys& all) const {
        const int64_t readers = heads() / call.shape.kv_heads;  // of a key/value head's keys
        context->pool.each(call.shape.kv_heads, [&](int64_t kv_head, int) {
            all.want(kv_head, !listed());
            for (int64_t tile = 0; listed() && tile < votes().tiles(); ++tile) {
                for (int64_t head = kv_head * readers; head < (kv_head + 1) * readers; head += alike())
                    all.want(kv_head, list(tile, head / spanned()), call.Mp);
                all.want(kv_head, call.past[tile], end(tile));
            }
        });
        context->pool.each(all.blocks(),
                           [&](int64_t index, int) { all.pack(context, call.shape, *call.kv, index); });
    }

    void run(h2o_cpu* context) const {
        prepare_votes(context, call.shape.head_size, most_keys());
        const int64_t sums = spanned() > 1 ? votes().tiles() * heads() * room() : 0;
        const int64_t rows = votes_are_int8(context, call.shape) ? longest() : 0;
        struct Memory {
            Own* own;        // of each thread
            float* waiting;  // [tiles, heads, room] sums of key/value heads that wait for others
            Int8Keys int8;
        };
        const Memory memory = carve_shared(context, [&](Carver& carver) {
            return Memory{
                carve_each(carver, context->pool.size(), [this](Carver& own) { return carve(own); }),
                carver.take<float>(sums), Int8Keys::carve(carver, call.shape, rows)};
        });
        float* const waiting = sums > 0 ? memory.waiting : nullptr;
        if (rows > 0) pack(context, memory.int8);
        const Int8Keys* const packed = rows > 0 ? &memory.int8 : nullptr;
        context->pool.each(votes().tiles() * heads(), [&](int64_t index, int thread) {
            item(context, *context->scratch[static_cast<size_t>(thread)], memory.own[thread], packed, waiting,
                 index);
        });
        if (waiting == nullptr) return;
        context->pool.each(votes().tiles() * sets(),
                           [&](int64_t index, int thread) { join(memory.own[thread], waiting, index); });
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::QuerySelect& call) {
    h2o_cpu* const context = cpu_of(call);
    const Query op{call};
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || !op.votes().good() || op.votes().tiles() != call.t) return H2O_BAD_ARGUMENT;
    if (call.reach < 0 || call.Hl <= 0 || call.Mp < 0 || call.local < 0 || call.M < call.local || call.M <= 0)
        return H2O_BAD_ARGUMENT;
    if (call.shape.score_heads % call.Hl != 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.past || !call.first || !call.memory_next) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(call.kv, 1); status != H2O_OK) return status;
    const int64_t listed = int64_t{call.t} * call.Hl * call.Mp;
    if (call.Mp > 0 && (!call.candidates || !rows_in_range(*call.kv, call.candidates, listed)))
        return H2O_BAD_ARGUMENT;
    if (call.kv->rows > INT32_MAX || !op.enough()) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] { op.run(context); });
}

}  // namespace h2o::cpu
