// Output shapes and kernel calls of a node, from the operator table.
#include "operator.h"

namespace h2o::trt {

using nvinfer1::DimsExprs;

namespace {

// For a size that no input shows.
int64_t from_attributes(const OperatorSpec& op, const Attributes& attributes, int size) {
    if (size < 0) return -size;
    int64_t sum = 0;
    for (int i = 0; i < op.attributes; ++i)
        if (op.attribute[i].gives == size) sum += attributes[static_cast<size_t>(i)].integer;
    return sum;
}

const nvinfer1::IDimensionExpr* shown_by(const Operator& op, const DimsExprs* in, int size) {
    for (int i = 0; i < op.spec.inputs; ++i)
        for (int axis = 0; axis < op.input(i).rank; ++axis)
            if (op.input(i).sizes[axis] == size) return in[i].d[axis];
    return nullptr;
}

}  // namespace

const std::vector<Operator>& operators() {
    static const std::vector<Operator> all = {
#define H2O_PLUGIN(Name) Operator{*find_operator(#Name), *h2o_cuda_kernel(#Name)},
        H2O_PLUGIN_OPERATORS(H2O_PLUGIN)
#undef H2O_PLUGIN
    };
    return all;
}

void output_shapes(const Operator& op, const Attributes& attributes, const DimsExprs* in, DimsExprs* out,
                   nvinfer1::IExprBuilder& builder) {
    for (int i = 0; i < op.outputs(); ++i) {
        const TensorSpec& spec = op.output(i);
        out[i].nbDims = spec.rank;
        for (int axis = 0; axis < spec.rank; ++axis) {
            const int size = spec.sizes[axis];
            const nvinfer1::IDimensionExpr* shown = size < 0 ? nullptr : shown_by(op, in, size);
            out[i].d[axis] = shown ? shown : builder.constant(from_attributes(op.spec, attributes, size));
        }
    }
}

std::string PluginCall::resolve(const Operator& op, const Attributes& attributes,
                                const std::vector<nvinfer1::Dims>& in, h2o_dtype dtype) {
    arguments_ = {};
    arguments_.shape.dtype = dtype;
    arguments_.outputs = false;
    for (size_t i = 0; i < in.size(); ++i) {
        h2o_tensor& tensor = arguments_.tensors[i];
        tensor.dtype = dtype_of(op.input(static_cast<int32_t>(i)).type, dtype);
        tensor.rank = in[i].nbDims;
        for (int axis = 0; axis < in[i].nbDims && axis < 4; ++axis) tensor.sizes[axis] = in[i].d[axis];
    }
    for (size_t i = 0; i < attributes.size(); ++i) {
        arguments_.attributes[i] = attributes[i];
        arguments_.given[i] = true;
    }
    const std::string wrong = h2o::resolve(op.spec, arguments_);
    kv_ = {};
    kv_.rows = arguments_.sizes[kSize_cap];
    kv_.dtype = dtype;
    return wrong;
}

const h2o_call& PluginCall::call() const {
    return call_ = arguments_.call(&kv_);
}

h2o_status PluginCall::enqueue(const Operator& op, const void* const* in, void* const* out, void* workspace,
                               size_t workspace_bytes, cudaStream_t stream) {
    for (int i = 0; i < op.spec.tensors; ++i) {
        void* const data = i < op.spec.inputs ? const_cast<void*>(in[i]) : out[i - op.spec.inputs];
        arguments_.tensors[static_cast<size_t>(i)].data = data;
        if (op.spec.tensor[i].part == Part::kKeys) kv_.k = data;
        if (op.spec.tensor[i].part == Part::kValues) kv_.v = data;
    }
    call();
    call_.context = stream;
    call_.workspace = workspace;
    call_.workspace_bytes = workspace_bytes;
    return op.kernel.run(&call_);
}

}  // namespace h2o::trt
