// The operators of ONNX domain `h2o` on CPUs. No framework types, no exceptions.
//
// What they compute says docs/operators.md; here is what holds for all. Layout is token-major and contiguous:
// q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv]. All arithmetic is float32, but for what h2o_precision names.
// Query head h belongs to score head
// h / (Hq / Hs), which belongs to key/value head hs / (Hs / Hkv); where Hs divides Hkv instead, it spans Hkv
// / Hs of them, whose query heads share one memory. d is a multiple of 8, dv one of 4.
//
// Where v is the address of k, values are the first dv numbers of each key, and have its stride.
//
// Operators that do not take dv other than d, or Hs below Hkv, return H2O_UNSUPPORTED; docs/operators.md
// names them.
//
// Every call returns a status and changes nothing when the status is not H2O_OK. Results do not depend on the
// number of threads. One context runs one call at a time; a second caller waits.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "h2o/call.h"

#ifdef __cplusplus
extern "C" {
#endif

// Threads and scratch memory. Scratch grows to the largest call seen and is then used again, so that
// repeating a call of a size seen before allocates nothing.
typedef struct h2o_cpu h2o_cpu;

// The factors of attention's two products over many query rows: scaled queries, keys, probabilities and
// values. Sums, maxima and states are float32 always, and so is decode.
typedef enum h2o_precision {
    H2O_FLOAT32 = 0,
    H2O_BFLOAT16 = 1,  // AVX-512 or AArch64 with BF16; "scalar" has it everywhere
} h2o_precision;

// threads <= 0 takes what the process may use. isa is null for the best that this machine has, or one of
// "scalar", "avx2", "avx512", "neon"; H2O_UNSUPPORTED when the build or the machine lacks it, or that
// precision.
h2o_status h2o_cpu_create(int threads, const char* isa, h2o_precision precision, h2o_cpu** context);

// Whether a context of that instruction set, null for the best, can be made with that precision.
bool h2o_cpu_supports(const char* isa, h2o_precision precision);

// Threads of somebody else's. run calls work(data, i) once for every i below count, on as many threads as it
// likes, and returns when all are done.
typedef struct h2o_executor {
    void* self;
    int threads;
    void (*run)(void* self, int count, void (*work)(void* data, size_t i), void* data);
} h2o_executor;

// A context that works on these threads alone, all of them below `threads`, in float32.
h2o_status h2o_cpu_create_on(const h2o_executor* executor, const char* isa, h2o_cpu** context);

// Rows of a decode step, of one sequence or of several: row i is the last of a cache of lengths[i] rows,
// which its key and value become first, and attends to all of it. What a row gives does not depend on the
// others. Rows of one sequence come in their order, each with a length one more than that of the row before.
#define H2O_MOST_STEP_ROWS 16
typedef struct h2o_step_rows {
    h2o_shape shape;
    int64_t count;
    const void* q;  // [count, Hq, d]
    const void* k;  // [count, Hkv, d]
    const void* v;  // [count, Hkv, dv]; not read where values are a part of keys
    const int64_t* lengths;
    const h2o_kv* kv;  // row i's cache is kv[i * kv_stride]
    int64_t kv_stride;
    void* o;  // [count, Hq, dv]
} h2o_step_rows;

h2o_status h2o_cpu_step_rows(h2o_cpu* context, const h2o_step_rows* rows);

void h2o_cpu_destroy(h2o_cpu* context);
int h2o_cpu_threads(const h2o_cpu* context);
const char* h2o_cpu_isa(const h2o_cpu* context);

// Bytes of scratch held now.
size_t h2o_cpu_scratch_bytes(const h2o_cpu* context);

// The kernel of an operator by its name in the table, or null.
const h2o_kernel* h2o_cpu_kernel(const char* name);

#ifdef __cplusplus
}
#endif
