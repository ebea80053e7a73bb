// Blocks of attention in bfloat16 by tiles of AMX: 16 keys, or columns of values, times 16 rows.
//
// The instruction's second factor has words in the order of packed queries and probabilities. Its first one
// has all words of a row side by side. So keys are packed as [keys][d / 2], and values as [dv][v_keys / 2].
#pragma once

#include "isa.h"
#include "x86/amx.h"
#include "x86/bfloat16_avx512.h"

namespace {

struct BFloat16Tiles : BFloat16 {
    static constexpr bool kTiles = true;
    using Values = BFloat16Tiles;
    static constexpr int64_t kMostWords = kTileBytes / 4;

    // Words of d in one instruction: the most that divide a key.
    static int64_t words_of(int64_t depth) {
        int64_t words = depth < kMostWords ? depth : kMostWords;
        while (depth % words != 0) --words;
        return words;
    }
    // Tiles 0 to 2 are sums of three vectors of rows, 3 the first factor, 4 and 5 the second. 6 and 7 are
    // sums and first factor of the last eight keys or columns.
    static void set(int64_t words) {
        TileShapes shapes;
        for (int tile = 0; tile < 3; ++tile) shapes.set(tile, kTileRows, kTileBytes);
        shapes.set(3, kTileRows, 4 * words);
        for (int tile = 4; tile < 6; ++tile) shapes.set(tile, words, kTileBytes);
        shapes.set(6, kTileRows / 2, kTileBytes);
        shapes.set(7, kTileRows / 2, 4 * words);
        set_tiles(shapes);
    }

    // p [16][R] = scores of the first 16 of `keys` keys, or of eight. After set(words_of(depth)).
    template <int kRows>
    static void score(int64_t depth, const float* queries, const float* packed, int64_t keys, float* p) {
        const int64_t words = words_of(depth), left = keys > h2o::kPanel ? kTileRows : h2o::kPanel;
        finish_writes(packed);
        multiply<false, kRows>({packed, depth, queries, depth / words, words}, left, p);
    }

    // o [columns][R] (+)= values times probabilities of `depth` words of keys. After set(kMostWords); if the
    // words are no multiple of it, nothing may follow.
    template <bool kAdd, int kRows>
    static void weigh(int64_t depth, const float* weights, const float* values, int64_t pitch,
                      int64_t columns, float* o) {
        const int64_t steps = depth / kMostWords, whole = steps * kMostWords, rest = depth - whole;
        finish_writes(weights);
        if (steps > 0) multiply<kAdd, kRows>({values, pitch, weights, steps, kMostWords}, columns, o);
        if (rest == 0) return;
        set(rest);
        const Factors last{values + whole, pitch, weights + whole * h2o::kLanes, 1, rest};
        steps > 0 ? multiply<true, kRows>(last, columns, o) : multiply<kAdd, kRows>(last, columns, o);
    }

  private:
    // a [columns][pitch], b [steps * words][R]; each of `steps` instructions takes `words` of both.
    struct Factors {
        const float* a;
        int64_t pitch;
        const float* b;
        int64_t steps, words;
    };
    static constexpr int64_t kRowBytes = h2o::kLanes * 4;

    // out [columns][R], of which kRows; `columns` is a multiple of eight.
    template <bool kAdd, int kRows>
    static void multiply(Factors factors, int64_t columns, float* out) {
        for (int64_t c = 0; c < columns; c += kTileRows) {
            columns - c < kTileRows ? multiply_eight<kAdd, kRows>(factors, out)
                                    : multiply_sixteen<kAdd, kRows>(factors, out);
            factors.a += kTileRows * factors.pitch;
            out += kTileRows * h2o::kLanes;
        }
    }

    template <bool kAdd, int kRows>
    static void multiply_sixteen(const Factors& factors, float* out) {
        kAdd ? load_sums<kRows>(out) : clear_sums();
        const float* a = factors.a;
        const float* b = factors.b;
        for (int64_t step = 0; step < factors.steps; ++step) {
            _tile_loadd(3, a, factors.pitch * 4);
            _tile_loadd(4, b, kRowBytes);
            _tile_dpbf16ps(0, 3, 4);
            if constexpr (kRows > 16) {
                _tile_loadd(5, b + 16, kRowBytes);
                _tile_dpbf16ps(1, 3, 5);
            }
            if constexpr (kRows > 32) {
                _tile_loadd(4, b + 32, kRowBytes);
                _tile_dpbf16ps(2, 3, 4);
            }
            a += factors.words;
            b += factors.words * h2o::kLanes;
        }
        _tile_stored(0, out, kRowBytes);
        if constexpr (kRows > 16) _tile_stored(1, out + 16, kRowBytes);
        if constexpr (kRows > 32) _tile_stored(2, out + 32, kRowBytes);
    }
    static void clear_sums() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
    }
    template <int kRows>
    static void load_sums(const float* out) {
        _tile_loadd(0, out, kRowBytes);
        if constexpr (kRows > 16) _tile_loadd(1, out + 16, kRowBytes);
        if constexpr (kRows > 32) _tile_loadd(2, out + 32, kRowBytes);
    }

    template <bool kAdd, int kRows>
    static void multiply_eight(const Factors& factors, float* out) {
        for (int64_t lane = 0; lane < kRows; lane += 16) {
            const float* a = factors.a;
            const float* b = factors.b + lane;
            if constexpr (kAdd) {
                _tile_loadd(6, out + lane, kRowBytes);
            } else {
                _tile_zero(6);
            }
            for (int64_t step = 0; step < factors.steps; ++step) {
                _tile_loadd(7, a, factors.pitch * 4);
                _tile_loadd(4, b, kRowBytes);
                _tile_dpbf16ps(6, 7, 4);
                a += factors.words;
                b += factors.words * h2o::kLanes;
            }
            _tile_stored(6, out + lane, kRowBytes);
        }
    }
};

}  // namespace
