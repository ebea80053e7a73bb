// The operators of ONNX domain `h2o` on CPUs. No framework types, no exceptions.
//
// docs/operators.md describes each operator; this header has what they share. Layout is token-major and
// contiguous: q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv]. All arithmetic is float32, except what
// h2o_precision selects. Query head h belongs to score head h / (Hq / Hs), which belongs to key/value head hs
// / (Hs / Hkv); where Hs divides Hkv instead, it spans Hkv / Hs of them, whose query heads share one memory.
// d is a multiple of 8, dv one of 4.
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

// Threads and scratch memory. Scratch grows to the largest call so far and is then reused, so a call of a
// size seen before allocates nothing.
typedef struct h2o_cpu h2o_cpu;

// The precision of the factors in attention's two products over many query rows: scaled queries, keys,
// probabilities and values. Sums, maxima and states are always float32, and so is decode.
typedef enum h2o_precision {
    H2O_FLOAT32 = 0,
    H2O_BFLOAT16 = 1,  // AMX, or AVX-512 or AArch64 with BF16; "scalar" has it everywhere
    H2O_INT16 = 2,     // queries and keys, with a scale a row; AVX-512 with VNNI, and AVX2
} h2o_precision;

// threads <= 0: all that the process may use. isa: null for the best of this machine, or one of "scalar",
// "avx2", "avx512", "amx", "neon". H2O_UNSUPPORTED if the build or the machine lacks it, or that precision.
h2o_status h2o_cpu_create(int threads, const char* isa, h2o_precision precision, h2o_cpu** context);

// Whether a context of that instruction set, null for the best, supports that precision.
bool h2o_cpu_supports(const char* isa, h2o_precision precision);

// The precision whose attention is fastest on this machine.
h2o_precision h2o_cpu_fastest_precision(void);

// The caller's threads. run calls work(data, i) once for every i below count, on any number of threads, and
// returns when all are done.
typedef struct h2o_executor {
    void* self;   // the first argument of run
    int threads;  // that run may use
    void (*run)(void* self, int count, void (*work)(void* data, size_t i), void* data);
} h2o_executor;

// A context that uses only these threads, numbered below `threads`, in float32.
h2o_status h2o_cpu_create_on(const h2o_executor* executor, const char* isa, h2o_cpu** context);

// Rows of a decode step, of one sequence or of several. The key and value of row i become the last of a cache
// of lengths[i] rows, and row i attends to all of it. A row's result does not depend on the others. Rows of
// one sequence are in order, each with a length one greater than the row before.
typedef struct h2o_step_rows {
    h2o_shape shape;
    int64_t count;           // rows
    const void* q;           // [count, Hq, d] of shape.dtype, like k, v and o
    const void* k;           // [count, Hkv, d]
    const void* v;           // [count, Hkv, dv]; not read if values are stored in keys
    const int64_t* lengths;  // [count] cache rows in use, the new one included
    const h2o_kv* kv;        // row i's cache is kv[i * kv_stride]
    int64_t kv_stride;       // 0: all rows are of one cache
    void* o;                 // [count, Hq, dv], out
} h2o_step_rows;

h2o_status h2o_cpu_step_rows(h2o_cpu* context, const h2o_step_rows* rows);

void h2o_cpu_destroy(h2o_cpu* context);
int h2o_cpu_threads(const h2o_cpu* context);
const char* h2o_cpu_isa(const h2o_cpu* context);

// Bytes of scratch in use.
size_t h2o_cpu_scratch_bytes(const h2o_cpu* context);

// The kernel of an operator by its name in the table, or null.
const h2o_kernel* h2o_cpu_kernel(const char* name);

#ifdef __cplusplus
}
#endif
