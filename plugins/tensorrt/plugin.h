// One plugin class for every operator. No exception crosses TensorRT's interface.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "operator.h"

namespace h2o::trt {

constexpr const char* kNamespace = "h2o";
constexpr const char* kVersion = "1";

class OperatorPlugin final : public nvinfer1::IPluginV3,
                             public nvinfer1::IPluginV3OneCore,
                             public nvinfer1::IPluginV3OneBuild,
                             public nvinfer1::IPluginV3OneRuntime {
  public:
    OperatorPlugin(const Operator& op, Attributes attributes);

    nvinfer1::IPluginCapability* getCapabilityInterface(
        nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    const char* getPluginName() const noexcept override { return op_.spec.name; }
    const char* getPluginVersion() const noexcept override { return kVersion; }
    const char* getPluginNamespace() const noexcept override { return kNamespace; }

    int32_t getNbOutputs() const noexcept override { return op_.outputs(); }
    int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t output_count,
                               const nvinfer1::DataType* inputs, int32_t input_count) const noexcept override;
    int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                            const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                            nvinfer1::DimsExprs* outputs, int32_t output_count,
                            nvinfer1::IExprBuilder& builder) noexcept override;
    bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors,
                                   int32_t input_count, int32_t output_count) noexcept override;
    int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                            const nvinfer1::DynamicPluginTensorDesc* outputs,
                            int32_t output_count) noexcept override;
    size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                            const nvinfer1::DynamicPluginTensorDesc* outputs,
                            int32_t output_count) const noexcept override;

    int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::PluginTensorDesc* outputs, int32_t output_count) noexcept override;
    int32_t enqueue(const nvinfer1::PluginTensorDesc* input_descs,
                    const nvinfer1::PluginTensorDesc* output_descs, const void* const* inputs,
                    void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override {
        return clone();
    }
    const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

  private:
    bool counts_match(int32_t input_count, int32_t output_count) const;

    const Operator& op_;
    Attributes attributes_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
    // For the shapes of the last onShapeChange, so that enqueue computes nothing.
    bool ready_ = false;
    PluginCall call_;
    size_t workspace_bytes_ = 0;
};

class OperatorCreator final : public nvinfer1::IPluginCreatorV3One {
  public:
    explicit OperatorCreator(const Operator& op);

    nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                      nvinfer1::TensorRTPhase phase) noexcept override;
    const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
    const char* getPluginName() const noexcept override { return op_.spec.name; }
    const char* getPluginVersion() const noexcept override { return kVersion; }
    const char* getPluginNamespace() const noexcept override { return kNamespace; }

  private:
    const Operator& op_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
};

// Uses TensorRT's logger if there is one, otherwise standard error.
void log_error(const std::string& sentence) noexcept;
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

}  // namespace h2o::trt
