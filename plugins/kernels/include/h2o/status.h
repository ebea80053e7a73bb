// The status that every kernel entry point returns.
//
// Kernels never throw and never print: the caller (Python, TensorRT) turns a status into its own kind of
// error.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef enum h2o_status {
    H2O_OK = 0,
    H2O_BAD_ARGUMENT = 1,      // a null pointer, a negative size, a ratio that does not divide
    H2O_UNSUPPORTED = 2,       // well formed, but this build has no kernel for it (head size, dtype)
    H2O_OUT_OF_WORKSPACE = 3,  // the caller's workspace is smaller than the query function said
    H2O_CUDA_ERROR = 4         // a CUDA call or launch failed; h2o_cuda_last_error() says what
} h2o_status;

// H2O_I8 is only for rows of a cache, which then have scales; the other integers are for indices.
typedef enum h2o_dtype { H2O_F32 = 0, H2O_F16 = 1, H2O_I8 = 2, H2O_I32 = 3, H2O_I64 = 4 } h2o_dtype;

#ifdef __cplusplus
}
#endif
