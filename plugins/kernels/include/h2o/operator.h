// The operator table for programs, and what follows from it for one call.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "h2o/call.h"

namespace h2o {

enum class Type { kModel, kFloat, kInt32, kInt64 };  // kModel: float32 or float16, one and the same in a call

inline h2o_dtype dtype_of(Type type, h2o_dtype model) {
    switch (type) {
        case Type::kModel:
            return model;
        case Type::kFloat:
            return H2O_F32;
        case Type::kInt32:
            return H2O_I32;
        case Type::kInt64:
            return H2O_I64;
    }
    return model;
}

// What of the shape an attribute is where it is not given.
enum class OfModel { kNothing, kScale, kWindow, kSoftcap };
enum class Part { kNone, kKeys, kValues, kLength };  // of a cache

struct TensorSpec {
    const char* name;
    Type type;
    Part part;
    bool optional;
    bool updated;  // an input that kernels may write to
    int in_place;  // for an output: the tensor whose memory it may use; else -1
    int rank;
    int sizes[4];  // indices of names; a number x of the table is -x
};

struct AttributeSpec {
    const char* name;
    bool integer;  // else a float above 0, or 0 where that is what absence means
    OfModel of_model;
    int32_t least;
    bool optional;   // whether a graph's node may omit it
    int32_t absent;  // what that means
    int gives;       // the size that it equals or is a summand of, if no input shows that size; else -1
    int tiles;       // the size that counts the tiles of n tokens, whose length it is; else -1
};

constexpr int kMostTensors = 12, kMostAttributes = 12;

struct OperatorSpec {
    const char* name;    // such as PageSelect
    const char* method;  // such as page_select
    int inputs, tensors, attributes;
    bool sinks;  // whether a call for a GPU may have some
    TensorSpec tensor[kMostTensors];
    AttributeSpec attribute[kMostAttributes];
};

// Base of every operator's named arguments, which kernels take.
struct Call {
    Call() = default;
    explicit Call(const h2o_call& call)
        : shape(call.shape),
          kv(call.kv),
          context(call.context),
          workspace(call.workspace),
          workspace_bytes(call.workspace_bytes),
          counters(call.counters),
          sinks(call.sinks) {}

    h2o_shape shape{};
    const h2o_kv* kv = nullptr;
    void* context = nullptr;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    uint32_t* counters = nullptr;
    const float* sinks = nullptr;
};

}  // namespace h2o

#include "h2o/operators.h"  // generated

namespace h2o {

const OperatorSpec* find_operator(const std::string& name);  // null if there is none

// A call under construction: `tensors` and `shape` are the caller's, and so are the attributes in `given`.
struct Arguments {
    std::array<h2o_tensor, kMostTensors> tensors{};
    std::array<h2o_attribute, kMostAttributes> attributes{};
    std::array<bool, kMostAttributes> given{};
    std::array<int32_t, kSizes> sizes{};
    h2o_shape shape{};    // sizes that are 0 follow from the tensors
    bool outputs = true;  // whether they are among the tensors

    // The call of a kernel, valid as long as these arguments.
    h2o_call call(const h2o_kv* kv) const {
        h2o_call made{};
        made.shape = shape;
        made.kv = kv;
        made.tensors = tensors.data();
        made.attributes = attributes.data();
        made.sizes = sizes.data();
        return made;
    }
};

// Computes sizes, and missing attributes that follow from them, and updates the shape. Returns an empty
// string, or a sentence that names the wrong argument.
std::string resolve(const OperatorSpec& op, Arguments& arguments);

}  // namespace h2o
