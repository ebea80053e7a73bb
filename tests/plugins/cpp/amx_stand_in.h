// The instructions of AMX in C++, in place of the compiler's: what Intel's manual says of palette 1. Where a
// processor would raise an exception, the program ends with what was wrong. A load or a store goes row by
// row, so AddressSanitizer sees what a tile touches outside of an array.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace h2o::stand_in {

constexpr int kTiles = 8, kRows = 16, kBytes = 64, kColumns = kBytes / 4;

struct Tile {
    int rows = 0, bytes = 0;  // 0: not configured
    uint8_t at[kRows][kBytes] = {};
};

struct Thread {
    Tile tiles[kTiles];
    bool configured = false;
};

inline thread_local Thread thread;

[[noreturn]] inline void refuse(const char* what, int tile) {
    std::fprintf(stderr, "AMX stand-in: %s (tile %d)\n", what, tile);
    std::abort();
}

inline void load_config(const void* config) {
    uint8_t bytes[64];
    std::memcpy(bytes, config, sizeof bytes);
    if (bytes[0] != 1) refuse("a palette that is not 1", -1);
    if (bytes[1] != 0) refuse("a first row that is not 0", -1);
    thread = Thread{};
    for (int i = 2; i < 64; ++i) {
        const bool is_bytes = i >= 16 && i < 16 + 2 * kTiles, is_rows = i >= 48 && i < 48 + kTiles;
        if (!is_bytes && !is_rows && bytes[i] != 0) refuse("a reserved byte that is not 0", -1);
    }
    for (int i = 0; i < kTiles; ++i) {
        Tile& tile = thread.tiles[i];
        tile.rows = bytes[48 + i];
        tile.bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8;
        if (tile.rows > kRows || tile.bytes > kBytes) refuse("a shape that no tile has", i);
        if ((tile.rows == 0) != (tile.bytes == 0)) refuse("rows without columns, or the other way round", i);
    }
    thread.configured = true;
}

inline void release() {
    thread = Thread{};
}

inline Tile& of(int tile) {
    if (tile < 0 || tile >= kTiles) refuse("a number that no tile has", tile);
    if (!thread.configured) refuse("use before LDTILECFG or after TILERELEASE", tile);
    if (thread.tiles[tile].rows == 0) refuse("use of a tile without a shape", tile);
    return thread.tiles[tile];
}

inline void zero(int tile) {
    std::memset(of(tile).at, 0, sizeof of(tile).at);
}

inline void load(int tile, const void* from, int64_t stride) {
    Tile& to = of(tile);
    std::memset(to.at, 0, sizeof to.at);
    for (int row = 0; row < to.rows; ++row)
        std::memcpy(to.at[row], static_cast<const char*>(from) + row * stride, static_cast<size_t>(to.bytes));
}

inline void store(int tile, void* to, int64_t stride) {
    const Tile& from = of(tile);
    for (int row = 0; row < from.rows; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, from.at[row], static_cast<size_t>(from.bytes));
}

// Shapes of a product: sums [m][n], a [m][k], b [k][n], of words.
inline void check(int sums, int a, int b) {
    if (sums == a || a == b || sums == b) refuse("a product of a tile with itself", sums);
    for (const int tile : {sums, a, b}) {
        if (of(tile).bytes % 4 != 0) refuse("rows of a product that are no whole words", tile);
    }
    if (of(sums).rows != of(a).rows) refuse("sums and the first factor differ in rows", sums);
    if (of(sums).bytes != of(b).bytes) refuse("sums and the second factor differ in columns", sums);
    if (of(a).bytes / 4 != of(b).rows) refuse("factors differ in depth", a);
}

// TDPBSUD: signed bytes times unsigned ones, added in int32.
inline void multiply_bytes(int sums, int a, int b) {
    check(sums, a, b);
    Tile& out = of(sums);
    const Tile &first = of(a), &second = of(b);
    for (int m = 0; m < out.rows; ++m) {
        uint32_t row[kColumns];  // overflow wraps
        std::memcpy(row, out.at[m], sizeof row);
        for (int k = 0; k < second.rows; ++k) {
            for (int n = 0; n < kColumns; ++n) {
                for (int i = 0; i < 4; ++i) {
                    const int x = static_cast<int8_t>(first.at[m][4 * k + i]), y = second.at[k][4 * n + i];
                    row[n] += static_cast<uint32_t>(x * y);
                }
            }
        }
        std::memcpy(out.at[m], row, static_cast<size_t>(out.bytes));
    }
}

// Denormal numbers are zeros, before and after an operation.
inline float flushed(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline float bfloat16_at(const uint8_t* at) {
    const uint32_t bits = static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

// TDPBF16PS: for each word of sums, fused multiply-adds of the low halves and of the high halves from zero
// on, in the order of k; then both are added, and their sum to what was there.
inline void multiply_bfloat16(int sums, int a, int b) {
    check(sums, a, b);
    Tile& out = of(sums);
    const Tile &first = of(a), &second = of(b);
    float columns[kRows][2][kColumns];
    for (int k = 0; k < second.rows; ++k) {
        for (int i = 0; i < 2 * kColumns; ++i) columns[k][i % 2][i / 2] = bfloat16_at(second.at[k] + 2 * i);
    }
    for (int m = 0; m < out.rows; ++m) {
        float row[kColumns], made[2][kColumns] = {};
        std::memcpy(row, out.at[m], sizeof row);
        for (int k = 0; k < second.rows; ++k) {
            for (int i = 0; i < 2; ++i) {
                const float x = bfloat16_at(first.at[m] + 4 * k + 2 * i);
                for (int n = 0; n < kColumns; ++n)
                    made[i][n] = flushed(std::fma(x, columns[k][i][n], made[i][n]));
            }
        }
        for (int n = 0; n < kColumns; ++n) {
            const float both = flushed(made[0][n] + made[1][n]);
            row[n] = flushed(flushed(row[n]) + both);
        }
        std::memcpy(out.at[m], row, static_cast<size_t>(out.bytes));
    }
}

}  // namespace h2o::stand_in

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) ::h2o::stand_in::load_config(config)
#define _tile_release() ::h2o::stand_in::release()
#define _tile_zero(tile) ::h2o::stand_in::zero(tile)
#define _tile_loadd(tile, from, stride) ::h2o::stand_in::load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::h2o::stand_in::store(tile, to, stride)
#define _tile_dpbsud(sums, a, b) ::h2o::stand_in::multiply_bytes(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) ::h2o::stand_in::multiply_bfloat16(sums, a, b)
