// One layer's cache: all that a kernel reads of it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/status.h"

#ifdef __cplusplus
extern "C" {
#endif

// Keys and values by row, k and v [rows, Hkv, d], as the operator's shape says they are stored. A row is the
// place of a token in the cache, which need not be its position in the text.
//
// With pages, row i of the sequence lies at pages[i / page_rows] * page_rows + i % page_rows of k and v;
// without, at i. With scales, k and v are integers. No kernel reads either yet: one that is given them
// returns H2O_UNSUPPORTED and reads nothing.
typedef struct h2o_kv {
    void* k;                // cache_append writes; every other operator only reads
    void* v;                // null where an operator reads keys alone
    int64_t rows;           // that there is room for
    const int32_t* pages;   // or null
    int32_t page_rows;      // rows of one page
    const float* k_scales;  // or null
    const float* v_scales;
} h2o_kv;

// What every operator asks of a cache that must have at least `needed` rows; with 0 it reads none of them.
static inline h2o_status h2o_kv_check_keys(const h2o_kv* kv, int64_t needed) {
    if (kv == NULL || kv->rows < needed) return H2O_BAD_ARGUMENT;
    if (kv->pages != NULL || kv->k_scales != NULL || kv->v_scales != NULL) return H2O_UNSUPPORTED;
    return needed == 0 || kv->k != NULL ? H2O_OK : H2O_BAD_ARGUMENT;
}
static inline h2o_status h2o_kv_check(const h2o_kv* kv, int64_t needed) {
    const h2o_status status = h2o_kv_check_keys(kv, needed);
    if (status != H2O_OK) return status;
    return needed == 0 || kv->v != NULL ? H2O_OK : H2O_BAD_ARGUMENT;
}

#ifdef __cplusplus
}
#endif
