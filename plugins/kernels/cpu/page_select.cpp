// PageSelect: the last page, and of the others those whose keys may score highest.
//
// The bound of a page is the sum over channels of max(q * k_min, q * k_max): the positive part of q meets the
// largest numbers, the negative part the smallest. All bounds are read once, in the order they lie in memory.
#include <algorithm>
#include <cmath>

#include "context.h"

namespace h2o {
namespace {

constexpr int64_t kRun = 256;  // pages an item

class PageSelect {
  public:
    PageSelect(h2o_cpu* context, const h2o_shape& shape, const void* q, const float* k_min,
               const float* k_max, int64_t pages, int64_t wanted, int32_t* out)
        : context_(context),
          shape_(shape),
          q_(q),
          k_min_(k_min),
          k_max_(k_max),
          pages_(pages),
          wanted_(wanted),
          out_(out) {
        Carver shared(nullptr);
        carve(shared);
        Carver placed(context->shared.at_least(shared.used()));
        carve(placed);
    }

    void run() {
        for (int64_t h = 0; h < shape_.query_heads; ++h) split_query(h);
        const int64_t others = pages_ - 1;
        if (others >= wanted_) {
            context_->pool.each((others + kRun - 1) / kRun, [&](int64_t item, int) {
                score(item * kRun, std::min(others, (item + 1) * kRun));
            });
        }
        context_->pool.each(shape_.score_heads, [&](int64_t set, int) { choose(set); });
    }

  private:
    int64_t width() const { return round_up(shape_.head_size, 16); }
    int64_t group() const { return shape_.query_heads / shape_.score_heads; }

    void carve(Carver& carver) {
        positive_ = carver.take<float>(shape_.query_heads * width());
        negative_ = carver.take<float>(shape_.query_heads * width());
        bound_ = carver.take<float>(shape_.score_heads * pages_);
        order_ = carver.take<int32_t>(shape_.score_heads * pages_);
    }

    void split_query(int64_t h) {
        const int64_t at = h * shape_.head_size * element_size(shape_.dtype);
        float* const positive = positive_ + h * width();
        float* const negative = negative_ + h * width();
        std::fill(positive, positive + width(), 0.0f);
        context_->kernels->to_float(static_cast<const char*>(q_) + at, shape_.dtype, shape_.head_size, 1.0f,
                                    positive);
        for (int64_t c = 0; c < width(); ++c) {
            negative[c] = std::min(positive[c], 0.0f);
            positive[c] = std::max(positive[c], 0.0f);
        }
    }

    // A set's bound is the largest of its query heads'.
    void score(int64_t begin, int64_t end) {
        const int64_t d = shape_.head_size, row = shape_.kv_heads * d;
        const int64_t heads_a_key = shape_.query_heads / shape_.kv_heads;
        float bounds[kMostHeads];
        for (int64_t page = begin; page < end; ++page) {
            for (int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
                const int64_t at = page * row + kv * d;
                for (int64_t g = 0; g < heads_a_key; g += kMostHeads) {
                    const int64_t count = std::min(kMostHeads, heads_a_key - g), h = kv * heads_a_key + g;
                    context_->kernels->bounds(positive_ + h * width(), negative_ + h * width(), count, d,
                                              k_min_ + at, k_max_ + at, bounds);
                    for (int64_t i = 0; i < count; ++i) {
                        float& bound = bound_[(h + i) / group() * pages_ + page];
                        bound = (h + i) % group() == 0 ? bounds[i] : std::max(bound, bounds[i]);
                    }
                }
            }
        }
    }

    // Ties go to the lower page; a bound that is not a number comes last.
    void choose(int64_t set) {
        int32_t* const out = out_ + set * wanted_;
        if (pages_ <= wanted_) {
            for (int64_t i = 0; i < wanted_; ++i) out[i] = i < pages_ ? static_cast<int32_t>(i) : -1;
            return;
        }
        float* const bound = bound_ + set * pages_;
        int32_t* const order = order_ + set * pages_;
        for (int64_t i = 0; i + 1 < pages_; ++i) {
            order[i] = static_cast<int32_t>(i);
            if (!(bound[i] == bound[i])) bound[i] = -HUGE_VALF;
        }
        const int64_t best = wanted_ - 1;
        const auto before = [bound](int32_t a, int32_t b) {
            return bound[a] != bound[b] ? bound[a] > bound[b] : a < b;
        };
        std::nth_element(order, order + best, order + pages_ - 1, before);
        std::sort(order, order + best);
        std::copy_n(order, best, out);
        out[best] = static_cast<int32_t>(pages_ - 1);
    }

    static constexpr int64_t kMostHeads = 8;  // query heads that share a reading of the bounds

    h2o_cpu* context_;
    const h2o_shape& shape_;
    const void* q_;
    const float *k_min_, *k_max_;
    int64_t pages_, wanted_;
    int32_t* out_;
    float *positive_ = nullptr, *negative_ = nullptr;  // parts of the queries [Hq][width]
    float* bound_ = nullptr;                           // [Hs][pages]
    int32_t* order_ = nullptr;
};

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_page_select(h2o_cpu* context, const h2o_shape* shape, const void* q, int64_t length,
                               int64_t page_size, int64_t pages, const float* k_min, const float* k_max,
                               int64_t wanted, int32_t* out) {
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || length <= 0 || page_size <= 0 || wanted <= 0) return H2O_BAD_ARGUMENT;
    const int64_t used = (length + page_size - 1) / page_size;
    if (!q || !k_min || !k_max || !out || pages < used) return H2O_BAD_ARGUMENT;
    return h2o::guarded(context,
                        [&] { h2o::PageSelect(context, *shape, q, k_min, k_max, used, wanted, out).run(); });
}
