// Vertical-slash attention: to columns and diagonals.
#include <algorithm>
#include <set>

#include "checks.h"

namespace conformance {
namespace {

// Columns and distances of the highest sums of probabilities, 2 and 3 of which are there whatever they have.
void check_lines(const Trial& t) {
    const int length = 71;
    for (int h = 0; h < kHeads; ++h) {
        std::vector<std::pair<double, int>> ranks[2];
        for (auto& rank : ranks)
            for (int i = 0; i < length; ++i) rank.emplace_back(0, i);
        for (int r = 0; r < kN; ++r) {
            const int position = length - kN + r;
            std::vector<double> p;
            double sum = 0;
            for (int j = 0; j <= position; ++j) {
                const double* const key = TokenMajor{t.in(1)}(h / (kHeads / kKvHeads), j);
                double dot = 0;
                for (int i = 0; i < kD; ++i) dot += t.in(0)[(size_t(r) * kHeads + h) * kD + i] * key[i];
                p.push_back(std::exp(kSoftcap * std::tanh(kScale * dot / kSoftcap)));
                sum += p.back();
            }
            for (int j = 0; j <= position; ++j) {
                ranks[0][j].first -= p[j] / sum;
                ranks[1][position - j].first -= p[j] / sum;
            }
        }
        for (int which = 0; which < 2; ++which) {
            for (int i = 0; i < 2 + which; ++i) ranks[which][i].first = -HUGE_VAL;
            std::sort(ranks[which].begin(), ranks[which].end());
            std::vector<int32_t> expected;
            for (int i = 0; i < 6 + which; ++i) expected.push_back(ranks[which][i].second);
            std::sort(expected.begin(), expected.end());
            const std::vector<int32_t> got = t.outputs[which]->values<int32_t>();
            EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + h * (6 + which)));
        }
    }
}

}  // namespace

void check_vertical_slash_select(Trial& t) {
    t.set(2, std::vector<int64_t>{71});
    t.run();
    check_lines(t);
}

void check_vertical_slash_attention(Trial& t) {
    t.set(3, std::vector<int32_t>{2, 4, -1, 0, 1, 3, 5, -1, -1, 3, 4, 69});
    t.set(4, std::vector<int32_t>{1, -1, 70, -1, 2, 3, -1, -1});
    t.set(5, std::vector<int64_t>{71});
    t.run();
    // The token stands at 70 in a tile that ends at 134: its runs are 69 ... 197, 0 ... 64 and 70 ...
    // 134, 67 ... 195, and 70 ... 134.
    const std::set<int> listed[] = {{2, 4}, {0, 1, 3}, {5}, {3, 4, 69}};
    const int first[] = {69, 70, 67, 70};
    std::vector<double> o[2];
    for (int h = 0; h < kHeads; ++h) {
        const auto visible = [&](int, int j) {
            return j >= first[h] || (h == 1 && j < 64) || listed[h].count(j) > 0;
        };
        const auto [exact, low] =
            both(t.c, t.in(0), 1, 71, TokenMajor{t.in(1)}, TokenMajor{t.in(2)}, visible);
        for (int i = 0; i < 2; ++i) {
            const auto from = (i ? low : exact).o.begin() + h * kD;
            o[i].insert(o[i].end(), from, from + kD);
        }
    }
    t.compare("o", 0, o[0], o[1]);
}

}  // namespace conformance
