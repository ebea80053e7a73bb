// NumPy arrays, and other objects with the buffer protocol, as arguments of kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "h2o/call.h"

namespace h2o::python::cpu {

namespace nb = nanobind;

enum class Access { kRead, kWrite, kWriteIfAllowed };

// A C-contiguous array, referenced as long as this object lives. Inputs that are not contiguous are copied.
class Buffer {
  public:
    Buffer() = default;
    Buffer(nb::handle array, const char* name, Access access);
    ~Buffer() { release(); }
    Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        release();
        view_ = other.view_;
        dtype_ = other.dtype_;
        copied_ = other.copied_;
        other.view_ = {};
        return *this;
    }

    void* data() const { return view_.buf; }
    bool writable() const { return !view_.readonly && !copied_; }
    h2o_tensor tensor() const;

  private:
    void release() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }
    Py_buffer view_{};
    h2o_dtype dtype_ = H2O_F32;
    bool copied_ = false;
};

}  // namespace h2o::python::cpu
