// Shared by the modules of CPU and CUDA kernels: an operator's arguments by name.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "h2o/operator.h"

namespace h2o::python {

namespace nb = nanobind;

// An operator, its kernel, and the names of its arguments as Python strings.
struct Known {
    const OperatorSpec* spec;
    const h2o_kernel* kernel;
    std::vector<nb::object> tensors, attributes;

    Known(const OperatorSpec& op, const h2o_kernel* its_kernel) : spec(&op), kernel(its_kernel) {
        for (int i = 0; i < op.tensors; ++i) tensors.push_back(interned(op.tensor[i].name));
        for (int i = 0; i < op.attributes; ++i) attributes.push_back(interned(op.attribute[i].name));
    }

  private:
    static nb::object interned(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }
};

// The operators of the table with a kernel of this kind, by name.
class Operators {
  public:
    explicit Operators(const h2o_kernel* (*kernel_of)(const char*)) {
        for (const OperatorSpec& op : kOperators) {
            const h2o_kernel* const kernel = kernel_of(op.name);
            if (kernel == nullptr) continue;
            numbers_[op.name] = all_.size();
            all_.emplace_back(op, kernel);
        }
    }

    const Known& operator[](nb::str name) const {
        PyObject* const number = PyDict_GetItem(numbers_.ptr(), name.ptr());
        if (number != nullptr) return all_[PyLong_AsSize_t(number)];
        throw nb::value_error((std::string("there is no kernel of ") + name.c_str()).c_str());
    }

  private:
    nb::dict numbers_;
    std::vector<Known> all_;
};

// An argument by name; null if it is missing or None.
inline nb::handle argument(const nb::dict& given, const nb::object& name, size_t& used) {
    PyObject* const found = PyDict_GetItem(given.ptr(), name.ptr());
    if (found == nullptr) return {};
    ++used;
    return found == Py_None ? nullptr : found;
}

inline void read_attributes(const Known& op, const nb::dict& given, Arguments& arguments, size_t& used) {
    for (size_t i = 0; i < op.attributes.size(); ++i) {
        const nb::handle value = argument(given, op.attributes[i], used);
        arguments.given[i] = value.is_valid();
        if (!value.is_valid()) continue;
        h2o_attribute& attribute = arguments.attributes[i];
        if (op.spec->attribute[i].integer) {
            attribute.integer = nb::cast<int32_t>(value);
        } else {
            attribute.real = nb::cast<float>(value);
        }
    }
}

// Throws if an argument is not one of the operator's.
inline void expect_all_used(const Known& op, const nb::dict& given, size_t used) {
    if (used == given.size()) return;
    for (const auto item : given) {
        bool known = false;
        for (const auto* names : {&op.tensors, &op.attributes})
            for (const nb::object& name : *names) known = known || name.equal(item.first);
        if (!known)
            throw nb::value_error(
                (std::string(op.spec->method) + " has no argument " + nb::str(item.first).c_str()).c_str());
    }
}

// Computes what follows from the arguments; throws a ValueError that names the wrong one.
inline h2o_call resolved(const Known& op, Arguments& arguments, const h2o_kv* kv) {
    const std::string wrong = resolve(*op.spec, arguments);
    if (!wrong.empty()) throw nb::value_error(wrong.c_str());
    return arguments.call(kv);
}

// Outputs that are not given share the memory of an input, where the operator allows it.
inline void place_outputs(const Known& op, Arguments& arguments) {
    for (int i = op.spec->inputs; i < op.spec->tensors; ++i) {
        const int in_place = op.spec->tensor[i].in_place;
        h2o_tensor& tensor = arguments.tensors[static_cast<size_t>(i)];
        if (tensor.rank < 0 && in_place >= 0) tensor = arguments.tensors[static_cast<size_t>(in_place)];
    }
}

}  // namespace h2o::python
