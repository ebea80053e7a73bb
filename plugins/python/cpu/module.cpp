// h2o_plugins._cpu: the C interface of the CPU kernels for NumPy arrays.
#include <nanobind/ndarray.h>

#include "h2o/products.h"
#include "kernels.h"
#include "lost_pages.h"

namespace h2o::python::cpu {
namespace {

using Integers = nb::ndarray<const int8_t, nb::ndim<2>, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Those of this machine. caller: the function that wants them.
const h2o_products* found_products(const char* caller) {
    const h2o_products* kernels = nullptr;
    check(h2o_products_find(nullptr, &kernels), caller);
    return kernels;
}

void pack_integers(const Integers& q, int bits, int64_t block, const Bytes& packed) {
    const h2o_integers given{q.data(), static_cast<int64_t>(q.shape(0)), static_cast<int64_t>(q.shape(1)),
                             q.stride(0), q.stride(1)};
    const h2o_block_matrix matrix{given.inputs, given.outputs, block, bits, 1, nullptr, nullptr, nullptr};
    if ((bits != 4 && bits != 8) || h2o_products_check(&matrix) != H2O_OK)
        throw nb::value_error("weights must have 4 or 8 bits, in blocks of 16 to 256 that divide K");
    if (given.input_stride != 1 && given.output_stride != 1)
        throw nb::value_error("rows or columns of the weights must be contiguous");
    const int64_t panels = (given.outputs + H2O_PANEL - 1) / H2O_PANEL;
    if (static_cast<int64_t>(packed.size()) != panels * H2O_PANEL * given.inputs * bits / 8)
        throw nb::value_error("packed must have the bytes of whole panels");
    const nb::gil_scoped_release released;
    h2o_products_pack(&given, bits, block, 0, panels, packed.data());
}

}  // namespace
}  // namespace h2o::python::cpu

NB_MODULE(_cpu, module) {
    using namespace h2o::python::cpu;
    module.doc() =
        "Attention operators of ONNX domain `h2o` on the CPU.\n\n"
        "h2o_runtime.operators has their tensors and attributes. Arrays are C-contiguous.";
    module.def(
        "product_instructions",
        [] { return std::string(h2o_products_isa(found_products("product_instructions"))); },
        "What products with integer weights run on here: amx, avx512bf16, avx512vnni, avxvnni, i8mm, "
        "dotprod, or scalar, which is slow.");
    module.def(
        "products_widen_integers",
        [] { return h2o_products_can_widen(found_products("products_widen_integers")) != 0; },
        "Whether there are products here for which integers and activations become bfloat16.");
    module.def(
        "products_multiply_bfloat16",
        [] { return h2o_products_multiply_bfloat16(found_products("products_multiply_bfloat16")) != 0; },
        "Whether these products round activations to bfloat16 where weights are: others multiply floats.");
    module.def("pack_integers", &pack_integers, "q"_a, "bits"_a, "block"_a, "packed"_a,
               "int8 [N, K], with contiguous rows or columns, to `packed`, uint8: h2o/products.h has the "
               "layout.\n\nValueError: sizes that no product takes.");
    nb::class_<LostPages>(
        module, "LostPages",
        "While one lives, files below its folder may be cut off while they are mapped: what is lost reads as "
        "zeros, instead of SIGBUS.\n\nfolder: without links in its path. At most 64 at a time count.")
        .def(nb::init<const std::string&>(), "folder"_a);
    bind_kernels(module);
}
