// Sums of int8 products on AVX-512 with VNNI. A word is four numbers of d.
#pragma once

namespace {

struct VoteVectors {
    static constexpr int kKeys = 8;

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
#pragma GCC unroll 8
        for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 3
            for (int j = 0; j < kVectors; ++j) sum[i][j] = Ints::zero();
        }
        const char* q = static_cast<const char*>(args.q);
        for (int64_t c = 0; c < args.d; c += 4, q += 4 * kLanes) {
            Ints::Vec rows[kVectors];
#pragma GCC unroll 3
            for (int j = 0; j < kVectors; ++j) rows[j] = Ints::load(q + j * 64);
#pragma GCC unroll 8
            for (int i = 0; i < kKeys; ++i) {
                const Ints::Vec word = Ints::word(at[i] + c);
#pragma GCC unroll 3
                for (int j = 0; j < kVectors; ++j) Ints::add_bytes(sum[i][j], rows[j], word);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < kKeys; ++i)  // p has room for eight keys, and those behind `count` are not read
            score_key<kVectors>(args, key + i, row[i], sum[i], p + i * kVectors * kWidth, top);
    }
};

}  // namespace
