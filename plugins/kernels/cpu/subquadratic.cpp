// SubquadraticAttention over many rows. A range of row blocks shares the packed keys of its windows; what a
// block sees besides is little, and added to its running softmax: global rows and landmarks as further keys
// with a mask, strides as one key a row.
#include "subquadratic.h"

#include <cmath>

#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kRangeBlocks = 8;  // 384 rows: with a window of 128 they share 512 keys
constexpr int64_t kKeyBlock = 512;   // keys packed at a time
constexpr int64_t kExtra = 64;       // other keys at a time
constexpr int64_t kDecodeRows = 16;  // most query heads a key/value head that a step takes

// Of one thread.
struct Own {
    SweepScratch* sweep;
    float* bias;     // [kExtra][R]
    int32_t* marks;  // landmarks of one block of rows
};

class Range {
  public:
    Range(const h2o_cpu* context, const Subquadratic& op, int64_t head, int64_t begin, const Own& own)
        : op_(op),
          own_(own),
          scratch_(*own.sweep),
          rows_(head_sweep(context, op.shape, op.shape.kv_heads, head, op.q, op.n)),
          head_(head),
          begin_(begin),
          end_(std::min(rows_.blocks(), begin + kRangeBlocks)) {
        rows_.keys = cache_rows(op.shape, head, op.kv.k, op.kv.v, nullptr, op.length);
        rows_.key_block = kKeyBlock;
    }

    void run() {
        for (int64_t block = begin_; block < end_; ++block) start(block);
        const int64_t first = std::max<int64_t>(0, position(begin_, 0) - op_.pattern.window);
        const int64_t last = last_position(end_ - 1) + 1;
        for (int64_t key = first; key < last; key += kKeyBlock) {
            const int64_t count = std::min(kKeyBlock, last - key);
            rows_.pack(scratch_, key, count, false);
            for (int64_t block = begin_; block < end_; ++block) window(block, key, count);
        }
        for (int64_t block = begin_; block < end_; ++block) {
            globals(block);
            landmarks(block);
            attend_extras(block);
            strides(block);
            rows_.store_state(scratch_, block, slot(block), static_cast<char*>(op_.o), nullptr, nullptr);
        }
    }

  private:
    int64_t slot(int64_t block) const { return block - begin_; }
    // Where the query of a block's lane stands; lanes above those in use stand where the last one does.
    int64_t position(int64_t block, int64_t lane) const { return position_[slot(block)][lane]; }
    int64_t last_position(int64_t block) const { return position(block, kLanes - 1); }

    void start(int64_t block) {
        const int64_t d = rows_.d, used = rows_.lanes(block), from = block * kLanes;
        for (int64_t r = 0; r < used; ++r) {
            scratch_.rows[r] = rows_.q + rows_.at(from + r) * d * element_size(rows_.dtype);
        }
        kernels().pack_queries(scratch_.rows, rows_.dtype, used, d, rows_.scale,
                               scratch_.q + slot(block) * d * kLanes);
        for (int64_t r = 0, token = from / rows_.group, head = from % rows_.group; r < kLanes; ++r) {
            position_[slot(block)][r] = op_.offset() + token;
            if (r + 1 >= used || ++head < rows_.group) continue;
            head = 0;
            ++token;
        }
        fresh_[slot(block)] = true;
    }

    BlockArgs args(int64_t block, int64_t keys) {
        const int64_t at = slot(block);
        BlockArgs made{};
        made.d = rows_.d;
        made.keys = keys;
        made.unmasked = round_up(keys, kPanel);  // no key is masked by its number
        made.lanes = rows_.lanes(block);
        made.q = scratch_.q + at * rows_.d * kLanes;
        made.k = scratch_.k;
        made.v = scratch_.v;
        made.v_keys = kKeyBlock;
        made.p = scratch_.p;
        made.m = scratch_.m + at * kLanes;
        made.l = scratch_.l + at * kLanes;
        made.o = scratch_.o + at * rows_.d * kLanes;
        made.fresh = fresh_[at];
        fresh_[at] = false;
        return made;
    }

    // What the block's windows have of the packed keys [key, key + count): whole panels of them.
    void window(int64_t block, int64_t key, int64_t count) {
        const int64_t low = std::max(position(block, 0) - op_.pattern.window, key);
        const int64_t high = std::min(last_position(block) + 1, key + count);
        if (low >= high) return;
        const int64_t from = (low - key) / kPanel * kPanel, keys = high - key - from;
        float visible[kLanes], first[kLanes];
        for (int64_t r = 0; r < kLanes; ++r) {
            const int64_t here = position(block, r) - key - from;
            visible[r] = static_cast<float>(std::clamp<int64_t>(here + 1, 0, keys));
            first[r] = static_cast<float>(std::clamp<int64_t>(here - op_.pattern.window, 0, keys));
        }
        BlockArgs made = args(block, keys);
        made.unmasked = static_cast<int64_t>(visible[0]);
        made.hiding = static_cast<int64_t>(first[kLanes - 1]);
        made.k += from * rows_.d;
        made.v += from * kPanel;
        made.visible = visible;
        made.first = first;
        kernels().attend(made);
    }

    void globals(int64_t block) {
        const int64_t stride = rows_.keys.stride;
        for (int64_t i = 0; i < op_.slots; ++i) {
            const int64_t row = op_.global_rows[i];
            if (row >= last_position(block) - op_.pattern.window) continue;
            const int64_t at = row * stride;
            float* const bias = add(block, rows_.dtype, rows_.keys.k + at, rows_.keys.v + at);
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
            float* const bias = add(block, H2O_F32, op_.k_mean + at, op_.v_mean + at);
            float here = 0.0f;
            for (int64_t r = 0; r < kLanes; ++r) {
                if (r == 0 || newest[r] != newest[r - 1]) {  // lanes of one block of rows see the same
                    here = op_.sees_landmark(newest[r] - mark) ? op_.pattern.landmark_bias : -HUGE_VALF;
                }
                bias[r] = here;
            }
        }
    }

    // One more key for a block, to be attended to with others of its kind; where its bias goes.
    float* add(int64_t block, h2o_dtype dtype, const void* k, const void* v) {
        if (extras_ == kExtra || (extras_ > 0 && dtype != extra_dtype_)) attend_extras(block);
        extra_dtype_ = dtype;
        extra_[0][extras_] = k;
        extra_[1][extras_] = v;
        return own_.bias + extras_++ * kLanes;
    }

    void attend_extras(int64_t block) {
        if (extras_ == 0) return;
        std::fill(own_.bias + extras_ * kLanes, own_.bias + round_up(extras_, kPanel) * kLanes, 0.0f);
        kernels().pack_keys(extra_[0], extra_dtype_, extras_, rows_.d, scratch_.k);
        kernels().pack_values(extra_[1], extra_dtype_, extras_, rows_.d, kKeyBlock, scratch_.v);
        BlockArgs made = args(block, extras_);
        made.bias = own_.bias;
        kernels().attend(made);
        extras_ = 0;
    }

    // Lanes whose stride leads before the first token are given a key, and do not see it.
    void strides(int64_t block) {
        const int64_t used = rows_.lanes(block), last = last_position(block);
        for (int64_t stride = 1; stride <= last; stride *= 2) {
            if (!op_.strides_to(stride, last)) continue;
            float bias[kLanes];
            for (int64_t r = 0; r < kLanes; ++r) {
                const int64_t at = position(block, r), key = at < stride ? at : at - stride;
                bias[r] = at < stride ? -HUGE_VALF : 0.0f;
                if (r >= used) continue;
                extra_[0][r] = rows_.keys.k + key * rows_.keys.stride;
                extra_[1][r] = rows_.keys.v + key * rows_.keys.stride;
            }
            kernels().pack_queries(extra_[0], rows_.dtype, used, rows_.d, 1.0f, scratch_.k);
            kernels().pack_queries(extra_[1], rows_.dtype, used, rows_.d, 1.0f, scratch_.v);
            const BlockArgs state = args(block, 0);
            kernels().attend_own({rows_.d, state.q, scratch_.k, scratch_.v, bias, state.m, state.l, state.o});
        }
    }

    const KernelTable& kernels() const { return *rows_.kernels; }

    const Subquadratic& op_;
    const Own& own_;
    SweepScratch& scratch_;
    Sweep rows_;
    int64_t head_, begin_, end_;
    int64_t position_[kRangeBlocks][kLanes];
    bool fresh_[kRangeBlocks];
    const void* extra_[2][kExtra];  // keys, values
    int64_t extras_ = 0;
    h2o_dtype extra_dtype_ = H2O_F32;
};

void run(h2o_cpu* context, const Subquadratic& op) {
    const SweepSize size{op.shape.head_size, kKeyBlock, kRangeBlocks, true, false};
    const int64_t marks = op.landmarks_at_most(kLanes / op.group() + 1);
    const auto carve_own = [&](char* base, size_t* bytes) {
        Carver carver(base);
        Own own{};
        own.sweep = carve(carver, size);
        own.bias = carver.take<float>(kExtra * kLanes);
        own.marks = carver.take<int32_t>(marks);
        if (bytes != nullptr) *bytes = carver.used();
        return own;
    };
    size_t bytes = 0;
    carve_own(nullptr, &bytes);
    for (Arena& arena : context->own) arena.at_least(bytes);
    const int64_t blocks = (op.n * op.group() + kLanes - 1) / kLanes, heads = op.shape.kv_heads;
    const int64_t ranges = (blocks + kRangeBlocks - 1) / kRangeBlocks;
    context->pool.each(heads * ranges, [&](int64_t item, int thread) {
        const Own own = carve_own(context->own[static_cast<size_t>(thread)].at_least(0), nullptr);
        Range(context, op, item % heads, item / heads * kRangeBlocks, own).run();
    });
}

h2o_status check_pattern(const h2o_subquadratic* pattern) {
    if (pattern == nullptr || pattern->window < 0 || pattern->block_size < 0) return H2O_BAD_ARGUMENT;
    return std::isfinite(pattern->landmark_bias) ? H2O_OK : H2O_BAD_ARGUMENT;
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_subquadratic_attention(h2o_cpu* context, const h2o_shape* shape,
                                          const h2o_subquadratic* pattern, int64_t n, const void* q,
                                          const h2o_kv* kv, int64_t length, const float* k_mean,
                                          const float* v_mean, int64_t slots, const int32_t* global_rows,
                                          void* o) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (const h2o_status status = h2o::check_pattern(pattern); status != H2O_OK) return status;
    if (context == nullptr || n < 0 || length < n || slots < 0) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check(kv, length); status != H2O_OK) return status;
    if (n == 0) return H2O_OK;
    if (!q || !o || (slots > 0 && !global_rows)) return H2O_BAD_ARGUMENT;
    if (!h2o::in_range(global_rows, slots, INT32_MAX)) return H2O_BAD_ARGUMENT;
    const h2o::Subquadratic op{*shape, *pattern, n, length, q, *kv, k_mean, v_mean, global_rows, slots, o};
    if (op.newest(length - 1) >= 0 && (!k_mean || !v_mean)) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context, [&] {
        if (n == 1 && op.group() <= h2o::kDecodeRows) {
            h2o::subquadratic_step(context, op);
        } else {
            h2o::run(context, op);
        }
    });
}
