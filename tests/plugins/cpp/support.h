// Random inputs, contexts for every instruction set, and the operators in float64, from the design's
// formulas.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "calls.h"
#include "scalar/half.h"

namespace h2o::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Destroy {
    void operator()(h2o_cpu* context) const { h2o_cpu_destroy(context); }
};
using Context = std::unique_ptr<h2o_cpu, Destroy>;

inline Context make(int threads, const char* isa, h2o_precision precision = H2O_FLOAT32) {
    h2o_cpu* context = nullptr;
    h2o_cpu_create(threads, isa, precision, &context);
    return Context(context);
}

// Those that this build and machine have.
inline std::vector<std::string> instruction_sets() {
    std::vector<std::string> found;
    for (const char* isa : {"scalar", "avx2", "avx512", "amx", "neon"}) {
        if (make(1, isa) != nullptr) found.emplace_back(isa);
    }
    return found;
}

class EveryIsa : public testing::TestWithParam<std::string> {
  protected:
    Context context(int threads = 2) const { return make(threads, GetParam().c_str()); }
};

#define H2O_EVERY_ISA(Suite)                                                               \
    INSTANTIATE_TEST_SUITE_P(Isa, Suite, testing::ValuesIn(h2o::test::instruction_sets()), \
                             [](const auto& info) { return info.param; })

// Numbers as the kernels store them, and what they are exactly.
class Stored {
  public:
    Stored(h2o_dtype dtype, size_t count) : dtype_(dtype), floats_(count), halves_(count) {}
    static Stored random(h2o_dtype dtype, size_t count, uint32_t seed, float spread = 1.0f) {
        Stored made(dtype, count);
        std::mt19937 bits(seed);
        std::normal_distribution<float> normal(0.0f, spread);
        for (size_t i = 0; i < count; ++i) {
            made.floats_[i] = normal(bits);
            made.halves_[i] = float_to_half(made.floats_[i]);
        }
        return made;
    }

    void* data() { return dtype_ == H2O_F16 ? static_cast<void*>(halves_.data()) : floats_.data(); }
    const void* data() const { return const_cast<Stored*>(this)->data(); }
    double operator[](size_t i) const {
        return static_cast<double>(dtype_ == H2O_F16 ? half_to_float(halves_[i]) : floats_[i]);
    }
    void set(size_t i, float x) {
        floats_[i] = x;
        halves_[i] = float_to_half(x);
    }
    size_t size() const { return floats_.size(); }
    h2o_dtype dtype() const { return dtype_; }
    bool operator==(const Stored& other) const {
        return dtype_ == H2O_F16 ? halves_ == other.halves_
                                 : std::memcmp(floats_.data(), other.floats_.data(), 4 * size()) == 0;
    }

  private:
    h2o_dtype dtype_;
    Floats floats_;
    std::vector<uint16_t> halves_;
};

struct Shape {
    int64_t kv_heads, group, d;
    h2o_dtype dtype;
    bool by_query = false;  // score heads

    int64_t query_heads() const { return kv_heads * group; }
    int64_t score_heads() const { return by_query ? query_heads() : kv_heads; }
    h2o_shape c() const {
        const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
        const float scale = 1.0f / std::sqrt(static_cast<float>(d));
        return {number(query_heads()),
                number(kv_heads),
                number(score_heads()),
                number(d),
                scale,
                dtype,
                0,
                0,
                0.0f};
    }
    size_t q_size(int64_t n) const { return static_cast<size_t>(n * query_heads() * d); }
    size_t k_size(int64_t n) const { return static_cast<size_t>(n * kv_heads * d); }
    size_t state_size(int64_t n) const { return static_cast<size_t>(n * query_heads()); }
};

struct State {
    Stored o;
    Floats m, l;
    State(const Shape& shape, int64_t n)
        : o(shape.dtype, shape.q_size(n)), m(shape.state_size(n), -7.0f), l(shape.state_size(n), -7.0f) {}
};

// One query row's exact softmax over the cache rows `keys` of its key/value head.
struct Exact {
    double m = -HUGE_VAL, l = 0.0;
    Doubles p;  // probabilities, one a key
    Doubles o;
};

inline Exact attend(const Shape& shape, const Stored& q, int64_t token, int64_t head, const Stored& k,
                    const Stored& v, const std::vector<int64_t>& keys) {
    const int64_t d = shape.d, kv = head / shape.group;
    const size_t row = static_cast<size_t>((token * shape.query_heads() + head) * d);
    const double scale = static_cast<double>(shape.c().scale);
    Exact exact;
    exact.o.assign(static_cast<size_t>(d), 0.0);
    for (int64_t key : keys) {
        double s = 0.0;
        for (int64_t c = 0; c < d; ++c) {
            s +=
                q[row + static_cast<size_t>(c)] * k[static_cast<size_t>((key * shape.kv_heads + kv) * d + c)];
        }
        exact.p.push_back(s * scale);
        exact.m = std::max(exact.m, s * scale);
    }
    for (double& p : exact.p) exact.l += p = std::exp(p - exact.m);
    for (size_t i = 0; i < keys.size(); ++i) {
        exact.p[i] /= exact.l;
        for (int64_t c = 0; c < d; ++c) {
            exact.o[static_cast<size_t>(c)] +=
                exact.p[i] * v[static_cast<size_t>((keys[i] * shape.kv_heads + kv) * d + c)];
        }
    }
    return exact;
}

inline std::vector<int64_t> range(int64_t begin, int64_t end) {
    std::vector<int64_t> out;
    for (int64_t i = begin; i < end; ++i) out.push_back(i);
    return out;
}

// Keys and values with all their rows as a cache.
inline h2o_kv cache_of(const void* k, const void* v, int64_t rows) {
    h2o_kv kv{};
    kv.k = const_cast<void*>(k);
    kv.v = const_cast<void*>(v);
    kv.rows = rows;
    return kv;
}
inline h2o_kv cache_of(const Stored& k, const Stored& v, int64_t rows) {
    h2o_kv kv = cache_of(k.data(), v.data(), rows);
    kv.dtype = k.dtype();
    return kv;
}

// Collects errors against exact values and judges them by design section 8.
class Errors {
  public:
    void add(double actual, double expected) {
        if (!std::isfinite(actual)) ++broken_;
        largest_ = std::max(largest_, std::abs(expected));
        worst_ = std::max(worst_, std::abs(actual - expected));
        error_ += (actual - expected) * (actual - expected);
        norm_ += expected * expected;
    }
    void expect_good(h2o_dtype dtype, const char* what) const {
        EXPECT_EQ(broken_, 0) << what;
        const double bound = dtype == H2O_F16 ? 2.0 / 1024 : 2e-5;  // float16: twice its own rounding
        EXPECT_LE(worst_, bound * largest_) << what;
        if (dtype == H2O_F16) return;
        EXPECT_LE(std::sqrt(error_), 1e-6 * std::sqrt(norm_)) << what;
    }

  private:
    int broken_ = 0;
    double largest_ = 0.0, worst_ = 0.0, error_ = 0.0, norm_ = 0.0;
};

// Rows of a state against exact ones.
struct StateErrors {
    Errors o, m, l;
    void add(const Shape& shape, const State& state, int64_t token, int64_t head, const Exact& exact) {
        const size_t at = static_cast<size_t>(token * shape.query_heads() + head),
                     d = static_cast<size_t>(shape.d);
        for (size_t c = 0; c < d; ++c) o.add(state.o[at * d + c], exact.o[c]);
        m.add(static_cast<double>(state.m[at]), exact.m);
        l.add(static_cast<double>(state.l[at]), exact.l);
    }
    void expect_good(h2o_dtype dtype) const {
        o.expect_good(dtype, "o");
        m.expect_good(H2O_F32, "m");
        l.expect_good(H2O_F32, "l");
    }
};

// Sorted, different cache rows for every score head.
inline std::vector<int32_t> random_memory(const Shape& shape, int64_t slots, int64_t cap, uint32_t seed) {
    std::mt19937 bits(seed);
    std::vector<int32_t> memory;
    for (int64_t head = 0; head < shape.score_heads(); ++head) {
        std::vector<int32_t> rows(static_cast<size_t>(cap));
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
        std::shuffle(rows.begin(), rows.end(), bits);
        std::sort(rows.begin(), rows.begin() + slots);
        memory.insert(memory.end(), rows.begin(), rows.begin() + slots);
    }
    return memory;
}

}  // namespace h2o::test
