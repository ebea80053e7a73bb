// IEEE binary16 to and from float32 in plain integers, for machines and paths without a conversion
// instruction.
#pragma once

#include <cstdint>
#include <cstring>

namespace h2o {

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    uint32_t bits;
    if (magnitude >= 0x7c00u) {  // infinity, NaN
        bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    } else if (magnitude >= 0x400u) {
        bits = (magnitude << 13) + 0x38000000u;
    } else {  // zero, subnormal: an exact product
        const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &value, 4);
    }
    bits |= sign;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

static inline uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
    if (bits < 0x38800000u) {  // subnormal: adding 0.5 puts the rounding where the half's last bit is
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);  // to nearest, ties to even
    return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
}

}  // namespace h2o
