// One model shape's CUDA kernels for Python. The caller is responsible for the addresses.
#pragma once

#include <nanobind/nanobind.h>

#include "../arguments.h"
#include "array.h"

namespace h2o::python {

using namespace nb::literals;

// One layer's cache. Its length is a number, or an array of one element that the device reads.
class KV {
  public:
    KV(nb::handle k, nb::handle v, nb::handle length, nb::handle pages, int32_t page_rows, nb::handle scales);

    const h2o_kv* get() const { return &kv_; }
    const h2o_tensor& keys() const { return k_; }
    const h2o_tensor& values() const { return v_; }
    const nb::object& length() const { return length_; }

  private:
    h2o_tensor k_, v_;
    nb::object length_;
    h2o_kv kv_{};
};

class Kernels : Owner {
  public:
    // counters [16, query_heads] are uint32 zeros, integers [8] int64; both are on the device.
    Kernels(const h2o_shape& shape, Address counters, Address integers);

    // reserve(bytes) gives the address of a workspace, and its size.
    void run(const Stream& stream, nb::str name, const KV* kv, nb::dict given, nb::callable reserve) const;

  private:
    const h2o_shape shape_;
    const Operators operators_{h2o_cuda_kernel};
    uint32_t* const counters_;
    int64_t* const integers_;
};

}  // namespace h2o::python
