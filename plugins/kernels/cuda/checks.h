// What every entry point asks of its arguments before anything is launched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_args.h"
#include "h2o/cuda.h"

namespace h2o::cuda {

inline h2o_status check_shape(const h2o_cuda_shape* shape) {
    if (!shape || shape->query_heads <= 0 || shape->kv_heads <= 0 || shape->head_size <= 0)
        return H2O_BAD_ARGUMENT;
    if (shape->query_heads % shape->kv_heads != 0) return H2O_BAD_ARGUMENT;
    if (shape->score_heads != shape->kv_heads && shape->score_heads != shape->query_heads)
        return H2O_BAD_ARGUMENT;
    if (!(shape->scale > 0)) return H2O_BAD_ARGUMENT;
    if (shape->dtype != H2O_F16 && shape->dtype != H2O_F32) return H2O_UNSUPPORTED;
    switch (shape->head_size) {
        case 32:
        case 64:
        case 80:
        case 96:
        case 128:
            return H2O_OK;
        default:
            return H2O_UNSUPPORTED;
    }
}

// h2o_kv_check, and that the kernels here read it: rows that an int32 can name, not on pages, and not longer
// than the shape's.
inline h2o_status check_form(const h2o_cuda_shape& shape, const h2o_kv& kv) {
    if (kv.rows > INT32_MAX || kv.pages != nullptr) return H2O_UNSUPPORTED;
    return kv.dtype == H2O_F32 && shape.dtype != H2O_F32 ? H2O_UNSUPPORTED : H2O_OK;
}
inline h2o_status check_keys(const h2o_cuda_shape& shape, const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check_keys(kv, needed);
    return status == H2O_OK ? check_form(shape, *kv) : status;
}
inline h2o_status check_kv(const h2o_cuda_shape& shape, const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check(kv, needed);
    return status == H2O_OK ? check_form(shape, *kv) : status;
}

// Tokens that the packed row index holds, with room for token_of's multiplication.
inline h2o_status check_tokens(const h2o_cuda_shape& shape, int64_t tokens) {
    const int64_t group = shape.query_heads / shape.kv_heads;
    return tokens * group * group < (int64_t{1} << 31) ? H2O_OK : H2O_UNSUPPORTED;
}

inline bool complete(const h2o_cuda_state* state) {
    return state && state->o && state->m && state->l;
}

template <class... P>
bool any_null(const P*... pointers) {
    return ((pointers == nullptr) || ...);
}

inline size_t element_bytes(h2o_dtype dtype) {
    return dtype == H2O_F16 ? 2 : 4;
}

// Rows move in pieces of 16 bytes; how many one row of one head has.
inline int pieces_of(const h2o_cuda_shape& shape) {
    return static_cast<int>(shape.head_size * element_bytes(shape.dtype) / 16);
}

// The caller's workspace, handed out in pieces that start on 256 bytes. With no memory behind it, it only
// counts, so that a query function and the operator it belongs to can share one layout.
class Workspace {
  public:
    Workspace() = default;
    Workspace(void* base, size_t bytes)
        : base_(static_cast<unsigned char*>(base)), bytes_(base ? bytes : 0) {}

    template <class T>
    T* take(int64_t count) {
        const size_t at = used_;
        used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
        return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
    }
    bool enough() const { return used_ == 0 || used_ <= bytes_; }
    size_t used() const { return used_; }

  private:
    unsigned char* base_ = nullptr;
    size_t bytes_ = 0;
    size_t used_ = 0;
};

inline RowSource rows_of(const h2o_cuda_shape& shape, const void* q, int tokens, int sets) {
    RowSource rows;
    rows.q = q;
    rows.tokens = tokens;
    rows.heads = shape.query_heads;
    rows.group = shape.query_heads / sets;
    rows.reciprocal = reciprocal_of(rows.group);
    rows.sets = sets;
    return rows;
}

// Token-major keys: k, v [keys, Hkv, d], or a cache of that layout.
inline KeySource token_major_keys(const h2o_cuda_shape& shape, const void* k, const void* v, int keys,
                                  int sets) {
    KeySource source;
    source.k = k;
    source.v = v;
    source.dtype = shape.dtype;
    source.row_stride = static_cast<int64_t>(shape.kv_heads) * shape.head_size;
    source.head_stride = shape.head_size;
    source.sets_per_head = sets / shape.kv_heads;
    source.keys = keys;
    return source;
}

// A cache's rows. `values` false: keys alone.
inline KeySource cache_keys(const h2o_cuda_shape& shape, const h2o_kv& kv, bool values, int keys, int sets) {
    KeySource source = token_major_keys(shape, kv.k, values ? kv.v : nullptr, keys, sets);
    source.dtype = kv.dtype;
    source.k_scales = kv.k_scales;
    source.v_scales = kv.v_scales;
    source.scale_stride = shape.kv_heads;
    return source;
}

// Gathered keys: k_mem, v_mem [Hs, keys, d].
inline KeySource set_major_keys(const h2o_cuda_shape& shape, const void* k, const void* v, int keys) {
    KeySource source;
    source.k = k;
    source.v = v;
    source.dtype = shape.dtype;
    source.row_stride = shape.head_size;
    source.head_stride = static_cast<int64_t>(keys) * shape.head_size;
    source.keys = keys;
    return source;
}

}  // namespace h2o::cuda
