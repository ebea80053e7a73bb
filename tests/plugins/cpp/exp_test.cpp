// The exponential's stated bound, over its whole range.
#include <cfloat>

#include "context.h"
#include "support.h"

namespace h2o::test {
namespace {

constexpr double kBound = 2.5e-7;  // stated in vexp.h
constexpr float kLowest = -87.33654f;

class Exp : public EveryIsa {
  protected:
    Floats exp(Floats in) const {
        const Context holder = context(1);
        in.resize((in.size() + 15) / 16 * 16);
        Floats out(in.size());
        holder->kernels->exp(in.data(), static_cast<int64_t>(in.size()), out.data());
        return out;
    }
};

TEST_P(Exp, StaysWithinItsBound) {
    Floats in;
    for (int i = 0; i <= 2'000'000; ++i) in.push_back(kLowest * static_cast<float>(i) / 2'000'000.0f);
    for (float x = -1.0f; x < -1e-30f; x *= 0.9f) in.push_back(x);
    const Floats out = exp(in);
    double worst = 0.0;
    for (size_t i = 0; i < in.size(); ++i) {
        const double exact = std::exp(static_cast<double>(in[i]));
        worst = std::max(worst, std::abs(static_cast<double>(out[i]) - exact) / exact);
    }
    EXPECT_LE(worst, kBound);
    RecordProperty("worst_relative_error", std::to_string(worst * 1e9) + "e-9");
}

TEST_P(Exp, IsOneAtZeroAndZeroFarBelow) {
    const Floats out = exp({0.0f, -0.0f, -87.34f, -104.0f, -1e30f, -FLT_MAX, -HUGE_VALF});
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], 1.0f);
    for (size_t i = 2; i < 7; ++i) EXPECT_EQ(out[i], 0.0f) << i;
}

H2O_EVERY_ISA(Exp);

}  // namespace
}  // namespace h2o::test
