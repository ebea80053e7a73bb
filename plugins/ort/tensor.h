// The inputs and outputs of a kernel.
#pragma once

#include <initializer_list>

#include "interface.h"

#define H2O_RETURN_IF(call)                                                     \
    do {                                                                        \
        if (Status* const status_ = (call); status_ != nullptr) return status_; \
    } while (false)

namespace h2o::ort {

constexpr size_t kMostDimensions = 4;

struct Tensor {
    void* data = nullptr;  // null if it is omitted
    ElementType type = kAny;
    size_t elements = 0;
    size_t dimensions = 0;
    int64_t sizes[kMostDimensions] = {};

    float* floats() const { return static_cast<float*>(data); }
    bool is_of(int64_t count) const { return data == nullptr || elements == static_cast<size_t>(count); }

    // `inputs`: how many the node has, which may end before `index`.
    Status* read(const Interface& ort, KernelContext* context, size_t inputs, size_t index) {
        const Value* value = nullptr;
        if (index < inputs) H2O_RETURN_IF(ort.input(context, index, &value));
        if (value == nullptr) return nullptr;
        Shape* shape = nullptr;
        H2O_RETURN_IF(ort.shape(value, &shape));
        Status* status = ort.elements(shape, &elements);
        if (status == nullptr) status = ort.type(shape, &type);
        if (status == nullptr) status = ort.dimensions(shape, &dimensions);
        if (status == nullptr && dimensions <= kMostDimensions) {
            status = ort.dimensions(shape, sizes, dimensions);
        }
        ort.release(shape);
        H2O_RETURN_IF(status);
        return ort.data(const_cast<Value*>(value), &data);
    }
};

// An input of a node, by its number, and where it goes.
struct Wanted {
    Tensor* to;
    size_t index;
};

inline Status* read_inputs(const Interface& ort, KernelContext* context,
                           std::initializer_list<Wanted> wanted) {
    size_t count = 0;
    H2O_RETURN_IF(ort.input_count(context, &count));
    for (const Wanted& one : wanted) H2O_RETURN_IF(one.to->read(ort, context, count, one.index));
    return nullptr;
}

// Makes output `index`, of these sizes, and tells where its elements are.
template <class T>
Status* output(const Interface& ort, KernelContext* context, size_t index, const int64_t* sizes, size_t count,
               T** at) {
    Value* out = nullptr;
    void* data = nullptr;
    H2O_RETURN_IF(ort.output(context, index, sizes, count, &out));
    H2O_RETURN_IF(ort.data(out, &data));
    *at = static_cast<T*>(data);
    return nullptr;
}

}  // namespace h2o::ort
