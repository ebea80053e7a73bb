// h2o_plugins._cuda: one NVIDIA GPU, and the C interface of the CUDA kernels, for addresses.
#include "array.h"

NB_MODULE(_cuda, module) {
    module.doc() =
        "One NVIDIA GPU: memory, streams, graphs, and the attention operators of ONNX domain `h2o` on it.\n\n"
        "Addresses are plain integers. Calls that take a Stream only enqueue work on it, unless they say "
        "that "
        "they wait.\nSizes are the caller's word: nothing here can know what lies at an address.";
#ifdef H2O_EMULATED
    module.attr("MEMORY") = "cpu";
#else
    module.attr("MEMORY") = "cuda";
#endif
    nanobind::exception<h2o::python::CudaError>(module, "CudaError", PyExc_RuntimeError).attr("__doc__") =
        "The CUDA runtime refused or failed; the message has its words and the call.";
    h2o::python::bind_array(module);
    h2o::python::bind_device(module);
    h2o::python::bind_kernels(module);
}
