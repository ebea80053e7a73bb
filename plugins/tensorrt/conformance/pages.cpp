// Attention to the pages whose bounds promise most.
#include <algorithm>

#include "checks.h"

namespace conformance {

void check_page_bounds(Trial& t) {
    t.set(3, std::vector<int64_t>{20});
    t.set(4, std::vector<int64_t>{43});
    t.run();
    for (size_t i = 0; i < 2; ++i) {
        std::vector<double> expected = t.in(1 + i);
        for (size_t row = 20; row < 43; ++row)
            for (size_t column = 0; column < kKvHeads * kD; ++column) {
                double& bound = expected[row / 8 * kKvHeads * kD + column];
                const double x = t.in(0)[row * kKvHeads * kD + column];
                bound = row % 8 == 0 ? x : i ? std::fmax(bound, x) : std::fmin(bound, x);
            }
        EXPECT(t.out(i) == expected);
    }
}

void check_page_select(Trial& t) {
    t.set(3, std::vector<int64_t>{71});
    t.run();
    const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
    for (int set = 0; set < kKvHeads; ++set) {
        std::vector<std::pair<double, int32_t>> bounds;
        for (int page = 0; page < 8; ++page) {
            double best = -HUGE_VAL;
            for (int h = set * 2; h < set * 2 + 2; ++h) {
                double bound = 0;
                for (int i = 0; i < kD; ++i) {
                    const double x = t.in(0)[size_t(h) * kD + i];
                    bound += x * TokenMajor{t.in(x > 0 ? 2 : 1)}(set, page)[i];
                }
                best = std::fmax(best, bound);
            }
            bounds.emplace_back(-best, page);
        }
        std::sort(bounds.begin(), bounds.end());
        std::vector<int32_t> expected = {bounds[0].second, bounds[1].second, bounds[2].second, 8};
        std::sort(expected.begin(), expected.end());
        EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + set * 4));
    }
}

void check_page_attention(Trial& t) {
    const std::vector<int32_t> pages = {0, 3, 8, -1, 1, 2, 5, 8};
    t.set(3, pages);
    t.set(4, std::vector<int64_t>{71});
    t.run();
    // A key of the reference is a place in a list; the last page has seven rows.
    const auto row = [&](int set, int j) { return std::max(pages[set * 4 + j / 8], 0) * 8 + j % 8; };
    const auto listed = [&](size_t input) {
        return [&, input](int set, int j) { return TokenMajor{t.in(input)}(set, row(set, j)); };
    };
    std::vector<double> o[2];
    for (int h = 0; h < kHeads; ++h) {
        const auto visible = [&](int, int j) { return pages[h / 2 * 4 + j / 8] >= 0 && row(h / 2, j) < 71; };
        const auto [exact, low] = both(t.c, t.in(0), 1, 32, listed(1), listed(2), visible);
        for (int i = 0; i < 2; ++i) {
            const auto from = (i ? low : exact).o.begin() + h * kD;
            o[i].insert(o[i].end(), from, from + kD);
        }
    }
    t.compare("o", 0, o[0], o[1]);
}

}  // namespace conformance
