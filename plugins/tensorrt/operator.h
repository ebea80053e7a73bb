// What TensorRT has to know of one operator of ONNX domain h2o. The plugin and its creator are the same code
// for all of them; an operator is a table of its tensors and attributes and three small functions.
#pragma once

#include <NvInferRuntime.h>

#include <vector>

#include "fields.h"
#include "h2o/cuda.h"

namespace h2o::trt {

enum class Type {
    kModel,
    kFloat,
    kInt32,
    kInt64
};  // kModel: float32 or float16, one and the same for a node

struct TensorSpec {
    const char* name;
    int32_t rank;
    Type type;
};

// The sizes of a node's tensors, inputs first, while it runs.
struct Call {
    const Attributes& attributes;
    const nvinfer1::Dims* inputs;
    h2o_dtype dtype;

    int32_t size(int input, int axis) const { return static_cast<int32_t>(inputs[input].d[axis]); }
};

struct Operator {
    const char* name;
    std::vector<AttributeSpec> attributes;
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;

    // Output dimension expressions from those of the inputs.
    void (*output_shapes)(const Attributes&, const nvinfer1::DimsExprs* in, nvinfer1::DimsExprs* out,
                          nvinfer1::IExprBuilder& builder);
    // The heads and head size of a call; false when the inputs' sizes contradict each other.
    bool (*shape_of)(const Call&, h2o_cuda_shape& shape);
    size_t (*workspace)(const Call&, const h2o_cuda_shape& shape);
    h2o_status (*enqueue)(const Call&, const h2o_cuda_shape& shape, const void* const* in, void* const* out,
                          void* workspace, size_t workspace_bytes, cudaStream_t stream);
};

const std::vector<Operator>& operators();

}  // namespace h2o::trt
