// Converts between storage (token-major; float32, float16 or int8) and the packed float32 layouts of isa.h.
#pragma once

#include "simd/fetch.h"
#include "simd/tile.h"
#include "simd/transpose.h"

namespace {

using h2o::RowList;

constexpr int64_t stored_size(h2o_dtype dtype) {
    return dtype == H2O_I8 ? 1 : dtype == H2O_F16 ? 2 : 4;
}

inline Simd::Vec load_stored(const void* row, h2o_dtype dtype, int64_t at, int count) {
    if (dtype == H2O_F16) return Simd::load_half(static_cast<const uint16_t*>(row) + at, count);
    if (dtype == H2O_I8) return Simd::load_int8(static_cast<const int8_t*>(row) + at, count);
    return Simd::load_some(static_cast<const float*>(row) + at, count);
}

inline void store_stored(void* row, h2o_dtype dtype, int64_t at, Simd::Vec x, int count) {
    if (dtype == H2O_F16) {
        Simd::store_half(static_cast<uint16_t*>(row) + at, x, count);
    } else {
        Simd::store_some(static_cast<float*>(row) + at, x, count);
    }
}

inline int part(int64_t at, int64_t count) {
    return count - at < kWidth ? static_cast<int>(count - at) : kWidth;
}

// Eight consecutive elements of a stored row, as float32. `buffer` is used for other formats.
inline const float* eight(const RowList& rows, int64_t row, int64_t at, float* buffer) {
    if (rows.dtype == H2O_F32) return static_cast<const float*>(rows.at[row]) + at;
    const Simd::Vec scale = Simd::set(rows.scales == nullptr ? 1.0f : rows.scales[row]);
    for (int i = 0; i < 8; i += kWidth) {
        const int count = kWidth < 8 ? kWidth : 8;
        Simd::Vec x = load_stored(rows.at[row], rows.dtype, at + i, count);
        if (rows.dtype == H2O_I8) x = Simd::mul(x, scale);
        Simd::store_some(buffer + i, x, count);
    }
    return buffer;
}

// The last four elements of a row (8 k + 4 long), and zeros.
inline const float* last_four(const RowList& rows, int64_t row, int64_t at, float* buffer) {
    const Simd::Vec scale = Simd::set(rows.scales == nullptr ? 1.0f : rows.scales[row]);
    for (int i = 0; i < 8; ++i) buffer[i] = 0.0f;
    Simd::store_some(buffer, Simd::mul(load_stored(rows.at[row], rows.dtype, at, 4), scale), 4);
    return buffer;
}

constexpr int64_t kRowsAhead = 16;

// Prefetches eight rows further on. Must be inlined, like fetch().
__attribute__((always_inline)) inline void fetch_eight(const RowList& rows, int64_t at, int64_t count,
                                                       int64_t d) {
    const int64_t from = at + kRowsAhead, stop = from + 8 < count ? from + 8 : count;
    for (int64_t row = from; row < stop; ++row) fetch(rows.at[row], d * stored_size(rows.dtype));
}

// Square blocks of eight, so that reads and writes are both contiguous.
inline void pack_keys(const RowList& rows, int64_t keys, int64_t d, float* out) {
    float buffer[8][8];
    for (int64_t key = 0; key < keys; key += kPanel, out += d * kPanel) {
        fetch_eight(rows, key, keys, d);
        const int64_t count = keys - key < kPanel ? keys - key : kPanel;
        if (count < kPanel) __builtin_memset(out, 0, static_cast<std::size_t>(d * kPanel) * sizeof(float));
        for (int64_t c = 0; c < d; c += 8) {
            const float* in[8];
            for (int64_t j = 0; j < count; ++j) in[j] = eight(rows, key + j, c, buffer[j]);
            if (count == kPanel) {
                transpose_8x8(in, 1.0f, out + c * kPanel, kPanel);
            } else {
                for (int64_t j = 0; j < count; ++j) {
                    for (int64_t i = 0; i < 8; ++i) out[(c + i) * kPanel + j] = in[j][i];
                }
            }
        }
    }
}

inline void pack_values(const RowList& rows, int64_t keys, int64_t d, int64_t v_keys, float* out) {
    float buffer[8];
    for (int64_t key = 0; key < keys; ++key) {
        if (key % 8 == 0) fetch_eight(rows, key, keys, d);
        for (int64_t c = 0; c < d; c += kPanel) {
            const float* const in =
                d - c < kPanel ? last_four(rows, key, c, buffer) : eight(rows, key, c, buffer);
            __builtin_memcpy(out + c * v_keys + key * kPanel, in, 8 * sizeof(float));
        }
    }
}

inline void pack_queries(const RowList& rows, int64_t lanes, int64_t d, float scale, float* out) {
    float buffer[8][8];
    if (lanes < kLanes) __builtin_memset(out, 0, static_cast<std::size_t>(d * kLanes) * sizeof(float));
    for (int64_t r = 0; r < lanes; r += 8) {
        const int64_t count = lanes - r < 8 ? lanes - r : 8;
        fetch_eight(rows, r, lanes, d);
        for (int64_t c = 0; c < d; c += 8) {
            const float* in[8];
            for (int64_t j = 0; j < count; ++j) in[j] = eight(rows, r + j, c, buffer[j]);
            if (count == 8) {
                transpose_8x8(in, scale, out + c * kLanes + r, kLanes);
            } else {
                for (int64_t j = 0; j < count; ++j) {
                    for (int64_t i = 0; i < 8; ++i) out[(c + i) * kLanes + r + j] = in[j][i] * scale;
                }
            }
        }
    }
}

constexpr int64_t kStoredColumns = 64;  // that are transposed before they are stored

// Elements x of an output row from `at` on: row = keep * row + factor * x. With keep 0 the row is not read:
// an empty state's output may be NaN.
inline void merge(const float* x, float keep, float factor, h2o_dtype dtype, int64_t at, int64_t stop,
                  void* row) {
    for (; at < stop; at += kWidth, x += kWidth) {
        const int count = part(at, stop);
        Simd::Vec y = Simd::mul(Simd::load(x), Simd::set(factor));
        if (keep != 0.0f) y = Simd::fma(load_stored(row, dtype, at, count), Simd::set(keep), y);
        store_stored(row, dtype, at, y, count);
    }
}

// Whole vectors are read long after the halves that the transposition stored, which the processor cannot
// forward.
inline void store_rows(const float* o, const float* keep, const float* factor, h2o_dtype dtype, int64_t lanes,
                       int64_t d, void* const* rows) {
    alignas(64) float turned[8][kStoredColumns];
    for (int64_t r = 0; r < lanes; r += 8) {
        const int64_t count = lanes - r < 8 ? lanes - r : 8;
        for (int64_t first = 0; first < d; first += kStoredColumns) {
            const int64_t stop = d - first < kStoredColumns ? d : first + kStoredColumns;
            for (int64_t c = first; c < stop; c += 8) {
                const float* in[8];
                for (int64_t i = 0; i < 8; ++i) in[i] = o + (c + i) * kLanes + r;
                transpose_8x8(in, 1.0f, turned[0] + c - first, kStoredColumns);
            }
            for (int64_t j = 0; j < count; ++j) {
                merge(turned[j], keep == nullptr ? 0.0f : keep[r + j], factor[r + j], dtype, first, stop,
                      rows[r + j]);
            }
        }
    }
}

inline void blend_row(h2o_dtype dtype, int64_t d, float a, const void* x, float b, const void* y, void* out) {
    for (int64_t c = 0; c < d; c += kWidth) {
        const int count = part(c, d);
        Simd::Vec sum = Simd::zero();
        if (a != 0.0f) sum = Simd::mul(load_stored(x, dtype, c, count), Simd::set(a));
        if (b != 0.0f) sum = Simd::fma(load_stored(y, dtype, c, count), Simd::set(b), sum);
        store_stored(out, dtype, c, sum, count);
    }
}

inline void blend_block(const float* keep, const float* factor, const float* other, int64_t d, float* o) {
    for (int64_t r = 0; r < kLanes; r += kWidth) {
        const Simd::Vec kept = Simd::load(keep + r), scale = Simd::load(factor + r);
        for (int64_t c = r; c < r + d * kLanes; c += kLanes) {
            const Simd::Vec added = Simd::mul(Simd::load(other + c), scale);
            const Simd::Vec finite = Simd::select_le(scale, Simd::zero(), Simd::zero(), added);
            Simd::store(o + c, Simd::fma(Simd::load(o + c), kept, finite));
        }
    }
}

inline void to_float(const void* in, h2o_dtype dtype, int64_t count, float scale, float* out) {
    for (int64_t i = 0; i < count; i += kWidth) {
        const int some = part(i, count);
        Simd::store_some(out + i, Simd::mul(load_stored(in, dtype, i, some), Simd::set(scale)), some);
    }
}

inline void from_float(const float* in, h2o_dtype dtype, int64_t count, float scale, void* out) {
    for (int64_t i = 0; i < count; i += kWidth) {
        const int some = part(i, count);
        store_stored(out, dtype, i, Simd::mul(Simd::load_some(in + i, some), Simd::set(scale)), some);
    }
}

inline float to_int8(const void* in, h2o_dtype dtype, int64_t count, int8_t* out) {
    Simd::Vec top = Simd::zero(), wrong = Simd::zero();
    for (int64_t i = 0; i < count; i += kWidth) {
        const Simd::Vec x = load_stored(in, dtype, i, part(i, count));
        top = Simd::max(top, Simd::max(x, Simd::sub(Simd::zero(), x)));
        wrong = Simd::fma(x, Simd::zero(), wrong);
    }
    const float largest = Simd::largest(top);
    const Simd::Vec inverse = Simd::set(largest > 0.0f ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < count; i += kWidth) {
        const int some = part(i, count);
        Simd::store_int8(out + i, Simd::mul(load_stored(in, dtype, i, some), inverse), some);
    }
    return largest / 127.0f + Simd::sum(wrong);
}

inline void sum_lanes(const float* partial, int64_t keys, float* out) {
    for (int64_t key = 0; key < keys; ++key, partial += kColsumLanes) {
        Simd::Vec sum = Simd::load(partial);
        for (int64_t i = kWidth; i < kColsumLanes; i += kWidth) sum = Simd::add(sum, Simd::load(partial + i));
        out[key] += Simd::sum(sum);
    }
}

inline void exp_many(const float* in, int64_t count, float* out) {
    for (int64_t i = 0; i < count; i += kWidth) Simd::store(out + i, exp_nonpositive(Simd::load(in + i)));
}

}  // namespace
