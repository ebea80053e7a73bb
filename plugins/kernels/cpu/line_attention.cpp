// VerticalSlashAttention: tiles of 64 rows, each with runs of keys along diagonals and with single columns.
//
// Six tiles share packed keys. First come the columns; a tile skips those that its runs contain too. Then
// come the keys of all runs; each tile uses its own.
#include <cmath>

#include "row_blocks.h"

namespace h2o {
namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kRows = 32;                   // of a block: two are a tile
constexpr int64_t kTiles = kRangeRows / kTile;  // of one range
constexpr int64_t kColumns = 128;               // packed at a time
static_assert(kTile % kRows == 0 && kRangeRows % kTile == 0,
              "tiles are of whole blocks, ranges of whole tiles");

struct Run {
    int64_t begin, end;  // cache rows [begin, end)
};

// A key to gather for some tile of a range; if bit t of `hidden` is set, tile t skips it.
struct Column {
    int32_t row;      // of the cache
    unsigned hidden;  // a bit for each tile of the range

    bool before(const Column& other) const {
        const int mine = hidden == 0 ? -1 : __builtin_ctz(hidden),
                  others = other.hidden == 0 ? -1 : __builtin_ctz(other.hidden);
        if (mine != others) return mine < others;
        return hidden != other.hidden ? hidden < other.hidden : row < other.row;
    }
};

enum class Sight { none, partly, all };

struct Lines {
    const calls::VerticalSlashAttention& call;

    int64_t length() const { return *call.length; }  // cache rows in use; the last n are the queries' own
    int64_t offset() const { return length() - call.n; }
    // At least one key is between two runs.
    int64_t most_runs() const { return std::min<int64_t>(call.D, length() / (kTile + 1) + 1) + 1; }
};

// Of one thread.
struct Scratch {
    SweepScratch* sweep;
    float* bias;      // [kColumns][R]
    Column* columns;  // keys hidden from the same tiles are adjacent
    Run* runs;        // [kTiles][most_runs], rising
    Run* together;    // [kTiles * most_runs]: the union of all tiles' runs, rising and disjoint
};

class Range {
  public:
    Range(const h2o_cpu* context, const Lines& op, int64_t head, int64_t begin, const Scratch& scratch)
        : op_(op),
          own_(scratch),
          blocks_(sweep_of(context, op, head), *scratch.sweep, begin, op.offset()),
          first_row_(begin * kRows),
          columns_(op.call.columns + head * op.call.M),
          distances_(op.call.distances + head * op.call.D) {
        tiles_ = (std::min(op.call.n - first_row_, kRangeRows) + kTile - 1) / kTile;
    }

    void run() {
        for (int64_t tile = 0; tile < tiles_; ++tile) find_runs(tile);
        gather_columns();
        const int64_t count = join_runs();
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t key = own_.together[i].begin; key < own_.together[i].end; key += kRangeKeys)
                attend_runs(key, std::min(own_.together[i].end - key, kRangeKeys));
        }
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) blocks_.store(block);
    }

  private:
    static Sweep sweep_of(const h2o_cpu* context, const Lines& op, int64_t head) {
        Sweep rows =
            head_sweep(context, op.call.shape, op.call.shape.query_heads, head, op.call.q, op.call.n);
        rows.out = static_cast<char*>(op.call.o);
        rows.block_rows = kRows;
        const int64_t kv = kv_head(op.call.shape, op.call.shape.query_heads, head);
        rows.keys = cache_rows(op.call.shape, kv, *op.call.kv, nullptr, op.length());
        return rows;
    }

    int64_t tile_start(int64_t tile) const { return op_.offset() + first_row_ + tile * kTile; }
    int64_t tile_of(int64_t block) const { return (block - blocks_.begin()) * kRows / kTile; }
    Run* runs(int64_t tile) const { return own_.runs + tile * op_.most_runs(); }

    // From the largest distance on. Distance 0 is always included.
    void find_runs(int64_t tile) {
        const int64_t end = tile_start(tile) + kTile;
        Run* const found = runs(tile);
        int64_t count = 0;
        for (int64_t i = op_.call.D - 1; i >= -1; --i) {
            const int64_t distance = i < 0 ? 0 : distances_[i];
            if (distance < 0 || distance >= end) continue;
            const int64_t stop = std::max(end - distance, kTile);
            if (count == 0 || stop > found[count - 1].end + kTile) {
                found[count++] = {stop - kTile, stop};
            } else if (stop > found[count - 1].end) {
                found[count - 1].end += kTile;
            }
        }
        run_count_[tile] = count;
        // The last run may reach past the cache; rows end at their own position anyway.
        found[count - 1].end = std::min(found[count - 1].end, op_.length());
    }

    // Columns that some tile has outside its runs, up to the range's last tile, which sees everything after
    // it in one run.
    void gather_columns() {
        const Run* run[kTiles];
        for (int64_t tile = 0; tile < tiles_; ++tile) run[tile] = runs(tile);
        const unsigned all = (1u << tiles_) - 1;
        int64_t count = 0;
        for (int64_t i = 0; i < op_.call.M; ++i) {
            const int64_t column = columns_[i];
            if (column < 0 || column >= tile_start(tiles_ - 1)) continue;
            unsigned hidden = 0;
            for (int64_t tile = 0; tile < tiles_; ++tile) {
                // The last run ends after the tile's start.
                const bool before = column < tile_start(tile);
                while (before && run[tile]->end <= column) ++run[tile];
                if (!before || run[tile]->begin <= column) hidden |= 1u << tile;
            }
            if (hidden == all) continue;
            own_.columns[count++] = {static_cast<int32_t>(column), hidden};
        }
        // Keys hidden from the same tiles are adjacent: whole panels are skipped or need no mask.
        std::sort(own_.columns, own_.columns + count,
                  [](const Column& a, const Column& b) { return a.before(b); });
        for (int64_t first = 0; first < count; first += kColumns)
            attend_columns(first, std::min(count - first, kColumns));
    }

    void attend_columns(int64_t first, int64_t count) {
        const KeyRows& keys = blocks_.rows().keys;
        Gathered<kColumns> rows(op_.call.kv->dtype);
        for (int64_t i = 0; i < count; ++i) rows.take(i, keys, own_.columns[first + i].row);
        blocks_.pack(rows.keys(), rows.values(), count);
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) {
            const unsigned tile = 1u << tile_of(block);
            for (int64_t from = 0, to; from < count; from = to) {
                const Sight seen = sight(first + from, std::min(count - from, kPanel), tile);
                for (to = from + kPanel; to < count; to += kPanel)
                    if (sight(first + to, std::min(count - to, kPanel), tile) != seen) break;
                if (seen == Sight::none) continue;
                BlockArgs block_args = blocks_.args(block, std::min(to, count) - from);
                if (seen == Sight::partly)
                    block_args.bias = hide_columns(first + from, block_args.keys, tile);
                blocks_.skip(block_args, from);
                blocks_.attention().attend(block_args);
            }
        }
    }

    // The number of these columns that a tile sees.
    Sight sight(int64_t first, int64_t count, unsigned tile) const {
        int64_t hidden = 0;
        for (int64_t i = first; i < first + count; ++i) hidden += (own_.columns[i].hidden & tile) != 0;
        return hidden == 0 ? Sight::all : hidden == count ? Sight::none : Sight::partly;
    }

    const float* hide_columns(int64_t first, int64_t count, unsigned tile) {
        for (int64_t i = 0; i < round_up(count, kPanel); ++i) {
            const bool hidden = i < count && (own_.columns[first + i].hidden & tile) != 0;
            std::fill_n(own_.bias + i * kLanes, kRows, hidden ? -HUGE_VALF : 0.0f);
        }
        return own_.bias;
    }

    // The union of all tiles' runs, as disjoint pieces; returns their number.
    int64_t join_runs() const {
        int64_t count = 0;
        for (int64_t tile = 0; tile < tiles_; ++tile) {
            std::copy(runs(tile), runs(tile) + run_count_[tile], own_.together + count);
            count += run_count_[tile];
        }
        Run* const all = own_.together;
        std::sort(all, all + count, [](const Run& a, const Run& b) { return a.begin < b.begin; });
        int64_t joined = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (joined > 0 && all[i].begin <= all[joined - 1].end) {
                all[joined - 1].end = std::max(all[joined - 1].end, all[i].end);
            } else {
                all[joined++] = all[i];
            }
        }
        return joined;
    }

    void attend_runs(int64_t key, int64_t count) {
        blocks_.pack(key, count);
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) {
            const int64_t tile = tile_of(block),
                          last = std::min(key + count, blocks_.last_position(block) + 1);
            const Run* const end = runs(tile) + run_count_[tile];
            for (const Run* run = first_run(tile, key); run != end && run->begin < last; ++run) {
                const int64_t begin = std::max(run->begin, key), stop = std::min(run->end, last);
                const int64_t from = (begin - key) / kPanel * kPanel, keys = stop - key - from;
                if (keys > 0) attend_run(block, key + from, begin, keys, from);
            }
        }
    }

    // Keys from `first` on, which is the packed key `from`; those before `begin` are outside the run.
    void attend_run(int64_t block, int64_t first, int64_t begin, int64_t keys, int64_t from) {
        float visible[kLanes], hidden[kLanes];
        for (int64_t r = 0; r < kRows; ++r) {
            const int64_t seen = blocks_.position(block, r) + 1 - first;
            visible[r] = static_cast<float>(std::clamp<int64_t>(seen, 0, keys));
            hidden[r] = static_cast<float>(begin - first);
        }
        BlockArgs block_args = blocks_.args(block, keys);
        block_args.unmasked = static_cast<int64_t>(visible[0]);
        block_args.hiding = begin - first;
        blocks_.skip(block_args, from);
        block_args.visible = visible;
        block_args.first = hidden;
        blocks_.attention().attend(block_args);
    }

    // The first run that does not end before `key`.
    const Run* first_run(int64_t tile, int64_t key) const {
        return std::partition_point(runs(tile), runs(tile) + run_count_[tile],
                                    [key](const Run& run) { return run.end <= key; });
    }

    const Lines& op_;
    const Scratch& own_;
    RowBlocks blocks_;
    int64_t first_row_, tiles_;
    const int32_t *columns_, *distances_;
    int64_t run_count_[kTiles] = {};
};

void run(h2o_cpu* context, const Lines& op) {
    const auto own = carve_own(context, [&](Carver& carver) {
        return Scratch{carve(carver, range_size(op.call.shape.head_size, kRows)),
                       carver.take<float>(kColumns * kLanes), carver.take<Column>(op.call.M),
                       carver.take<Run>(kTiles * op.most_runs()), carver.take<Run>(kTiles * op.most_runs())};
    });
    const int64_t ranges = (op.call.n + kRangeRows - 1) / kRangeRows, heads = op.call.shape.query_heads;
    context->pool.each(heads * ranges, [&](int64_t item, int thread) {
        const Scratch scratch = own(thread);
        Range(context, op, item % heads, item / heads * (kRangeRows / kRows), scratch).run();
    });
}

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::VerticalSlashAttention& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || *call.length < call.n || *call.length > INT32_MAX)
        return H2O_BAD_ARGUMENT;
    if (call.M < 0 || call.D < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (call.n == 0) return H2O_OK;
    if (!call.q || !call.o || (call.M > 0 && !call.columns) || (call.D > 0 && !call.distances))
        return H2O_BAD_ARGUMENT;
    const Lines op{call};
    return guarded(context, [&] { run(context, op); });
}

}  // namespace h2o::cpu
