// The class that the operators' bindings are methods of.
#include "kernels.h"

#include <string>

namespace h2o::python {

void check(h2o_status status, const char* call) {
    const std::string name = call;
    switch (status) {
        case H2O_OK:
            return;
        case H2O_CUDA_ERROR:
            throw CudaError(name + ": " + h2o_cuda_last_error());
        case H2O_UNSUPPORTED:
            throw nb::value_error((name +
                                   ": no kernel for these head sizes or score heads, for pages or what rows "
                                   "are stored as, or for so many tokens")
                                      .c_str());
        case H2O_OUT_OF_WORKSPACE:
            throw nb::value_error((name + ": the workspace is too small").c_str());
        case H2O_BAD_ARGUMENT:
            break;
    }
    throw nb::value_error((name + ": an argument is out of range, or a null pointer").c_str());
}

Kernels::Kernels(int32_t query_heads, int32_t kv_heads, int32_t head_size, float scale, bool half,
                 int32_t value_size)
    : shape{query_heads, kv_heads, kv_heads, head_size, scale, half ? H2O_F16 : H2O_F32, value_size} {
    if (h2o_cuda_memory_attention_workspace(&shape, 1, 1) == 0)
        throw nb::value_error(
            "Kernels: query_heads must be a multiple of kv_heads, scale above 0, head_size at most 576 "
            "and "
            "value_size 512, and both whole pieces of 16 bytes");
}

h2o_kv Kernels::kv_at(Address k_cache, Address v_cache, int64_t capacity, Address pages, int32_t page_rows,
                      Address k_scales, Address v_scales, int32_t item_bytes) const {
    h2o_kv kv{};
    kv.k = at<void>(k_cache);
    kv.v = at<void>(v_cache);
    kv.rows = kv.pool_rows = capacity;
    kv.pages = at<int32_t>(pages);
    kv.page_rows = page_rows;
    kv.k_scales = at<float>(k_scales);
    kv.v_scales = at<float>(v_scales);
    kv.dtype = item_bytes == 0 ? shape.dtype : item_bytes == 1 ? H2O_I8 : item_bytes == 2 ? H2O_F16 : H2O_F32;
    return kv;
}

h2o_cuda_shape Kernels::scored(int32_t heads) const {
    h2o_cuda_shape of_scores = shape;
    of_scores.score_heads = heads;
    return of_scores;
}

void bind_kernels(nb::module_& module) {
    nb::class_<Kernels> kernels(
        module, "Kernels",
        "One model shape's operators. `score_heads` are Hkv or Hq; an address of 0 is a null pointer.\n\n"
        "ValueError: an argument that the kernels refuse; CudaError: a launch that failed.");
    kernels.def(nb::init<int32_t, int32_t, int32_t, float, bool, int32_t>(), nb::kw_only(), "query_heads"_a,
                "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a, "value_size"_a = 0);
    bind_memory(kernels);
    bind_selection(kernels, module);
    bind_cached(kernels);
    bind_landmarks(kernels);
    bind_pages(kernels);
    bind_lines(kernels);
}

}  // namespace h2o::python
