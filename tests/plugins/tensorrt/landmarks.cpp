// Landmarks of the cache's blocks, and the subquadratic pattern over them.
#include <set>

#include "checks.h"

namespace conformance {

void check_landmark_update(Trial& t) {
    t.set(4, std::vector<int64_t>{20});
    t.set(5, std::vector<int64_t>{43});
    t.run();
    for (size_t i = 0; i < 2; ++i) {
        std::vector<double> expected = t.in(2 + i);
        for (size_t row = 20; row < 43; ++row)
            for (size_t column = 0; column < kKvHeads * kD; ++column) {
                double& mean = expected[row / 8 * kKvHeads * kD + column];
                const double count = double(row % 8);
                mean = (mean * count + t.in(i)[row * kKvHeads * kD + column]) / (count + 1);
            }
        test::compare(i ? "v_mean" : "k_mean", t.out(i), expected, nullptr);
    }
}

void check_subquadratic_attention(Trial& t) {
    t.set(5, std::vector<int32_t>{3, 6});
    t.set(6, std::vector<int64_t>{71});
    t.run();
    // The last token stands at 70; the newest of its eight landmarks is number 7.
    const std::set<int> tokens = {70, 69, 68, 67, 66, 65, 64, 3, 6, 62, 54, 38}, marks = {7, 6, 5, 3};
    const auto either = [&](size_t token, size_t mark) {
        return [&t, token, mark](int set, int j) {
            return j < 71 ? TokenMajor{t.in(token)}(set, j) : TokenMajor{t.in(mark)}(set, j - 71);
        };
    };
    const auto [exact, low] = both(t.c, t.in(0), 1, 71 + 12, either(1, 3), either(2, 4), [&](int, int j) {
        return j < 71 ? tokens.count(j) > 0 : marks.count(j - 71) > 0;
    });
    t.compare("o", 0, exact.o, low.o);
}

}  // namespace conformance
