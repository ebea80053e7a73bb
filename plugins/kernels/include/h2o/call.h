// One call of one operator, on a CPU or a GPU. `h2o_runtime/operators.py` is the table of the operators.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/kv.h"
#include "h2o/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define H2O_MOST_STEP_ROWS 16  // of a decode step of several rows

typedef struct h2o_shape {
    int32_t query_heads;  // Hq, a multiple of kv_heads
    int32_t kv_heads;     // Hkv
    int32_t score_heads;  // Hs: Hkv or Hq, or divides Hkv
    int32_t head_size;    // d
    float scale;          // of the dot products
    h2o_dtype dtype;      // of queries and outputs, and of keys and values unless a cache says otherwise
    int32_t value_size;   // dv, elements of a value and of an output; 0: d
    int32_t window;       // keys that a row sees at most, back from its own; 0: all
    float softcap;        // what a tanh keeps scores below; 0: nothing does
} h2o_shape;

// C-contiguous. Memory of the host for the CPU's kernels, of the device for CUDA's.
typedef struct h2o_tensor {
    void* data;
    // For CUDA's kernels: the values of an integer tensor, if the caller knows them; else null.
    const int64_t* host;
    h2o_dtype dtype;   // of data
    int32_t rank;      // -1: the tensor is omitted
    int64_t sizes[4];  // elements; the first `rank` count
} h2o_tensor;

typedef struct h2o_attribute {
    int32_t integer;  // the value of an integer attribute,
    float real;       // of another
} h2o_attribute;

typedef struct h2o_call {
    h2o_shape shape;
    const h2o_kv* kv;                 // null where the operator reads no cache
    const h2o_tensor* tensors;        // in the table's order: inputs, then outputs
    const h2o_attribute* attributes;  // in the table's order
    const int32_t* sizes;    // of the tensors, by the number that the table's header gives their names
    void* context;           // h2o_cpu*, or the stream
    void* workspace;         // for CUDA's kernels only, like `counters`
    size_t workspace_bytes;  // of workspace: what h2o_kernel says, or more
    // [Hq] zeros, of a step of several rows [n, Hq]. Every call leaves them zeros; concurrent calls need
    // separate ones.
    uint32_t* counters;
    // [Hq] scores without keys, which join the softmax of each row, or null. CUDA's kernels only, and of
    // operators that show a row its own key.
    const float* sinks;
} h2o_call;

typedef struct h2o_kernel {
    const char* name;  // such as PageSelect
    h2o_status (*run)(const h2o_call* call);
    // Bytes of workspace for `run`; depends on sizes only, and grows with every size above 0.
    size_t (*workspace)(const h2o_call* call);
} h2o_kernel;

#ifdef __cplusplus
}
#endif
