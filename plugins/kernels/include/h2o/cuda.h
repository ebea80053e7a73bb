// The operators of ONNX domain `h2o` on an NVIDIA GPU (SM80 and later).
//
// Every pointer in a call's tensors is device memory; every call only enqueues work on the stream and
// returns. No call allocates, waits for the device, throws or prints, so a sequence of calls can be captured
// into a CUDA graph.
//
// docs/operators.md describes each operator; this header has what they share. Layouts are token-major: q [n,
// Hq, d], k [n, Hkv, d], v [n, Hkv, dv]; a cache is an h2o_kv on the host, which is read before the call
// returns. States m, l and all scores are float32. Rows start on 16 bytes, and have a multiple of 16 bytes a
// head. d is up to 576, dv up to 512, the scale above 0.
//
// Where v is the address of k, values are the first dv numbers of each key, and have its stride.
//
// Operators that do not take dv other than d, or Hs below Hkv, return H2O_UNSUPPORTED; docs/operators.md
// names them.
//
// Integers that a kernel reads on the device (entries of a memory set, lengths, ranges) are clamped to their
// range: wrong values give wrong results, but no access outside the arrays. ScatterScores and CacheAppend
// take theirs from the caller's own selection, and do not.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* h2o_cuda_stream;  // the same type as cudaStream_t

// CUDA's message for the last call on this thread that returned H2O_CUDA_ERROR; valid as long as the library.
const char* h2o_cuda_last_error(void);

// The kernel of an operator by its name in the table, or null.
const h2o_kernel* h2o_cuda_kernel(const char* name);

// Whether any kernel supports this shape.
h2o_status h2o_cuda_check_shape(const h2o_shape* shape);

// target [count] on the device = values [count] on the host, at most H2O_CUDA_MAX_INTEGERS. They are read
// before the call returns and passed as kernel arguments: a captured call writes the same values each time.
#define H2O_CUDA_MAX_INTEGERS 8
h2o_status h2o_cuda_write_integers(h2o_cuda_stream stream, int32_t count, const int64_t* values,
                                   int64_t* target);

#ifdef __cplusplus
}
#endif
