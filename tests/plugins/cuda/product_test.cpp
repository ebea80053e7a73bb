// Products with integers in blocks against float64.

#include <algorithm>

#include "products.h"

namespace test {
namespace {

// One matrix for all numbers of rows, so that a row's bits alone and beside others can be compared.
void test_integers(int bits, int block, int inputs, int outputs, int most, std::mt19937& random) {
    const std::string of = "integers, bits=" + std::to_string(bits) + " block=" + std::to_string(block) +
                           " inputs=" + std::to_string(inputs) + " outputs=" + std::to_string(outputs);
    IntegerMatrix matrix(bits, block, inputs, outputs, random);
    Numbers x(size_t(most) * inputs, H2O_F16), scales(size_t(inputs) / block * outputs, H2O_F16);
    fill_normal(x, H2O_F16, 1, random);
    fill_normal(scales, H2O_F16, 0.01, random);
    matrix.scales = scales.exact;
    Buffer words(matrix.words.size() * 4, false);
    fill_ints(words, matrix.words);
    std::vector<double> alone;  // the first row
    for (int n = 1; n <= most; ++n) {
        context = of + " n=" + std::to_string(n);
        Buffer y(size_t(n) * outputs * 2, true);
        run_twice({&y}, [&] {
            return multiply_integers(bits, block, n, inputs, outputs, x.buffer.device(), words.device(),
                                     scales.buffer.device(), y.device());
        });
        const std::vector<double> rows(x.exact.begin(), x.exact.begin() + int64_t{n} * inputs);
        const std::vector<double> exact = matrix.times(rows, false), low = matrix.times(rows, true);
        const std::vector<double> found = download(y, H2O_F16);
        compare("y", found, exact, &low, H2O_F16);
        if (n == 1) alone = found;
        EXPECT(std::equal(alone.begin(), alone.end(), found.begin()));
    }
}

void test_refused_integers() {
    context = "integers, refused";
    Buffer memory(1 << 16, false);
    memory.reset();
    void* const p = memory.device();
    const auto call = [&](int bits, int block, int n, int inputs, int outputs, void* y) {
        return multiply_integers(bits, block, n, inputs, outputs, p, p, p, y);
    };
    EXPECT(call(4, 32, 0, 32, 8, p) == H2O_BAD_ARGUMENT);
    EXPECT(call(4, 32, 1, 32, 0, p) == H2O_BAD_ARGUMENT);
    EXPECT(call(4, 32, 1, 32, 8, nullptr) == H2O_BAD_ARGUMENT);
    EXPECT(call(4, 32, 17, 32, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(2, 32, 1, 32, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(4, 16, 1, 32, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(4, 96, 1, 96, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(4, 64, 1, 96, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(4, 32, 1, 1 << 26, 1 << 11, p) == H2O_UNSUPPORTED);
}

}  // namespace

void test_products(const Options& options) {
    std::mt19937 random(options.seed + 11);
    // Outputs that fill no thread block; pieces that fill no warp, one warp each, and as many as are under
    // way together and more; every block size.
    for (const int bits : {4, 8}) {
        test_integers(bits, 32, 32, 7, 16, random);
        test_integers(bits, 64, 320, 38, 16, random);
        test_integers(bits, 256, 1280, 16, 2, random);
        test_integers(bits, 128, 4224, 24, 9, random);
        if (options.small) continue;
        test_integers(bits, 32, 2048, 2048, 16, random);
        test_integers(bits, 32, 8192, 1000, 16, random);
    }
    test_refused_integers();
}

}  // namespace test
