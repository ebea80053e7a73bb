#include "isa.h"
#include "x86/processor.h"
#include "x86/simd_avx512.h"
// clang-format off: each uses the ones before
#include "x86/bfloat16_amx.h"
#include "simd/blocks_words.h"
// clang-format on

namespace {

// Words [keys][d / 2]; up to the next eight keys they are zeros.
void pack_keys_for_tiles(const RowList& rows, int64_t keys, int64_t d, float* out) {
    float words[8], low[8], high[8];
    const float zeros[8] = {};
    for (int64_t key = 0; key < keys; ++key, out += d / 2) {
        if (key % 8 == 0) fetch_eight(rows, key, keys, d);
        for (int64_t c = 0; c < d; c += 16) {
            const bool half = d - c < 16;
            BFloat16::round(eight(rows, key, c, low), half ? zeros : eight(rows, key, c + 8, high), 1.0f,
                            words);
            __builtin_memcpy(out + c / 2, words, half ? sizeof words / 2 : sizeof words);
        }
    }
    const int64_t lacking = h2o::round_up(keys, kPanel) - keys;
    if (lacking > 0) __builtin_memset(out, 0, static_cast<std::size_t>(lacking * d / 2) * sizeof(float));
}

// Words [dv][v_keys / 2]. If the number of keys is odd, the last word's high half is 0.
void pack_values_for_tiles(const RowList& rows, int64_t keys, int64_t d, int64_t v_keys, float* out) {
    alignas(64) float words[8][8];
    float buffers[2][8];
    for (int64_t key = 0; key < keys; key += 16) {
        fetch_eight(rows, key, keys, d);
        fetch_eight(rows, key + 8, keys, d);
        const int64_t left = (keys - key + 1) / 2, pairs = left < 8 ? left : 8;
        for (int64_t c = 0; c < d; c += kPanel) {
            for (int64_t i = 0; i < pairs; ++i) {
                const int64_t first = key + 2 * i;
                BFloat16::join(eight_of_value(rows, keys, d, first, c, buffers[0]),
                               eight_of_value(rows, keys, d, first + 1, c, buffers[1]), words[i]);
            }
            turn(words, pairs, kPanel, out + (c * v_keys + key) / 2, v_keys / 2);
        }
    }
}

void attend_by_tiles(const BlockArgs& args) {
    attend_form<BFloat16Tiles, true>(args);
    _tile_release();
}

}  // namespace

const h2o::BlockAttention* h2o::amx_bfloat16() {
    static constexpr BlockAttention kMade = [] {
        BlockAttention attention = kBlocks<BFloat16>;
        attention.attend = attend_by_tiles;
        attention.pack_keys = pack_keys_for_tiles;
        attention.pack_values = pack_values_for_tiles;
        attention.value_columns = 1;
        return attention;
    }();
    return &kMade;
}

// Small whole numbers, whose products and sums are exact.
bool h2o::amx_bfloat16_is_right() {
    constexpr int64_t kKeys = kTileRows, kDepth = 2 * BFloat16Tiles::kMostWords;
    alignas(64) uint16_t keys[kKeys][2 * kDepth], queries[kDepth][kLanes][2];
    alignas(64) float p[kKeys][kLanes];
    const auto number = [](int64_t i) { return static_cast<int32_t>(i * 37 % 23) - 11; };
    const auto rounded = [](int32_t x) {
        const float value = static_cast<float>(x);
        uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        return static_cast<uint16_t>(bits >> 16);
    };
    for (int64_t k = 0; k < 2 * kDepth; ++k) {
        for (int64_t key = 0; key < kKeys; ++key) keys[key][k] = rounded(number(key * 71 + k));
        for (int64_t row = 0; row < kLanes; ++row)
            queries[k / 2][row][k % 2] = rounded(number(row * 59 + 7 * k + 3));
    }
    BFloat16Tiles::set(BFloat16Tiles::words_of(kDepth));
    BFloat16Tiles::score<static_cast<int>(kLanes)>(kDepth, reinterpret_cast<const float*>(queries),
                                                   reinterpret_cast<const float*>(keys), kKeys, p[0]);
    _tile_release();
    for (int64_t key = 0; key < kKeys; ++key) {
        for (int64_t row = 0; row < kLanes; ++row) {
            int32_t sum = 0;
            for (int64_t k = 0; k < 2 * kDepth; ++k)
                sum += number(key * 71 + k) * number(row * 59 + 7 * k + 3);
            if (p[key][row] != static_cast<float>(sum)) return false;
        }
    }
    return true;
}
