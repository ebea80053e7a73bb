// Softmax attention in float64, straight from its definition: the yardstick for every attention operator.
#pragma once

#include <algorithm>
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
    return precision == Precision::kHalf ? round_half(x) : x;
}

// The float32 error of a sum with this many terms, in any order, relative to the sum of their magnitudes: a
// random walk with steps of at most half a unit in the last place.
inline double rounding(int terms, int more) {
    return (std::sqrt(terms / 3.0) + more) * std::ldexp(1.0, -24);
}

// Moves one query's results as far as float32 may carry them, to first order. p are its keys' probabilities,
// `off` says how far each key's score may be off.
template <class V>
void displace(Reference& r, size_t at, double* colsum, const std::vector<double>& p,
              const std::vector<double>& off, int dv, V&& value) {
    const int keys = static_cast<int>(p.size());
    const int top = static_cast<int>(std::max_element(p.begin(), p.end()) - p.begin());
    const double sums = rounding(keys, 8);
    double mean = 0;
    for (int j = 0; j < keys; ++j) mean += p[j] * off[j];
    // Of a score beside all others, weighed by their probabilities: its own part in them moves with it.
    const auto beside = [&](int j) { return off[j] + mean - 2 * p[j] * off[j]; };
    r.m[at] += off[top];
    r.l[at] *= 1 + beside(top) + sums;
    std::vector<double> o(r.o.begin() + at * dv, r.o.begin() + (at + 1) * dv);
    for (int j = 0; j < keys; ++j) {
        if (p[j] == 0) continue;
        colsum[j] += p[j] * (beside(j) + sums);
        if (const double* y = value(j))
            for (int c = 0; c < dv; ++c)
                r.o[at * dv + c] += p[j] * (off[j] * std::fabs(y[c] - o[c]) + sums * std::fabs(y[c]));
    }
}

// key(set, j) points at d doubles, value(set, j) at dv; visible(row, j) says whether row attends to key j.
// In kHalf every intermediate is rounded, as a function body of that type would. In kFloat nothing is, since
// the error of one order of adding up is luck: results are as far off as those of any order may be.
template <class K, class V, class S>
Reference attend(const h2o_shape& shape, const std::vector<double>& q, int n, int keys, K&& key, V&& value,
                 S&& visible, Precision precision) {
    const int d = shape.head_size, dv = shape.value_size ? shape.value_size : d;
    const int heads = shape.query_heads, group = heads / shape.score_heads;
    const auto round = [&](double x) { return round_to(precision, x); };
    Reference r;
    r.o.assign(static_cast<size_t>(n) * heads * dv, 0);
    r.m.assign(static_cast<size_t>(n) * heads, -std::numeric_limits<double>::infinity());
    r.l.assign(static_cast<size_t>(n) * heads, 0);
    r.colsum.assign(static_cast<size_t>(shape.score_heads) * keys, 0);
    std::vector<double> s(static_cast<size_t>(keys)), off(s);
    for (int row = 0; row < n; ++row)
        for (int h = 0; h < heads; ++h) {
            const size_t at = static_cast<size_t>(row) * heads + h;
            const double* x = &q[at * d];
            double* colsum = &r.colsum[static_cast<size_t>(h / group) * keys];
            double& m = r.m[at];
            for (int j = 0; j < keys; ++j) {
                off[j] = 0;
                if (!visible(row, j)) continue;
                const double* y = key(h / group, j);
                double dot = 0, magnitudes = 0;
                for (int c = 0; c < d; ++c) {
                    dot += x[c] * y[c];
                    magnitudes += std::fabs(x[c] * y[c]);
                }
                s[j] = round(round(dot) * shape.scale);
                if (shape.softcap > 0) s[j] = round(shape.softcap * std::tanh(s[j] / shape.softcap));
                off[j] = rounding(d, 3) * magnitudes * shape.scale;
                m = std::fmax(m, s[j]);
            }
            for (int j = 0; j < keys; ++j) {
                s[j] = visible(row, j) ? round(std::exp(round(s[j] - m))) : 0;
                r.l[at] += s[j];
            }
            for (int j = 0; j < keys; ++j) {
                if (!visible(row, j)) continue;
                s[j] = round(s[j] / r.l[at]);
                colsum[j] += s[j];
                if (const double* y = value(h / group, j))
                    for (int c = 0; c < dv; ++c) r.o[at * dv + c] += s[j] * y[c];
            }
            for (int c = 0; c < dv; ++c) r.o[at * dv + c] = round(r.o[at * dv + c]);
            if (precision == Precision::kFloat)
                displace(r, at, colsum, s, off, dv, [&](int j) { return value(h / group, j); });
        }
    return r;
}

}  // namespace test
