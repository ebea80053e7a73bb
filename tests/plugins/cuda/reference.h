// Softmax attention in float64, straight from its definition: the yardstick for every attention operator.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "support.h"

namespace test {

struct Reference {
    std::vector<double> o;       // [n, Hq, dv]
    std::vector<double> m, l;    // [n, Hq]
    std::vector<double> colsum;  // [Hs, keys]
};

enum class Precision { kExact, kFloat, kHalf };

inline double round_to(Precision precision, double x) {
    if (precision == Precision::kHalf) return round_half(x);
    return precision == Precision::kFloat ? static_cast<double>(static_cast<float>(x)) : x;
}

// key(set, j) points at d doubles, value(set, j) at dv; visible(row, j) says whether row attends to key j.
// Below kExact every intermediate is rounded, as a function body of that type would; in float32 the sums too.
template <class K, class V, class S>
Reference attend(const h2o_cuda_shape& shape, const std::vector<double>& q, int n, int keys, K&& key,
                 V&& value, S&& visible, Precision precision) {
    const int d = shape.head_size, dv = shape.value_size ? shape.value_size : d;
    const int heads = shape.query_heads, group = heads / shape.score_heads;
    const auto round = [&](double x) { return round_to(precision, x); };
    const bool in_float = precision == Precision::kFloat;
    Reference r;
    r.o.assign(static_cast<size_t>(n) * heads * dv, 0);
    r.m.assign(static_cast<size_t>(n) * heads, -std::numeric_limits<double>::infinity());
    r.l.assign(static_cast<size_t>(n) * heads, 0);
    r.colsum.assign(static_cast<size_t>(shape.score_heads) * keys, 0);
    std::vector<double> s(static_cast<size_t>(keys));
    for (int row = 0; row < n; ++row)
        for (int h = 0; h < heads; ++h) {
            const size_t at = static_cast<size_t>(row) * heads + h;
            const double* x = &q[at * d];
            double& m = r.m[at];
            for (int j = 0; j < keys; ++j) {
                if (!visible(row, j)) continue;
                const double* y = key(h / group, j);
                double dot = 0;
                for (int c = 0; c < d; ++c) dot = in_float ? round(dot + x[c] * y[c]) : dot + x[c] * y[c];
                s[j] = round(round(dot) * shape.scale);
                m = std::fmax(m, s[j]);
            }
            for (int j = 0; j < keys; ++j) {
                if (!visible(row, j)) continue;
                s[j] = round(std::exp(round(s[j] - m)));
                r.l[at] += s[j];
            }
            for (int j = 0; j < keys; ++j) {
                if (!visible(row, j)) continue;
                const double p = round(s[j] / r.l[at]);
                r.colsum[static_cast<size_t>(h / group) * keys + j] += p;
                if (const double* y = value(h / group, j))
                    for (int c = 0; c < dv; ++c) r.o[at * dv + c] += p * y[c];
            }
            for (int c = 0; c < dv; ++c) r.o[at * dv + c] = round(r.o[at * dv + c]);
        }
    return r;
}

}  // namespace test
