// Access to the rows of a cache: their addresses and scales. No other code here knows pages and scales.
#pragma once

#include <algorithm>

#include "context.h"

namespace h2o {

// The row of k, v and scales for the sequence's row `row`.
inline int64_t place_of(const h2o_kv& kv, int64_t row) {
    if (kv.pages == nullptr) return row;
    const int bits = __builtin_ctz(static_cast<unsigned>(kv.page_rows));
    return (int64_t{kv.pages[row >> bits]} << bits) + (row & (kv.page_rows - 1));
}

// Keys and values of one key/value head: rows index[j], or j without an index; after `count` of them, `then`.
struct KeyRows {
    h2o_kv kv;
    const char* k;         // row 0 of the head's keys
    const char* v;         // row 0 of its values; null: keys only
    int64_t stride;        // bytes from one key to the next
    int64_t v_stride;      // bytes from one value to the next
    int64_t head;          // key/value head
    int64_t heads;         // Hkv
    const int32_t* index;  // [count] cache rows; null: the first ones
    int64_t count;         // rows
    const KeyRows* then;   // rows behind these, or null

    // Of row `row` of the cache.
    const char* key(int64_t row) const { return k + place_of(kv, row) * stride; }
    const char* value(int64_t row) const { return v + place_of(kv, row) * v_stride; }
    float key_scale(int64_t row) const { return scale(kv.k_scales, row); }
    float value_scale(int64_t row) const { return scale(kv.v_scales, row); }

  private:
    float scale(const float* scales, int64_t row) const {
        return scales == nullptr ? 1.0f : scales[place_of(kv, row) * heads + head];
    }
};

// Cache rows [0, count) of one key/value head, or those in index.
inline KeyRows cache_rows(const h2o_shape& shape, int64_t head, const h2o_kv& kv, const int32_t* index,
                          int64_t count) {
    const int64_t key_bytes = shape.head_size * element_size(kv.dtype);
    const int64_t value_bytes = h2o_kv_latent(&kv) ? key_bytes : value_size(shape) * element_size(kv.dtype);
    KeyRows rows{};
    rows.kv = kv;
    rows.k = static_cast<const char*>(kv.k) + head * key_bytes;
    rows.v = kv.v == nullptr ? nullptr : static_cast<const char*>(kv.v) + head * value_bytes;
    rows.stride = shape.kv_heads * key_bytes;
    rows.v_stride = shape.kv_heads * value_bytes;
    rows.head = head;
    rows.heads = shape.kv_heads;
    rows.index = index;
    rows.count = count;
    return rows;
}

// If no value is read.
inline h2o_kv keys_alone(const h2o_kv& kv) {
    h2o_kv keys = kv;
    keys.v = nullptr;
    return keys;
}

// Rows as a dense graph writes them, k [count, Hkv, d] and v [count, Hkv, dv] of the shape's dtype; v may be
// null, or k.
inline h2o_kv plain_rows(const h2o_shape& shape, const void* k, const void* v, int64_t count) {
    h2o_kv kv{};
    kv.k = const_cast<void*>(k);
    kv.v = const_cast<void*>(v);
    kv.rows = count;
    kv.dtype = shape.dtype;
    return kv;
}

// Single rows of one head, to be packed together.
template <int64_t kMost>
class Gathered {
  public:
    explicit Gathered(h2o_dtype dtype) : dtype_(dtype) {}
    h2o_dtype dtype() const { return dtype_; }
    void start(h2o_dtype dtype) { dtype_ = dtype; }
    void take(int64_t i, const KeyRows& from, int64_t row) {
        set(i, from.key(row), from.value(row));
        scales_[0][i] = from.key_scale(row);
        scales_[1][i] = from.value_scale(row);
    }
    void set(int64_t i, const void* k, const void* v) {
        at_[0][i] = k;
        at_[1][i] = v;
    }
    RowList keys() const { return list(0); }
    RowList values() const { return list(1); }

  private:
    RowList list(int which) const {
        return {at_[which], dtype_, dtype_ == H2O_I8 ? scales_[which] : nullptr};
    }
    h2o_dtype dtype_;
    const void* at_[2][kMost];
    float scales_[2][kMost];
};

// A run of decode begins with the cache's row `first`.
inline void read_from(const h2o_shape& shape, const h2o_kv& kv, int64_t first, DecodeArgs* args) {
    const int64_t d = shape.head_size, dv = value_size(shape), apart = h2o_kv_latent(&kv) ? d : dv;
    args->kv_heads = shape.kv_heads;
    args->softcap = shape.softcap;
    args->dtype = kv.dtype;
    args->k = {kv.k, shape.kv_heads * d, d, d};
    args->v = {kv.v, shape.kv_heads * apart, apart, dv};
    args->k_scales = kv.k_scales;
    args->v_scales = kv.v_scales;
    args->first = first;
    args->pages = kv.pages;
    args->page_bits = kv.pages == nullptr ? 0 : __builtin_ctz(static_cast<unsigned>(kv.page_rows));
}

// One head's query as decode reads it: out [round_up(d, 16)] scaled, with zeros behind.
inline void read_query(const KernelTable& kernels, const h2o_shape& shape, const void* q, int64_t row,
                       float* out) {
    const int64_t d = shape.head_size;
    std::fill(out + d, out + round_up(d, 16), 0.0f);
    kernels.to_float(static_cast<const char*>(q) + row * d * element_size(shape.dtype), shape.dtype, d,
                     shape.scale, out);
}

// The keys or the values of a row, all heads [Hkv, d], as float32: where they are, or in `floats`.
inline const float* read_row(const KernelTable& kernels, const h2o_shape& shape, const h2o_kv& kv,
                             const void* base, const float* scales, int64_t row, float* floats) {
    const int64_t d = shape.head_size, width = shape.kv_heads * d, place = place_of(kv, row);
    const char* const from = static_cast<const char*>(base) + place * width * element_size(kv.dtype);
    if (kv.dtype == H2O_F32) return reinterpret_cast<const float*>(from);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const float scale = scales == nullptr ? 1.0f : scales[place * shape.kv_heads + head];
        const int64_t at = head * d;
        kernels.to_float(from + at * element_size(kv.dtype), kv.dtype, d, scale, floats + at);
    }
    return floats;
}

// out = in * scale, between formats, but not to integers; between equal formats it is a copy.
void convert(const KernelTable& kernels, const char* in, h2o_dtype from, float scale, int64_t count,
             char* out, h2o_dtype to);

// Whether every page of the first `rows` rows exists.
bool pages_in_range(const h2o_kv& kv, int64_t rows);
// Whether every entry of memory is a row of the cache, and its page exists.
bool rows_in_range(const h2o_kv& kv, const int32_t* memory, int64_t count);

// h2o_kv_check for an operator that reads the first `needed` rows, whose pages must exist.
inline h2o_status check_keys(const h2o_kv* kv, int64_t needed) {
    if (const h2o_status status = h2o_kv_check_keys(kv, needed); status != H2O_OK) return status;
    return pages_in_range(*kv, needed) ? H2O_OK : H2O_BAD_ARGUMENT;
}
inline h2o_status check_kv(const h2o_kv* kv, int64_t needed) {
    if (const h2o_status status = h2o_kv_check(kv, needed); status != H2O_OK) return status;
    return pages_in_range(*kv, needed) ? H2O_OK : H2O_BAD_ARGUMENT;
}

}  // namespace h2o
