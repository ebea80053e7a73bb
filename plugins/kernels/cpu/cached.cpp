// CachedAttention: exact causal attention to the cache, from one row (decode) to a whole prompt.
//
// Few rows: decode.cpp. More rows: sweeps of ranges of rows over the cache. A row's keys are cut into
// segments at fixed positions, each with a softmax state of its own, which are combined in order. So a row's
// result has the same bits whatever rows are computed beside it: a prompt that continues a cache equals one
// that is read at once. With a window there are no segments, and this does not hold.
#include "cached.h"

#include "fuse.h"
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kRangeBlocks = 42;         // row blocks of a range: about 2,000 rows share the packed keys
constexpr int64_t kWindowBlocks = 16;        // the same with a window: fewer packed keys that few rows see
constexpr int64_t kSegmentKeys = 2048;       // keys of a segment
constexpr int64_t kItemsPerThread = 8;       // with fewer ranges than this, segments are items of their own
constexpr int64_t kStateBytes = 32 << 20;    // of all segments' states, if they are
constexpr int64_t kPackedBytes = 512 << 10;  // bytes of keys and values packed at a time: half an L2

// Keys packed at a time, behind the first.
int64_t keys_together(const h2o_shape& shape) {
    const int64_t bytes = (shape.head_size + value_size(shape)) * static_cast<int64_t>(sizeof(float));
    return std::clamp<int64_t>(kPackedBytes / bytes / kKeyStep * kKeyStep, kKeyStep, 512);
}

// Softmax states of row blocks: m, l [blocks][kLanes] and o [blocks][dv, rounded up][kLanes].
struct States {
    float *m, *l;  // maxima of the scores, and sums of exp(score - m)
    float* o;      // not divided by l
    int64_t dv;    // numbers of a value

    int64_t floats() const { return round_up(dv, kPanel) * kLanes; }  // of a block's o
    States at(int64_t block) const {
        return {m + block * kLanes, l + block * kLanes, o + block * floats(), dv};
    }
};

void copy(const States& from, const States& to) {
    std::copy_n(from.m, kLanes, to.m);
    std::copy_n(from.l, kLanes, to.l);
    std::copy_n(from.o, from.floats(), to.o);
}

// Adds a later segment's state of a block to the state of the segments before. Lanes without a row, and rows
// that see nothing of the segment, stay as they are.
void add(const KernelTable& kernels, const States& later, int64_t lanes, const States& sum) {
    float keep[kLanes], scale[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
        keep[r] = 1.0f;
        scale[r] = 0.0f;
        if (r >= lanes || !(later.l[r] > 0.0f)) continue;
        const Fused state = fuse(sum.m[r], sum.l[r], later.m[r], later.l[r]);
        keep[r] = std::exp(sum.m[r] - state.m);
        scale[r] = std::exp(later.m[r] - state.m);
        sum.m[r] = state.m;
        sum.l[r] = state.l;
    }
    kernels.blend_block(keep, scale, later.o, sum.dv, sum.o);
}

class Prefill {
  public:
    Prefill(h2o_cpu* context, const Cached& op)
        : context_(context), op_(op), range_blocks_(op.shape.window > 0 ? kWindowBlocks : kRangeBlocks) {
        segments_ = op.shape.window > 0 ? 1 : (op.length + kSegmentKeys - 1) / kSegmentKeys;
        const int64_t wanted = kItemsPerThread * context->pool.size();
        const int64_t state = (output_floats() + 2 * kLanes) * static_cast<int64_t>(sizeof(float));
        const bool few = heads() * ranges() < wanted && op.shape.window == 0;
        apart_ = few && segments_ > 1 && heads() * blocks() * segments_ * state <= kStateBytes;
        if (few && !apart_) {  // smaller ranges: each packs all keys
            range_blocks_ = std::clamp<int64_t>(heads() * blocks() / wanted, 1, kRangeBlocks);
        }
        const int64_t most = std::min(blocks(), range_blocks_);
        SweepSize size{op.shape.head_size, op.dv(), key_block(), most, true, false};
        if (segments_ > 1 && !apart_) size.more_states = most;
        prepare(context, size);
        if (!apart_) return;
        states_ = carve_shared(context, [this](Carver& carver) {
            const int64_t count = heads() * blocks() * segments_;
            return States{carver.take<float>(count * kLanes), carver.take<float>(count * kLanes),
                          carver.take<float>(count * output_floats()), op_.dv()};
        });
    }

    void run() {
        // The last ranges see the most keys. They start first, so that threads finish together.
        const int64_t parts = apart_ ? segments_ : 1;
        context_->pool.each(heads() * ranges() * parts, [&](int64_t item, int thread) {
            const int64_t head = item / parts % heads(), range = ranges() - 1 - item / (heads() * parts);
            SweepScratch& scratch = *context_->scratch[static_cast<size_t>(thread)];
            if (apart_) {
                attend_segment(head, range, item % parts, scratch);
            } else {
                attend(head, range, scratch);
            }
        });
        if (!apart_) return;
        context_->pool.each(heads() * blocks(),
                            [&](int64_t item, int) { combine(item / blocks(), item % blocks()); });
    }

  private:
    int64_t heads() const { return op_.shape.kv_heads; }
    int64_t blocks() const { return (op_.rows() + kLanes - 1) / kLanes; }
    int64_t ranges() const { return (blocks() + range_blocks_ - 1) / range_blocks_; }
    int64_t range_end(int64_t range) const { return std::min(blocks(), (range + 1) * range_blocks_); }
    int64_t output_floats() const { return round_up(op_.dv(), kPanel) * kLanes; }
    int64_t key_block() const { return op_.shape.window > 0 ? keys_together(op_.shape) : kFirstKeys; }
    int64_t segment_end(int64_t segment) const {
        return segment + 1 == segments_ ? op_.length : (segment + 1) * kSegmentKeys;
    }

    // A block's state of a segment, where they are apart: [head][block][segment].
    States state(int64_t head, int64_t block, int64_t segment) const {
        return states_.at((head * blocks() + block) * segments_ + segment);
    }
    States slot_of(const SweepScratch& scratch, int64_t slot) const {
        return States{scratch.m, scratch.l, scratch.o, op_.dv()}.at(slot);
    }

    Sweep sweep(int64_t head) const {
        Sweep row_sweep = head_sweep(context_, op_.shape, heads(), head, op_.q, op_.n);
        row_sweep.out = static_cast<char*>(op_.o);
        row_sweep.keys = cache_rows(op_.shape, head, op_.kv, nullptr, op_.length);
        row_sweep.total_keys = op_.length;
        row_sweep.offset = op_.length - op_.n;
        row_sweep.window = op_.shape.window;
        row_sweep.key_block = key_block();
        row_sweep.later_block = keys_together(op_.shape);
        row_sweep.unit = head;
        return row_sweep;
    }

    // Sweeps a segment: store(block, slot) for each block of the range that sees it.
    template <class Store>
    void sweep_segment(const Sweep& rows, int64_t range, int64_t segment, SweepScratch& scratch,
                       Store&& store) const {
        const int64_t end = range_end(range), first = segment * kSegmentKeys;
        int64_t begin = range * range_blocks_;
        while (begin < end && rows.visible_to_block(begin) <= first) ++begin;
        if (begin == end) return;
        scratch.packed_unit = -1;  // other segments of this head have other keys
        rows.run(scratch, begin, end, first, segment_end(segment), false, std::forward<Store>(store));
    }

    void attend_segment(int64_t head, int64_t range, int64_t segment, SweepScratch& scratch) {
        sweep_segment(sweep(head), range, segment, scratch, [&](int64_t block, int64_t slot) {
            copy(slot_of(scratch, slot), state(head, block, segment));
        });
    }

    // All segments of a range. The state of those before is kept behind the slots of the sweep.
    void attend(int64_t head, int64_t range, SweepScratch& scratch) {
        const Sweep rows = sweep(head);
        const int64_t begin = range * range_blocks_, kept = range_end(range) - begin;
        for (int64_t segment = 0; segment < segments_; ++segment) {
            sweep_segment(rows, range, segment, scratch, [&](int64_t block, int64_t slot) {
                const bool last = rows.visible_to_block(block) <= segment_end(segment);
                int64_t sum = slot;
                if (segments_ > 1 && !(last && segment == 0)) {
                    sum = kept + block - begin;
                    if (segment == 0) {
                        copy(slot_of(scratch, slot), slot_of(scratch, sum));
                    } else {
                        add(*context_->kernels, slot_of(scratch, slot), rows.lanes(block),
                            slot_of(scratch, sum));
                    }
                }
                if (last) rows.store_state(scratch, block, sum, op_.m, op_.l);
            });
        }
    }

    void combine(int64_t head, int64_t block) const {
        const Sweep rows = sweep(head);
        const States sum = state(head, block, 0);
        const int64_t seen = (rows.visible_to_block(block) + kSegmentKeys - 1) / kSegmentKeys;
        for (int64_t segment = 1; segment < seen; ++segment)
            add(*context_->kernels, state(head, block, segment), rows.lanes(block), sum);
        SweepScratch view{};
        view.o = sum.o;
        view.m = sum.m;
        view.l = sum.l;
        rows.store_state(view, block, 0, op_.m, op_.l);
    }

    h2o_cpu* context_;
    const Cached& op_;
    int64_t range_blocks_;
    int64_t segments_ = 1;
    bool apart_ = false;  // whether segments are items of their own
    States states_{};
};

}  // namespace

void attend(h2o_cpu* context, const Cached* ops, int64_t count) {
    if (few_rows(ops[0])) return decode(context, ops, count);
    for (int64_t i = 0; i < count; ++i) attend_as_prompt(context, ops[i]);
}

void attend_as_prompt(h2o_cpu* context, const Cached& op) {
    Prefill(context, op).run();
}

}  // namespace h2o

namespace h2o::cpu {

namespace {

template <class Call, class Attend>
h2o_status attend(const Call& call, float* m, float* l, const Attend& attend) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || *call.length < call.n) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (call.n == 0) return H2O_OK;
    if (!call.q || !call.o) return H2O_BAD_ARGUMENT;
    const Cached op{call.shape, call.n, *call.length, call.q, *call.kv, call.o, nullptr, m, l};
    return guarded(context, [&] { attend(context, op); });
}

void attend_any(h2o_cpu* context, const Cached& op) {
    h2o::attend(context, &op, 1);
}

}  // namespace

h2o_status run(const calls::CachedAttention& call) {
    return attend(call, nullptr, nullptr, attend_any);
}

h2o_status run(const calls::PartialAttention& call) {
    if (call.n > 0 && (!call.m || !call.l)) return H2O_BAD_ARGUMENT;
    return attend(call, call.m, call.l, attend_any);
}

h2o_status run(const calls::PromptAttention& call) {
    if ((call.m == nullptr) != (call.l == nullptr)) return H2O_BAD_ARGUMENT;
    return attend(call, call.m, call.l, attend_as_prompt);
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
