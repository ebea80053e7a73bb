#include "arrays.h"

namespace h2o::python::cpu {
namespace {

bool take(nb::handle array, bool write, Py_buffer& view) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (write ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &view, flags) == 0) return true;
    PyErr_Clear();
    view = {};
    return false;
}

[[noreturn]] void refuse(const char* name, const char* what) {
    throw nb::value_error((std::string(name) + what).c_str());
}

h2o_dtype dtype_of(const Py_buffer& view, const char* name) {
    const char* const format = view.format;
    if (format != nullptr && format[0] != '\0' && format[1] == '\0') {
        switch (format[0]) {
            case 'f':
                return H2O_F32;
            case 'e':
                return H2O_F16;
            case 'b':
                return H2O_I8;
            case 'i':
                return H2O_I32;
            case 'l':
            case 'q':
                if (view.itemsize == 8) return H2O_I64;
                break;
            default:
                break;
        }
    }
    refuse(name, " must be float32, float16 or int8, or int32 or int64 where it has indices");
}

}  // namespace

Buffer::Buffer(nb::handle array, const char* name, Access access) {
    bool held = take(array, access != Access::kRead, view_);
    if (!held && access == Access::kWrite)
        refuse(name, " must be a C-contiguous array that may be written to");
    if (!held && access == Access::kWriteIfAllowed) held = take(array, false, view_);
    if (!held) {
        nb::object copy = nb::module_::import_("numpy").attr("ascontiguousarray")(array);
        if (!take(copy, false, view_)) refuse(name, " must be an array");
        copied_ = true;
    }
    dtype_ = dtype_of(view_, name);
    if (view_.ndim > 4) refuse(name, " has more than four dimensions");
}

h2o_tensor Buffer::tensor() const {
    h2o_tensor made{};
    made.data = view_.buf;
    made.dtype = dtype_;
    made.rank = view_.ndim;
    for (int i = 0; i < view_.ndim; ++i) made.sizes[i] = view_.shape[i];
    return made;
}

}  // namespace h2o::python::cpu
