// Products with integers in blocks against float64.

#include <algorithm>

#include "products.h"

namespace test {
namespace {

void test_product(h2o_dtype dtype, int n, int inputs, int outputs, std::mt19937& random) {
    context = std::string("product ") + (dtype == H2O_F16 ? "f16" : "f32") + " n=" + std::to_string(n) +
              " inputs=" + std::to_string(inputs) + " outputs=" + std::to_string(outputs);
    BlockMatrix matrix(inputs, outputs, random);
    Numbers x(size_t(n) * inputs, dtype), scales(size_t(inputs) / 32 * outputs, dtype);
    fill_normal(x, dtype, 1, random);
    fill_normal(scales, dtype, 0.01, random);  // of both signs, as checkpoints have them
    matrix.scales = scales.exact;
    Buffer words(matrix.words.size() * 4, false), y(size_t(n) * outputs * (dtype == H2O_F16 ? 2 : 4), true);
    fill_ints(words, matrix.words);
    run_twice({&y}, [&] {
        return h2o_cuda_block_product(nullptr, dtype, n, inputs, outputs, x.buffer.device(),
                                      words.device<int32_t>(), scales.buffer.device(), y.device());
    });
    const std::vector<double> exact = matrix.times(x.exact, false), low = matrix.times(x.exact, true);
    compare("y", download(y, dtype), exact, dtype == H2O_F16 ? &low : nullptr, dtype);
}

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

void test_refusals() {
    context = "product, refused";
    Buffer memory(1 << 16, false);
    memory.reset();
    void* const p = memory.device();
    const auto call = [&](h2o_dtype dtype, int n, int inputs, int outputs, const void* x) {
        return h2o_cuda_block_product(nullptr, dtype, n, inputs, outputs, x, static_cast<int32_t*>(p), p, p);
    };
    EXPECT(call(H2O_F16, 0, 32, 8, p) == H2O_BAD_ARGUMENT);
    EXPECT(call(H2O_F16, 1, 0, 8, p) == H2O_BAD_ARGUMENT);
    EXPECT(call(H2O_F16, 1, 32, -8, p) == H2O_BAD_ARGUMENT);
    EXPECT(call(H2O_F16, 1, 32, 8, nullptr) == H2O_BAD_ARGUMENT);
    EXPECT(call(H2O_F16, 1, 48, 8, p) == H2O_UNSUPPORTED);
    EXPECT(call(H2O_F16, 1, 32, 12, p) == H2O_UNSUPPORTED);
    EXPECT(call(H2O_I8, 1, 32, 8, p) == H2O_UNSUPPORTED);
}

}  // namespace

void test_products(const Options& options) {
    std::mt19937 random(options.seed + 11);
    // One row; both sides of 8 and 16 rows; tiles of 128 rows and columns, whole and not. Stripes of 32
    // columns, whole and not. Fewer blocks than warps, as many as are under way together, and more.
    const struct {
        int n, inputs, outputs;
    } small[] = {{1, 32, 8},     {1, 96, 40}, {1, 1088, 32}, {3, 288, 24},    {8, 64, 64},   {9, 288, 40},
                 {16, 1056, 24}, {17, 32, 8}, {40, 160, 40}, {130, 128, 136}, {128, 96, 128}},
      large[] = {{1, 2048, 2048}, {1, 8192, 512}, {16, 2048, 1000}, {300, 2048, 1032}, {1500, 576, 1536}};
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {
        for (const auto& c : small) test_product(dtype, c.n, c.inputs, c.outputs, random);
        if (options.small) continue;
        for (const auto& c : large) test_product(dtype, c.n, c.inputs, c.outputs, random);
    }
    test_refusals();
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
