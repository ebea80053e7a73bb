// Argument checks that every entry point makes before it launches anything.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention_args.h"
#include "h2o/cuda.h"
#include "h2o/operator.h"
#include "tiles.h"

namespace h2o::cuda {

inline int value_size(const h2o_shape& shape) {
    return shape.value_size == 0 ? shape.head_size : shape.value_size;
}

// Heads with their own rows and keys: score heads, or the key/value heads that a score head spans.
inline int own_heads(const h2o_shape& shape) {
    return shape.score_heads > shape.kv_heads ? shape.score_heads : shape.kv_heads;
}
inline int spanned_heads(const h2o_shape& shape) {
    return own_heads(shape) / shape.score_heads;
}

inline h2o_status check_shape(const h2o_shape* shape) {
    if (!shape || shape->query_heads <= 0 || shape->kv_heads <= 0 || shape->head_size <= 0)
        return H2O_BAD_ARGUMENT;
    if (shape->query_heads % shape->kv_heads != 0 || shape->value_size < 0) return H2O_BAD_ARGUMENT;
    if (shape->window < 0) return H2O_BAD_ARGUMENT;
    const int sets = shape->score_heads;
    if (sets <= 0 || (sets != shape->query_heads && shape->kv_heads % sets != 0)) return H2O_BAD_ARGUMENT;
    if (!(shape->scale > 0) || !(shape->softcap >= 0)) return H2O_BAD_ARGUMENT;
    if (shape->dtype != H2O_F16 && shape->dtype != H2O_F32) return H2O_UNSUPPORTED;
    const int dv = value_size(*shape), whole = shape->dtype == H2O_F16 ? 8 : 4;  // numbers in 16 bytes
    const bool fits =
        shape->head_size <= kMostHeadSize && dv <= kMostValueSize && shape->kv_heads <= kMostHeads;
    return fits && shape->head_size % whole == 0 && dv % whole == 0 ? H2O_OK : H2O_UNSUPPORTED;
}

// For operators in which a score head must have one key/value head, or be a query head.
inline h2o_status check_heads(const h2o_shape* shape) {
    const h2o_status status = check_shape(shape);
    if (status != H2O_OK) return status;
    return shape->score_heads >= shape->kv_heads ? H2O_OK : H2O_UNSUPPORTED;
}

// For operators that also need values of the keys' size.
inline h2o_status check_alike(const h2o_shape* shape) {
    const h2o_status status = check_heads(shape);
    if (status != H2O_OK) return status;
    return value_size(*shape) == shape->head_size ? H2O_OK : H2O_UNSUPPORTED;
}

// h2o_kv_check, plus the limits of the kernels here: row numbers fit an int32, no pages, and rows no longer
// than the shape's.
inline h2o_status check_form(const h2o_shape& shape, const h2o_kv& kv) {
    if (kv.rows > INT32_MAX || kv.pages != nullptr) return H2O_UNSUPPORTED;
    return kv.dtype == H2O_F32 && shape.dtype != H2O_F32 ? H2O_UNSUPPORTED : H2O_OK;
}
inline h2o_status check_keys(const h2o_shape& shape, const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check_keys(kv, needed);
    return status == H2O_OK ? check_form(shape, *kv) : status;
}
inline h2o_status check_kv(const h2o_shape& shape, const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check(kv, needed);
    return status == H2O_OK ? check_form(shape, *kv) : status;
}

// Limits on tokens: the packed rows of one chunk or tile must fit an int32 with room for token_of's
// multiplication; the rows of all heads of the whole call (`all` tokens) must fit too.
inline h2o_status check_tokens(const h2o_shape& shape, int64_t tokens, int64_t all) {
    const int64_t group = shape.query_heads / shape.kv_heads, most = int64_t{1} << 31;
    return tokens * group * group < most && all * shape.query_heads < most ? H2O_OK : H2O_UNSUPPORTED;
}
inline h2o_status check_tokens(const h2o_shape& shape, int64_t tokens) {
    return check_tokens(shape, tokens, tokens);
}

inline cudaStream_t stream_of(const Call& call) {
    return static_cast<cudaStream_t>(call.context);
}

// Partial softmax: normalised output o [n, Hq, dv] T, row maximum m [n, Hq], denominator l [n, Hq].
struct State {
    void* o;   // [n, Hq, dv] of the shape's dtype
    float* m;  // [n, Hq] maxima of the scores
    float* l;  // [n, Hq] sums of exp(score - m)
};

inline bool complete(const State& state) {
    return state.o && state.m && state.l;
}

// Kernels have one type for input and output states; input states are only read.
inline State given(const void* o, const float* m, const float* l) {
    return {const_cast<void*>(o), const_cast<float*>(m), const_cast<float*>(l)};
}

template <class... P>
bool any_null(const P*... pointers) {
    return ((pointers == nullptr) || ...);
}

inline size_t element_bytes(h2o_dtype dtype) {
    return dtype == H2O_F16 ? 2 : 4;
}

// Rows move in units of 16 bytes; the number of units in `size` elements.
inline int pieces_of(const h2o_shape& shape, int size) {
    return static_cast<int>(static_cast<size_t>(size) * element_bytes(shape.dtype) / 16);
}

// Divides the caller's workspace into blocks that start on 256 bytes. Without memory it only counts, so a
// size query and its operator share one layout.
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

inline RowSource rows_of(const h2o_shape& shape, const void* q, int tokens, int sets) {
    RowSource rows;
    rows.q = q;
    rows.tokens = tokens;
    rows.heads = shape.query_heads;
    rows.group = shape.query_heads / sets;
    rows.reciprocal = reciprocal_of(rows.group);
    rows.sets = sets;
    return rows;
}

inline Scores scores_of(const h2o_shape& shape) {
    if (shape.softcap > 0) return {shape.softcap, shape.scale / shape.softcap};
    return {shape.scale, 0};
}

// The arguments of an attention launch that follow from the model.
inline AttentionArgs attention_of(const h2o_shape& shape, const RowSource& rows, const KeySource& keys) {
    AttentionArgs args;
    args.rows = rows;
    args.keys = keys;
    args.scores = scores_of(shape);
    args.head_size = shape.head_size;
    args.value_size = value_size(shape);
    args.dtype = shape.dtype;
    return args;
}

// The column sums of the same rows and keys; a score head sums over all that it spans.
inline ColumnSumArgs column_sums_of(const h2o_shape& shape, const RowSource& rows, const KeySource& keys) {
    ColumnSumArgs args;
    args.rows = rows;
    args.keys = keys;
    args.keys.v = nullptr;
    args.scores = scores_of(shape);
    args.head_size = shape.head_size;
    args.dtype = shape.dtype;
    args.spanned = keys.sets_per_list;
    return args;
}

// Token-major keys: k [keys, Hkv, d], v [keys, Hkv, dv], or a cache of that layout.
inline KeySource token_major_keys(const h2o_shape& shape, const void* k, const void* v, int keys, int sets) {
    KeySource source;
    source.k = k;
    source.v = v;
    source.dtype = shape.dtype;
    const int apart =
        v == k ? shape.head_size : value_size(shape);  // values stored in keys have the keys' stride
    source.row_stride = static_cast<int64_t>(shape.kv_heads) * shape.head_size;
    source.head_stride = shape.head_size;
    source.v_row_stride = static_cast<int64_t>(shape.kv_heads) * apart;
    source.v_head_stride = apart;
    source.sets_per_head = sets / shape.kv_heads;
    source.sets_per_list = sets == own_heads(shape) ? spanned_heads(shape) : 1;
    source.keys = keys;
    return source;
}

// A cache's rows. With `values` false, keys alone.
inline KeySource cache_keys(const h2o_shape& shape, const h2o_kv& kv, bool values, int keys, int sets) {
    KeySource source = token_major_keys(shape, kv.k, values ? kv.v : nullptr, keys, sets);
    source.dtype = kv.dtype;
    source.k_scales = kv.k_scales;
    source.v_scales = kv.v_scales;
    source.scale_stride = shape.kv_heads;
    return source;
}

// Gathered keys: k_mem [Hs, keys, d], v_mem [Hs, keys, dv].
inline KeySource set_major_keys(const h2o_shape& shape, const void* k, const void* v, int keys) {
    KeySource source;
    source.k = k;
    source.v = v;
    source.dtype = shape.dtype;
    source.row_stride = shape.head_size;
    source.head_stride = keys * source.row_stride;
    source.v_row_stride = v == k ? shape.head_size : value_size(shape);
    source.v_head_stride = keys * source.v_row_stride;
    source.keys = keys;
    return source;
}

}  // namespace h2o::cuda
