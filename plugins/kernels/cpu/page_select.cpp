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

struct PageSelect {
    h2o_cpu* context;
    const calls::PageSelect& call;
    int64_t pages;  // in use
    struct Shared {
        float *positive, *negative;  // [Hq][width] the queries' positive and negative elements
        float* bound;                // [Hq][pages]
    };

    int64_t width() const { return round_up(call.shape.head_size, 16); }
    int64_t group() const { return call.shape.query_heads / call.shape.score_heads; }
    int64_t others() const { return pages - 1; }

    Shared carve(Carver& carver) const {
        const int64_t heads = call.shape.query_heads;
        return {carver.take<float>(heads * width()), carver.take<float>(heads * width()),
                carver.take<float>(heads * pages)};
    }

    void run() const {
        const Shared shared = carve_shared(context, [this](Carver& carver) { return carve(carver); });
        const auto orders =
            carve_own(context, [this](Carver& own) { return own.take<uint32_t>(take_room(pages)); });
        for (int64_t h = 0; h < call.shape.query_heads; ++h)
            split_query(h, shared.positive + h * width(), shared.negative + h * width());
        if (others() >= call.M) {
            context->pool.each((others() + kRun - 1) / kRun, [&](int64_t item, int) {
                score(shared, item * kRun, std::min(others(), (item + 1) * kRun));
            });
        }
        context->pool.each(call.shape.score_heads, [&](int64_t set, int thread) {
            choose(shared.bound + set * group() * pages, orders(thread), call.page_list + set * call.M);
        });
    }

    void split_query(int64_t h, float* positive, float* negative) const {
        const int64_t d = call.shape.head_size, at = h * d * element_size(call.shape.dtype);
        std::fill(positive, positive + width(), 0.0f);
        context->kernels->to_float(static_cast<const char*>(call.q) + at, call.shape.dtype, d, 1.0f,
                                   positive);
        for (int64_t c = 0; c < width(); ++c) {
            negative[c] = std::min(positive[c], 0.0f);
            positive[c] = std::max(positive[c], 0.0f);
        }
    }

    void score(const Shared& shared, int64_t begin, int64_t end) const {
        const h2o_shape& shape = call.shape;
        const int64_t row = shape.kv_heads * shape.head_size;
        context->kernels->bounds({shape.kv_heads, shape.query_heads / shape.kv_heads, shape.head_size,
                                  end - begin, shared.positive, shared.negative, call.k_min + begin * row,
                                  call.k_max + begin * row, pages, shared.bound + begin});
    }

    // A set's bound is the maximum over its query heads. Ties go to the lower page; NaN comes last.
    void choose(float* bound, uint32_t* orders, int32_t* out) const {
        if (pages <= call.M) {
            for (int64_t i = 0; i < call.M; ++i) out[i] = i < pages ? static_cast<int32_t>(i) : -1;
            return;
        }
        for (int64_t g = 1; g < group(); ++g) {
            const float* const more = bound + g * pages;
            for (int64_t i = 0; i < others(); ++i) bound[i] = std::max(bound[i], more[i]);
        }
        for (int64_t i = 0; i < others(); ++i) orders[i] = signed_order(bound[i]);
        take_first_best(orders, others(), call.M - 1, out);
        out[call.M - 1] = static_cast<int32_t>(others());
    }
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
    return guarded(context, [&] { PageSelect{context, call, used}.run(); });
}

}  // namespace h2o::cpu
