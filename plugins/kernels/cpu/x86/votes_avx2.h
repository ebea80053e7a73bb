// Sums of int8 products on AVX2, whose bytes it multiplies and adds in pairs with 16 bits (kQueryExcess).
#pragma once

namespace {

struct VoteBytes {
    static constexpr int kKeys = 4;
    static constexpr int kTile = 2;  // vectors of queries that are held beside the sums

    template <int kVectors>
    __attribute__((always_inline)) static void score(const VoteArgs& args, int64_t key, int64_t count,
                                                     float* p, Simd::Vec* top) {
        int64_t row[kKeys];
        const int8_t* at[kKeys];
        for (int64_t i = 0; i < kKeys; ++i) {
            row[i] = row_of(args, key + (i < count ? i : 0));
            at[i] = args.k + row[i] * args.d;
        }
        Ints::Vec sum[kKeys][kVectors];
        for (int j = 0; j < kVectors; j += kTile)
            multiply<kVectors>(args.d, static_cast<const char*>(args.q) + j * kWidth * 4, at, &sum[0][j]);
        for (int i = 0; i < kKeys; ++i)
            score_key<kVectors>(args, key + i, row[i], sum[i], p + i * kVectors * kWidth, top);
    }

  private:
    // sums [kKeys][kVectors], of which kTile vectors are written. Not inlined: it needs all registers.
    template <int kVectors>
    __attribute__((noinline)) static void multiply(int64_t d, const char* q, const int8_t* const* keys,
                                                   Ints::Vec* sums) {
        Ints::Vec sum[kKeys][kTile];
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 2
            for (int j = 0; j < kTile; ++j) sum[i][j] = Ints::zero();
        }
        for (int64_t c = 0; c < d; c += 4, q += 4 * kLanes) {
            Ints::Vec rows[kTile];
#pragma GCC unroll 2
            for (int j = 0; j < kTile; ++j) rows[j] = Ints::load(q + j * kWidth * 4);
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) {
                const Ints::Vec word = Ints::word(keys[i] + c);
#pragma GCC unroll 2
                for (int j = 0; j < kTile; ++j) Ints::add_bytes(sum[i][j], rows[j], word);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 2
            for (int j = 0; j < kTile; ++j) sums[i * kVectors + j] = sum[i][j];
        }
    }
};

}  // namespace
