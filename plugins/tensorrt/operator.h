// What TensorRT has to know of one operator of ONNX domain h2o. The plugin and its creator are the same code
// for all of them, and so is what follows from a signature's sizes; an operator adds what it asks of the
// kernels.
#pragma once

#include <NvInferRuntime.h>

#include <array>
#include <vector>

#include "fields.h"
#include "h2o/cuda.h"
#include "signatures.h"

namespace h2o::trt {

// The sizes of a node's tensors while it runs; those that its signature lacks are 0.
struct Sizes {
    std::array<int32_t, kSizeCount> of{};
    int32_t operator[](Size size) const { return of[size]; }
};

struct Call {
    const Attributes& attributes;
    const Sizes& sizes;
    const h2o_cuda_shape& shape;

    int32_t operator[](Size size) const { return sizes[size]; }
};

struct Operator {
    Signature signature;
    size_t (*workspace)(const Call&);
    h2o_status (*enqueue)(const Call&, const void* const* in, void* const* out, void* workspace,
                          size_t workspace_bytes, cudaStream_t stream);
    bool (*fits)(const Sizes&) = nullptr;  // what sizes of different names must satisfy
};

const std::vector<Operator>& operators();

// Output dimension expressions from those of the inputs, whose ranks are the signature's.
void output_shapes(const Signature& signature, const Attributes& attributes, const nvinfer1::DimsExprs* in,
                   nvinfer1::DimsExprs* out, nvinfer1::IExprBuilder& builder);

// False when the inputs' sizes contradict each other, or their heads do not divide.
bool resolve(const Operator& op, const Attributes& attributes, const std::vector<nvinfer1::Dims>& in,
             h2o_dtype dtype, Sizes& sizes, h2o_cuda_shape& shape);

}  // namespace h2o::trt
