// h2o_plugins._cuda: one NVIDIA GPU, and the C interface of the CUDA kernels, for addresses.
#include "cuda_device.h"

NB_MODULE(_cuda, module) {
    module.doc() =
        "Memory, streams, graphs, and the attention operators of ONNX domain `h2o`, on an NVIDIA GPU.";
#ifdef H2O_EMULATED
    module.attr("MEMORY") = "cpu";
#else
    module.attr("MEMORY") = "cuda";
#endif
    nanobind::exception<h2o::python::CudaError>(module, "CudaError", PyExc_RuntimeError);
    h2o::python::bind_device(module);
    h2o::python::bind_kernels(module);
}
