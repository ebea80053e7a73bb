// Attributes of an operator on their way in and out of TensorRT's plugin fields.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "h2o/operator.h"

namespace h2o::trt {

// Values in the order of an operator's attributes. Ints are 32 bits, the width the ONNX parser hands over.
using Attributes = std::vector<h2o_attribute>;

// False, with a sentence in `error`, when an attribute is missing, of another type, or out of its range.
bool read_attributes(const OperatorSpec& op, const nvinfer1::PluginFieldCollection* fields,
                     Attributes& attributes, std::string& error);

// Fields that name each attribute; with `attributes`, they point at its values, which must outlive them.
std::vector<nvinfer1::PluginField> fields_of(const OperatorSpec& op, const Attributes* attributes);

}  // namespace h2o::trt
