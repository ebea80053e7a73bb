// A few rows against the cache (decode): it is cut into runs of rows, read once each for all heads, in memory
// order. The cut follows from the call's sizes alone, and runs are combined in order of position. So a call's
// result does not depend on the other calls.
#include <cmath>

#include "cached.h"
#include "fuse.h"

namespace h2o {
namespace {

// The most cache rows of a work item, and the least if kRuns items would be too few. Each item has a cost, so
// a short cache is not cut into smaller runs.
constexpr int64_t kMostRun = 512, kLeastRun = 64, kRuns = 4;
// Below this many K/V elements a single thread runs, unless workers are already spinning.
constexpr int64_t kWakeNumbers = 3 << 17;
constexpr int64_t kDecodeRows = 16;   // the most query rows per key/value head that are computed one by one
constexpr int64_t kLatentRows = 144;  // the same if values are stored in keys
constexpr int64_t kTogether = 9;      // the fewest computed together there: fewer leave vector lanes empty

// Whether rows that share a key are computed together. This path does not keep each row's probabilities.
bool together(const Cached& op) {
    return h2o_kv_latent(&op.kv) && op.rows() >= kTogether && op.seen == nullptr;
}

// K/V elements of a row.
int64_t numbers(const Cached& op) {
    return op.shape.kv_heads * (op.shape.head_size + op.dv());
}

// All runs have about the same number of rows, so that threads finish together.
int64_t rows_of_a_run(int64_t length) {
    const int64_t runs = std::max((length + kMostRun - 1) / kMostRun, std::min(kRuns, length / kLeastRun));
    return runs == 0 ? kLeastRun : round_up((length + runs - 1) / runs, 16);
}

// One call: its queries, and the states of its runs. Runs are processed in any order, on any thread.
class Decode {
  public:
    Decode() = default;
    explicit Decode(const Cached& op) : op_(&op), run_(rows_of_a_run(op.length - op.first())) {}

    // Carves what threads share from a block.
    void carve(Carver& carver) {
        q_ = carver.take<float>(rows() * q_width());
        m_ = carver.take<float>(runs() * rows());
        l_ = carver.take<float>(runs() * rows());
        o_ = carver.take<float>(runs() * rows() * o_width());
        if (op_->seen) p_ = carver.take<float>(runs() * run_scores());
    }

    // Bytes that each thread needs.
    size_t scratch() const {
        return together(*op_) ? decode_latent_scratch(op_->shape, group())
                              : static_cast<size_t>(run_scores()) * sizeof(float);
    }

    int64_t keys() const { return op_->length - op_->first(); }
    int64_t runs() const { return (keys() + run_ - 1) / run_; }

    void begin(const KernelTable& kernels) {
        if (op_->seen) std::fill(op_->seen, op_->seen + op_->length * op_->shape.kv_heads, 0.0f);
        for (int64_t r = 0; r < rows(); ++r)
            read_query(kernels, op_->shape, op_->q, at(r), q_ + r * q_width());
    }

    void attend(const KernelTable& kernels, int64_t index, char* scratch) {
        int64_t visible[kLatentRows];
        const int64_t first = run_start(index), keys = std::min(run_, op_->length - first);
        for (int64_t g = 0; g < group(); ++g) {
            visible[g] = std::clamp<int64_t>(op_->length - op_->n + token(g) + 1 - first, 0, keys);
        }
        DecodeArgs args{};
        read_from(op_->shape, op_->kv, first, &args);
        args.group = group();
        args.keys = keys;
        args.q = q_;
        args.visible = visible;
        args.m = m_ + index * rows();
        args.l = l_ + index * rows();
        args.o = o_ + index * rows() * o_width();
        if (together(*op_)) return decode_latent(kernels, args, scratch);
        args.p = op_->seen ? p_ + index * run_scores() : reinterpret_cast<float*>(scratch);
        kernels.decode(args);
    }

    // A run's output is a thousandth of its input: combining costs less than waking a thread.
    void end(const KernelTable& kernels) {
        for (int64_t r = 0; r < rows(); ++r) combine(kernels, r);
    }

  private:
    int64_t group() const { return op_->rows(); }
    int64_t rows() const { return op_->shape.kv_heads * group(); }
    int64_t run_start(int64_t index) const { return op_->first() + index * run_; }
    int64_t run_scores() const { return decode_scratch(rows(), run_); }
    int64_t d() const { return op_->shape.head_size; }
    int64_t dv() const { return op_->dv(); }
    int64_t q_width() const { return round_up(d(), 16); }
    int64_t o_width() const { return round_up(dv(), 16); }
    int64_t token(int64_t r) const { return r % group() / op_->group(); }
    // The index of row r in [n, Hq].
    int64_t at(int64_t r) const {
        return token(r) * op_->shape.query_heads + r / group() * op_->group() + r % op_->group();
    }

    void combine(const KernelTable& kernels, int64_t r) {
        const Fused state = join_runs(kernels, runs(), rows(), r, dv(), m_, l_, o_);
        kernels.from_float(o_ + r * o_width(), op_->shape.dtype, dv(), 1.0f / state.l,
                           static_cast<char*>(op_->o) + at(r) * dv() * element_size(op_->shape.dtype));
        if (op_->seen) add_seen(r, state.m, state.l);
        if (op_->m == nullptr) return;
        op_->m[at(r)] = state.m;
        op_->l[at(r)] = state.l;
    }

    // A run's probabilities are relative to its own maximum: rescale them to the maximum of all runs.
    void add_seen(int64_t r, float m, float l) {
        for (int64_t i = 0; i < runs(); ++i) {
            const int64_t keys = std::min(run_, op_->length - run_start(i));
            const float* const p = p_ + i * run_scores() + r * round_up(keys, 16);
            const float share = std::exp(m_[i * rows() + r] - m) / l;
            float* const seen = op_->seen + run_start(i) * op_->shape.kv_heads + r / group();
            for (int64_t key = 0; key < keys; ++key) seen[key * op_->shape.kv_heads] += share * p[key];
        }
    }

    const Cached* op_ = nullptr;
    int64_t run_ = 0;  // rows
    float *q_ = nullptr, *m_ = nullptr, *l_ = nullptr, *o_ = nullptr;
    float* p_ = nullptr;  // of all runs, if requested
};

}  // namespace

bool few_rows(const Cached& op) {
    if (op.shape.window > 0 && op.n > 1 && op.length > op.shape.window) return false;  // windows differ
    return op.rows() <= (together(op) ? kLatentRows : kDecodeRows);
}

void decode(h2o_cpu* context, const Cached* ops, int64_t count) {
    Decode calls[kMostCalls];
    Carver sizes(nullptr);
    size_t scratch = 0;
    int64_t most_runs = 0, read = 0;
    for (int64_t i = 0; i < count; ++i) {
        calls[i] = Decode(ops[i]);
        calls[i].carve(sizes);
        scratch = std::max(scratch, calls[i].scratch());
        most_runs = std::max(most_runs, calls[i].runs());
        read += calls[i].keys() * numbers(ops[i]);
    }
    Carver shared(context->shared.at_least(sizes.used()));
    for (Arena& arena : context->arenas) arena.at_least(scratch);
    const KernelTable& kernels = *context->kernels;
    for (int64_t i = 0; i < count; ++i) {
        calls[i].carve(shared);
        calls[i].begin(kernels);
    }
    // The same run of all calls in turn: calls that share a cache find its rows in the processor's cache.
    auto attend = [&](int64_t item, int thread) {
        Decode& call = calls[item % count];
        if (item / count >= call.runs()) return;
        call.attend(kernels, item / count, context->arenas[static_cast<size_t>(thread)].at_least(0));
    };
    if (context->pool.awake() || read >= kWakeNumbers) {
        context->pool.each(most_runs * count, attend);
    } else {
        for (int64_t item = 0; item < most_runs * count; ++item) attend(item, 0);
    }
    for (int64_t i = 0; i < count; ++i) calls[i].end(kernels);
}

}  // namespace h2o
