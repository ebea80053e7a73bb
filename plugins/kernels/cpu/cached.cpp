// CachedAttention: exact causal attention to the cache, from one row (decode) to a whole prompt.
//
// Few rows: the cache is cut into runs of kRun rows, read once each for all heads, in memory order.
// More rows: sweeps of ranges of rows, over splits of the cache where there are too few ranges to go round.
// Either way the cut follows from the sizes alone, and partial states are combined in order of position.
#include <algorithm>

#include "fuse.h"
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kRun = 512;         // cache rows a decode item
constexpr int64_t kDecodeRows = 16;   // most query rows a key/value head that decode takes
constexpr int64_t kKeyBlock = 512;    // keys packed at a time
constexpr int64_t kRangeBlocks = 42;  // row blocks a range: about 2,000 rows share a packing of the keys
constexpr int64_t kEnoughItems = 16;  // fewer ranges than this: split the cache as well
constexpr int64_t kShortestSplit = 1024;

struct Cached {
    const h2o_shape& shape;
    int64_t n, length;
    const void* q;
    const h2o_kv& kv;
    void* o;
    float* seen;  // [length][kv_heads] or null: each row's probability, summed over the queries that share
                  // its key

    int64_t group() const { return shape.query_heads / shape.kv_heads; }
    int64_t width() const { return round_up(shape.head_size, 16); }
    int64_t row_bytes() const { return shape.head_size * element_size(shape.dtype); }
};

// ---- a few rows

class Decode {
  public:
    Decode(h2o_cpu* context, const Cached& op) : context_(context), op_(op) {
        Carver shared(nullptr);
        carve_shared(shared);
        Carver placed(context->shared.at_least(shared.used()));
        carve_shared(placed);
        const size_t scores = static_cast<size_t>(run_scores()) * sizeof(float);
        for (Arena& arena : context->own) arena.at_least(scores);
    }

    void run() {
        if (op_.seen) std::fill(op_.seen, op_.seen + op_.length * op_.shape.kv_heads, 0.0f);
        for (int64_t r = 0; r < rows(); ++r) load_query(r);
        context_->pool.each(runs(), [&](int64_t index, int thread) { attend(index, thread); });
        // A run's output is a thousandth of what was read for it: less than it costs to wake a thread.
        for (int64_t r = 0; r < rows(); ++r) combine(r);
    }

  private:
    int64_t group() const { return op_.group() * op_.n; }  // rows a key/value head
    int64_t rows() const { return op_.shape.kv_heads * group(); }
    int64_t runs() const { return (op_.length + kRun - 1) / kRun; }
    int64_t run_scores() const { return decode_scratch(rows(), kRun); }
    int64_t token(int64_t r) const { return r % group() / op_.group(); }
    // Where row r stands among [n, Hq].
    int64_t at(int64_t r) const {
        return token(r) * op_.shape.query_heads + r / group() * op_.group() + r % op_.group();
    }

    void carve_shared(Carver& carver) {
        q_ = carver.take<float>(rows() * op_.width());
        m_ = carver.take<float>(runs() * rows());
        l_ = carver.take<float>(runs() * rows());
        o_ = carver.take<float>(runs() * rows() * op_.width());
        if (op_.seen) p_ = carver.take<float>(runs() * run_scores());
    }

    void load_query(int64_t r) {
        float* const out = q_ + r * op_.width();
        std::fill(out, out + op_.width(), 0.0f);
        context_->kernels->to_float(static_cast<const char*>(op_.q) + at(r) * op_.row_bytes(),
                                    op_.shape.dtype, op_.shape.head_size, op_.shape.scale, out);
    }

    void attend(int64_t index, int thread) {
        int64_t visible[kDecodeRows];
        const int64_t first = index * kRun, keys = std::min(kRun, op_.length - first);
        for (int64_t g = 0; g < group(); ++g) {
            visible[g] = std::clamp<int64_t>(op_.length - op_.n + token(g) + 1 - first, 0, keys);
        }
        DecodeArgs args{};
        args.kv_heads = op_.shape.kv_heads;
        args.group = group();
        args.d = op_.shape.head_size;
        args.keys = keys;
        args.stride = op_.shape.kv_heads * op_.shape.head_size;
        read_from(op_.kv, first, &args);
        args.q = q_;
        args.visible = visible;
        args.p = op_.seen ? p_ + index * run_scores()
                          : reinterpret_cast<float*>(context_->own[static_cast<size_t>(thread)].at_least(0));
        args.m = m_ + index * rows();
        args.l = l_ + index * rows();
        args.o = o_ + index * rows() * op_.width();
        context_->kernels->decode(args);
    }

    // The first run's output takes up the others, in order.
    void combine(int64_t r) {
        float* const sum = o_ + r * op_.width();
        float m = m_[r], l = l_[r];
        for (int64_t i = 1; i < runs(); ++i) {
            const float run_m = m_[i * rows() + r], run_l = l_[i * rows() + r];
            const Fused state = fuse(m, l, run_m, run_l);
            const float keep = std::exp(m - state.m), add = run_l > 0.0f ? std::exp(run_m - state.m) : 0.0f;
            context_->kernels->blend_row(H2O_F32, op_.shape.head_size, keep, sum, add,
                                         o_ + (i * rows() + r) * op_.width(), sum);
            m = state.m;
            l = state.l;
        }
        context_->kernels->from_float(sum, op_.shape.dtype, op_.shape.head_size, 1.0f / l,
                                      static_cast<char*>(op_.o) + at(r) * op_.row_bytes());
        if (op_.seen) add_seen(r, m, l);
    }

    // A run's probabilities are against its own maximum: they are brought to that of all.
    void add_seen(int64_t r, float m, float l) {
        for (int64_t i = 0; i < runs(); ++i) {
            const int64_t keys = std::min(kRun, op_.length - i * kRun);
            const float* const p = p_ + i * run_scores() + r * round_up(keys, 16);
            const float share = std::exp(m_[i * rows() + r] - m) / l;
            float* const seen = op_.seen + i * kRun * op_.shape.kv_heads + r / group();
            for (int64_t key = 0; key < keys; ++key) seen[key * op_.shape.kv_heads] += share * p[key];
        }
    }

    h2o_cpu* context_;
    const Cached& op_;
    float *q_ = nullptr, *m_ = nullptr, *l_ = nullptr, *o_ = nullptr;
    float* p_ = nullptr;  // of all runs, where they are asked for
};

// ---- more rows

class Prefill {
  public:
    Prefill(h2o_cpu* context, const Cached& op) : context_(context), op_(op) {
        const int64_t items = op.shape.kv_heads * ranges();
        if (items < kEnoughItems) {
            const int64_t wanted = (kEnoughItems + items - 1) / items;
            splits_ = std::clamp<int64_t>(op.length / kShortestSplit, 1, wanted);
        }
        prepare(context, {op.shape.head_size, kKeyBlock, std::min(blocks(), kRangeBlocks), true, false},
                context->scratch.data());
        if (splits_ == 1) return;
        Carver shared(nullptr);
        carve_shared(shared);
        Carver placed(context->shared.at_least(shared.used()));
        carve_shared(placed);
    }

    void run() {
        // The last ranges see most: they come first, so that the threads finish together.
        const int64_t heads = op_.shape.kv_heads;
        context_->pool.each(heads * ranges() * splits_, [&](int64_t item, int thread) {
            const int64_t range = ranges() - 1 - item / (heads * splits_);
            attend(item / splits_ % heads, range, item % splits_,
                   *context_->scratch[static_cast<size_t>(thread)]);
        });
        if (splits_ == 1) return;
        context_->pool.each(heads * blocks(),
                            [&](int64_t item, int) { combine(item / blocks(), item % blocks()); });
    }

  private:
    int64_t blocks() const { return (op_.n * op_.group() + kLanes - 1) / kLanes; }
    int64_t ranges() const { return (blocks() + kRangeBlocks - 1) / kRangeBlocks; }
    // A block's partial state among all: [head][block][split].
    int64_t place(int64_t head, int64_t block, int64_t split) const {
        return (head * blocks() + block) * splits_ + split;
    }

    void carve_shared(Carver& carver) {
        const int64_t count = op_.shape.kv_heads * blocks() * splits_;
        m_ = carver.take<float>(count * kLanes);
        l_ = carver.take<float>(count * kLanes);
        o_ = carver.take<float>(count * op_.shape.head_size * kLanes);
    }

    Sweep sweep(int64_t head) const {
        Sweep made = head_sweep(context_, op_.shape, op_.shape.kv_heads, head, op_.q, op_.n);
        made.keys = cache_rows(op_.shape, head, op_.kv, nullptr, op_.length);
        made.total_keys = op_.length;
        made.offset = op_.length - op_.n;
        made.key_block = kKeyBlock;
        made.unit = head;
        return made;
    }

    void attend(int64_t head, int64_t range, int64_t split, SweepScratch& scratch) {
        const Sweep rows = sweep(head);
        const int64_t begin = range * kRangeBlocks, end = std::min(blocks(), begin + kRangeBlocks);
        const int64_t first = split_start(split), last = split_start(split + 1);
        scratch.packed_unit = -1;  // other splits of this head hold other keys
        if (splits_ == 1) {
            rows.run(scratch, begin, end, first, last, false, [&](int64_t block, int64_t slot) {
                rows.store_state(scratch, block, slot, static_cast<char*>(op_.o), nullptr, nullptr);
            });
            return;
        }
        for (int64_t block = begin; block < end; ++block) {  // stays so where the split is out of sight
            float* const l = l_ + place(head, block, split) * kLanes;
            std::fill(l, l + kLanes, 0.0f);
        }
        rows.run(scratch, begin, end, first, last, false, [&](int64_t block, int64_t slot) {
            const int64_t to = place(head, block, split), d = op_.shape.head_size;
            std::copy_n(scratch.m + slot * kLanes, kLanes, m_ + to * kLanes);
            std::copy_n(scratch.l + slot * kLanes, kLanes, l_ + to * kLanes);
            std::copy_n(scratch.o + slot * d * kLanes, d * kLanes, o_ + to * d * kLanes);
        });
    }

    int64_t split_start(int64_t split) const { return op_.length * split / splits_; }

    // Splits are fused into the first, lane by lane; its rows are then stored.
    void combine(int64_t head, int64_t block) {
        const Sweep rows = sweep(head);
        const int64_t d = op_.shape.head_size, first = place(head, block, 0);
        float* const o = o_ + first * d * kLanes;
        float* const m = m_ + first * kLanes;
        float* const l = l_ + first * kLanes;
        for (int64_t split = 1; split < splits_; ++split) {
            const float* const other = o + split * d * kLanes;
            float keep[kLanes], add[kLanes];
            for (int64_t r = 0; r < kLanes; ++r) {
                const float m_b = m[split * kLanes + r], l_b = l[split * kLanes + r];
                const Fused state = fuse(m[r], l[r], m_b, l_b);
                keep[r] = std::exp(m[r] - state.m);
                add[r] = l_b > 0.0f ? std::exp(m_b - state.m) : 0.0f;
                m[r] = state.m;
                l[r] = state.l;
            }
            for (int64_t c = 0; c < d; ++c) {
                for (int64_t r = 0; r < kLanes; ++r) {
                    if (add[r] != 0.0f)
                        o[c * kLanes + r] = keep[r] * o[c * kLanes + r] + add[r] * other[c * kLanes + r];
                }
            }
        }
        SweepScratch view{};
        view.o = o;
        view.m = m;
        view.l = l;
        rows.store_state(view, block, 0, static_cast<char*>(op_.o), nullptr, nullptr);
    }

    h2o_cpu* context_;
    const Cached& op_;
    int64_t splits_ = 1;
    float *m_ = nullptr, *l_ = nullptr, *o_ = nullptr;
};

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_cached_attention(h2o_cpu* context, const h2o_shape* shape, int64_t n, const void* q,
                                    const h2o_kv* kv, int64_t length, void* o) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || n < 0 || length < n) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o::check_kv(kv, length); status != H2O_OK) return status;
    if (n == 0) return H2O_OK;
    if (!q || !o) return H2O_BAD_ARGUMENT;
    const h2o::Cached op{*shape, n, length, q, *kv, o, nullptr};
    return h2o::guarded(context, [&] {
        if (n * op.group() <= h2o::kDecodeRows) {
            h2o::Decode(context, op).run();
        } else {
            h2o::Prefill(context, op).run();
        }
    });
}

h2o_status h2o_cpu_scored_attention(h2o_cpu* context, const h2o_shape* shape, const void* q, const h2o_kv* kv,
                                    int64_t length, void* o, float* seen) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || length < 1 || !q || !o || !seen) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o::check_kv(kv, length); status != H2O_OK) return status;
    if (kv->dtype == H2O_I8) return H2O_UNSUPPORTED;  // its probabilities have the values' scales in them
    const h2o::Cached op{*shape, 1, length, q, *kv, o, seen};
    if (op.group() > h2o::kDecodeRows) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context, [&] { h2o::Decode(context, op).run(); });
}
