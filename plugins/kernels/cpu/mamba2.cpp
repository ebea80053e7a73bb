// Mamba2: layers that keep a state, one matrix a head, in place of a cache of rows.
//
// Heads, and blocks of a head's columns, do not depend on each other. Each goes through all tokens,
// kMamba2Rows of them at a time, with its part of the state in L1 or L2. Heads of a group share b and c, and
// so the products of these: a few heads go together.
#include <algorithm>
#include <cstring>

#include "context.h"

namespace h2o {
namespace {

constexpr int64_t kMostTogether = 4;    // blocks of columns
constexpr int64_t kItemsPerThread = 4;  // at least, before blocks go together

class Mamba2 {
  public:
    Mamba2(h2o_cpu* context, const calls::Mamba2& call) : context_(context), call_(call) {
        const int64_t all = heads() * blocks(), items = kItemsPerThread * context->pool.size();
        together_ = std::clamp<int64_t>(all / items, 1, std::min(kMostTogether, group() * blocks()));
    }

    void run() {
        const auto own = carve_own(context_, [this](Carver& carver) { return carve(carver); });
        const int64_t each = group() * blocks(), items = (each + together_ - 1) / together_;
        context_->pool.each(kv_heads() * items, [&](int64_t item, int thread) {
            const int64_t first = item % items * together_, count = std::min(together_, each - first);
            pass(item / items, item / items * each + first, count, own(thread));
        });
    }

  private:
    struct Scratch {                       // names are those of Mamba2Args; R = kMamba2Rows
        float *b, *c;                      // [R][d]
        float *pairs, *between, *weights;  // [R][R]
        float *x, *added, *o;              // [R][kStateColumns]
        float* states;                     // [kMostTogether][d][kStateColumns], of padded blocks
    };
    struct Block {  // some columns of a head
        int64_t head, first, used, columns;
        bool in_place() const { return used == columns; }
    };

    int64_t heads() const { return call_.shape.query_heads; }
    int64_t kv_heads() const { return call_.shape.kv_heads; }
    int64_t group() const { return heads() / kv_heads(); }
    int64_t d() const { return call_.shape.head_size; }
    int64_t dv() const { return value_size(call_.shape); }
    int64_t blocks() const { return (dv() + kStateColumns - 1) / kStateColumns; }

    Block block(int64_t number) const {
        const int64_t first = number % blocks() * kStateColumns, used = std::min(dv() - first, kStateColumns);
        return {number / blocks(), first, used, round_up(used, kStateUnit)};
    }

    Scratch carve(Carver& carver) const {
        constexpr int64_t kRows = kMamba2Rows;
        const auto take = [&](int64_t count) { return carver.take<float>(count); };
        Scratch scratch{};
        scratch.b = take(kRows * d());
        scratch.c = take(kRows * d());
        for (float** each : {&scratch.pairs, &scratch.between, &scratch.weights}) *each = take(kRows * kRows);
        for (float** each : {&scratch.x, &scratch.added, &scratch.o}) *each = take(kRows * kStateColumns);
        if (dv() % kStateUnit != 0) scratch.states = take(together_ * d() * kStateColumns);
        return scratch;
    }

    // All tokens on `count` blocks from `number` on, whose heads have the b and c of a key/value head.
    void pass(int64_t kv_head, int64_t number, int64_t count, const Scratch& scratch) const {
        for (int64_t i = 0; i < count; ++i) open(block(number + i), padded(scratch, i));
        for (int64_t token = 0; token < call_.n; token += kMamba2Rows) {
            const int64_t rows = std::min<int64_t>(kMamba2Rows, call_.n - token);
            pack(kv_head, token, rows, scratch);
            if (rows > 1) context_->kernels->mamba2_pairs(scratch.b, scratch.c, rows, d(), scratch.pairs);
            for (int64_t i = 0; i < count; ++i)
                go(block(number + i), token, rows, padded(scratch, i), scratch);
        }
        for (int64_t i = 0; i < count; ++i) close(block(number + i), padded(scratch, i));
    }

    float* padded(const Scratch& scratch, int64_t i) const {
        return scratch.states + i * d() * kStateColumns;
    }

    // Brings a block's state to where it changes: to state_next, or to memory with columns of zeros behind
    // it.
    void open(const Block& block, float* padded) const {
        const int64_t at = block.head * d() * dv() + block.first;
        if (block.in_place() && call_.state == call_.state_next) return;
        for (int64_t i = 0; i < d(); ++i) {
            const float* const row = call_.state + at + i * dv();
            float* const to =
                block.in_place() ? call_.state_next + at + i * dv() : padded + i * block.columns;
            std::copy_n(row, block.used, to);
            if (!block.in_place()) std::fill(to + block.used, to + block.columns, 0.0f);
        }
    }

    void close(const Block& block, const float* padded) const {
        const int64_t at = block.head * d() * dv() + block.first;
        if (block.in_place()) return;
        for (int64_t i = 0; i < d(); ++i)
            std::copy_n(padded + i * block.columns, block.used, call_.state_next + at + i * dv());
    }

    void pack(int64_t kv_head, int64_t token, int64_t rows, const Scratch& scratch) const {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = ((token + r) * kv_heads() + kv_head) * d();
            to_float(call_.b, at, d(), scratch.b + r * d());
            to_float(call_.c, at, d(), scratch.c + r * d());
        }
        std::fill(scratch.c + rows * d(), scratch.c + round_up(rows, 4) * d(), 0.0f);
    }

    void go(const Block& block, int64_t token, int64_t rows, float* padded, const Scratch& scratch) const {
        float since[kMamba2Rows] = {}, step[kMamba2Rows] = {}, skip[kMamba2Rows] = {};
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = (token + r) * heads() + block.head;
            step[r] = call_.step[at];
            skip[r] = call_.skip[at];
            float* const x = scratch.x + r * block.columns;
            to_float(call_.x, at * dv() + block.first, block.used, x);
            std::fill(x + block.used, x + block.columns, 0.0f);
        }
        decays(block.head, token, rows, since, scratch.between);
        float* const own = call_.state_next + block.head * d() * dv() + block.first;
        const bool direct = block.in_place();
        context_->kernels->mamba2({d(), rows, block.columns, direct ? dv() : block.columns, scratch.b,
                                   scratch.c, scratch.pairs, scratch.between, since, step, skip, scratch.x,
                                   direct ? own : padded, scratch.weights, scratch.added, scratch.o});
        for (int64_t r = 0; r < rows; ++r)
            from_float(scratch.o + r * block.columns,
                       ((token + r) * heads() + block.head) * dv() + block.first, block.used);
    }

    // Their differences are exact where the sums are doubles.
    void decays(int64_t head, int64_t token, int64_t rows, float* since, float* between) const {
        double sum[kMamba2Rows] = {}, total = 0;
        for (int64_t i = 0; i < rows; ++i) {
            total += call_.decay[(token + i) * heads() + head];
            sum[i] = total;
            since[i] = static_cast<float>(total);
            for (int64_t j = 0; j < kMamba2Rows; ++j)
                between[i * kMamba2Rows + j] = j <= i ? static_cast<float>(total - sum[j]) : 0.0f;
        }
    }

    void to_float(const void* from, int64_t at, int64_t count, float* out) const {
        const int64_t bytes = element_size(call_.shape.dtype);
        context_->kernels->to_float(static_cast<const char*>(from) + at * bytes, call_.shape.dtype, count,
                                    1.0f, out);
    }
    void from_float(const float* from, int64_t at, int64_t count) const {
        const int64_t bytes = element_size(call_.shape.dtype);
        context_->kernels->from_float(from, call_.shape.dtype, count, 1.0f,
                                      static_cast<char*>(call_.o) + at * bytes);
    }

    h2o_cpu* context_;
    const calls::Mamba2& call_;
    int64_t together_ = 1;
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::Mamba2& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n < 0) return H2O_BAD_ARGUMENT;
    if (!call.x || !call.b || !call.c || !call.decay || !call.step || !call.skip || !call.state || !call.o ||
        !call.state_next)
        return H2O_BAD_ARGUMENT;
    return guarded(context, [&] { Mamba2(context, call).run(); });
}

}  // namespace h2o::cpu
