// Attention whose queries and keys are 16-bit integers with a scale a row. A number lacks half of 1 / 32,767
// of its row's length at most.
#include "support.h"

namespace h2o::test {
namespace {

std::vector<std::string> instruction_sets_with_int16() {
    std::vector<std::string> found;
    for (const std::string& isa : instruction_sets()) {
        if (h2o_cpu_supports(isa.c_str(), H2O_INT16)) found.push_back(isa);
    }
    return found;
}

double largest_length(const Stored& rows, size_t d) {
    double most = 0.0;
    for (size_t row = 0; row < rows.size(); row += d) {
        double sum = 0.0;
        for (size_t i = row; i < row + d; ++i) sum += rows[i] * rows[i];
        most = std::max(most, std::sqrt(sum));
    }
    return most;
}

class Int16 : public testing::TestWithParam<std::string> {
  protected:
    Context context() const { return make(2, GetParam().c_str(), H2O_INT16); }
};

TEST(Context, SupportsItsFastestPrecision) {
    EXPECT_TRUE(h2o_cpu_supports(nullptr, h2o_cpu_fastest_precision()));
}

// 1,100 keys go by in blocks; 33 leave panels and blocks unfinished, a head size of 24 half a step of
// packing.
TEST_P(Int16, IntraEqualsTheFormula) {
    uint32_t seed = 1;
    for (int64_t d : {24, 64}) {
        for (int64_t chunk : {33, d == 64 ? 1100 : 70}) {
            const int64_t n = chunk + 20;
            const Shape shape{2, 3, d, H2O_F32};
            const Stored q = Stored::random(H2O_F32, shape.q_size(n), ++seed);
            const Stored k = Stored::random(H2O_F32, shape.k_size(n), ++seed);
            const Stored v = Stored::random(H2O_F32, shape.k_size(n), ++seed);
            State state(shape, n);
            const h2o_shape c = shape.c();
            ASSERT_EQ(
                h2o_cpu_chunked_intra_attention(context().get(), &c, n, chunk, q.data(), k.data(), v.data(),
                                                state.o.data(), state.m.data(), state.l.data(), nullptr),
                H2O_OK);
            double largest = 0.0;
            for (size_t i = 0; i < v.size(); ++i) largest = std::max(largest, std::abs(v[i]));
            const size_t size = static_cast<size_t>(d);
            const double lost = 1.01 * static_cast<double>(c.scale) * std::sqrt(static_cast<double>(d)) /
                                32767 * largest_length(q, size) * largest_length(k, size);
            const double share = std::expm1(2 * lost) + 1e-5;
            for (int64_t token = 0; token < n; token += token < 70 ? 1 : 97) {
                for (int64_t head = 0; head < shape.query_heads(); ++head) {
                    const Exact want =
                        attend(shape, q, token, head, k, v, range(token / chunk * chunk, token + 1));
                    const size_t at = static_cast<size_t>(token * shape.query_heads() + head);
                    EXPECT_NEAR(static_cast<double>(state.m[at]), want.m, lost + 1e-5);
                    EXPECT_NEAR(static_cast<double>(state.l[at]), want.l, share * want.l);
                    for (size_t i = 0; i < size; ++i)
                        EXPECT_NEAR(state.o[at * size + i], want.o[i], share * largest);
                }
            }
        }
    }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Int16);
INSTANTIATE_TEST_SUITE_P(Isa, Int16, testing::ValuesIn(instruction_sets_with_int16()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace h2o::test
