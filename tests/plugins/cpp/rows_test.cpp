// OnlineSoftmaxFusion, and the conversion of float16 without instructions for it.
#include "support.h"

namespace h2o::test {
namespace {

class Rows : public EveryIsa {};

TEST_P(Rows, FusionOfStates) {
    for (h2o_dtype dtype : {H2O_F32, H2O_F16}) {
        const Shape shape{1, 1, 24, dtype};
        const float states[][4] = {// m_a, l_a, m_b, l_b
                                   {1.0f, 2.0f, 1.5f, 3.0f},
                                   {100.0f, 1.0f, -100.0f, 5.0f},
                                   {-HUGE_VALF, 0.0f, 2.0f, 3.0f},
                                   {2.0f, 3.0f, -HUGE_VALF, 0.0f},
                                   {-HUGE_VALF, 0.0f, -HUGE_VALF, 0.0f}};
        for (const auto& s : states) {
            State a(shape, 1), b(shape, 1), out(shape, 1);
            a.o = Stored::random(dtype, 24, 1);
            b.o = Stored::random(dtype, 24, 2);
            a.m[0] = s[0], a.l[0] = s[1], b.m[0] = s[2], b.l[0] = s[3];
            if (s[1] == 0.0f) a.o.set(0, NAN);  // what an empty state holds is never read
            if (s[3] == 0.0f) b.o.set(0, NAN);
            const h2o_shape c = shape.c();
            ASSERT_EQ(h2o_cpu_online_softmax_fusion(context().get(), &c, 1, a.o.data(), a.m.data(),
                                                    a.l.data(), b.o.data(), b.m.data(), b.l.data(),
                                                    out.o.data(), out.m.data(), out.l.data()),
                      H2O_OK);
            const double m = std::max(static_cast<double>(s[0]), static_cast<double>(s[2]));
            const double wa =
                s[1] > 0.0f ? static_cast<double>(s[1]) * std::exp(static_cast<double>(s[0]) - m) : 0.0;
            const double wb =
                s[3] > 0.0f ? static_cast<double>(s[3]) * std::exp(static_cast<double>(s[2]) - m) : 0.0;
            EXPECT_EQ(static_cast<double>(out.m[0]), m);
            EXPECT_NEAR(static_cast<double>(out.l[0]), wa + wb, 1e-6 * (wa + wb));
            Errors errors;
            for (size_t i = 0; i < 24; ++i) {
                double sum = 0.0;
                if (wa > 0.0) sum += wa / (wa + wb) * a.o[i];
                if (wb > 0.0) sum += wb / (wa + wb) * b.o[i];
                errors.add(out.o[i], sum);
            }
            errors.expect_good(dtype, "o");
        }
    }
}

H2O_EVERY_ISA(Rows);

TEST(Half, EveryHalfComesBack) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = half_to_float(static_cast<uint16_t>(bits));
        if (value != value) continue;  // NaN keeps being NaN, not its payload
        EXPECT_EQ(float_to_half(value), bits);
    }
}

TEST(Half, RoundsToNearestEven) {
    EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00);  // a tie goes to the even neighbour
    EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);
    EXPECT_EQ(float_to_half(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
    EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
    EXPECT_EQ(float_to_half(65520.0f), 0x7c00);  // infinity
    EXPECT_EQ(float_to_half(0x1p-25f), 0x0000);
    EXPECT_EQ(float_to_half(0x1.8p-25f), 0x0001);
    EXPECT_EQ(float_to_half(-0x1p-24f), 0x8001);
}

}  // namespace
}  // namespace h2o::test
