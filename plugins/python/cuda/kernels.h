// One model shape's CUDA kernels for Python: addresses and sizes go to the C interface as they are.
#pragma once

#include <nanobind/nanobind.h>

#include "device.h"

namespace h2o::python {

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

inline h2o_cuda_state state_at(Address o, Address m, Address l) {
    return {at<void>(o), at<float>(m), at<float>(l)};
}

class Kernels {
  public:
    Kernels(int32_t query_heads, int32_t kv_heads, int32_t head_size, float scale, bool half,
            int32_t value_size);

    // A cache. `item_bytes` are of one number that is kept: 1 for int8, 0 for what the model has.
    h2o_kv kv_at(Address k_cache, Address v_cache, int64_t capacity, Address pages, int32_t page_rows,
                 Address k_scales, Address v_scales, int32_t item_bytes) const;
    h2o_cuda_shape scored(int32_t heads) const;

    const h2o_cuda_shape shape;
};

// Each adds its operators to the class; functions that need no shape are the module's.
void bind_memory(nb::class_<Kernels>& kernels);
void bind_selection(nb::class_<Kernels>& kernels, nb::module_& module);
void bind_cached(nb::class_<Kernels>& kernels);
void bind_landmarks(nb::class_<Kernels>& kernels);
void bind_pages(nb::class_<Kernels>& kernels);
void bind_lines(nb::class_<Kernels>& kernels);

}  // namespace h2o::python
