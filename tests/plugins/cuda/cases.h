// Shapes that the kernel tests run over, and the small pieces their cases share.
#pragma once

#include <algorithm>
#include <numeric>

#include "reference.h"
#include "support.h"

namespace test {

struct Case {
    h2o_shape shape;
    double spread = 1;    // of q: 1 gives scores of a few units; 30 gives scores beyond +-100
    bool latent = false;  // values are the first numbers of keys
};

inline int value_size(const h2o_shape& s) {
    return s.value_size == 0 ? s.head_size : s.value_size;
}

inline size_t size_of(h2o_dtype dtype) {
    return dtype == H2O_F16 ? 2 : 4;
}

template <class... A>
void name_case(const char* what, const Case& c, const char* format, A... arguments) {
    char shape[160], rest[160] = "";
    std::snprintf(shape, sizeof shape, "%s %s Hq=%d Hkv=%d Hs=%d d=%d/%d%s spread=%g ", what,
                  c.shape.dtype == H2O_F16 ? "f16" : "f32", c.shape.query_heads, c.shape.kv_heads,
                  c.shape.score_heads, c.shape.head_size, value_size(c.shape), c.latent ? " latent" : "",
                  c.spread);
    if constexpr (sizeof...(arguments) > 0) std::snprintf(rest, sizeof rest, format, arguments...);
    context = std::string(shape) + (sizeof...(arguments) > 0 ? rest : format);
}

// Both dtypes, every head size, groups of 1, 2, 4, 8 and one that is no power of two, both score heads.
inline std::vector<Case> cases(const Options& options) {
    std::vector<Case> all;
    const int groups[] = {1, 2, 4, 8, 3};
    int which = 0;
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32})
        for (const int d : {32, 64, 80, 96, 128})
            for (int i = 0; i < (options.small ? 2 : 5); ++i, ++which) {
                if (options.head_size != 0 && options.head_size != d) continue;
                const int group = groups[which % 5], kv = which % 3 == 0 ? 2 : 1;
                Case c;
                const float scale = 1.f / std::sqrt(static_cast<float>(d));
                c.shape = {kv * group, kv, i % 2 ? kv * group : kv, d, scale, dtype, 0, 0, 0};
                c.spread = i % 4 == 1 ? 30 : 1;
                all.push_back(c);
            }
    return all;
}

// Head sizes of models that have no tiles.
inline std::vector<Case> cases_without_tiles() {
    return {{{2, 1, 1, 160, 0.08f, H2O_F16, 0, 0, 0}},
            {{2, 2, 2, 192, 0.07f, H2O_F32, 0, 0, 0}},
            {{4, 2, 4, 256, 0.0625f, H2O_F16, 0, 0, 0}}};
}

// Values of another size than keys, or that lie in them: tiles of their own, and the kernel for any size.
inline std::vector<Case> value_cases() {
    const auto made = [](int heads, int kv_heads, int d, int dv, bool latent, h2o_dtype dtype) {
        const float scale = 1.f / std::sqrt(static_cast<float>(d));
        return Case{{heads, kv_heads, kv_heads, d, scale, dtype, dv, 0, 0}, 1, latent};
    };
    return {made(16, 1, 576, 512, true, H2O_F16), made(5, 1, 576, 512, true, H2O_F16),
            made(2, 2, 192, 128, false, H2O_F16), made(6, 3, 40, 24, false, H2O_F16),
            made(3, 1, 576, 512, true, H2O_F32),  made(2, 2, 24, 12, false, H2O_F32)};
}

struct StateBuffers {
    Buffer o, m, l;

    StateBuffers(const h2o_shape& s, int n, bool output)
        : o(size_t(n) * s.query_heads * value_size(s) * size_of(s.dtype), output),
          m(size_t(n) * s.query_heads * 4, output),
          l(size_t(n) * s.query_heads * 4, output) {}
    // As outputs of a call.
    template <class Call>
    void receive(Call& c) {
        c.o = o.device(), c.m = m.device<float>(), c.l = l.device<float>();
    }
    // As what a call fuses with, in place: from a place [n, Hq] on.
    template <class Call>
    void fuse(Call& c, size_t at = 0) {
        c.o_intra = c.o =
            o.device<unsigned char>() + at * size_t(value_size(c.shape)) * size_of(c.shape.dtype);
        c.m_intra = m.device<float>() + at, c.l_intra = l.device<float>() + at;
    }
};

// The precision whose own error a kernel is measured by. In float32 the tolerance is absolute, but where
// scores reach +-100, rounding them in float32 alone moves a probability by more than that: how far is
// counted.
inline Precision yardstick(const Case& c) {
    if (c.shape.dtype == H2O_F16) return Precision::kHalf;
    return c.spread > 1 ? Precision::kFloat : Precision::kExact;
}

inline void compare_to(const Case& c, const char* what, const std::vector<double>& got,
                       const std::vector<double>& exact, const std::vector<double>& low) {
    compare(what, got, exact, yardstick(c) == Precision::kExact ? nullptr : &low, c.shape.dtype);
}

inline void compare_state(const Case& c, const StateBuffers& state, const Reference& exact,
                          const Reference& low) {
    compare_to(c, "o", download(state.o, c.shape.dtype), exact.o, low.o);
    compare_to(c, "m", download(state.m, H2O_F32), exact.m, low.m);
    compare_to(c, "l", download(state.l, H2O_F32), exact.l, low.l);
}

inline std::vector<double> token_major(const std::vector<double>& colsum, int sets, int keys) {
    std::vector<double> out(colsum.size());
    for (int set = 0; set < sets; ++set)
        for (int j = 0; j < keys; ++j) out[size_t(j) * sets + set] = colsum[size_t(set) * keys + j];
    return out;
}

template <class R>
std::vector<int32_t> random_memory(int sets, int slots, int capacity, R& random) {
    std::vector<int32_t> all(capacity), memory;
    std::iota(all.begin(), all.end(), 0);
    for (int set = 0; set < sets; ++set) {
        std::shuffle(all.begin(), all.end(), random);
        std::sort(all.begin(), all.begin() + slots);
        memory.insert(memory.end(), all.begin(), all.begin() + slots);
    }
    return memory;
}

// A state as some pass may have left it. With `some_empty`, every third row saw no key: l = 0, m = -inf,
// and NaN where the output would be.
template <class R>
Reference random_state(const h2o_shape& s, int n, bool some_empty, StateBuffers& to, R& random) {
    Reference r;
    const size_t rows = size_t(n) * s.query_heads, d = size_t(value_size(s));
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < rows; ++i) {
        const bool empty = some_empty && i % 3 == 0;
        r.m.push_back(empty ? -INFINITY : normal(random) * 3);
        r.l.push_back(empty ? 0 : 1 + std::fabs(normal(random)) * 20);
        store(to.m.host(), i, H2O_F32, r.m.back());
        store(to.l.host(), i, H2O_F32, r.l.back());
        for (size_t c = 0; c < d; ++c) {
            r.o.push_back(empty ? NAN : normal(random));
            store(to.o.host(), i * d + c, s.dtype, r.o.back());
            if (empty) r.o.back() = 0;
        }
    }
    for (Buffer* b : {&to.o, &to.m, &to.l}) b->reset();
    return r;
}

inline Reference fuse(const Reference& a, const Reference& b, int d, Precision precision) {
    Reference r;
    for (size_t i = 0; i < a.m.size(); ++i) {
        const double m = std::fmax(a.m[i], b.m[i]);
        const double wa = a.l[i] > 0 ? a.l[i] * std::exp(a.m[i] - m) : 0;
        const double wb = b.l[i] > 0 ? b.l[i] * std::exp(b.m[i] - m) : 0;
        r.m.push_back(m);
        r.l.push_back(wa + wb);
        for (int c = 0; c < d; ++c) {
            const double x = wa + wb > 0 ? (wa * a.o[i * d + c] + wb * b.o[i * d + c]) / (wa + wb) : 0;
            r.o.push_back(round_to(precision, x));
        }
    }
    return r;
}

}  // namespace test
