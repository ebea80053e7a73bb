// SubquadraticAttention for one token: runs over its window, over the few earlier rows, and over its
// landmarks, each read once for all heads. Then their states are combined.
#include <cmath>

#include "fuse.h"
#include "subquadratic.h"

namespace h2o {
namespace {

constexpr int64_t kRun = 512;  // rows of the window at a time

class Step {
  public:
    Step(h2o_cpu* context, const Subquadratic& op)
        : context_(context), op_(op), first_(std::max<int64_t>(0, position() - op.window())) {
        carve_shared(context, [this](Carver& carver) { return carve(carver), 0; });
        const int64_t scores = decode_scratch(heads(), std::max(kRun, std::max(most_tokens(), most_marks())));
        for (Arena& arena : context->arenas) arena.at_least(static_cast<size_t>(scores) * sizeof(float));
    }

    void run() {
        for (int64_t h = 0; h < heads(); ++h)
            read_query(*context_->kernels, op_.shape, op_.call.q, h, q_ + h * width());
        const int64_t tokens = find_tokens(), marks = find_landmarks();
        const int64_t windows = runs(), all = windows + (tokens > 0 ? 1 : 0) + (marks > 0 ? 1 : 0);
        h2o_kv means{};
        means.k = const_cast<float*>(op_.call.k_mean);
        means.v = const_cast<float*>(op_.call.v_mean);
        context_->pool.each(all, [&](int64_t index, int thread) {
            if (index < windows) {
                const int64_t from = first_ + index * kRun;
                const Piece run{from, std::min(kRun, op_.length() - from)};
                attend(index, thread, op_.kv, &run, 1);
            } else if (index == windows && tokens > 0) {
                attend(index, thread, op_.kv, tokens_, tokens);
            } else {
                attend(index, thread, means, marks_, marks);
                for (int64_t h = 0; h < heads(); ++h) m_[index * heads() + h] += op_.bias;
            }
        });
        for (int64_t h = 0; h < heads(); ++h) combine(h, all);
    }

  private:
    int64_t heads() const { return op_.shape.query_heads; }
    int64_t d() const { return op_.shape.head_size; }
    int64_t width() const { return round_up(d(), 16); }
    int64_t position() const { return op_.length() - 1; }
    int64_t runs() const { return (op_.length() - first_ + kRun - 1) / kRun; }
    int64_t most_tokens() const { return op_.call.M + kMostStrides; }
    int64_t most_marks() const { return op_.landmarks_at_most(1); }

    void carve(Carver& carver) {
        const int64_t most = runs() + 2;
        q_ = carver.take<float>(heads() * width());
        m_ = carver.take<float>(most * heads());
        l_ = carver.take<float>(most * heads());
        o_ = carver.take<float>(most * heads() * width());
        tokens_ = carver.take<Piece>(most_tokens());
        marks_ = carver.take<Piece>(most_marks());
        mark_ids_ = carver.take<int32_t>(most_marks());
    }

    // Global rows and strides; returns the number of pieces, of which neighbours are one.
    int64_t find_tokens() {
        int64_t count = 0;
        const auto take = [&](int64_t row) {
            if (count > 0 && row == tokens_[count - 1].first + tokens_[count - 1].keys) {
                ++tokens_[count - 1].keys;
            } else {
                tokens_[count++] = {row, 1};
            }
        };
        for (int64_t i = 0; i < op_.call.M; ++i) {
            if (op_.sees_global(position() - op_.call.global_rows[i])) take(op_.call.global_rows[i]);
        }
        for (int k = 0; k < kMostStrides; ++k) {
            const int64_t stride = int64_t{1} << k;
            if (op_.strides_to(stride, position())) take(position() - stride);
        }
        return count;
    }

    int64_t find_landmarks() {
        if (op_.newest(position()) < 0) return 0;
        const int64_t count = op_.landmarks(position(), position(), mark_ids_);
        for (int64_t i = 0; i < count; ++i) marks_[i] = {mark_ids_[i], 1};
        return count;
    }

    void attend(int64_t index, int thread, const h2o_kv& kv, const Piece* pieces, int64_t count) {
        int64_t visible[16], keys = 0;
        for (int64_t i = 0; i < count; ++i) keys += pieces[i].keys;
        std::fill(visible, visible + op_.group(), keys);
        DecodeArgs args{};
        read_from(op_.shape, kv, 0, &args);
        args.pieces = pieces;
        args.piece_count = count;
        args.group = op_.group();
        args.keys = keys;
        args.q = q_;
        args.visible = visible;
        args.p = reinterpret_cast<float*>(context_->arenas[static_cast<size_t>(thread)].at_least(0));
        args.m = m_ + index * heads();
        args.l = l_ + index * heads();
        args.o = o_ + index * heads() * width();
        context_->kernels->decode(args);
    }

    void combine(int64_t h, int64_t all) {
        const Fused state = join_runs(*context_->kernels, all, heads(), h, d(), m_, l_, o_);
        context_->kernels->from_float(
            o_ + h * width(), op_.shape.dtype, d(), 1.0f / state.l,
            static_cast<char*>(op_.call.o) + h * d() * element_size(op_.shape.dtype));
    }

    h2o_cpu* context_;
    const Subquadratic& op_;
    int64_t first_;  // of the window
    float *q_ = nullptr, *m_ = nullptr, *l_ = nullptr, *o_ = nullptr;
    Piece *tokens_ = nullptr, *marks_ = nullptr;
    int32_t* mark_ids_ = nullptr;
};

}  // namespace

void subquadratic_step(h2o_cpu* context, const Subquadratic& op) {
    Step(context, op).run();
}

}  // namespace h2o
