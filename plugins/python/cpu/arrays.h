// NumPy arrays as arguments of the CPU kernels' bindings, and what can be said of them without a model's
// shape.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace h2o::python::cpu {

namespace nb = nanobind;

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Float32 = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Float32In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Int32 = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using Int32In = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Int64In = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
using Pages = std::optional<Int32In>;
using Scales = std::optional<std::pair<Float32In, Float32In>>;  // of keys, of values
using OwnScales = std::optional<std::pair<Float32, Float32>>;

// Throws unless the array has exactly these sizes; -1 stands for any.
template <class Array>
void expect(const Array& array, const char* name, std::initializer_list<int64_t> sizes) {
    bool good = array.ndim() == sizes.size();
    size_t axis = 0;
    for (int64_t size : sizes) {
        good = good && (size < 0 || static_cast<int64_t>(array.shape(axis)) == size);
        ++axis;
    }
    if (good) return;
    std::string wanted, got;
    for (int64_t size : sizes) wanted += (size < 0 ? std::string("any") : std::to_string(size)) + ", ";
    for (size_t i = 0; i < array.ndim(); ++i) got += std::to_string(array.shape(i)) + ", ";
    throw nb::value_error(
        (std::string(name) + " must have shape (" + wanted + ") but has (" + got + ")").c_str());
}

template <class Array>
int64_t size_of(const Array& array, size_t axis) {
    return axis < array.ndim() ? static_cast<int64_t>(array.shape(axis)) : -1;
}

// Values that are a part of the keys come as these.
template <class Array>
bool same(const Array& a, const Array& b) {
    return a.data() != nullptr && a.data() == b.data();
}

}  // namespace h2o::python::cpu
