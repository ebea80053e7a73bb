#include <cstring>

#include "product.h"
#include "scalar/simd_scalar.h"

namespace {

struct Products {
    struct Ints {
        int32_t lane[Simd::kWidth];
    };
    static constexpr const char* kName = "scalar";
    static constexpr int kRows = 2;
    static constexpr int kPanels = 1;
    static constexpr int kFloatRows = 2;
    static constexpr uint32_t kSurplus = 128;  // bias of a stored 8-bit weight
    static constexpr bool kUnrolls = false;    // with four lanes, portable C++ takes minutes to compile
    static constexpr bool kJoinsHalves = false;

    static Ints set(int32_t x) {
        return map([&](int) { return x; });
    }
    static Ints load(const uint8_t* p) {
        Ints x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static Ints eight_bits(Ints x) { return x; }
    static Ints low_halves(Ints x) {
        return map([&](int i) { return x.lane[i] & 0x0f0f0f0f; });
    }
    static Ints high_halves(Ints x) {
        return map([&](int i) { return x.lane[i] >> 4 & 0x0f0f0f0f; });
    }
    static Ints dot(Ints sum, Ints weights, Ints x) {
        return map([&](int i) {
            uint8_t w[4];
            int8_t q[4];
            std::memcpy(w, &weights.lane[i], 4);
            std::memcpy(q, &x.lane[i], 4);
            return sum.lane[i] + w[0] * q[0] + w[1] * q[1] + w[2] * q[2] + w[3] * q[3];
        });
    }
    static Simd::Vec floats(Ints x) {
        Simd::Vec out;
        for (int i = 0; i < Simd::kWidth; ++i) out.lane[i] = static_cast<float>(x.lane[i]);
        return out;
    }

  private:
    template <class F>
    static Ints map(F f) {
        return {{f(0), f(1), f(2), f(3)}};
    }
};

}  // namespace

#include "simd/product_tile.h"

const h2o_products* h2o::scalar_products() {
    return &kProducts;
}
