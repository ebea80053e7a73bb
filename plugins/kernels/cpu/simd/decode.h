// A few query rows against a run of cache rows, consecutive ones or pieces, read once and in the order they
// lie in memory.
//
// With so few rows, reading is the work: first the keys, for all heads, then the values. A few rows are
// processed at a time, head after head, an order that no hardware prefetcher follows. So every step
// prefetches, in memory order, its share of the rows about kAhead bytes ahead.
#pragma once

#include "simd/pack.h"

namespace {

using h2o::DecodeArgs;
using h2o::Piece;
using h2o::StoredHeads;

constexpr int kTogether = 4;  // keys
constexpr int kWeighed = 16;  // values
constexpr int64_t kAhead = 8192;
constexpr int64_t kPiecesAhead = 4;

// Consecutive rows of a run, all or a piece: `keys` of them from `first` on, whose scores begin at p.
struct Pass : DecodeArgs {
    int64_t pitch;  // floats from one query row's scores to the next one's

    explicit Pass(const DecodeArgs& args) : DecodeArgs(args), pitch(h2o::round_up(args.keys, 16)) {}
};

// work(pass, index) for all pieces.
template <class Work>
inline void each_piece(const DecodeArgs& args, Work work) {
    Pass pass(args);
    if (args.pieces == nullptr) return work(pass, 0);
    for (int64_t i = 0; i < args.piece_count; ++i, pass.p += pass.keys) {
        pass.first = args.pieces[i].first;
        pass.keys = args.pieces[i].keys;
        work(pass, i);
    }
}

// The storage type of the run's rows, as a compile-time constant.
template <h2o_dtype kType, bool kHasPages>
struct Form {
    static constexpr h2o_dtype kDtype = kType;
    static constexpr int64_t kSize = stored_size(kType);

    // The row of k, v and their scales for row `key` of the run.
    static int64_t place(const DecodeArgs& args, int64_t key) {
        const int64_t row = args.first + key;
        if constexpr (!kHasPages) return row;
        const int64_t within = row & ((int64_t{1} << args.page_bits) - 1);
        return (int64_t{args.pages[row >> args.page_bits]} << args.page_bits) + within;
    }
    // The address of its head `head`.
    static const char* row(const StoredHeads& heads, const DecodeArgs& args, int64_t head, int64_t key) {
        const int64_t at = place(args, key) * heads.stride + head * heads.apart;
        return static_cast<const char*>(heads.at) + at * kSize;
    }
    // The number of consecutive rows from `key` on, at most `most`.
    static int64_t together(const DecodeArgs& args, int64_t key, int64_t most) {
        if constexpr (!kHasPages) return most;
        const int64_t page = int64_t{1} << args.page_bits, left = page - ((args.first + key) & (page - 1));
        return left < most ? left : most;
    }
    // The addresses of a few rows.
    template <int kRows>
    static void rows(const StoredHeads& heads, const DecodeArgs& args, int64_t head, int64_t key,
                     const char* (&to)[kRows]) {
        to[0] = row(heads, args, head, key);
        const bool apart = together(args, key, kRows) < kRows;
#pragma GCC unroll 4
        for (int i = 1; i < kRows; ++i)
            to[i] = apart ? row(heads, args, head, key + i) : to[0] + i * heads.stride * kSize;
    }
};

// The rows to prefetch while those from `key` on are read; null past the run.
template <class F, int kRows>
inline const char* rows_ahead(const StoredHeads& heads, const DecodeArgs& args, int64_t key) {
    const int64_t ahead = h2o::round_up(kAhead / (heads.stride * F::kSize) + 1, kRows);
    return key + ahead + kRows > args.keys ? nullptr : F::row(heads, args, 0, key + ahead);
}
// Must be inlined: GCC treats a function that only prefetches as empty, and drops the call.
template <class F, int kRows>
__attribute__((always_inline)) inline void fetch_share(const char* ahead, const StoredHeads& heads,
                                                       int64_t head) {
    if (ahead == nullptr) return;
    const int64_t share = kRows * heads.apart * F::kSize;
    const char* from = ahead + head * share;
    for (int64_t at = 0; at < share; at += 64) Simd::prefetch(from + at);
}

// p[g][i] (+)= q[g] . row i over kVectors vectors from column c, for the head's query rows g and kRows rows.
// The addresses of head 0's rows are computed once for all heads.
template <class F, int kRows, int kVectors>
inline void dot_block(const Pass& args, int64_t head, int64_t key, const char* const (&first)[kRows],
                      int64_t c, int count) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.k.d, 16), pitch = args.pitch;
    const int64_t group = args.group;
    const char* k[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) k[i] = first[i] + head * args.k.apart * F::kSize;
    S::Vec x[kRows][kVectors];
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) x[i][j] = load_stored(k[i], F::kDtype, c + j * kWidth, count);
    }
    const float* q = args.q + head * group * width + c;
    float* p = args.p + head * group * pitch + key;
    for (int64_t g = 0; g < group; ++g, q += width, p += pitch) {
        S::Vec sum[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) sum[i] = S::mul(x[i][0], S::load(q));
#pragma GCC unroll 4
        for (int j = 1; j < kVectors; ++j) {
            const S::Vec y = S::load(q + j * kWidth);
#pragma GCC unroll 4
            for (int i = 0; i < kRows; ++i) sum[i] = S::fma(x[i][j], y, sum[i]);
        }
        if constexpr (kRows == 4) {
            S::sum_four(sum, c != 0, p);
        } else {
            for (int i = 0; i < kRows; ++i) p[i] = (c != 0 ? p[i] : 0.0f) + S::sum(sum[i]);
        }
    }
}

// o[g] += sum over i of p[g][i] * row i over kVectors vectors from column c, for the head's query rows from
// `g` on and the run's consecutive rows from `key` on. The outputs stay in registers.
template <class F, int kQueries, int kVectors>
inline void weigh_block(const Pass& args, int64_t head, int64_t g, int64_t key, int64_t rows, int64_t c,
                        int count) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.v.d, 16), pitch = args.pitch;
    const float* const p = args.p + (head * args.group + g) * pitch;
    float* const o = args.o + (head * args.group + g) * width + c;
    S::Vec sum[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) sum[q][j] = S::load(o + q * width + j * kWidth);
    }
    const char* v = F::row(args.v, args, head, key);
    for (int64_t i = key; i < key + rows; ++i, v += args.v.stride * F::kSize) {
        S::Vec x[kVectors];
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) x[j] = load_stored(v, F::kDtype, c + j * kWidth, count);
#pragma GCC unroll 4
        for (int q = 0; q < kQueries; ++q) {
            const S::Vec weight = S::set(p[q * pitch + i]);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) sum[q][j] = S::fma(x[j], weight, sum[q][j]);
        }
    }
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) S::store(o + q * width + j * kWidth, sum[q][j]);
    }
}

// A head's columns in blocks that fit the registers, then vector by vector.
template <class F, int kRows>
inline void dot_rows(const Pass& args, int64_t head, int64_t key, const char* const (&first)[kRows]) {
    constexpr int kBlock = Simd::kDecodeVectors;
    int64_t c = 0;
    for (; c + kBlock * kWidth <= args.k.d; c += kBlock * kWidth) {
        dot_block<F, kRows, kBlock>(args, head, key, first, c, kWidth);
    }
    for (; c < args.k.d; c += kWidth) dot_block<F, kRows, 1>(args, head, key, first, c, part(c, args.k.d));
}

template <class F, int kQueries>
inline void weigh_queries(const Pass& args, int64_t head, int64_t g, int64_t key, int64_t rows) {
    constexpr int kBlock = Simd::kDecodeVectors;
    int64_t c = 0;
    for (; c + kBlock * kWidth <= args.v.d; c += kBlock * kWidth) {
        weigh_block<F, kQueries, kBlock>(args, head, g, key, rows, c, kWidth);
    }
    for (; c < args.v.d; c += kWidth)
        weigh_block<F, kQueries, 1>(args, head, g, key, rows, c, part(c, args.v.d));
}

// As many query rows at a time as have outputs in registers.
template <class F>
inline void weigh_rows(const Pass& args, int64_t head, int64_t key, int64_t rows) {
    for (int64_t g = 0; g < args.group; g += 4) {
        switch (args.group - g) {
            case 1:
                weigh_queries<F, 1>(args, head, g, key, rows);
                break;
            case 2:
                weigh_queries<F, 2>(args, head, g, key, rows);
                break;
            case 3:
                weigh_queries<F, 3>(args, head, g, key, rows);
                break;
            default:
                weigh_queries<F, 4>(args, head, g, key, rows);
        }
    }
}

template <class F>
void dot_run(const Pass& args) {
    const int64_t together = args.keys / kTogether * kTogether;
    for (int64_t key = 0; key < together; key += kTogether) {
        const char* k[kTogether];
        F::rows(args.k, args, 0, key, k);
        const char* const ahead = rows_ahead<F, kTogether>(args.k, args, key);
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            fetch_share<F, kTogether>(ahead, args.k, head);
            dot_rows<F, kTogether>(args, head, key, k);
        }
    }
    for (int64_t key = together; key < args.keys; ++key) {
        const char* k[1];
        F::rows(args.k, args, 0, key, k);
        for (int64_t head = 0; head < args.kv_heads; ++head) dot_rows<F, 1>(args, head, key, k);
    }
}

template <class F>
void weigh_run(const Pass& args) {
    for (int64_t key = 0, rows; key < args.keys; key += rows) {
        rows = F::together(args, key, args.keys - key < kWeighed ? args.keys - key : kWeighed);
        const char* const ahead = rows_ahead<F, kWeighed>(args.v, args, key);
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            fetch_share<F, kWeighed>(ahead, args.v, head);
            weigh_rows<F>(args, head, key, rows);
        }
    }
}

// One query row's scores -> probabilities relative to its own maximum; m and l of the run. p and the scales
// have room for whole vectors. A score is multiplied with its key's scale, and a probability, after it is
// summed, with its value's scale: once per row, not once per element.
template <bool kScaled>
inline void soften(float* p, int64_t keys, int64_t visible, float softcap, const float* k_scales,
                   const float* v_scales, float* m, float* l) {
    using S = Simd;
    S::Vec tops = S::set(-__builtin_inff());
    if constexpr (kScaled) {
        for (int64_t i = 0; i < visible; i += kWidth)
            S::store(p + i, S::mul(S::load(p + i), S::load(k_scales + i)));
    }
    if (softcap > 0) {
        const S::Vec most = S::set(softcap), steep = S::set(-2.0f / softcap);
        for (int64_t i = 0; i < visible; i += kWidth)
            S::store(p + i, soft_capped(S::load(p + i), most, steep));
    }
    for (int64_t i = visible; i < h2o::round_up(keys, 16); ++i) p[i] = -__builtin_inff();
    for (int64_t i = 0; i < visible; i += kWidth) tops = S::max(S::load(p + i), tops);
    const float top = S::largest(tops);
    const S::Vec shift = S::set(top > -3.0e38f ? top : -3.0e38f);  // -inf - -inf must not become NaN
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < keys; i += kWidth) {
        const S::Vec e = exp_nonpositive(S::sub(S::load(p + i), shift));
        sum = S::add(sum, e);
        S::store(p + i, kScaled ? S::mul(e, S::load(v_scales + i)) : e);
    }
    *m = top;
    *l = S::sum(sum);
}

// Scales on pages are read page by page, a few values each: prefetch all of them while the keys are read.
template <class F>
__attribute__((always_inline)) inline void fetch_scales(const DecodeArgs& args) {
    for (int64_t key = 0, rows; key < args.keys; key += rows) {
        rows = F::together(args, key, args.keys - key);
        const int64_t from = F::place(args, key) * args.kv_heads, count = rows * args.kv_heads;
        for (int64_t i = 0; i < count; i += 16) {
            Simd::prefetch(args.k_scales + from + i);
            Simd::prefetch(args.v_scales + from + i);
        }
    }
}

// One head's scales of all rows.
template <class F>
inline void list_scales(const DecodeArgs& args, int64_t head, float* k_scales, float* v_scales) {
    const int64_t heads = args.k.stride / args.k.apart;
    each_piece(args, [&](const Pass& pass, int64_t) {
        for (int64_t key = 0, rows; key < pass.keys; key += rows) {
            rows = F::together(pass, key, pass.keys - key);
            const int64_t from = F::place(pass, key) * heads + head;
            for (int64_t i = 0; i < rows; ++i) {
                *k_scales++ = args.k_scales[from + i * heads];
                *v_scales++ = args.v_scales[from + i * heads];
            }
        }
    });
}

// Prefetches the keys or the values of a piece, if it is one.
template <class F>
__attribute__((always_inline)) inline void fetch_piece(const DecodeArgs& args, const StoredHeads& heads,
                                                       int64_t index) {
    if (index >= args.piece_count) return;
    DecodeArgs there = args;
    there.first = args.pieces[index].first;
    for (int64_t row = 0; row < args.pieces[index].keys; ++row)
        fetch(F::row(heads, there, 0, row), args.kv_heads * heads.apart * F::kSize);
}

template <class F>
void decode_run(const DecodeArgs& args) {
    constexpr bool kScaled = F::kDtype == H2O_I8;
    const int64_t rows = args.kv_heads * args.group, pitch = h2o::round_up(args.keys, 16);
    float *const k_scales = args.p + rows * pitch, *const v_scales = k_scales + pitch;
    if (kScaled && args.pages != nullptr && args.pieces == nullptr) fetch_scales<F>(args);
    each_piece(args, [&](const Pass& pass, int64_t index) {
        fetch_piece<F>(args, args.k, index + kPiecesAhead);
        dot_run<F>(pass);
    });
    for (int64_t r = 0; r < rows; ++r) {
        float* const p = args.p + r * pitch;
        if (kScaled && r % args.group == 0) list_scales<F>(args, r / args.group, k_scales, v_scales);
        soften<kScaled>(p, args.keys, args.visible[r % args.group], args.softcap, k_scales, v_scales,
                        args.m + r, args.l + r);
    }
    __builtin_memset(args.o, 0, static_cast<std::size_t>(rows * h2o::round_up(args.v.d, 16)) * sizeof(float));
    each_piece(args, [&](const Pass& pass, int64_t index) {
        fetch_piece<F>(args, args.v, index + kPiecesAhead);
        weigh_run<F>(pass);
    });
}

template <bool kHasPages>
void decode_stored(const DecodeArgs& args) {
    if (args.dtype == H2O_I8) {
        decode_run<Form<H2O_I8, kHasPages>>(args);
    } else if (args.dtype == H2O_F16) {
        decode_run<Form<H2O_F16, kHasPages>>(args);
    } else {
        decode_run<Form<H2O_F32, kHasPages>>(args);
    }
}

void decode(const DecodeArgs& args) {
    if (args.pages != nullptr) {
        decode_stored<true>(args);
    } else {
        decode_stored<false>(args);
    }
}

}  // namespace
