// Attention whose factors are bfloat16, or 16-bit integers with a scale a row, against float64.
#include "support.h"

namespace h2o::test {
namespace {

struct Form {
    std::string isa;
    h2o_precision precision;
};

// Those that this build and machine have.
std::vector<Form> forms() {
    std::vector<Form> found;
    for (const std::string& isa : instruction_sets()) {
        for (const h2o_precision precision : {H2O_BFLOAT16, H2O_INT16}) {
            if (h2o_cpu_supports(isa.c_str(), precision)) found.push_back({isa, precision});
        }
    }
    return found;
}

TEST(Context, HasAPrecisionWhereTheMachineDoes) {
    EXPECT_TRUE(h2o_cpu_supports("scalar", H2O_BFLOAT16));
    EXPECT_FALSE(h2o_cpu_supports("mmx", H2O_FLOAT32));
    EXPECT_TRUE(h2o_cpu_supports(nullptr, h2o_cpu_fastest_precision()));
    h2o_cpu* made = nullptr;
    EXPECT_EQ(h2o_cpu_create(1, "mmx", H2O_FLOAT32, &made), H2O_UNSUPPORTED);
    EXPECT_EQ(made, nullptr);
    for (const std::string& isa : instruction_sets()) {
        EXPECT_EQ(h2o_cpu_isa(make(1, isa.c_str()).get()), isa);
        EXPECT_TRUE(h2o_cpu_supports(isa.c_str(), H2O_FLOAT32));
        const h2o_status status = h2o_cpu_create(1, isa.c_str(), H2O_BFLOAT16, &made);
        EXPECT_EQ(status, h2o_cpu_supports(isa.c_str(), H2O_BFLOAT16) ? H2O_OK : H2O_UNSUPPORTED);
        h2o_cpu_destroy(made);
        EXPECT_EQ(h2o_cpu_create(1, isa.c_str(), static_cast<h2o_precision>(7), &made), H2O_UNSUPPORTED);
    }
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

class Precision : public testing::TestWithParam<Form> {
  protected:
    // Numbers that bfloat16 holds exactly, where factors are bfloat16.
    static Stored numbers(size_t count, uint32_t seed) {
        Stored made = Stored::random(H2O_F32, count, seed);
        for (size_t i = 0; GetParam().precision == H2O_BFLOAT16 && i < count; ++i) {
            float value = static_cast<float>(made[i]);
            uint32_t bits;
            std::memcpy(&bits, &value, 4);
            bits &= 0xffff0000u;
            std::memcpy(&value, &bits, 4);
            made.set(i, value);
        }
        return made;
    }

    // Of a score, of a sum as a share, and of an output as a share of the largest value. With such numbers,
    // and scales that are powers of two, bfloat16 rounds the weights of values alone: by 2^-8 of themselves,
    // and by what their exponential lacks. Of 16 bits a number lacks half of 1 / 32,767 of its row's length
    // at most.
    struct Bounds {
        double score, sum, output;
    };
    static Bounds bounds(const h2o_shape& c, const Stored& q, const Stored& k) {
        if (GetParam().precision == H2O_BFLOAT16) return {1e-5, 2.5e-4, 1.0 / 256 + 2.5e-4};
        const size_t d = static_cast<size_t>(c.head_size);
        const double lost = 1.01 * static_cast<double>(c.scale) * std::sqrt(static_cast<double>(d)) / 32767 *
                            largest_length(q, d) * largest_length(k, d);
        const double share = std::expm1(2 * lost) + 1e-5;
        return {lost + 1e-5, share, share};
    }

    static void round(int64_t d, int64_t group, int64_t chunk, uint32_t seed) {
        const int64_t n = chunk + 20;
        const Shape shape{2, group, d, H2O_F32};
        const Stored q = numbers(shape.q_size(n), seed), k = numbers(shape.k_size(n), seed + 1);
        const Stored v = numbers(shape.k_size(n), seed + 2);
        State state(shape, n);
        const h2o_shape c = shape.c();
        const Context context = make(2, GetParam().isa.c_str(), GetParam().precision);
        ASSERT_EQ(h2o_cpu_chunked_intra_attention(context.get(), &c, n, chunk, q.data(), k.data(), v.data(),
                                                  state.o.data(), state.m.data(), state.l.data(), nullptr),
                  H2O_OK);
        const Bounds bound = bounds(c, q, k);
        double largest = 0.0, worst = 0.0;
        for (size_t i = 0; i < v.size(); ++i) largest = std::max(largest, std::abs(v[i]));
        const size_t size = static_cast<size_t>(d);
        for (int64_t token = 0; token < n; token += token < 70 ? 1 : 97) {
            for (int64_t head = 0; head < shape.query_heads(); ++head) {
                const Exact want =
                    attend(shape, q, token, head, k, v, range(token / chunk * chunk, token + 1));
                const size_t at = static_cast<size_t>(token * shape.query_heads() + head);
                EXPECT_NEAR(static_cast<double>(state.m[at]), want.m, bound.score);
                EXPECT_NEAR(static_cast<double>(state.l[at]), want.l, bound.sum * want.l);
                for (size_t i = 0; i < size; ++i) {
                    EXPECT_NEAR(state.o[at * size + i], want.o[i], bound.output * largest);
                    worst = std::max(worst, std::abs(state.o[at * size + i] - want.o[i]));
                }
            }
        }
        EXPECT_GT(worst, GetParam().precision == H2O_BFLOAT16 ? 1e-4 : 1e-6) << "float32 by mistake";
    }
};

// 33 keys leave one for the last word, and panels and blocks unfinished; 1,100 go by in blocks.
TEST_P(Precision, IntraEqualsTheFormula) {
    uint32_t seed = 1;
    for (const int64_t group : {1, 3}) {
        for (const int64_t chunk : {33, 1100}) round(64, group, chunk, seed += 3);
        round(16, group, 70, seed += 3);
    }
    if (GetParam().precision == H2O_INT16) round(24, 3, 70, seed);  // half a step of packing
}

INSTANTIATE_TEST_SUITE_P(Isa, Precision, testing::ValuesIn(forms()), [](const auto& info) {
    return info.param.isa + (info.param.precision == H2O_INT16 ? "_int16" : "_bfloat16");
});

}  // namespace
}  // namespace h2o::test
