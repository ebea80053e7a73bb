// Attention whose factors are bfloat16. Inputs that it holds exactly, and scales that are powers of two,
// leave only the weights of values to round: by 2^-8 of themselves, and by what their exponential lacks.
#include "support.h"

namespace h2o::test {
namespace {

constexpr double kShare = 1.0 / 256 + 2.5e-4;

std::vector<std::string> instruction_sets_with_bfloat16() {
    std::vector<std::string> found;
    for (const std::string& isa : instruction_sets()) {
        if (h2o_cpu_supports(isa.c_str(), H2O_BFLOAT16)) found.push_back(isa);
    }
    return found;
}

Stored exact(size_t count, uint32_t seed) {
    Stored made = Stored::random(H2O_F32, count, seed);
    for (size_t i = 0; i < count; ++i) {
        float value = static_cast<float>(made[i]);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        bits &= 0xffff0000u;
        std::memcpy(&value, &bits, 4);
        made.set(i, value);
    }
    return made;
}

class BFloat16 : public testing::TestWithParam<std::string> {
  protected:
    Context context() const { return make(2, GetParam().c_str(), H2O_BFLOAT16); }
};

TEST(Context, HasAPrecisionWhereTheMachineDoes) {
    EXPECT_TRUE(h2o_cpu_supports("scalar", H2O_BFLOAT16));
    EXPECT_FALSE(h2o_cpu_supports("mmx", H2O_FLOAT32));
    for (const std::string& isa : instruction_sets()) {
        EXPECT_TRUE(h2o_cpu_supports(isa.c_str(), H2O_FLOAT32));
        h2o_cpu* made = nullptr;
        const h2o_status status = h2o_cpu_create(1, isa.c_str(), H2O_BFLOAT16, &made);
        EXPECT_EQ(status, h2o_cpu_supports(isa.c_str(), H2O_BFLOAT16) ? H2O_OK : H2O_UNSUPPORTED);
        h2o_cpu_destroy(made);
        EXPECT_EQ(h2o_cpu_create(1, isa.c_str(), static_cast<h2o_precision>(7), &made), H2O_UNSUPPORTED);
    }
}

// 33 keys leave one for the last word; 1,100 go by in blocks.
TEST_P(BFloat16, IntraEqualsTheFormula) {
    uint32_t seed = 1;
    for (int64_t d : {16, 64}) {
        for (int64_t group : {1, 3}) {
            for (int64_t chunk : {33, group == 1 ? 1100 : 70}) {
                const int64_t n = chunk + 20;
                const Shape shape{2, group, d, H2O_F32};
                const Stored q = exact(shape.q_size(n), ++seed), k = exact(shape.k_size(n), ++seed);
                const Stored v = exact(shape.k_size(n), ++seed);
                State state(shape, n);
                const h2o_shape c = shape.c();
                ASSERT_EQ(h2o_cpu_chunked_intra_attention(context().get(), &c, n, chunk, q.data(), k.data(),
                                                          v.data(), state.o.data(), state.m.data(),
                                                          state.l.data(), nullptr),
                          H2O_OK);
                double largest = 0.0;
                for (size_t i = 0; i < v.size(); ++i) largest = std::max(largest, std::abs(v[i]));
                for (int64_t token = 0; token < n; token += token < 70 ? 1 : 97) {
                    for (int64_t head = 0; head < shape.query_heads(); ++head) {
                        const Exact want =
                            attend(shape, q, token, head, k, v, range(token / chunk * chunk, token + 1));
                        const size_t at = static_cast<size_t>(token * shape.query_heads() + head);
                        EXPECT_NEAR(static_cast<double>(state.m[at]), want.m, 1e-5);
                        EXPECT_NEAR(static_cast<double>(state.l[at]), want.l, 2.5e-4 * want.l);
                        for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
                            EXPECT_NEAR(state.o[at * static_cast<size_t>(d) + i], want.o[i],
                                        kShare * largest);
                        }
                    }
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, BFloat16, testing::ValuesIn(instruction_sets_with_bfloat16()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace h2o::test
