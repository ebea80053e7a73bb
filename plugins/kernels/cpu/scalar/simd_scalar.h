// Four lanes in portable C++: for machines without the other instruction sets, and as the reference in tests.
#pragma once

#include <cstdint>
#include <cstring>

#include "scalar/half.h"

namespace {

struct Simd {
    struct Vec {
        float lane[4];
    };
    static constexpr const char* kName = "scalar";
    static constexpr int kWidth = 4;
    static constexpr int kTileColumns = 4;
    static constexpr int kDecodeVectors = 2;  // of each of four rows, held while the queries pass

    static Vec zero() { return set(0.0f); }
    static Vec set(float x) { return {{x, x, x, x}}; }
    static Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
    static void store(float* p, Vec x) { std::memcpy(p, x.lane, sizeof x.lane); }
    static Vec load_some(const float* p, int) { return load(p); }
    static void store_some(float* p, Vec x, int) { store(p, x); }
    static Vec load_half(const uint16_t* p, int) {
        return map([&](int i) { return h2o::half_to_float(p[i]); });
    }
    static void store_half(uint16_t* p, Vec x, int) {
        for (int i = 0; i < 4; ++i) p[i] = h2o::float_to_half(x.lane[i]);
    }

    static Vec load_int8(const int8_t* p, int) {
        return map([&](int i) { return static_cast<float>(p[i]); });
    }
    // To the nearest even; values out of range, and NaN, become a limit.
    static void store_int8(int8_t* p, Vec x, int) {
        for (int i = 0; i < 4; ++i) {
            const float near = x.lane[i] >= -127.0f ? (x.lane[i] < 127.0f ? x.lane[i] : 127.0f) : -127.0f;
            p[i] = static_cast<int8_t>(__builtin_nearbyintf(near));
        }
    }

    // Of two bfloat16 in each lane, as floats.
    static Vec low_halves(Vec x) {
        return map_bits(x, [](uint32_t bits) { return bits << 16; });
    }
    static Vec high_halves(Vec x) {
        return map_bits(x, [](uint32_t bits) { return bits & 0xffff0000u; });
    }

    static Vec add(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Vec sub(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Vec mul(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Vec div(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static Vec min(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vec max(Vec a, Vec b) {
        return map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vec fma(Vec a, Vec b, Vec c) {
        return map([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    // Rounded once, as the exponential's range reduction requires: a product of two floats is exact in
    // double.
    static Vec fms(Vec a, Vec b, Vec c) {
        return map([&](int i) {
            return static_cast<float>(static_cast<double>(a.lane[i]) * b.lane[i] - c.lane[i]);
        });
    }
    static Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
        return map([&](int i) { return a.lane[i] <= b.lane[i] ? yes.lane[i] : no.lane[i]; });
    }

    // p * 2^n for whole n = biased - magic, or 0 where x < low.
    static Vec scale_or_zero(Vec p, Vec, Vec biased, Vec x, Vec low) {
        return map([&](int i) {
            if (x.lane[i] < low.lane[i]) return 0.0f;
            uint32_t bits, shift;
            std::memcpy(&bits, &p.lane[i], 4);
            std::memcpy(&shift, &biased.lane[i], 4);
            bits += shift << 23;
            float scaled;
            std::memcpy(&scaled, &bits, 4);
            return scaled;
        });
    }

    static float sum(Vec x) { return (x.lane[0] + x.lane[1]) + (x.lane[2] + x.lane[3]); }

    static float largest(Vec x) {
        const Vec pairs = max(x, {{x.lane[2], x.lane[3], x.lane[2], x.lane[3]}});
        return pairs.lane[0] > pairs.lane[1] ? pairs.lane[0] : pairs.lane[1];
    }

    // p[i] = or += the sum of x[i].
    static void sum_four(const Vec* x, bool more, float* p) {
        for (int i = 0; i < 4; ++i) p[i] = (more ? p[i] : 0.0f) + sum(x[i]);
    }

    __attribute__((always_inline)) static void prefetch(const void*) {}

  private:
    template <class F>
    static Vec map(F f) {
        return {{f(0), f(1), f(2), f(3)}};
    }
    template <class F>
    static Vec map_bits(Vec x, F f) {
        uint32_t bits[kWidth];
        std::memcpy(bits, x.lane, sizeof bits);
        for (uint32_t& each : bits) each = f(each);
        std::memcpy(x.lane, bits, sizeof bits);
        return x;
    }
};

}  // namespace
