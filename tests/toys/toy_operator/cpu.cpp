// The toy operator on a CPU.
#include <cmath>

#include "context.h"

namespace h2o::cpu {

h2o_status run(const calls::ToyRowPowers& call) {
    for (int64_t row = 0; row < call.n; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < call.d; ++i)
            sum += std::pow(std::fabs(double{call.x[row * call.d + i]}), call.power);
        call.y[row] = static_cast<float>(sum);
    }
    return H2O_OK;
}

}  // namespace h2o::cpu
