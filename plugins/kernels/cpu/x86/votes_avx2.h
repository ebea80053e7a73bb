// Sums of int8 products on AVX2, whose bytes it would add in pairs with 16 bits, too few for them. So numbers
// are widened to 16 bits, of which two make a word.
#pragma once

namespace {

struct VotePairs {
    static constexpr int kKeys = 4;
    static constexpr int64_t kStep = 128;  // numbers of a key that are widened at a time

    template <int kVectors>
    __attribute__((always_inline)) static void score(const VoteArgs& args, int64_t key, int64_t count,
                                                     float* p, Simd::Vec* top) {
        constexpr int kTile = kTogether<kVectors>;
        Ints::Vec sum[kKeys][kVectors];
        for (int i = 0; i < kKeys; ++i) {
            for (int j = 0; j < kVectors; ++j) sum[i][j] = Ints::zero();
        }
        int64_t row[kKeys];
        for (int64_t i = 0; i < kKeys; ++i) row[i] = row_of(args, key + (i < count ? i : 0));
        const char* q = static_cast<const char*>(args.q);
        for (int64_t c = 0; c < args.d; c += kStep, q += kStep / 2 * kLanes * 4) {
            const int64_t numbers = args.d - c < kStep ? args.d - c : kStep;
            alignas(32) int16_t wide[kKeys][kStep];
            for (int64_t i = 0; i < kKeys; ++i) {
                const int8_t* const from = args.k + row[i] * args.d + c;
                for (int64_t n = 0; n < numbers; n += 8) {
                    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + n));
                    _mm_store_si128(reinterpret_cast<__m128i*>(wide[i] + n), _mm_cvtepi8_epi16(eight));
                }
            }
            for (int j = 0; j < kVectors; j += kTile)
                multiply<kVectors, kTile>(numbers / 2, q + j * kWidth * 4, wide, &sum[0][j]);
        }
        for (int i = 0; i < kKeys; ++i)
            score_key<kVectors>(args, key + i, row[i], sum[i], p + i * kVectors * kWidth, top);
    }

  private:
    // Adds products of `words` words to sums [kKeys][kVectors], of which kTile vectors are written. Not
    // inlined: it needs all registers.
    template <int kVectors, int kTile>
    __attribute__((noinline)) static void multiply(int64_t words, const char* q, const int16_t (*keys)[kStep],
                                                   Ints::Vec* sums) {
        Ints::Vec sum[kKeys][kTile];
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 3
            for (int j = 0; j < kTile; ++j) sum[i][j] = sums[i * kVectors + j];
        }
        for (int64_t c = 0; c < words; ++c, q += kLanes * 4) {
            Ints::Vec rows[kTile];
#pragma GCC unroll 3
            for (int j = 0; j < kTile; ++j) rows[j] = Ints::load(q + j * kWidth * 4);
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) {
                const Ints::Vec word = Ints::word(keys[i] + 2 * c);
#pragma GCC unroll 3
                for (int j = 0; j < kTile; ++j) Ints::add_products(sum[i][j], rows[j], word);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 3
            for (int j = 0; j < kTile; ++j) sums[i * kVectors + j] = sum[i][j];
        }
    }
};

}  // namespace
