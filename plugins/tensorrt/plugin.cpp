#include "plugin.h"

#include <algorithm>
#include <new>
#include <utility>

namespace h2o::trt {

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

namespace {

DataType data_type(Type type, DataType model) {
    switch (type) {
        case Type::kModel:
            return model;
        case Type::kFloat:
            return DataType::kFLOAT;
        case Type::kInt32:
            return DataType::kINT32;
        case Type::kInt64:
            return DataType::kINT64;
    }
    return model;
}

bool type_fits(Type wanted, DataType type) {
    return type == data_type(wanted, DataType::kFLOAT) || (wanted == Type::kModel && type == DataType::kHALF);
}

// The type that a node's kModel tensors share, from the first of them; float32 if there is none.
template <class F>
DataType model_type(const Operator& op, F&& type_of) {
    for (int32_t i = 0; i < op.spec.inputs; ++i)
        if (op.input(i).type == Type::kModel) return type_of(i);
    return DataType::kFLOAT;
}

h2o_dtype dtype_of(DataType type) {
    return type == DataType::kHALF ? H2O_F16 : H2O_F32;
}

// What body() returns; the failure, and a line in the log, if it throws. `doing`: what it was about.
template <class Result, class Body>
Result guarded(const Operator& op, const char* doing, Result failure, Body&& body) noexcept {
    try {
        return body();
    } catch (const std::exception& error) {
        log_error(std::string(op.spec.name) + ": " + doing + error.what());
        return failure;
    }
}

std::string text(const Dims& dims) {
    std::string out = "[";
    for (int32_t i = 0; i < dims.nbDims; ++i) out += (i ? ", " : "") + std::to_string(dims.d[i]);
    return out + "]";
}

}  // namespace

OperatorPlugin::OperatorPlugin(const Operator& op, Attributes attributes)
    : op_(op), attributes_(std::move(attributes)) {}

nvinfer1::IPluginCapability* OperatorPlugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
    switch (type) {
        case nvinfer1::PluginCapabilityType::kCORE:
            return static_cast<nvinfer1::IPluginV3OneCore*>(this);
        case nvinfer1::PluginCapabilityType::kBUILD:
            return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
        case nvinfer1::PluginCapabilityType::kRUNTIME:
            return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* OperatorPlugin::clone() noexcept {
    return guarded<OperatorPlugin*>(op_, "clone failed: ", nullptr, [this] {
        auto* copy = new OperatorPlugin(op_, attributes_);
        copy->ready_ = ready_;
        copy->call_ = call_;
        copy->workspace_bytes_ = workspace_bytes_;
        return copy;
    });
}

bool OperatorPlugin::counts_match(int32_t input_count, int32_t output_count) const {
    return input_count == op_.spec.inputs && output_count == op_.outputs();
}

int32_t OperatorPlugin::getOutputDataTypes(DataType* outputs, int32_t output_count, const DataType* inputs,
                                           int32_t input_count) const noexcept {
    if (!counts_match(input_count, output_count)) return -1;
    const DataType model = model_type(op_, [&](int32_t i) { return inputs[i]; });
    for (int32_t i = 0; i < output_count; ++i) outputs[i] = data_type(op_.output(i).type, model);
    return 0;
}

int32_t OperatorPlugin::getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                                        const nvinfer1::DimsExprs*, int32_t, nvinfer1::DimsExprs* outputs,
                                        int32_t output_count, nvinfer1::IExprBuilder& builder) noexcept {
    if (!counts_match(input_count, output_count)) return -1;
    for (int32_t i = 0; i < input_count; ++i) {
        const TensorSpec& spec = op_.input(i);
        if (inputs[i].nbDims == spec.rank) continue;
        log_error(std::string(op_.spec.name) + ": input " + spec.name + " must have " +
                  std::to_string(spec.rank) + " dimensions, not " + std::to_string(inputs[i].nbDims));
        return -1;
    }
    output_shapes(op_, attributes_, inputs, outputs, builder);
    return 0;
}

bool OperatorPlugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors,
                                               int32_t input_count, int32_t output_count) noexcept {
    if (!counts_match(input_count, output_count) || position < 0 || position >= input_count + output_count)
        return false;
    const PluginTensorDesc& desc = tensors[position].desc;
    const TensorSpec& spec = op_.spec.tensor[position];
    if (desc.format != nvinfer1::TensorFormat::kLINEAR || !type_fits(spec.type, desc.type)) return false;
    // Only tensors before this one have their types; the first tensor of the model's type decides for the
    // rest.
    if (spec.type != Type::kModel) return true;
    return desc.type == model_type(op_, [&](int32_t i) { return tensors[i].desc.type; });
}

int32_t OperatorPlugin::configurePlugin(const DynamicPluginTensorDesc*, int32_t input_count,
                                        const DynamicPluginTensorDesc*, int32_t output_count) noexcept {
    return counts_match(input_count, output_count) ? 0 : -1;
}

size_t OperatorPlugin::getWorkspaceSize(const DynamicPluginTensorDesc* inputs, int32_t input_count,
                                        const DynamicPluginTensorDesc*, int32_t output_count) const noexcept {
    if (!counts_match(input_count, output_count)) return 0;
    return guarded<size_t>(op_, "workspace query failed: ", 0, [&] {
        // Workspace sizes grow with every size above 0, so two shapes of the profile cover all: the largest,
        // and the largest whose tensors are empty if they may be.
        const DataType model = model_type(op_, [&](int32_t i) { return inputs[i].desc.type; });
        std::vector<Dims> largest;
        for (int32_t i = 0; i < input_count; ++i) largest.push_back(inputs[i].max);
        std::vector<Dims> empty = largest;
        for (int32_t i = 0; i < input_count; ++i)
            for (int32_t j = 0; j < empty[i].nbDims; ++j)
                if (inputs[i].min.d[j] == 0) empty[i].d[j] = 0;
        size_t most = 0;
        for (const std::vector<Dims>& shapes : {largest, empty}) {
            PluginCall call;
            if (call.resolve(op_, attributes_, shapes, dtype_of(model)).empty())
                most = std::max(most, call.workspace(op_));
        }
        return most;
    });
}

int32_t OperatorPlugin::onShapeChange(const PluginTensorDesc* inputs, int32_t input_count,
                                      const PluginTensorDesc*, int32_t output_count) noexcept {
    if (!counts_match(input_count, output_count)) return -1;
    return guarded(op_, "", -1, [&] {
        std::vector<Dims> dims;
        for (int32_t i = 0; i < input_count; ++i) dims.push_back(inputs[i].dims);
        const DataType model = model_type(op_, [&](int32_t i) { return inputs[i].type; });
        const std::string wrong = call_.resolve(op_, attributes_, dims, dtype_of(model));
        ready_ = wrong.empty();
        if (!ready_) {
            std::string sentence = std::string(op_.spec.name) +
                                   ": the sizes of the inputs contradict each other (" + wrong + "):";
            for (int32_t i = 0; i < input_count; ++i)
                sentence += std::string(" ") + op_.input(i).name + " " + text(dims[i]);
            log_error(sentence);
            return -1;
        }
        workspace_bytes_ = call_.workspace(op_);
        return 0;
    });
}

int32_t OperatorPlugin::enqueue(const PluginTensorDesc* input_descs, const PluginTensorDesc* output_descs,
                                const void* const* inputs, void* const* outputs, void* workspace,
                                cudaStream_t stream) noexcept {
    return guarded(op_, "", -1, [&] {
        if (!ready_) {
            if (onShapeChange(input_descs, op_.spec.inputs, output_descs, op_.outputs()) != 0) return -1;
        }
        const h2o_status status = call_.enqueue(op_, inputs, outputs, workspace, workspace_bytes_, stream);
        if (status == H2O_OK) return 0;
        static const char* const reasons[] = {"", "a bad argument", "a head size or type without a kernel",
                                              "too little workspace"};
        const char* const reason = status == H2O_CUDA_ERROR ? h2o_cuda_last_error() : reasons[status];
        log_error(std::string(op_.spec.name) + ": " + reason);
        return static_cast<int>(status);
    });
}

const nvinfer1::PluginFieldCollection* OperatorPlugin::getFieldsToSerialize() noexcept {
    return guarded<const nvinfer1::PluginFieldCollection*>(op_, "", nullptr, [this] {
        fields_ = fields_of(op_.spec, &attributes_);
        collection_.nbFields = static_cast<int32_t>(fields_.size());
        collection_.fields = fields_.data();
        return &collection_;
    });
}

OperatorCreator::OperatorCreator(const Operator& op) : op_(op), fields_(fields_of(op.spec, nullptr)) {
    collection_.nbFields = static_cast<int32_t>(fields_.size());
    collection_.fields = fields_.data();
}

nvinfer1::IPluginV3* OperatorCreator::createPlugin(const char* name,
                                                   const nvinfer1::PluginFieldCollection* fields,
                                                   nvinfer1::TensorRTPhase) noexcept {
    return guarded<OperatorPlugin*>(op_, "", nullptr, [&]() -> OperatorPlugin* {
        Attributes attributes;
        const std::string error = read_attributes(op_.spec, fields, attributes);
        if (error.empty()) return new OperatorPlugin(op_, std::move(attributes));
        log_error(std::string(op_.spec.name) + " (" + (name ? name : "unnamed") + "): " + error);
        return nullptr;
    });
}

}  // namespace h2o::trt
