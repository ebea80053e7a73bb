// VerticalSlashAttention: tiles of 64 rows, each with runs of keys along diagonals and with single columns.
//
// Six tiles are eight full blocks of rows, which share packed keys: first columns, where a mask hides those
// that a tile's runs have too, then what any of the runs has, of which the rows of each tile take their own.
#include <cmath>

#include "row_blocks.h"

namespace h2o {
namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kTiles = kRangeBlocks * kLanes / kTile;  // of one range
constexpr int64_t kColumns = 128;                          // packed at a time
static_assert(kTiles * kTile == kRangeBlocks * kLanes, "a range is of whole tiles");

struct Run {
    int64_t begin, end;
};

struct Lines {
    const h2o_shape& shape;
    int64_t n, length;
    const void* q;
    const h2o_kv& kv;
    int64_t vertical;
    const int32_t* columns;
    int64_t slash;
    const int32_t* distances;
    void* o;

    int64_t offset() const { return length - n; }
    // Between two runs there is a key at least.
    int64_t most_runs() const { return std::min(slash, length / (kTile + 1) + 1) + 1; }
};

// Of one thread.
struct Own {
    SweepScratch* sweep;
    float* bias;       // [kColumns][R]
    int32_t* columns;  // that some tile of the range has to gather, rising
    uint8_t* hidden;   // of each, a bit for every tile that does not
    Run* runs;         // [kTiles][most_runs], rising
    Run* together;     // [kTiles * most_runs]: what any of the tiles has, rising and apart
};

class Range {
  public:
    Range(const h2o_cpu* context, const Lines& op, int64_t head, int64_t begin, const Own& own)
        : op_(op),
          own_(own),
          blocks_(sweep_of(context, op, head), *own.sweep, begin, op.offset()),
          first_row_(begin * kLanes),
          columns_(op.columns + head * op.vertical),
          distances_(op.distances + head * op.slash) {
        const int64_t rows = std::min(op.n - first_row_, kTiles * kTile);
        tiles_ = (rows + kTile - 1) / kTile;
    }

    void run() {
        for (int64_t tile = 0; tile < tiles_; ++tile) find_runs(tile);
        gather_columns();
        const int64_t count = join_runs();
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t key = own_.together[i].begin; key < own_.together[i].end; key += kRangeKeys)
                attend_runs(key, std::min(own_.together[i].end - key, kRangeKeys));
        }
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) blocks_.store(block, op_.o);
    }

  private:
    static Sweep sweep_of(const h2o_cpu* context, const Lines& op, int64_t head) {
        Sweep rows = head_sweep(context, op.shape, op.shape.query_heads, head, op.q, op.n);
        const int64_t kv = kv_head(op.shape, op.shape.query_heads, head);
        rows.keys = cache_rows(op.shape, kv, op.kv, nullptr, op.length);
        return rows;
    }

    int64_t tile_start(int64_t tile) const { return op_.offset() + first_row_ + tile * kTile; }
    int64_t tile_of(int64_t block, int64_t lane) const {
        return (blocks_.position(block, lane) - tile_start(0)) / kTile;
    }
    Run* runs(int64_t tile) const { return own_.runs + tile * op_.most_runs(); }

    // From the largest distance on. Distance 0 is always among them.
    void find_runs(int64_t tile) {
        const int64_t end = tile_start(tile) + kTile;
        Run* const found = runs(tile);
        int64_t count = 0;
        for (int64_t i = op_.slash - 1; i >= -1; --i) {
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
        // The last run may be longer than what there is; rows end at themselves anyway.
        found[count - 1].end = std::min(found[count - 1].end, op_.length);
    }

    // Columns of tiles that have them in no run, up to the range's last tile, which has all behind in one.
    void gather_columns() {
        const Run* run[kTiles];
        for (int64_t tile = 0; tile < tiles_; ++tile) run[tile] = runs(tile);
        const unsigned all = (1u << tiles_) - 1;
        int64_t count = 0;
        for (int64_t i = 0; i < op_.vertical; ++i) {
            const int64_t column = columns_[i];
            if (column < 0 || column >= tile_start(tiles_ - 1)) continue;
            unsigned hidden = 0;
            for (int64_t tile = 0; tile < tiles_; ++tile) {
                // The last run ends behind the tile's start.
                const bool before = column < tile_start(tile);
                while (before && run[tile]->end <= column) ++run[tile];
                if (!before || run[tile]->begin <= column) hidden |= 1u << tile;
            }
            if (hidden == all) continue;
            own_.columns[count] = static_cast<int32_t>(column);
            own_.hidden[count++] = static_cast<uint8_t>(hidden);
        }
        for (int64_t first = 0; first < count; first += kColumns)
            attend_columns(first, std::min(count - first, kColumns));
    }

    void attend_columns(int64_t first, int64_t count) {
        const KeyRows& keys = blocks_.rows().keys;
        Gathered<kColumns> rows(op_.kv.dtype);
        unsigned any = 0, every = ~0u;
        for (int64_t i = 0; i < count; ++i) {
            rows.take(i, keys, own_.columns[first + i]);
            any |= own_.hidden[first + i];
            every &= own_.hidden[first + i];
        }
        blocks_.pack(rows.keys(), rows.values(), count);
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) {
            const unsigned low = 1u << tile_of(block, 0), high = 1u << tile_of(block, kLanes - 1);
            if ((every & low) != 0 && (every & high) != 0) continue;
            BlockArgs made = blocks_.args(block, count);
            if ((any & (low | high)) != 0) made.bias = hide_columns(block, first, count, low, high);
            blocks_.kernels().attend(made);
        }
    }

    // A block has rows of two tiles at most, whose bits are `low` and `high`.
    const float* hide_columns(int64_t block, int64_t first, int64_t count, unsigned low, unsigned high) {
        int64_t border = 0;
        while (border < kLanes && 1u << tile_of(block, border) == low) ++border;
        for (int64_t i = 0; i < round_up(count, kPanel); ++i) {
            const unsigned hidden = i < count ? own_.hidden[first + i] : 0;
            float* const bias = own_.bias + i * kLanes;
            std::fill(bias, bias + border, (hidden & low) != 0 ? -HUGE_VALF : 0.0f);
            std::fill(bias + border, bias + kLanes, (hidden & high) != 0 ? -HUGE_VALF : 0.0f);
        }
        return own_.bias;
    }

    // What any tile's runs have, in pieces that are apart; returns how many.
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

    // A block has rows of two tiles at most, each with runs of its own.
    void attend_runs(int64_t key, int64_t count) {
        blocks_.pack(key, count);
        for (int64_t block = blocks_.begin(); block < blocks_.end(); ++block) {
            blocks_.clear(block);
            const int64_t low = tile_of(block, 0), high = tile_of(block, kLanes - 1);
            const int64_t border = low == high ? kLanes : high * kTile - (block - blocks_.begin()) * kLanes;
            attend_runs(block, 0, border, low, key, count);
            if (border < kLanes) attend_runs(block, border, kLanes - border, high, key, count);
        }
    }

    // Rows of one tile, and its runs in the packed keys [key, key + count).
    void attend_runs(int64_t block, int64_t lane, int64_t rows, int64_t tile, int64_t key, int64_t count) {
        const int64_t last = std::min(key + count, blocks_.position(block, lane + rows - 1) + 1);
        const Run* const end = runs(tile) + run_count_[tile];
        for (const Run* run = first_run(tile, key); run != end && run->begin < last; ++run) {
            const int64_t begin = std::max(run->begin, key), stop = std::min(run->end, last);
            const int64_t from = (begin - key) / kPanel * kPanel, keys = stop - key - from;
            if (keys > 0) attend_run(block, lane, rows, key + from, begin, keys, from);
        }
    }

    // Keys from `first` on, which is the packed key `from`; those before `begin` are not the run's.
    void attend_run(int64_t block, int64_t lane, int64_t rows, int64_t first, int64_t begin, int64_t keys,
                    int64_t from) {
        float visible[kLanes], hidden[kLanes];
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t seen = blocks_.position(block, lane + r) + 1 - first;
            visible[r] = static_cast<float>(std::clamp<int64_t>(seen, 0, keys));
            hidden[r] = static_cast<float>(begin - first);
        }
        BlockArgs made = blocks_.args(block, keys, lane, rows);
        made.unmasked = static_cast<int64_t>(visible[0]);
        made.hiding = begin - first;
        made.k += from * made.d;
        made.v += from * kPanel;
        made.visible = visible;
        made.first = hidden;
        blocks_.kernels().attend(made);
    }

    // The first that does not end before `key`.
    const Run* first_run(int64_t tile, int64_t key) const {
        return std::partition_point(runs(tile), runs(tile) + run_count_[tile],
                                    [key](const Run& run) { return run.end <= key; });
    }

    const Lines& op_;
    const Own& own_;
    RowBlocks blocks_;
    int64_t first_row_, tiles_;
    const int32_t *columns_, *distances_;
    int64_t run_count_[kTiles] = {};
};

void run(h2o_cpu* context, const Lines& op) {
    const auto carve_own = [&](char* base, size_t* bytes) {
        Carver carver(base);
        Own own{};
        own.sweep = carve(carver, range_size(op.shape.head_size));
        own.bias = carver.take<float>(kColumns * kLanes);
        own.columns = carver.take<int32_t>(op.vertical);
        own.hidden = carver.take<uint8_t>(op.vertical);
        own.runs = carver.take<Run>(kTiles * op.most_runs());
        own.together = carver.take<Run>(kTiles * op.most_runs());
        if (bytes != nullptr) *bytes = carver.used();
        return own;
    };
    size_t bytes = 0;
    carve_own(nullptr, &bytes);
    for (Arena& arena : context->own) arena.at_least(bytes);
    const int64_t blocks = (op.n + kLanes - 1) / kLanes, heads = op.shape.query_heads;
    const int64_t ranges = (blocks + kRangeBlocks - 1) / kRangeBlocks;
    context->pool.each(heads * ranges, [&](int64_t item, int thread) {
        const Own own = carve_own(context->own[static_cast<size_t>(thread)].at_least(0), nullptr);
        Range(context, op, item % heads, item / heads * kRangeBlocks, own).run();
    });
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_vertical_slash_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n,
                                            const void* q, const h2o_kv* kv, int64_t length, int64_t vertical,
                                            const int32_t* columns, int64_t slash, const int32_t* distances,
                                            void* o) {
    if (const h2o_status status = h2o::check_alike(shape); status != H2O_OK) return status;
    if (context == nullptr || n < 0 || length < n || length > INT32_MAX) return H2O_BAD_ARGUMENT;
    if (vertical < 0 || slash < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o::check_kv(kv, length); status != H2O_OK) return status;
    if (n == 0) return H2O_OK;
    if (!q || !o || (vertical > 0 && !columns) || (slash > 0 && !distances)) return H2O_BAD_ARGUMENT;
    const h2o::Lines op{*shape, n, length, q, *kv, vertical, columns, slash, distances, o};
    return h2o::guarded(context, [&] { h2o::run(context, op); });
}
