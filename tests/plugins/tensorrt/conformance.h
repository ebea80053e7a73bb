// Takes the plugins of a library through their life as TensorRT does, without TensorRT.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support.h"

namespace conformance {

struct Field {
    std::string name;
    bool real = false;
    int32_t integer = 0;
    float number = 0;
    bool optional = false;  // whether a node may omit it
};

// A node as a network would hold it: its attributes, and the sizes and types of its tensors.
struct Node {
    std::string op;
    std::vector<Field> fields;
    std::vector<std::vector<int64_t>> inputs, outputs;
    std::vector<nvinfer1::DataType> input_types, output_types;
};

constexpr float kScale = 0.125f, kSoftcap = 3.0f;  // attributes of every node that has them

// One node of each operator, in float32 or float16; none has a window.
std::vector<Node> nodes(nvinfer1::DataType model);

// The library's creators by name.
using Creators = std::map<std::string, nvinfer1::IPluginCreatorV3One*>;

using Plugin = std::unique_ptr<nvinfer1::IPluginV3>;
Plugin create(nvinfer1::IPluginCreatorV3One& creator, const std::vector<Field>& fields,
              nvinfer1::TensorRTPhase phase);

nvinfer1::Dims dims_of(const std::vector<int64_t>& sizes);
nvinfer1::PluginTensorDesc desc_of(const std::vector<int64_t>& sizes, nvinfer1::DataType type);
std::vector<nvinfer1::DynamicPluginTensorDesc> dynamic_descs(const Node& node);

template <class T>
T* capability(nvinfer1::IPluginV3& plugin, nvinfer1::PluginCapabilityType type) {
    return static_cast<T*>(plugin.getCapabilityInterface(type));
}
inline nvinfer1::IPluginV3OneBuild* build_of(nvinfer1::IPluginV3& plugin) {
    return capability<nvinfer1::IPluginV3OneBuild>(plugin, nvinfer1::PluginCapabilityType::kBUILD);
}
inline nvinfer1::IPluginV3OneRuntime* runtime_of(nvinfer1::IPluginV3& plugin) {
    return capability<nvinfer1::IPluginV3OneRuntime>(plugin, nvinfer1::PluginCapabilityType::kRUNTIME);
}

extern std::vector<std::string> logged;  // sentences the plugins handed to the logger

void check_lifetime(const Creators& creators);
void check_enqueue(const Creators& creators);

}  // namespace conformance
