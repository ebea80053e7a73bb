// One layer's cache, as kernels read it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Keys and values by row, k [rows, Hkv, d] and v [rows, Hkv, dv] of `dtype`. A row is a token's place in the
// cache, which may differ from its position in the text. Arithmetic is float32, whatever the format of rows.
//
// Values can be stored in keys: if v is the address of k, they are the first dv numbers of each, and v_scales
// is k_scales.
//
// Integers have a scale per row and head, k_scales and v_scales [rows, Hkv]: a number is the integer times
// it.
//
// With pages, row i of the sequence lies at pages[i / page_rows] * page_rows + i % page_rows of k, v and the
// scales, of which there are pool_rows; without, at i. Entries after the last row in use are not read.
//
// A kernel that does not support a format returns H2O_UNSUPPORTED and reads nothing.
typedef struct h2o_kv {
    void* k;               // [rows, Hkv, d]; CacheAppend and decode steps write, other operators only read
    void* v;               // [rows, Hkv, dv]; null if an operator reads only keys
    int64_t rows;          // capacity, in tokens
    const int32_t* pages;  // [rows / page_rows, rounded up] numbers of pages, or null
    int32_t page_rows;     // rows of one page, a power of two from 4 on
    h2o_dtype dtype;       // of k and v
    float* k_scales;       // [rows, Hkv] if dtype is H2O_I8, else null; written and read like k and v
    float* v_scales;       // [rows, Hkv], alike
    int64_t pool_rows;     // of k and v together with those of other sequences, if there are pages
} h2o_kv;

// Whether values are stored in keys.
static inline int h2o_kv_latent(const h2o_kv* kv) {
    return kv->v == kv->k;
}

// Checks that every operator makes on a cache that must have at least `needed` rows; with 0 no row is read.
static inline h2o_status h2o_kv_check_keys(const h2o_kv* kv, int64_t needed) {
    if (kv == NULL || kv->rows < needed) return H2O_BAD_ARGUMENT;
    if (kv->dtype != H2O_F32 && kv->dtype != H2O_F16 && kv->dtype != H2O_I8) return H2O_UNSUPPORTED;
    if (needed > 0 && (kv->k == NULL || (kv->dtype == H2O_I8) != (kv->k_scales != NULL)))
        return H2O_BAD_ARGUMENT;
    if (kv->pages == NULL) return H2O_OK;
    if (kv->page_rows < 4 || (kv->page_rows & (kv->page_rows - 1)) != 0) return H2O_UNSUPPORTED;
    return kv->pool_rows < 0 ? H2O_BAD_ARGUMENT : H2O_OK;
}
static inline h2o_status h2o_kv_check(const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check_keys(kv, needed);
    if (status != H2O_OK || needed == 0) return status;
    return kv->v != NULL && (kv->dtype == H2O_I8) == (kv->v_scales != NULL) ? H2O_OK : H2O_BAD_ARGUMENT;
}

#ifdef __cplusplus
}
#endif
