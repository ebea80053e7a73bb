#include "products.h"

#include <cstring>
#include <vector>

#include "cuda_fp16.h"

namespace emulator {
namespace {

// Of every half: without an instruction for it the conversion is a call.
std::vector<float> all_halves() {
    std::vector<float> values(1 << 16);
    for (size_t i = 0; i < values.size(); ++i) {
        const auto bits = static_cast<uint16_t>(i);
        emulated_half value;
        std::memcpy(&value, &bits, 2);
        values[i] = static_cast<float>(value);
    }
    return values;
}

}  // namespace

void multiply_16x8x16(void* const* lanes) {
    static const std::vector<float> halves = all_halves();
    const auto half_at = [](uint32_t word, int which) { return halves[word >> (16 * which) & 0xffff]; };
    float a[16][16], b[8][16];  // b is transposed
    for (int lane = 0; lane < 32; ++lane) {
        const auto* s = static_cast<const ProductSlot*>(lanes[lane]);
        const int row = lane / 4, pair = (lane % 4) * 2;
        for (int i = 0; i < 8; ++i)
            a[row + (i / 2 % 2) * 8][pair + i % 2 + (i / 4) * 8] = half_at(s->a[i / 2], i % 2);
        for (int i = 0; i < 4; ++i) b[row][pair + i % 2 + (i / 2) * 8] = half_at(s->b[i / 2], i % 2);
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const float* x = a[lane / 4 + (i / 2) * 8];
            const float* y = b[(lane % 4) * 2 + i % 2];
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += x[k] * y[k];
            static_cast<const ProductSlot*>(lanes[lane])->c[i] += sum;
        }
}

}  // namespace emulator
