// Matrix products of packed factors, through one register tile: C[column][R] += sum over k of B[k][column] *
// A[k][R].
#pragma once

namespace {

using h2o::kLanes;
using h2o::kPanel;

constexpr int kWidth = Simd::kWidth;
constexpr int kTileVectors = 3;
constexpr int kTileLanes = kTileVectors * kWidth;

// The contents of a word of a packed factor, and the operation that adds two words' product to a sum.
struct Float32 {
    static constexpr int kPair = 1;           // numbers a word
    static constexpr bool kMatrices = false;  // whether they have a tile of their own
    static constexpr bool kTiles = false;     // or products of more than a panel, by AMX
    static constexpr int kScales = 0;         // words behind the numbers of a key, or of a query
    using Values = Float32;                   // the words of values and probabilities
    static Simd::Vec dot(Simd::Vec a, Simd::Vec b, Simd::Vec sum) { return Simd::fma(a, b, sum); }
};

// The distance between two words of a product's second factor.
struct Packed {  // a panel
    int64_t down() const { return kPanel; }
    int64_t across() const { return 1; }
    void fetch(int64_t) const {}
};
struct InRows {  // of a cache
    int64_t stride;
    const char* ahead;  // cache lines to prefetch, one per step
    int64_t lines;
    __attribute__((always_inline)) void fetch(int64_t step) const {
        if (step < lines) Simd::prefetch(ahead + step * 64);
    }
};
struct Keys : InRows {  // k runs over a key's elements, columns are keys
    int64_t down() const { return 1; }
    int64_t across() const { return stride; }
};
struct Values : InRows {  // the same rows: k runs over keys, columns are the elements of each
    int64_t down() const { return stride; }
    int64_t across() const { return 1; }
};

// C[c][0 .. kCount vectors) for a few columns. a [depth][R] words, b [depth][columns] words as `form` says, c
// [columns][R] floats.
template <class Numbers, bool kAdd, int kCount, class Form>
__attribute__((always_inline)) inline void multiply_vectors(int64_t depth, const float* __restrict rows,
                                                            const float* __restrict columns, Form form,
                                                            float* __restrict out) {
    using S = Simd;
    constexpr int kColumns = S::kTileColumns;
    S::Vec sum[kColumns][kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) {
            sum[i][j] = kAdd ? S::load(out + i * kLanes + j * kWidth) : S::zero();
        }
    }
    for (int64_t k = 0; k < depth; ++k, rows += kLanes, columns += form.down()) {
        form.fetch(k);
        S::Vec row[kCount];
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) row[j] = S::load(rows + j * kWidth);
#pragma GCC unroll 8
        for (int i = 0; i < kColumns; ++i) {
            const S::Vec x = S::set(columns[i * form.across()]);
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) sum[i][j] = Numbers::dot(row[j], x, sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) S::store(out + i * kLanes + j * kWidth, sum[i][j]);
    }
}

template <class Numbers, bool kAdd, int kCount, class Form>
__attribute__((always_inline)) inline void multiply_tile(int64_t depth, const float* rows,
                                                         const float* columns, Form form, float* out) {
    if constexpr (Numbers::kMatrices) {
        Numbers::template multiply<kAdd, kCount>(depth, rows, columns, out);
    } else {
        multiply_vectors<Numbers, kAdd, kCount>(depth, rows, columns, form, out);
    }
}

// C[c][0 .. kRows) for the kPanel columns of one panel: tiles of three vectors, and a remainder.
template <class Numbers, bool kAdd, int kRows, class Form>
inline void multiply_panel(int64_t depth, const float* __restrict a, const float* __restrict b, Form form,
                           float* __restrict c) {
    constexpr int kWhole = kRows / kTileLanes * kTileLanes, kRest = (kRows - kWhole) / kWidth;
    for (int64_t column = 0; column < kPanel; column += Simd::kTileColumns) {
        float* const out = c + column * kLanes;
        for (int64_t lane = 0; lane < kWhole; lane += kTileLanes)
            multiply_tile<Numbers, kAdd, kTileVectors>(depth, a + lane, b + column * form.across(), form,
                                                       out + lane);
        if constexpr (kRest > 0)
            multiply_tile<Numbers, kAdd, kRest>(depth, a + kWhole, b + column * form.across(), form,
                                                out + kWhole);
    }
}

}  // namespace
