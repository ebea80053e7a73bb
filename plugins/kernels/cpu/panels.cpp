// Packs integer weights into panels: products.h has the layout.
#include <algorithm>
#include <cstring>

#include "product.h"

namespace h2o {
namespace {

constexpr int64_t kFour = 4;     // weights of a column that are neighbours in memory
constexpr int64_t kLine = 4;     // panels of one cache line, where columns are neighbours
constexpr int kPanelBytes = 64;  // of four weights a column

// Four neighbours along K of some columns, each four one word, in the memory's order.
void read_fours(const h2o_integers& q, int64_t k, int64_t column, int64_t columns, uint32_t* fours) {
    const int8_t* const at = q.values + column * q.output_stride + k * q.input_stride;
    if (q.input_stride == 1) {
        for (int64_t c = 0; c < columns; ++c) std::memcpy(fours + c, at + c * q.output_stride, kFour);
        return;
    }
    const auto* const rows = reinterpret_cast<const uint8_t*>(at);
    const int64_t next = q.input_stride;
    const auto join = [&](int64_t count) {
        for (int64_t c = 0; c < count; ++c) {
            fours[c] = static_cast<uint32_t>(rows[c]) | static_cast<uint32_t>(rows[next + c]) << 8 |
                       static_cast<uint32_t>(rows[2 * next + c]) << 16 |
                       static_cast<uint32_t>(rows[3 * next + c]) << 24;
        }
    };
    columns == kPanel ? join(kPanel) : join(columns);  // a constant count becomes vector instructions
}

// Weights k ... k + 3 of a panel's columns; of 4 bits also those half a block behind.
void pack_fours(const h2o_integers& q, int bits, int64_t half, int64_t k, int64_t column, uint8_t* packed) {
    const int64_t columns = std::min(kPanel, q.outputs - column);
    uint32_t words[kPanel] = {};
    read_fours(q, k, column, columns, words);
    if (bits == 8) {
        for (uint32_t& word : words) word ^= 0x80808080u;
    } else {
        uint32_t high[kPanel] = {};
        read_fours(q, k + half, column, columns, high);
        for (int64_t c = 0; c < kPanel; ++c)
            words[c] = ((words[c] & 0x0F0F0F0Fu) | (high[c] & 0x0F0F0F0Fu) << 4) ^ 0x88888888u;
    }
    std::memcpy(packed, words, kPanelBytes);
}

}  // namespace
}  // namespace h2o

void h2o_products_pack(const h2o_integers* q, int bits, int64_t block, int64_t first, int64_t panels,
                       uint8_t* packed) {
    using namespace h2o;
    const int64_t panel_bytes = q->inputs * kPanel * bits / 8, half = block / 2;
    for (int64_t group = 0; group < panels; group += kLine) {
        const int64_t stop = std::min(group + kLine, panels);
        int64_t written = 0;  // bytes of each panel
        for (int64_t k = 0; k < q->inputs; k += kFour) {
            if (bits == 4 && k % block >= half) continue;  // packed with the first half
            for (int64_t panel = group; panel < stop; ++panel)
                pack_fours(*q, bits, half, k, (first + panel) * kPanel,
                           packed + panel * panel_bytes + written);
            written += kPanelBytes;
        }
    }
}
