#include "fields.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace h2o::trt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

const PluginField* find(const nvinfer1::PluginFieldCollection* fields, const char* name) {
    if (!fields || !fields->fields) return nullptr;
    for (int32_t i = 0; i < fields->nbFields; ++i)
        if (fields->fields[i].name && std::strcmp(fields->fields[i].name, name) == 0)
            return &fields->fields[i];
    return nullptr;
}

bool read_int(const PluginField& field, int64_t& value) {
    if (field.type == PluginFieldType::kINT32) {
        int32_t narrow;
        std::memcpy(&narrow, field.data, sizeof narrow);
        value = narrow;
        return true;
    }
    if (field.type == PluginFieldType::kINT64) {
        std::memcpy(&value, field.data, sizeof value);
        return true;
    }
    return false;
}

}  // namespace

std::string read_attributes(const OperatorSpec& op, const nvinfer1::PluginFieldCollection* fields,
                            Attributes& attributes) {
    attributes.assign(static_cast<size_t>(op.attributes), h2o_attribute());
    for (size_t i = 0; i < attributes.size(); ++i) {
        const AttributeSpec& spec = op.attribute[i];
        const std::string name = std::string("attribute ") + spec.name;
        const PluginField* field = find(fields, spec.name);
        if (!field && spec.optional) {
            attributes[i] = {spec.absent, static_cast<float>(spec.absent)};
            continue;
        }
        if (!field || !field->data) return name + " is missing";
        if (field->length != 1) return name + " must be one number";
        if (spec.integer) {
            int64_t value = 0;
            if (!read_int(*field, value)) return name + " must be an integer";
            if (value < spec.least || value > std::numeric_limits<int32_t>::max())
                return name + " is " + std::to_string(value) + "; it must be at least " +
                       std::to_string(spec.least) + " and fit in 32 bits";
            attributes[i].integer = static_cast<int32_t>(value);
        } else {
            if (field->type != PluginFieldType::kFLOAT32) return name + " must be a float";
            std::memcpy(&attributes[i].real, field->data, sizeof(float));
            const float value = attributes[i].real;
            const bool absent = spec.optional && value == static_cast<float>(spec.absent);
            if (!absent && (!(value > 0) || !std::isfinite(value)))
                return name + " is " + std::to_string(value) + "; it must be above 0";
        }
    }
    return "";
}

std::vector<PluginField> fields_of(const OperatorSpec& op, const Attributes* attributes) {
    std::vector<PluginField> fields;
    for (size_t i = 0; i < static_cast<size_t>(op.attributes); ++i) {
        const bool integer = op.attribute[i].integer;
        const void* data = nullptr;
        if (attributes)
            data = integer ? static_cast<const void*>(&(*attributes)[i].integer) : &(*attributes)[i].real;
        fields.emplace_back(op.attribute[i].name, data,
                            integer ? PluginFieldType::kINT32 : PluginFieldType::kFLOAT32, data ? 1 : 0);
    }
    return fields;
}

}  // namespace h2o::trt
