// What operators for ONNX Runtime's CUDA provider have in common.
#pragma once

#include <string>

#include "h2o/cuda.h"
#include "interface.h"

#ifdef H2O_EMULATED
#include <cuda_runtime_api.h>
#endif

namespace h2o::ort {

#ifdef H2O_EMULATED
constexpr const char* kCudaProvider =
    nullptr;  // the CPU provider, whose memory the emulation takes for a device's
#else
constexpr const char* kCudaProvider = "CUDAExecutionProvider";
#endif

// What a kernel's launch on a stream came to.
inline Status* told(const Interface& ort, const std::string& name, [[maybe_unused]] void* stream,
                    h2o_status status) {
    if (status == H2O_CUDA_ERROR) return ort.error((name + ": " + h2o_cuda_last_error()).c_str());
    if (status != H2O_OK) return ort.error((name + ": no kernel takes these sizes").c_str());
#ifdef H2O_EMULATED
    // ONNX Runtime's CPU provider waits for no stream.
    if (cudaStreamSynchronize(static_cast<cudaStream_t>(stream)) != cudaSuccess)
        return ort.error((name + ": the emulation failed").c_str());
#endif
    return nullptr;
}

}  // namespace h2o::ort
