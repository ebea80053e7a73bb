// Converts an operator's attributes from and to TensorRT's plugin fields.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "h2o/operator.h"

namespace h2o::trt {

// Values in the order of the operator's attributes. Ints have 32 bits, as the ONNX parser passes them.
using Attributes = std::vector<h2o_attribute>;

// An empty string, or a sentence: an attribute is missing, has another type, or is out of range.
std::string read_attributes(const OperatorSpec& op, const nvinfer1::PluginFieldCollection* fields,
                            Attributes& attributes);

// A field for each attribute; with `attributes`, fields point at its values, which must outlive them.
std::vector<nvinfer1::PluginField> fields_of(const OperatorSpec& op, const Attributes* attributes);

}  // namespace h2o::trt
