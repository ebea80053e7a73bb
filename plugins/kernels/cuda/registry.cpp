// Every kernel by its operator's name. The generated header has the list.

#include <cstring>

#include "checks.h"

namespace h2o::cuda {

#define H2O_WITHOUT_WORKSPACE(Name)        \
    size_t workspace(const calls::Name&) { \
        return 0;                          \
    }
H2O_WITHOUT_WORKSPACE(CacheAppend)
H2O_WITHOUT_WORKSPACE(ClampedSwiGLU)
H2O_WITHOUT_WORKSPACE(GatedDelta)
H2O_WITHOUT_WORKSPACE(GeGLU)
H2O_WITHOUT_WORKSPACE(Mamba2)
H2O_WITHOUT_WORKSPACE(MemoryGather)
H2O_WITHOUT_WORKSPACE(MemorySelect)
H2O_WITHOUT_WORKSPACE(MemoryStep)
H2O_WITHOUT_WORKSPACE(OnlineSoftmaxFusion)
H2O_WITHOUT_WORKSPACE(PageBounds)
H2O_WITHOUT_WORKSPACE(RMSNorm)
H2O_WITHOUT_WORKSPACE(ResidualNorm)
H2O_WITHOUT_WORKSPACE(Rotation)
H2O_WITHOUT_WORKSPACE(ScatterScores)
H2O_WITHOUT_WORKSPACE(SwiGLU)
H2O_WITHOUT_WORKSPACE(TiledMemoryAttention)
#undef H2O_WITHOUT_WORKSPACE

}  // namespace h2o::cuda

namespace {

template <class Arguments>
h2o_status run(const h2o_call* call) {
    return h2o::cuda::run(Arguments(*call));
}

template <class Arguments>
size_t workspace(const h2o_call* call) {
    return h2o::cuda::workspace(Arguments(*call));
}

constexpr h2o_kernel kKernels[] = {
#define H2O_KERNEL(Name) {#Name, run<h2o::calls::Name>, workspace<h2o::calls::Name>},
    H2O_CUDA_OPERATORS(H2O_KERNEL)
#undef H2O_KERNEL
};

}  // namespace

extern "C" const h2o_kernel* h2o_cuda_kernel(const char* name) {
    for (const h2o_kernel& kernel : kKernels)
        if (std::strcmp(kernel.name, name) == 0) return &kernel;
    return nullptr;
}

extern "C" h2o_status h2o_cuda_check_shape(const h2o_shape* shape) {
    return h2o::cuda::check_shape(shape);
}
