// A few query rows against a run of consecutive cache rows, read once and in the order they lie in memory.
//
// With so few rows the work is the reading: first the keys, for all heads, then the values. kTogether rows
// are taken at a time, head after head, which no hardware prefetcher follows: every step asks for its share,
// in the order of memory, of the rows about kAhead bytes further on.
#pragma once

namespace {

using h2o::DecodeArgs;

constexpr int kTogether = 4;
constexpr int64_t kAhead = 8192;

constexpr int64_t stored_size(h2o_dtype dtype) {
    return dtype == H2O_F16 ? 2 : 4;
}

// Where head `head` of row `key` is.
template <h2o_dtype kDtype>
inline const char* cache_row(const void* base, const DecodeArgs& args, int64_t head, int64_t key) {
    return static_cast<const char*>(base) + (key * args.stride + head * args.d) * stored_size(kDtype);
}

inline int64_t rows_ahead(const DecodeArgs& args) {
    return h2o::round_up(kAhead / (args.stride * stored_size(args.dtype)) + 1, kTogether);
}

// Must be inlined: GCC takes a function that only prefetches for one that does nothing, and drops the call.
template <h2o_dtype kDtype>
__attribute__((always_inline)) inline void fetch_ahead(const void* base, const DecodeArgs& args, int64_t head,
                                                       int64_t key) {
    const int64_t ahead = rows_ahead(args);
    if (key + ahead + kTogether > args.keys) return;
    const int64_t share = kTogether * args.d * stored_size(kDtype);
    const char* from = cache_row<kDtype>(base, args, 0, key + ahead) + head * share;
    for (int64_t at = 0; at < share; at += 64) Simd::prefetch(from + at);
}

// p[g][i] (+)= q[g] . row i over kVectors vectors from column c, for the head's query rows g and kRows rows.
template <h2o_dtype kDtype, int kRows, int kVectors>
inline void dot_block(const DecodeArgs& args, int64_t head, int64_t key, int64_t c, int count) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.d, 16), pitch = h2o::round_up(args.keys, 16), group = args.group;
    const int64_t row = args.stride * stored_size(kDtype);
    const char* const k = cache_row<kDtype>(args.k, args, head, key);
    S::Vec x[kRows][kVectors];
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) x[i][j] = load_stored(k + i * row, kDtype, c + j * kWidth, count);
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

// o[g] += sum over i of p[g][i] * row i over kVectors vectors from column c.
template <h2o_dtype kDtype, int kRows, int kVectors>
inline void weigh_block(const DecodeArgs& args, int64_t head, int64_t key, int64_t c, int count) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.d, 16), pitch = h2o::round_up(args.keys, 16), group = args.group;
    const int64_t row = args.stride * stored_size(kDtype);
    const char* const v = cache_row<kDtype>(args.v, args, head, key);
    S::Vec x[kRows][kVectors];
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) x[i][j] = load_stored(v + i * row, kDtype, c + j * kWidth, count);
    }
    const float* p = args.p + head * group * pitch + key;
    float* o = args.o + head * group * width + c;
    for (int64_t g = 0; g < group; ++g, o += width, p += pitch) {
        S::Vec sum[kVectors];
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) sum[j] = S::load(o + j * kWidth);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
            const S::Vec weight = S::set(p[i]);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) sum[j] = S::fma(x[i][j], weight, sum[j]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) S::store(o + j * kWidth, sum[j]);
    }
}

// A head's columns in blocks that the registers hold, then vector by vector.
template <h2o_dtype kDtype, int kRows>
inline void dot_rows(const DecodeArgs& args, int64_t head, int64_t key) {
    constexpr int kBlock = Simd::kDecodeVectors;
    int64_t c = 0;
    for (; c + kBlock * kWidth <= args.d; c += kBlock * kWidth) {
        dot_block<kDtype, kRows, kBlock>(args, head, key, c, kWidth);
    }
    for (; c < args.d; c += kWidth) dot_block<kDtype, kRows, 1>(args, head, key, c, part(c, args.d));
}

template <h2o_dtype kDtype, int kRows>
inline void weigh_rows(const DecodeArgs& args, int64_t head, int64_t key) {
    constexpr int kBlock = Simd::kDecodeVectors;
    int64_t c = 0;
    for (; c + kBlock * kWidth <= args.d; c += kBlock * kWidth) {
        weigh_block<kDtype, kRows, kBlock>(args, head, key, c, kWidth);
    }
    for (; c < args.d; c += kWidth) weigh_block<kDtype, kRows, 1>(args, head, key, c, part(c, args.d));
}

template <h2o_dtype kDtype>
void dot_run(const DecodeArgs& args) {
    const int64_t together = args.keys / kTogether * kTogether;
    for (int64_t key = 0; key < together; key += kTogether) {
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            fetch_ahead<kDtype>(args.k, args, head, key);
            dot_rows<kDtype, kTogether>(args, head, key);
        }
    }
    for (int64_t key = together; key < args.keys; ++key) {
        for (int64_t head = 0; head < args.kv_heads; ++head) dot_rows<kDtype, 1>(args, head, key);
    }
}

template <h2o_dtype kDtype>
void weigh_run(const DecodeArgs& args) {
    const int64_t together = args.keys / kTogether * kTogether;
    for (int64_t key = 0; key < together; key += kTogether) {
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            fetch_ahead<kDtype>(args.v, args, head, key);
            weigh_rows<kDtype, kTogether>(args, head, key);
        }
    }
    for (int64_t key = together; key < args.keys; ++key) {
        for (int64_t head = 0; head < args.kv_heads; ++head) weigh_rows<kDtype, 1>(args, head, key);
    }
}

// One query row's scores -> probabilities against its own maximum; m and l of the run. p has room for whole
// vectors.
inline void soften(float* p, int64_t keys, int64_t visible, float* m, float* l) {
    using S = Simd;
    for (int64_t i = visible; i < h2o::round_up(keys, 16); ++i) p[i] = -__builtin_inff();
    S::Vec tops = S::set(-__builtin_inff());
    for (int64_t i = 0; i < visible; i += kWidth) tops = S::max(S::load(p + i), tops);
    float lanes[kWidth];
    S::store(lanes, tops);
    float top = lanes[0];
    for (int i = 1; i < kWidth; ++i) top = lanes[i] > top ? lanes[i] : top;
    const S::Vec shift = S::set(top > -3.0e38f ? top : -3.0e38f);  // -inf - -inf must not become NaN
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < keys; i += kWidth) {
        const S::Vec e = exp_nonpositive(S::sub(S::load(p + i), shift));
        sum = S::add(sum, e);
        S::store(p + i, e);
    }
    *m = top;
    *l = S::sum(sum);
}

template <h2o_dtype kDtype>
void decode_run(const DecodeArgs& args) {
    const int64_t rows = args.kv_heads * args.group, pitch = h2o::round_up(args.keys, 16);
    dot_run<kDtype>(args);
    for (int64_t r = 0; r < rows; ++r) {
        soften(args.p + r * pitch, args.keys, args.visible[r % args.group], args.m + r, args.l + r);
    }
    __builtin_memset(args.o, 0, static_cast<std::size_t>(rows * h2o::round_up(args.d, 16)) * sizeof(float));
    weigh_run<kDtype>(args);
}

void decode(const DecodeArgs& args) {
    if (args.dtype == H2O_F16) {
        decode_run<H2O_F16>(args);
    } else {
        decode_run<H2O_F32>(args);
    }
}

}  // namespace
