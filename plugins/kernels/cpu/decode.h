// A few query rows against a run of consecutive cache rows, read once and in the order they lie in memory.
//
// With so few rows the work is the reading: keys first, for all heads, then values. Rows are taken four at a
// time; a head's part of the next rows is fetched while this one is used.
#pragma once

namespace {

using h2o::DecodeArgs;

constexpr int64_t kDecodeRows = 4;
constexpr int64_t kAhead = 16;  // rows between the use of a row and the fetching of one

inline const void* element(const void* base, h2o_dtype dtype, int64_t at) {
    return static_cast<const char*>(base) + at * (dtype == H2O_F16 ? 2 : 4);
}

inline void prefetch_row(const void* row, h2o_dtype dtype, int64_t d) {
    const char* from = static_cast<const char*>(row);
    const int64_t bytes = d * (dtype == H2O_F16 ? 2 : 4);
    for (int64_t at = 0; at < bytes; at += 64) Simd::prefetch(from + at);
}

// p[query][key + i] for the `rows` rows from `key`, one head.
template <h2o_dtype kDtype, int kRows>
inline void dot_rows(const DecodeArgs& args, int64_t head, int64_t key) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.d, 16);
    const void* k = element(args.k, kDtype, key * args.stride + head * args.d);
    for (int64_t g = 0; g < args.group; ++g) {
        const float* q = args.q + (head * args.group + g) * width;
        S::Vec sum[kRows];
        for (int i = 0; i < kRows; ++i) sum[i] = S::zero();
        for (int64_t c = 0; c < args.d; c += kWidth) {
            const S::Vec x = S::load(q + c);
            const int count = part(c, args.d);
#pragma GCC unroll 4
            for (int i = 0; i < kRows; ++i) {
                sum[i] = S::fma(load_stored(k, kDtype, i * args.stride + c, count), x, sum[i]);
            }
        }
        float* p = args.p + (head * args.group + g) * args.keys + key;
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) p[i] = S::sum(sum[i]);
    }
}

// o[query][:] += p[query][key + i] * v[key + i] for the rows from `key`, one head.
template <h2o_dtype kDtype, int kRows>
inline void weigh_rows(const DecodeArgs& args, int64_t head, int64_t key) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.d, 16);
    const void* v = element(args.v, kDtype, key * args.stride + head * args.d);
    for (int64_t c = 0; c < args.d; c += kWidth) {
        const int count = part(c, args.d);
        S::Vec x[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) x[i] = load_stored(v, kDtype, i * args.stride + c, count);
        for (int64_t g = 0; g < args.group; ++g) {
            const int64_t row = head * args.group + g;
            const float* p = args.p + row * args.keys + key;
            float* o = args.o + row * width + c;
            S::Vec sum = S::load(o);
#pragma GCC unroll 4
            for (int i = 0; i < kRows; ++i) sum = S::fma(x[i], S::set(p[i]), sum);
            S::store(o, sum);
        }
    }
}

template <h2o_dtype kDtype>
void dot_run(const DecodeArgs& args) {
    for (int64_t key = 0; key < args.keys; key += kDecodeRows) {
        const bool whole = args.keys - key >= kDecodeRows;
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            if (whole) {
                for (int64_t i = 0; i < kDecodeRows && key + i + kAhead < args.keys; ++i) {
                    prefetch_row(element(args.k, kDtype, (key + i + kAhead) * args.stride + head * args.d),
                                 kDtype, args.d);
                }
                dot_rows<kDtype, kDecodeRows>(args, head, key);
            } else {
                for (int64_t i = key; i < args.keys; ++i) dot_rows<kDtype, 1>(args, head, i);
            }
        }
    }
}

template <h2o_dtype kDtype>
void weigh_run(const DecodeArgs& args) {
    for (int64_t key = 0; key < args.keys; key += kDecodeRows) {
        const bool whole = args.keys - key >= kDecodeRows;
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            if (whole) {
                for (int64_t i = 0; i < kDecodeRows && key + i + kAhead < args.keys; ++i) {
                    prefetch_row(element(args.v, kDtype, (key + i + kAhead) * args.stride + head * args.d),
                                 kDtype, args.d);
                }
                weigh_rows<kDtype, kDecodeRows>(args, head, key);
            } else {
                for (int64_t i = key; i < args.keys; ++i) weigh_rows<kDtype, 1>(args, head, i);
            }
        }
    }
}

// One query row's scores -> probabilities against its own maximum; m and l of the run.
inline void soften(float* p, int64_t keys, int64_t visible, float* m, float* l) {
    using S = Simd;
    for (int64_t i = visible < 0 ? 0 : visible; i < keys; ++i) p[i] = -__builtin_inff();
    float top = -__builtin_inff();
    for (int64_t i = 0; i < keys; ++i) top = p[i] > top ? p[i] : top;
    const S::Vec shift = S::set(top > -3.0e38f ? top : -3.0e38f);
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < keys; i += kWidth) {
        float padded[kWidth];
        const int64_t count = keys - i < kWidth ? keys - i : kWidth;
        for (int64_t j = 0; j < kWidth; ++j) padded[j] = j < count ? p[i + j] : -__builtin_inff();
        const S::Vec e = exp_nonpositive(S::sub(S::load(padded), shift));
        sum = S::add(sum, e);
        S::store(padded, e);
        for (int64_t j = 0; j < count; ++j) p[i + j] = padded[j];
    }
    *m = top;
    *l = S::sum(sum);
}

void decode(const DecodeArgs& args) {
    const int64_t rows = args.kv_heads * args.group;
    if (args.dtype == H2O_F16) {
        dot_run<H2O_F16>(args);
    } else {
        dot_run<H2O_F32>(args);
    }
    for (int64_t r = 0; r < rows; ++r) {
        soften(args.p + r * args.keys, args.keys, args.visible[r % args.group], args.m + r, args.l + r);
    }
    __builtin_memset(args.o, 0, static_cast<size_t>(rows * h2o::round_up(args.d, 16)) * sizeof(float));
    if (args.dtype == H2O_F16) {
        weigh_run<H2O_F16>(args);
    } else {
        weigh_run<H2O_F32>(args);
    }
}

}  // namespace
