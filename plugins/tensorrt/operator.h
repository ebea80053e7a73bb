// An operator of ONNX domain h2o for TensorRT.
//
// The plugin and its creator are the same code for all operators; everything follows from the table.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "fields.h"
#include "h2o/cuda.h"

namespace h2o::trt {

struct Operator {
    const OperatorSpec& spec;
    const h2o_kernel& kernel;

    const TensorSpec& input(int32_t i) const { return spec.tensor[i]; }
    const TensorSpec& output(int32_t i) const { return spec.tensor[spec.inputs + i]; }
    int32_t outputs() const { return spec.tensors - spec.inputs; }
};

// The operators that exported graphs may contain.
const std::vector<Operator>& operators();

// Output dimension expressions from those of the inputs; the table gives the ranks.
void output_shapes(const Operator& op, const Attributes& attributes, const nvinfer1::DimsExprs* in,
                   nvinfer1::DimsExprs* out, nvinfer1::IExprBuilder& builder);

// One call of an operator with the shapes that TensorRT gave.
class PluginCall {
  public:
    // An empty string, or a sentence that names the wrong sizes.
    std::string resolve(const Operator& op, const Attributes& attributes,
                        const std::vector<nvinfer1::Dims>& in, h2o_dtype dtype);
    size_t workspace(const Operator& op) const { return op.kernel.workspace(&call()); }
    h2o_status enqueue(const Operator& op, const void* const* in, void* const* out, void* workspace,
                       size_t workspace_bytes, cudaStream_t stream);

  private:
    const h2o_call& call() const;

    Arguments arguments_;
    h2o_kv kv_{};
    mutable h2o_call call_{};
};

}  // namespace h2o::trt
