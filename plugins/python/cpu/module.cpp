// h2o_plugins._cpu: the C interface of the CPU kernels for NumPy arrays.
#include "h2o/products.h"
#include "kernels.h"

NB_MODULE(_cpu, module) {
    using namespace h2o::python::cpu;
    module.doc() =
        "Attention operators of ONNX domain `h2o` on the CPU.\n\n"
        "h2o_runtime.operators has their tensors and attributes. Arrays are C-contiguous.";
    module.def(
        "product_instructions",
        [] {
            const h2o_products* kernels = nullptr;
            check(h2o_products_find(nullptr, &kernels), "product_instructions");
            return std::string(h2o_products_isa(kernels));
        },
        "What products with integer weights run on here: amx, avx512bf16, avx512vnni, avxvnni, i8mm, "
        "dotprod, or scalar, which is slow.");
    module.def(
        "products_multiply_bfloat16",
        [] {
            const h2o_products* kernels = nullptr;
            check(h2o_products_find(nullptr, &kernels), "products_multiply_bfloat16");
            return h2o_products_multiply_bfloat16(kernels) != 0;
        },
        "Whether these products round activations to bfloat16 where weights are: others multiply floats.");
    bind_kernels(module);
}
