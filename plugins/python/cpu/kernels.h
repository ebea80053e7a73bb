// One model shape's CPU kernels for Python. In a separate namespace, because nanobind distinguishes classes
// by their C++ names, across modules.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "../arguments.h"
#include "arrays.h"
#include "h2o/cpu.h"

namespace h2o::python::cpu {

using namespace nb::literals;

// Throws unless the call succeeded.
void check(h2o_status status, const char* call);

// One layer's cache. It references its arrays.
class KV {
  public:
    // scales: a pair of the keys' and the values' [rows, Hkv], or None
    KV(nb::handle k, nb::handle v, int64_t length, nb::handle pages, int32_t page_rows, nb::handle scales);
    KV(const KV&) = delete;
    KV& operator=(const KV&) = delete;

    const h2o_kv* get() const { return &kv_; }
    bool writable() const { return k_.writable() && v_.writable(); }
    // The form that the resolver expects: k_cache or v_cache with its number of rows in order, or the length.
    h2o_tensor tensor(Part part) const;

  private:
    void read_scales(nb::handle scales, const h2o_tensor& k);

    Buffer k_, v_, pages_, k_scales_, v_scales_;
    int64_t length_;
    h2o_kv kv_{};
};

class Kernels {
  public:
    Kernels(int threads, const std::optional<std::string>& isa, h2o_precision precision,
            const h2o_shape& shape);
    ~Kernels() { h2o_cpu_destroy(context_); }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    int threads() const { return h2o_cpu_threads(context_); }
    std::string isa() const { return h2o_cpu_isa(context_); }
    size_t scratch_bytes() const { return h2o_cpu_scratch_bytes(context_); }

    void run(nb::str name, const KV* kv, nb::dict given);

  private:
    const h2o_shape shape_;
    const Operators operators_{h2o_cpu_kernel};
    h2o_cpu* context_ = nullptr;
};

void bind_kernels(nb::module_& module);

}  // namespace h2o::python::cpu
