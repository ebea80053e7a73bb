// CachedAttention: exact causal attention to the cache, from one row (decode) to a whole prompt.
//
// Few rows: decode.cpp. More rows: sweeps of ranges of rows, and over splits of the cache if there are fewer
// ranges than threads. The cut follows from the sizes alone, and partial states are combined in order of
// position.
#include "cached.h"

#include "fuse.h"
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kRangeBlocks = 42;   // row blocks of a range: about 2,000 rows share the packed keys
constexpr int64_t kWindowBlocks = 16;  // the same with a window: fewer packed keys that few rows see
constexpr int64_t kEnoughItems = 16;   // with fewer ranges than this, split the cache as well
constexpr int64_t kShortestSplit = 1024;
constexpr int64_t kPackedBytes = 512 << 10;  // bytes of keys and values packed at a time: half an L2

// Keys packed at a time.
int64_t keys_together(const h2o_shape& shape) {
    const int64_t bytes = (shape.head_size + value_size(shape)) * static_cast<int64_t>(sizeof(float));
    return std::clamp<int64_t>(kPackedBytes / bytes / kKeyStep * kKeyStep, kKeyStep, 512);
}

class Prefill {
  public:
    Prefill(h2o_cpu* context, const Cached& op) : context_(context), op_(op) {
        const int64_t items = op.shape.kv_heads * ranges();
        if (items < kEnoughItems && op.shape.window == 0) {
            const int64_t wanted = (kEnoughItems + items - 1) / items;
            splits_ = std::clamp<int64_t>(op.length / kShortestSplit, 1, wanted);
        }
        const int64_t together = keys_together(op.shape);
        prepare(context,
                {op.shape.head_size, op.dv(), together, std::min(blocks(), range_blocks()), true, false},
                context->scratch.data());
        if (splits_ == 1) return;
        Carver shared(nullptr);
        carve_shared(shared);
        Carver placed(context->shared.at_least(shared.used()));
        carve_shared(placed);
    }

    void run() {
        // The last ranges see the most keys. They start first, so that threads finish together.
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
    int64_t blocks() const { return (op_.rows() + kLanes - 1) / kLanes; }
    int64_t range_blocks() const { return op_.shape.window > 0 ? kWindowBlocks : kRangeBlocks; }
    int64_t ranges() const { return (blocks() + range_blocks() - 1) / range_blocks(); }
    int64_t output_floats() const { return round_up(op_.dv(), kPanel) * kLanes; }
    // Index of a block's partial state: [head][block][split].
    int64_t place(int64_t head, int64_t block, int64_t split) const {
        return (head * blocks() + block) * splits_ + split;
    }

    void carve_shared(Carver& carver) {
        const int64_t count = op_.shape.kv_heads * blocks() * splits_;
        m_ = carver.take<float>(count * kLanes);
        l_ = carver.take<float>(count * kLanes);
        o_ = carver.take<float>(count * output_floats());
    }

    Sweep sweep(int64_t head) const {
        Sweep made = head_sweep(context_, op_.shape, op_.shape.kv_heads, head, op_.q, op_.n);
        made.out = static_cast<char*>(op_.o);
        made.keys = cache_rows(op_.shape, head, op_.kv, nullptr, op_.length);
        made.total_keys = op_.length;
        made.offset = op_.length - op_.n;
        made.window = op_.shape.window;
        made.key_block = keys_together(op_.shape);
        made.unit = head;
        return made;
    }

    void attend(int64_t head, int64_t range, int64_t split, SweepScratch& scratch) {
        const Sweep rows = sweep(head);
        const int64_t begin = range * range_blocks(), end = std::min(blocks(), begin + range_blocks());
        const int64_t first = split_start(split), last = split_start(split + 1);
        scratch.packed_unit = -1;  // other splits of this head have other keys
        if (splits_ == 1) {
            rows.run(scratch, begin, end, first, last, false, [&](int64_t block, int64_t slot) {
                rows.store_state(scratch, block, slot, op_.m, op_.l);
            });
            return;
        }
        for (int64_t block = begin; block < end; ++block) {  // stays so if the split is not visible
            float* const l = l_ + place(head, block, split) * kLanes;
            std::fill(l, l + kLanes, 0.0f);
        }
        rows.run(scratch, begin, end, first, last, false, [&](int64_t block, int64_t slot) {
            const int64_t to = place(head, block, split), floats = output_floats();
            std::copy_n(scratch.m + slot * kLanes, kLanes, m_ + to * kLanes);
            std::copy_n(scratch.l + slot * kLanes, kLanes, l_ + to * kLanes);
            std::copy_n(scratch.o + slot * floats, floats, o_ + to * floats);
        });
    }

    int64_t split_start(int64_t split) const { return op_.length * split / splits_; }

    // Splits are fused into the first, lane by lane; its rows are then stored.
    void combine(int64_t head, int64_t block) {
        const Sweep rows = sweep(head);
        const int64_t dv = op_.dv(), first = place(head, block, 0);
        float* const o = o_ + first * output_floats();
        float* const m = m_ + first * kLanes;
        float* const l = l_ + first * kLanes;
        for (int64_t split = 1; split < splits_; ++split) {
            const float* const other = o + split * output_floats();
            float keep[kLanes], add[kLanes];
            for (int64_t r = 0; r < kLanes; ++r) {
                const float m_b = m[split * kLanes + r], l_b = l[split * kLanes + r];
                const Fused state = fuse(m[r], l[r], m_b, l_b);
                keep[r] = std::exp(m[r] - state.m);
                add[r] = l_b > 0.0f ? std::exp(m_b - state.m) : 0.0f;
                m[r] = state.m;
                l[r] = state.l;
            }
            for (int64_t c = 0; c < dv; ++c) {
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
        rows.store_state(view, block, 0, op_.m, op_.l);
    }

    h2o_cpu* context_;
    const Cached& op_;
    int64_t splits_ = 1;
    float *m_ = nullptr, *l_ = nullptr, *o_ = nullptr;
};

}  // namespace

void attend(h2o_cpu* context, const Cached* ops, int64_t count) {
    if (few_rows(ops[0])) return decode(context, ops, count);
    for (int64_t i = 0; i < count; ++i) Prefill(context, ops[i]).run();
}

}  // namespace h2o

namespace h2o::cpu {

namespace {

template <class Call>
h2o_status attend(const Call& call, float* m, float* l) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || *call.length < call.n) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (call.n == 0) return H2O_OK;
    if (!call.q || !call.o) return H2O_BAD_ARGUMENT;
    const Cached op{call.shape, call.n, *call.length, call.q, *call.kv, call.o, nullptr, m, l};
    return guarded(context, [&] { h2o::attend(context, &op, 1); });
}

}  // namespace

h2o_status run(const calls::CachedAttention& call) {
    return attend(call, nullptr, nullptr);
}

h2o_status run(const calls::PartialAttention& call) {
    if (call.n > 0 && (!call.m || !call.l)) return H2O_BAD_ARGUMENT;
    return attend(call, call.m, call.l);
}

h2o_status run(const calls::ScoredAttention& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || *call.length < 1 || !call.q || !call.o || !call.seen || call.R < *call.length)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (call.kv->dtype == H2O_I8) return H2O_UNSUPPORTED;  // its probabilities include the values' scales
    const Cached op{call.shape, 1, *call.length, call.q, *call.kv, call.o, call.seen};
    if (!few_rows(op)) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] { decode(context, &op, 1); });
}

}  // namespace h2o::cpu
