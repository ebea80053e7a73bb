#include "array.h"

#include <nanobind/stl/string.h>

#include <cstdio>
#include <utility>

using namespace nanobind::literals;

namespace h2o::python {
namespace {

constexpr size_t kMostRank = 4;

// → the number of elements.
size_t read_sizes(nb::handle shape, h2o_tensor& tensor) {
    const size_t rank = nb::len(shape);
    if (rank > kMostRank) throw nb::value_error("an array has at most four dimensions");
    size_t count = 1;
    tensor.rank = static_cast<int32_t>(rank);
    for (size_t i = 0; i < rank; ++i) {
        tensor.sizes[i] = nb::cast<int64_t>(nb::object(shape[i]));
        if (tensor.sizes[i] < 0) throw nb::value_error("a size is negative");
        count *= static_cast<size_t>(tensor.sizes[i]);
    }
    return count;
}

std::string shape_text(const nb::tuple& shape) {
    return nb::repr(shape).c_str();
}

}  // namespace

Array::Array(Address address, const nb::tuple& shape, nb::object dtype, nb::object owner)
    : item_bytes_(nb::cast<size_t>(dtype.attr("itemsize"))),
      number_(nb::cast<int>(dtype.attr("num"))),
      dtype_(std::move(dtype)),
      owner_(std::move(owner)) {
    place_.data = reinterpret_cast<void*>(address);
    read_sizes(shape, place_);
}

nb::tuple Array::shape() const {
    nb::object shape = nb::steal(PyTuple_New(place_.rank));
    for (int i = 0; i < place_.rank; ++i)
        if (PyTuple_SetItem(shape.ptr(), i, PyLong_FromLongLong(place_.sizes[i])) != 0)
            throw nb::python_error();
    return nb::borrow<nb::tuple>(shape);
}

size_t Array::length() const {
    if (place_.rank == 0) throw nb::type_error("an array without dimensions has no length");
    return static_cast<size_t>(place_.sizes[0]);
}

size_t Array::row_bytes() const {
    size_t bytes = item_bytes_;
    for (int i = 1; i < place_.rank; ++i) bytes *= static_cast<size_t>(place_.sizes[i]);
    return bytes;
}

size_t Array::nbytes() const {
    return place_.rank == 0 ? item_bytes_ : row_bytes() * length();
}

// Without its first `dropped` dimensions.
Array Array::view(int64_t first_row, int dropped) const {
    Array result = *this;
    result.place_.data = static_cast<char*>(place_.data) + static_cast<size_t>(first_row) * row_bytes();
    result.place_.rank -= dropped;
    for (int i = 0; i < result.place_.rank; ++i) result.place_.sizes[i] = place_.sizes[i + dropped];
    return result;
}

Array Array::at(nb::handle rows) const {
    if (place_.rank == 0) throw nb::index_error("an array without dimensions has no rows");
    if (PySlice_Check(rows.ptr())) {
        Py_ssize_t start = 0, stop = 0, step = 0;
        if (PySlice_Unpack(rows.ptr(), &start, &stop, &step) != 0) throw nb::python_error();
        if (step != 1) throw nb::index_error("rows on the GPU can be cut out, not skipped");
        const Py_ssize_t count = PySlice_AdjustIndices(place_.sizes[0], &start, &stop, step);
        Array result = view(start, 0);
        result.place_.sizes[0] = count;
        return result;
    }
    const Py_ssize_t given = PyNumber_AsSsize_t(rows.ptr(), PyExc_IndexError);
    if (given == -1 && PyErr_Occurred()) throw nb::python_error();
    const int64_t row = given < 0 ? given + place_.sizes[0] : given;
    if (row < 0 || row >= place_.sizes[0])
        throw nb::index_error(
            ("row " + std::to_string(given) + " of " + std::to_string(place_.sizes[0])).c_str());
    return view(row, 1);
}

Array Array::reshape(const nb::args& sizes) const {
    Array result = *this;
    if (read_sizes(sizes, result.place_) * item_bytes_ != nbytes())
        throw nb::value_error((shape_text(shape()) + " does not fit " + shape_text(sizes)).c_str());
    return result;
}

std::string Array::text() const {
    char place[2 + 2 * sizeof(Address) + 1];
    std::snprintf(place, sizeof place, "%#zx", static_cast<size_t>(address()));
    return "Array(" + shape_text(shape()) + ", " + nb::str(dtype_).c_str() + ", at " + place + ")";
}

h2o_tensor Array::tensor(const char* name) const {
    h2o_tensor tensor = place_;
    switch (number_) {  // NumPy's dtypes, which never change
        case 1:
            tensor.dtype = H2O_I8;
            return tensor;
        case 5:
            tensor.dtype = H2O_I32;
            return tensor;
        case 7:
        case 9:
            tensor.dtype = H2O_I64;
            return tensor;
        case 11:
            tensor.dtype = H2O_F32;
            return tensor;
        case 23:
            tensor.dtype = H2O_F16;
            return tensor;
        default:
            throw nb::value_error((std::string(name) + " has elements that no kernel reads").c_str());
    }
}

void bind_array(nb::module_& module) {
    nb::class_<Array>(module, "Array",
                      "C-contiguous, of at most four dimensions. Views keep the memory alive that they refer "
                      "to: `owner` does.")
        .def(nb::init<Address, nb::tuple, nb::object, nb::object>(),
             nb::sig(
                 "def __init__(self, address: int, shape: tuple[int, ...], dtype: numpy.dtype[typing.Any], "
                 "owner: object | None) -> None"),
             "address"_a, "shape"_a, "dtype"_a, "owner"_a.none())
        .def_prop_ro("address", &Array::address)
        .def_prop_ro("shape", &Array::shape, nb::sig("def shape(self) -> tuple[int, ...]"))
        .def_prop_ro("dtype", &Array::dtype, nb::sig("def dtype(self) -> numpy.dtype[typing.Any]"))
        .def_prop_ro("nbytes", &Array::nbytes)
        .def("__len__", &Array::length)
        .def("__getitem__", &Array::at, nb::sig("def __getitem__(self, rows: int | slice) -> Array"),
             "rows"_a, "Some rows, or one of them without its dimension.")
        .def("reshape", &Array::reshape, nb::sig("def reshape(self, *shape: int) -> Array"), "shape"_a)
        .def("__repr__", &Array::text);
}

}  // namespace h2o::python
