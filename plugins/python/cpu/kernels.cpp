// The class that the operators' bindings are methods of.
#include "kernels.h"

#include <new>

namespace h2o::python::cpu {

void check(h2o_status status, const char* what) {
    if (status == H2O_OK) return;
    const std::string name = what;
    if (status == H2O_OUT_OF_WORKSPACE) throw std::bad_alloc();
    if (status == H2O_UNSUPPORTED) {
        throw nb::value_error((name + ": not supported by this build; head_size must be a multiple of 8 and "
                                      "value_size one of 4, equal for "
                                      "landmarks, pages and lines; score_heads may not be less than kv_heads "
                                      "there, nor in votes; a page "
                                      "must have a power of two of rows, at least 4")
                                  .c_str());
    }
    throw nb::value_error((name +
                           ": an argument is out of range; sizes must agree with each other, and memory "
                           "must index rows of the cache")
                              .c_str());
}

Kernels::Kernels(int threads, const std::optional<std::string>& isa, int64_t query_heads, int64_t kv_heads,
                 int64_t head_size, double scale, bool half, int64_t value_size)
    : shape{query_heads,
            kv_heads,
            kv_heads,
            head_size,
            static_cast<float>(scale),
            half ? H2O_F16 : H2O_F32,
            value_size > 0 ? value_size : head_size} {
    check(h2o_cpu_create(threads, isa ? isa->c_str() : nullptr, &context_), "Kernels");
}

void bind_kernels(nb::module_& module) {
    nb::class_<Kernels> kernels(
        module, "Kernels",
        "One model shape's operators and the threads that run them. threads <= 0: all that the process may "
        "use.\n\nValueError: an argument that the kernels refuse; MemoryError: no room for their scratch.");
    kernels
        .def(nb::init<int, std::optional<std::string>, int64_t, int64_t, int64_t, double, bool, int64_t>(),
             "threads"_a, "isa"_a.none(), "query_heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a,
             "value_size"_a = 0)
        .def_prop_ro("threads", &Kernels::threads)
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("scratch_bytes", &Kernels::scratch_bytes);
    bind_memory(kernels);
    bind_rows(kernels);
    bind_selection(kernels);
    bind_cached(kernels);
    bind_landmarks(kernels);
    bind_pages(kernels);
    bind_lines(kernels);
}

}  // namespace h2o::python::cpu
