// The functions of ONNX Runtime's C interface that this library uses, declared by hand, because ONNX
// Runtime's packages have no headers. The interface is a table that only grows, and a function keeps its
// place. A caller requests a version: here 17, of February 2024, the first with ParallelFor. Every later ONNX
// Runtime provides it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace h2o::ort {

constexpr uint32_t kVersion = 17;

struct Table;  // OrtApi
struct Status;
struct Value;
struct Shape;  // OrtTensorTypeAndShapeInfo
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct Domain;
struct Op;  // an operator of ONNX Runtime's own, to be called by a kernel
struct OpAttribute;

enum ErrorCode : int { kInvalidArgument = 2 };
enum ElementType : int { kAny = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt64 = 7, kHalf = 10 };
enum AttributeType : int { kInteger = 1 };
enum Characteristic : int { kRequired = 0, kOptional = 1, kVariadic = 2 };

struct Base {
    const Table* (*get_table)(uint32_t version);
    const char* (*get_version)();
};

// OrtCustomOp as version 17 has it. For null members ONNX Runtime uses its default.
struct Operator {
    uint32_t version;
    void* (*create_unchecked)(const Operator*, const Table*, const KernelInfo*);
    const char* (*name)(const Operator*);
    const char* (*provider)(const Operator*);
    ElementType (*input_type)(const Operator*, size_t index);
    size_t (*inputs)(const Operator*);
    ElementType (*output_type)(const Operator*, size_t index);
    size_t (*outputs)(const Operator*);
    void (*compute_unchecked)(void* kernel, KernelContext*);
    void (*destroy)(void* kernel);
    Characteristic (*input_characteristic)(const Operator*, size_t index);
    Characteristic (*output_characteristic)(const Operator*, size_t index);
    int (*input_memory)(const Operator*, size_t index);
    int (*variadic_inputs)(const Operator*);
    int (*variadic_inputs_alike)(const Operator*);
    int (*variadic_outputs)(const Operator*);
    int (*variadic_outputs_alike)(const Operator*);
    Status* (*create)(const Operator*, const Table*, const KernelInfo*, void** kernel);
    Status* (*compute)(void* kernel, KernelContext*);
    Status* (*infer_shapes)(const Operator*, void*);
    int (*first_version)(const Operator*);
    int (*last_version)(const Operator*);
};

// The functions in use. All but error() and those that release return null, or a Status that the caller owns.
class Interface {
  public:
    explicit Interface(const Table* table) : table_(reinterpret_cast<void* const*>(table)) {}

    Status* error(const char* message) const { return call(0, kInvalidArgument, message); }
    Status* create_domain(const char* name, Domain** out) const { return call(26, name, out); }
    Status* add_operator(Domain* domain, const Operator* op) const { return call(27, domain, op); }
    Status* add_domain(SessionOptions* options, Domain* domain) const { return call(28, options, domain); }
    Status* data(Value* value, void** out) const { return call(51, value, out); }
    Status* type(const Shape* shape, ElementType* out) const { return call(60, shape, out); }
    Status* dimensions(const Shape* shape, size_t* count) const { return call(61, shape, count); }
    Status* dimensions(const Shape* shape, int64_t* sizes, size_t count) const {
        return call(62, shape, sizes, count);
    }
    Status* elements(const Shape* shape, size_t* count) const { return call(64, shape, count); }
    Status* shape(const Value* value, Shape** out) const { return call(65, value, out); }
    Status* attribute(const KernelInfo* info, const char* name, float* out) const {
        return call(85, info, name, out);
    }
    Status* attribute(const KernelInfo* info, const char* name, int64_t* out) const {
        return call(86, info, name, out);
    }
    Status* attribute(const KernelInfo* info, const char* name, int64_t* out, size_t* count) const {
        return call(163, info, name, out, count);
    }
    Status* attribute(const KernelInfo* info, const char* name, int32_t* out) const {
        int64_t wide = 0;
        Status* const status = attribute(info, name, &wide);
        *out = static_cast<int32_t>(wide);
        return status;
    }
    // Several, each as its name and where it goes.
    template <class T, class... More>
    Status* attributes(const KernelInfo* info, const char* name, T* out, More... more) const {
        Status* const status = attribute(info, name, out);
        if constexpr (sizeof...(more) > 0) {
            if (status == nullptr) return attributes(info, more...);
        }
        return status;
    }
    Status* input_count(const KernelContext* context, size_t* out) const { return call(88, context, out); }
    Status* input(const KernelContext* context, size_t index, const Value** out) const {
        return call(90, context, index, out);
    }
    Status* output(KernelContext* context, size_t index, const int64_t* sizes, size_t count,
                   Value** out) const {
        return call(91, context, index, sizes, count, out);
    }
    void release(Shape* shape) const { call<void>(99, shape); }
    // Of the CUDA provider, that a kernel's work goes to; null elsewhere.
    Status* stream(const KernelContext* context, void** out) const { return call(193, context, out); }
    Status* create_attribute(const char* name, const int64_t* value, OpAttribute** out) const {
        return call(211, name, static_cast<const void*>(value), 1, kInteger, out);
    }
    void release(OpAttribute* attribute) const { call<void>(212, attribute); }
    // Of the provider that the calling kernel belongs to. `names`: of constraints on types.
    Status* create_op(const KernelInfo* info, const char* name, const char* domain, int version,
                      const char** names, const ElementType* types, int constraints,
                      const OpAttribute* const* attributes, int attribute_count, int inputs, int outputs,
                      Op** out) const {
        return call(213, info, name, domain, version, names, types, constraints, attributes, attribute_count,
                    inputs, outputs, out);
    }
    Status* invoke(const KernelContext* context, const Op* op, const Value* const* inputs, int input_count,
                   Value* const* outputs, int output_count) const {
        return call(214, context, op, inputs, input_count, outputs, output_count);
    }
    void release(Op* op) const { call<void>(215, op); }
    // Calls work(data, 0 ... total - 1) on the session's threads, including this one.
    Status* parallel(const KernelContext* context, void (*work)(void*, size_t), size_t total,
                     void* data) const {
        return call(274, context, work, total, total, data);
    }

  private:
    // The function at a place of the table. Arguments have its parameters' types exactly.
    template <class Result = Status*, class... Parameters>
    Result call(size_t place, Parameters... parameters) const {
        return reinterpret_cast<Result (*)(Parameters...)>(table_[place])(parameters...);
    }

    void* const* table_;
};

}  // namespace h2o::ort
