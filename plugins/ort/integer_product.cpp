// IntegerProduct: MatMulNBits of ONNX Runtime, with our kernel for steps of few rows. An operator of domain
// h2o, which is in no file: h2o_runtime puts it in MatMulNBits' place as it loads graphs for a GPU.
//
// Inputs, as MatMulNBits has them: x float16 [..., K]; the integers, uint8 [N, K / block_size, bytes of a
// block]; their scales, float16 [N, K / block_size]. Output: y float16 [..., N]. Attributes: K, N, bits,
// block_size, accuracy_level.
//
// From 2 to 16 rows our kernel reads the integers once. MatMulNBits multiplies one row, and the many of a
// prompt: this operator calls it with the same tensors, so weights are in memory once. ONNX Runtime's own
// kernel for few rows came late, and ends at five rows of 8-bit integers; beyond it makes floats of the whole
// matrix first.
#include "h2o/integer_product.h"

#include <algorithm>
#include <string>

#include "cuda_call.h"
#include "operator_of.h"
#include "operators.h"
#include "tensor.h"

namespace h2o::ort {
namespace {

enum Input : size_t { kX, kWeights, kScales, kInputs };

constexpr int64_t kMostRows = 16;  // of our kernel

constexpr const char* kAttributes[] = {"K", "N", "bits", "block_size", "accuracy_level"};
constexpr int kAttributeCount = 5;

// One node: what does not change between runs.
struct Kernel {
    Interface ort;
    int64_t inputs = 0, outputs = 0, bits = 0, block = 0;
    Op* any_rows = nullptr;  // MatMulNBits

    explicit Kernel(const Table* table) : ort(table) {}
    ~Kernel() {
        if (any_rows != nullptr) ort.release(any_rows);
    }
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context) const;

  private:
    Status* few_rows(KernelContext* context, const Tensor (&given)[kInputs], int64_t rows, Value* y) const;
    Status* refuse(const char* why) const {
        return ort.error((std::string("IntegerProduct: ") + why).c_str());
    }
};

Status* Kernel::read(const KernelInfo* info) {
    int64_t values[kAttributeCount] = {};
    OpAttribute* attributes[kAttributeCount] = {};
    Status* status = nullptr;
    for (int i = 0; i < kAttributeCount && status == nullptr; ++i) {
        status = ort.attribute(info, kAttributes[i], &values[i]);
        if (status == nullptr) status = ort.create_attribute(kAttributes[i], &values[i], &attributes[i]);
    }
    inputs = values[0], outputs = values[1], bits = values[2], block = values[3];
    const char* names[] = {"T1", "T2"};
    const ElementType types[] = {kHalf, kUint8};
    if (status == nullptr)
        status = ort.create_op(info, "MatMulNBits", "com.microsoft", 1, names, types, 2, attributes,
                               kAttributeCount, kInputs, 1, &any_rows);
    for (OpAttribute* attribute : attributes)
        if (attribute != nullptr) ort.release(attribute);
    return status;
}

Status* Kernel::few_rows(KernelContext* context, const Tensor (&given)[kInputs], int64_t rows,
                         Value* y) const {
    if (block <= 0 || given[kWeights].elements != static_cast<size_t>(outputs * inputs * bits / 8) ||
        given[kScales].elements != static_cast<size_t>(outputs * (inputs / block)))
        return refuse("the integers or their scales have another size than the attributes say");
    cuda::IntegerProduct product;
    product.x = given[kX].data, product.integers = given[kWeights].data, product.scales = given[kScales].data;
    product.rows = rows, product.inputs = inputs, product.outputs = outputs;
    product.bits = bits, product.block = block;
    void* stream = nullptr;
    H2O_RETURN_IF(ort.data(y, &product.y));
    H2O_RETURN_IF(ort.stream(context, &stream));
    return told(ort, "IntegerProduct", stream, cuda::run(product, stream));
}

Status* Kernel::compute(KernelContext* context) const {
    Tensor given[kInputs];
    const Value* values[kInputs];
    for (size_t i = 0; i < kInputs; ++i) {
        H2O_RETURN_IF(given[i].read(ort, context, kInputs, i));
        H2O_RETURN_IF(ort.input(context, i, &values[i]));
    }
    const Tensor& x = given[kX];
    if (x.dimensions == 0 || x.dimensions > kMostDimensions || x.sizes[x.dimensions - 1] != inputs)
        return refuse("x has other sizes than the attributes say");
    int64_t sizes[kMostDimensions];
    std::copy_n(x.sizes, x.dimensions, sizes);
    sizes[x.dimensions - 1] = outputs;
    Value* y = nullptr;
    H2O_RETURN_IF(ort.output(context, 0, sizes, x.dimensions, &y));
    const int64_t rows = static_cast<int64_t>(x.elements) / inputs;
    if (rows >= 2 && rows <= kMostRows) return few_rows(context, given, rows, y);
    return ort.invoke(context, any_rows, values, kInputs, &y, 1);
}

}  // namespace

const Operator* integer_product() {
    static const Operator op = [] {
        Operator made = operator_of<Kernel, kInputs, 1>([](const Operator*) { return "IntegerProduct"; });
        made.provider = [](const Operator*) { return kCudaProvider; };
        made.input_type = [](const Operator*, size_t i) { return i == kWeights ? kUint8 : kHalf; };
        made.output_type = [](const Operator*, size_t) { return kHalf; };
        return made;
    }();
    return &op;
}

}  // namespace h2o::ort
