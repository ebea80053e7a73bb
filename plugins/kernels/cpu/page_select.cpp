// PageSelect: the last page, and the other pages whose keys may score highest.
//
// The bound of a page is the sum over channels of max(q * k_min, q * k_max): the positive elements of q
// multiply the maxima, the negative ones the minima. All bounds are read once, in memory order.
#include <algorithm>

#include "context.h"
#include "rank.h"

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
        for (Arena& arena : context->arenas)
            arena.at_least(static_cast<size_t>(rank_room(pages)) * sizeof(uint64_t));
    }

    void run() {
        for (int64_t h = 0; h < shape_.query_heads; ++h) split_query(h);
        const int64_t others = pages_ - 1;
        if (others >= wanted_) {
            context_->pool.each((others + kRun - 1) / kRun, [&](int64_t item, int) {
                score(item * kRun, std::min(others, (item + 1) * kRun));
            });
        }
        context_->pool.each(shape_.score_heads, [&](int64_t set, int thread) {
            choose(set,
                   reinterpret_cast<uint64_t*>(context_->arenas[static_cast<size_t>(thread)].at_least(0)));
        });
    }

  private:
    int64_t width() const { return round_up(shape_.head_size, 16); }
    int64_t group() const { return shape_.query_heads / shape_.score_heads; }

    void carve(Carver& carver) {
        positive_ = carver.take<float>(shape_.query_heads * width());
        negative_ = carver.take<float>(shape_.query_heads * width());
        bound_ = carver.take<float>(shape_.query_heads * pages_);
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

    void score(int64_t begin, int64_t end) {
        const int64_t row = shape_.kv_heads * shape_.head_size;
        BoundsArgs args{};
        args.kv_heads = shape_.kv_heads;
        args.group = shape_.query_heads / shape_.kv_heads;
        args.d = shape_.head_size;
        args.pages = end - begin;
        args.positive = positive_;
        args.negative = negative_;
        args.low = k_min_ + begin * row;
        args.high = k_max_ + begin * row;
        args.pitch = pages_;
        args.out = bound_ + begin;
        context_->kernels->bounds(args);
    }

    // A set's bound is the maximum over its query heads. Ties go to the lower page; NaN comes last.
    void choose(int64_t set, uint64_t* ranks) {
        int32_t* const out = out_ + set * wanted_;
        if (pages_ <= wanted_) {
            for (int64_t i = 0; i < wanted_; ++i) out[i] = i < pages_ ? static_cast<int32_t>(i) : -1;
            return;
        }
        const int64_t others = pages_ - 1;
        float* const bound = bound_ + set * group() * pages_;
        for (int64_t g = 1; g < group(); ++g) {
            const float* const more = bound + g * pages_;
            for (int64_t i = 0; i < others; ++i) bound[i] = std::max(bound[i], more[i]);
        }
        for (int64_t i = 0; i < others; ++i) ranks[i] = signed_rank(bound[i], i);
        take_best(ranks, others, wanted_ - 1, out);
        out[wanted_ - 1] = static_cast<int32_t>(others);
    }

    h2o_cpu* context_;
    const h2o_shape& shape_;
    const void* q_;
    const float *k_min_, *k_max_;
    int64_t pages_, wanted_;
    int32_t* out_;
    float *positive_ = nullptr,
          *negative_ = nullptr;  // the queries' positive and negative elements [Hq][width]
    float* bound_ = nullptr;     // [Hq][pages]
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::PageSelect& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || *call.length <= 0 || call.page_size <= 0 || call.M <= 0)
        return H2O_BAD_ARGUMENT;
    const int64_t used = (*call.length + call.page_size - 1) / call.page_size;
    if (!call.q || !call.k_min || !call.k_max || !call.page_list || call.Nb < used) return H2O_BAD_ARGUMENT;
    return guarded(context, [&] {
        PageSelect(context, call.shape, call.q, call.k_min, call.k_max, used, call.M, call.page_list).run();
    });
}

}  // namespace h2o::cpu
