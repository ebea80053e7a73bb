// SubquadraticAttention over many rows. A range of row blocks shares the packed keys of its windows. A block
// sees few other keys, which are added to its running softmax: global rows and landmarks as further keys with
// a mask, strides as separate keys of each row.
#include "subquadratic.h"

#include <cmath>

#include "row_blocks.h"

namespace h2o {
namespace {

constexpr int64_t kExtra = 64;                             // other keys at a time
constexpr int64_t kThirds = 3, kThird = kLanes / kThirds;  // of a block's rows
constexpr int64_t kDecodeRows = 16;  // the most query heads per key/value head in a step

// Of one thread.
struct Scratch {
    SweepScratch* sweep;
    float* bias;     // [kExtra][R]
    int32_t* marks;  // landmarks of one block of rows
};

class Range {
  public:
    Range(const h2o_cpu* context, const Subquadratic& op, int64_t head, int64_t begin, const Scratch& scratch)
        : op_(op),
          own_(scratch),
          head_(head),
          blocks_(sweep_of(context, op, head), *scratch.sweep, begin, op.offset()),
          rows_(blocks_.rows()) {}

    void run() {
        const int64_t begin = blocks_.begin(), end = blocks_.end();
        const int64_t first = std::max<int64_t>(0, blocks_.position(begin, 0) - op_.window());
        const int64_t last = blocks_.last_position(end - 1) + 1;
        for (int64_t key = first; key < last; key += kRangeKeys) {
            const int64_t count = std::min(kRangeKeys, last - key);
            blocks_.pack(key, count);
            for (int64_t block = begin; block < end; ++block) window(block, key, count);
        }
        for (int64_t block = begin; block < end; ++block) {
            globals(block);
            landmarks(block);
            attend_extras(block);
            finish(block);
        }
    }

  private:
    static Sweep sweep_of(const h2o_cpu* context, const Subquadratic& op, int64_t head) {
        Sweep rows = head_sweep(context, op.shape, op.shape.kv_heads, head, op.call.q, op.call.n);
        rows.keys = cache_rows(op.shape, head, op.kv, nullptr, op.length());
        return rows;
    }

    int64_t position(int64_t block, int64_t lane) const { return blocks_.position(block, lane); }
    int64_t last_position(int64_t block) const { return blocks_.last_position(block); }

    // Attends with the block's windows to the packed keys [key, key + count), in whole panels. Where windows
    // begin and end, only some thirds of the rows see any key: those are computed separately.
    void window(int64_t block, int64_t key, int64_t count) {
        int64_t begin[kThirds], end[kThirds];
        for (int64_t i = 0; i < kThirds; ++i) {
            const int64_t low = position(block, i * kThird) - op_.window() - key;
            const int64_t high = position(block, (i + 1) * kThird - 1) + 1 - key;
            begin[i] = std::clamp<int64_t>(low, 0, count) / kPanel * kPanel;
            end[i] = std::min(round_up(std::clamp<int64_t>(high, 0, count), kPanel), count);
        }
        if (begin[2] >= end[0]) {
            attend_window(block, key, begin[0], end[2], 0, 3);
            return;
        }
        attend_window(block, key, begin[2], end[0], 0, 3);
        attend_window(block, key, begin[0], begin[1], 0, 1);
        attend_window(block, key, begin[1], begin[2], 0, 2);
        attend_window(block, key, end[0], end[1], 1, 2);
        attend_window(block, key, end[1], end[2], 2, 1);
    }

    // Packed keys [begin, end), the first of all being `key`, for some thirds of the rows.
    void attend_window(int64_t block, int64_t key, int64_t begin, int64_t end, int64_t third,
                       int64_t thirds) {
        const int64_t lane = third * kThird, rows = thirds * kThird;
        const int64_t keys = std::min(end, position(block, lane + rows - 1) + 1 - key) - begin;
        if (keys <= 0) return;
        float visible[kLanes], first[kLanes];
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t here = position(block, lane + r) - key - begin;
            visible[r] = static_cast<float>(std::clamp<int64_t>(here + 1, 0, keys));
            first[r] = static_cast<float>(std::clamp<int64_t>(here - op_.window(), 0, keys));
        }
        if (rows < kLanes) blocks_.clear(block);
        BlockArgs block_args = blocks_.args(block, keys, lane, rows);
        block_args.unmasked = static_cast<int64_t>(visible[0]);
        block_args.hiding = static_cast<int64_t>(first[rows - 1]);
        blocks_.skip(block_args, begin);
        block_args.visible = visible;
        block_args.first = first;
        blocks_.attention().attend(block_args);
    }

    void globals(int64_t block) {
        for (int64_t i = 0; i < op_.call.M; ++i) {
            const int64_t row = op_.call.global_rows[i];
            if (row >= last_position(block) - op_.window()) continue;
            float* const bias = add(block, op_.kv.dtype);
            extra_.take(extras_++, rows_.keys, row);
            for (int64_t r = 0; r < kLanes; ++r) {
                bias[r] = op_.sees_global(position(block, r) - row) ? 0.0f : -HUGE_VALF;
            }
        }
    }

    void landmarks(int64_t block) {
        if (op_.newest(last_position(block)) < 0) return;
        const int64_t found = op_.landmarks(position(block, 0), last_position(block), own_.marks);
        const int64_t width = op_.shape.kv_heads * rows_.d;
        int64_t newest[kLanes];
        for (int64_t r = 0; r < kLanes; ++r) newest[r] = op_.newest(position(block, r));
        for (int64_t i = 0; i < found; ++i) {
            const int64_t mark = own_.marks[i], at = mark * width + head_ * rows_.d;
            float* const bias = add(block, H2O_F32);
            extra_.set(extras_++, op_.call.k_mean + at, op_.call.v_mean + at);
            float here = 0.0f;
            for (int64_t r = 0; r < kLanes; ++r) {
                if (r == 0 || newest[r] != newest[r - 1]) {  // lanes of a block with the same visible keys
                    here = op_.sees_landmark(newest[r] - mark) ? op_.bias : -HUGE_VALF;
                }
                bias[r] = here;
            }
        }
    }

    // Room for one more key of a block, for attention together with other such keys; returns the place of its
    // bias.
    float* add(int64_t block, h2o_dtype dtype) {
        if (extras_ == kExtra || (extras_ > 0 && dtype != extra_.dtype())) attend_extras(block);
        extra_.start(dtype);
        return own_.bias + extras_ * kLanes;
    }

    void attend_extras(int64_t block) {
        if (extras_ == 0) return;
        std::fill(own_.bias + extras_ * kLanes, own_.bias + round_up(extras_, kPanel) * kLanes, 0.0f);
        blocks_.pack(extra_.keys(), extra_.values(), extras_);
        BlockArgs block_args = blocks_.args(block, extras_);
        block_args.bias = own_.bias;
        blocks_.attention().attend(block_args);
        extras_ = 0;
    }

    // Ends with each row's own keys at strides.
    void finish(int64_t block) {
        const int64_t used = blocks_.lanes(block), size = rows_.d * element_size(rows_.dtype);
        const void *q[kLanes], *k[kMostOwn * kLanes], *v[kMostOwn * kLanes];
        float k_scales[kMostOwn * kLanes], v_scales[kMostOwn * kLanes];
        void* out[kLanes];
        for (int64_t r = 0; r < used; ++r) {
            const int64_t at = rows_.at(block * kLanes + r) * size;
            q[r] = rows_.q + at;
            out[r] = static_cast<char*>(op_.call.o) + at;
        }
        int64_t keys = 0;
        for (int64_t stride = 1; stride <= last_position(block); stride *= 2) {
            if (!op_.strides_to(stride, last_position(block))) continue;
            for (int64_t r = 0; r < used; ++r) {
                const int64_t key = position(block, r) - stride, at = keys * kLanes + r;
                k[at] = key < 0 ? nullptr : rows_.keys.key(key);
                v[at] = key < 0 ? nullptr : rows_.keys.value(key);
                k_scales[at] = key < 0 ? 1.0f : rows_.keys.key_scale(key);
                v_scales[at] = key < 0 ? 1.0f : rows_.keys.value_scale(key);
            }
            ++keys;
        }
        const BlockArgs state = blocks_.args(block, 0);
        const bool scaled = op_.kv.dtype == H2O_I8;
        kernels().finish_rows({rows_.d, used, keys, rows_.dtype, op_.kv.dtype, rows_.scale, rows_.softcap, q,
                               k, v, scaled ? k_scales : nullptr, scaled ? v_scales : nullptr, state.m,
                               state.l, state.o, state.p, out});
    }

    const KernelTable& kernels() const { return *rows_.kernels; }

    const Subquadratic& op_;
    const Scratch& own_;
    int64_t head_;
    RowBlocks blocks_;
    const Sweep& rows_;
    Gathered<kExtra> extra_{H2O_F32};
    int64_t extras_ = 0;
};

void run(h2o_cpu* context, const Subquadratic& op) {
    const SweepSize size = range_size(op.shape.head_size, kLanes);
    const int64_t marks = op.landmarks_at_most(kLanes / op.group() + 1);
    const auto own = carve_own(context, [&](Carver& carver) {
        return Scratch{carve(carver, size), carver.take<float>(kExtra * kLanes), carver.take<int32_t>(marks)};
    });
    const int64_t blocks = (op.call.n * op.group() + kLanes - 1) / kLanes, heads = op.shape.kv_heads;
    const int64_t range = kRangeRows / kLanes, ranges = (blocks + range - 1) / range;
    context->pool.each(heads * ranges, [&](int64_t item, int thread) {
        const Scratch scratch = own(thread);
        Range(context, op, item % heads, item / heads * range, scratch).run();
    });
}

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::SubquadraticAttention& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || *call.length < call.n || call.M < 0 || call.window < 0 ||
        call.block_size < 0)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (call.kv->dtype == H2O_F32 && call.shape.dtype != H2O_F32) return H2O_UNSUPPORTED;
    if (call.n == 0) return H2O_OK;
    if (!call.q || !call.o || (call.M > 0 && !call.global_rows)) return H2O_BAD_ARGUMENT;
    if (!in_range(call.global_rows, call.M, INT32_MAX)) return H2O_BAD_ARGUMENT;
    const Subquadratic op{call};
    if (call.block_size > 0 && call.Nb < *call.length / call.block_size) return H2O_BAD_ARGUMENT;
    if (op.newest(*call.length - 1) >= 0 && (!call.k_mean || !call.v_mean)) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] {
        if (call.n == 1 && op.group() <= kDecodeRows) {
            subquadratic_step(context, op);
        } else {
            h2o::run(context, op);
        }
    });
}

}  // namespace h2o::cpu
