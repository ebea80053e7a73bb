// GatedDelta: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// Columns of a state do not depend on each other: heads and blocks of columns run in parallel, and each goes
// through all tokens, kDeltaRows of them at a time, with its part of the state in L1.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "context.h"

namespace h2o {
namespace {

class GatedDelta {
  public:
    GatedDelta(h2o_cpu* context, const calls::GatedDelta& call) : context_(context), call_(call) {}

    void run() {
        const auto own = carve_own(context_, [this](Carver& carver) { return carve(carver); });
        context_->pool.each(heads() * blocks(), [&](int64_t item, int thread) {
            pass(item / blocks(), item % blocks() * kStateColumns, own(thread));
        });
    }

  private:
    struct Scratch {
        float* state;     // [d][kStateColumns]; these and the next are as in DeltaArgs
        float* factors;   // [kDeltaFactors][d]
        float* v;         // [kDeltaRows][kStateColumns]
        float* products;  // [kDeltaFactors][kStateColumns]
        float* delta;     // [kDeltaRows][kStateColumns]
        float* o;         // [kDeltaRows][kStateColumns]
    };

    int64_t heads() const { return call_.shape.query_heads; }
    int64_t d() const { return call_.shape.head_size; }
    int64_t dv() const { return value_size(call_.shape); }
    int64_t blocks() const { return (dv() + kStateColumns - 1) / kStateColumns; }
    int64_t row_of(int64_t token, int64_t head) const { return token * heads() + head; }

    Scratch carve(Carver& carver) const {
        return {
            carver.take<float>(d() * kStateColumns),        carver.take<float>(kDeltaFactors * d()),
            carver.take<float>(kDeltaRows * kStateColumns), carver.take<float>(kDeltaFactors * kStateColumns),
            carver.take<float>(kDeltaRows * kStateColumns), carver.take<float>(kDeltaRows * kStateColumns)};
    }

    // All tokens on the columns of a head's state from `first` on. Columns beyond the last are zeros and stay
    // so.
    void pass(int64_t head, int64_t first, const Scratch& scratch) const {
        const int64_t used = std::min(dv() - first, kStateColumns), columns = round_up(used, kStateUnit);
        const int64_t at = head * d() * dv() + first;
        std::memset(scratch.state, 0, static_cast<size_t>(d() * columns) * sizeof(float));
        for (int64_t i = 0; i < d(); ++i)
            std::copy_n(call_.state + at + i * dv(), used, scratch.state + i * columns);
        float since[kDeltaRows], between[kDeltaRows * kDeltaRows], beta[kDeltaRows];
        DeltaArgs args{d(),     0,    columns,       scratch.factors,  scratch.v,     since,
                       between, beta, scratch.state, scratch.products, scratch.delta, scratch.o};
        for (int64_t token = 0; token < call_.n; token += kDeltaRows) {
            args.rows = std::min<int64_t>(kDeltaRows, call_.n - token);
            pack(head, first, used, token, args.rows, columns, scratch);
            decays(head, token, args.rows, since, between, beta);
            context_->kernels->delta(args);
            for (int64_t r = 0; r < args.rows; ++r)
                from_float(scratch.o + r * columns, call_.o, row_of(token + r, head) * dv() + first, used);
        }
        for (int64_t i = 0; i < d(); ++i)
            std::copy_n(scratch.state + i * columns, used, call_.state_next + at + i * dv());
    }

    void pack(int64_t head, int64_t first, int64_t used, int64_t token, int64_t rows, int64_t columns,
              const Scratch& scratch) const {
        const int64_t kv_heads = call_.shape.kv_heads, kv_head = head * kv_heads / heads();
        for (int64_t r = 0; r < rows; ++r) {
            to_float(call_.k, ((token + r) * kv_heads + kv_head) * d(), d(), 1.0f, scratch.factors + r * d());
            to_float(call_.q, row_of(token + r, head) * d(), d(), call_.shape.scale,
                     scratch.factors + (rows + r) * d());
            float* const v = scratch.v + r * columns;
            to_float(call_.v, row_of(token + r, head) * dv() + first, used, 1.0f, v);
            std::fill(v + used, v + columns, 0.0f);
        }
        std::fill(scratch.factors + 2 * rows * d(), scratch.factors + round_up(2 * rows, 4) * d(), 0.0f);
    }

    void decays(int64_t head, int64_t token, int64_t rows, float* since, float* between, float* beta) const {
        float sum[kDeltaRows];  // logarithms
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t at = row_of(token + i, head);
            sum[i] = call_.decay[at] + (i == 0 ? 0.0f : sum[i - 1]);
            beta[i] = call_.beta[at];
            since[i] = std::exp(sum[i]);
            for (int64_t j = 0; j <= i; ++j) between[i * kDeltaRows + j] = std::exp(sum[i] - sum[j]);
        }
    }

    void to_float(const void* from, int64_t at, int64_t count, float scale, float* out) const {
        const int64_t bytes = element_size(call_.shape.dtype);
        context_->kernels->to_float(static_cast<const char*>(from) + at * bytes, call_.shape.dtype, count,
                                    scale, out);
    }
    void from_float(const float* from, void* to, int64_t at, int64_t count) const {
        const int64_t bytes = element_size(call_.shape.dtype);
        context_->kernels->from_float(from, call_.shape.dtype, count, 1.0f,
                                      static_cast<char*>(to) + at * bytes);
    }

    h2o_cpu* context_;
    const calls::GatedDelta& call_;
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::GatedDelta& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.k || !call.v || !call.decay || !call.beta || !call.state || !call.o ||
        !call.state_next)
        return H2O_BAD_ARGUMENT;
    return guarded(context, [&] { GatedDelta(context, call).run(); });
}

}  // namespace h2o::cpu
