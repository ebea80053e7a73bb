// The last CUDA error of each thread, kept until the caller asks for it.

#include "launch.h"

namespace h2o::cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

h2o_status status_of(cudaError_t error) {
    if (error == cudaSuccess) return H2O_OK;
    (void)cudaGetLastError();
    last_error = error;
    return H2O_CUDA_ERROR;
}

}  // namespace h2o::cuda

extern "C" const char* h2o_cuda_last_error(void) {
    if (h2o::cuda::last_error == cudaErrorNoKernelImageForDevice)
        return "the kernels were not built for this GPU's compute capability: add it to "
               "H2O_CUDA_ARCHITECTURES";
    return cudaGetErrorString(h2o::cuda::last_error);
}
