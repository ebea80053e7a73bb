// An array in the GPU's memory: it gives views, and computes nothing.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "device.h"
#include "h2o/call.h"

namespace h2o::python {

namespace nb = nanobind;

// C-contiguous, of at most four dimensions. Views keep the memory alive that they refer to. A layer's prefill
// cuts some fifty of them out, so it is C++.
class Array {
  public:
    // owner: what keeps the memory alive.
    Array(Address address, const nb::tuple& shape, nb::object dtype, nb::object owner);

    Address address() const { return reinterpret_cast<Address>(place_.data); }
    nb::tuple shape() const;
    const nb::object& dtype() const { return dtype_; }
    size_t length() const;
    size_t nbytes() const;

    Array at(nb::handle rows) const;  // an index or a slice
    Array reshape(const nb::args& shape) const;
    std::string text() const;

    // As kernels take it. Throws for elements that no kernel reads; `name` is for the message.
    h2o_tensor tensor(const char* name) const;

  private:
    Array view(int64_t first_row, int dropped) const;
    size_t row_bytes() const;

    h2o_tensor place_{};  // without its dtype
    size_t item_bytes_;
    int number_;  // of the dtype in NumPy
    nb::object dtype_, owner_;
};

void bind_array(nb::module_& module);

}  // namespace h2o::python
