// Everything TensorRT does with a plugin before it runs: fields good and bad, clone, serialise and recreate,
// shapes, types, format combinations, workspace, shape changes.

#include <cstring>

#include "conformance.h"

namespace conformance {
namespace {

using nvinfer1::DataType;
using nvinfer1::PluginFieldType;
using nvinfer1::TensorRTPhase;

// Dimension expressions that are numbers, or unknown (-1) as the sizes of a dynamic network are.
class Size final : public nvinfer1::IDimensionExpr, public nvinfer1::apiv::VDimensionExpr {
  public:
    explicit Size(int64_t value) : value_(value) { mImpl = this; }
    ~Size() noexcept override = default;
    bool isConstant() const override { return value_ >= 0; }
    int64_t getConstantValue() const override { return value_; }
    bool isSizeTensor() const override { return false; }
    int64_t value() const { return value_; }

  private:
    int64_t value_;
};

class Builder final : public nvinfer1::IExprBuilder, public nvinfer1::apiv::VExprBuilder {
  public:
    Builder() { nvinfer1::IExprBuilder::mImpl = this; }
    ~Builder() noexcept override = default;
    const nvinfer1::IDimensionExpr* constant(int64_t value) override {
        sizes_.push_back(std::make_unique<Size>(value));
        return sizes_.back().get();
    }
    const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation, const nvinfer1::IDimensionExpr&,
                                              const nvinfer1::IDimensionExpr&) override {
        test::fail("no operator needs arithmetic on sizes");
        return nullptr;
    }
    const nvinfer1::IDimensionExpr* declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr&,
                                                      const nvinfer1::IDimensionExpr&) override {
        test::fail("no operator has a size that depends on data");
        return nullptr;
    }

  private:
    std::vector<std::unique_ptr<Size>> sizes_;
};

void check_fields(nvinfer1::IPluginCreatorV3One& creator, const Node& node) {
    const nvinfer1::PluginFieldCollection* names = creator.getFieldNames();
    EXPECT(names && names->nbFields == static_cast<int32_t>(node.fields.size()));
    for (size_t i = 0; i < node.fields.size(); ++i) {
        EXPECT(names->fields[i].name == node.fields[i].name);
        EXPECT(names->fields[i].type ==
               (node.fields[i].real ? PluginFieldType::kFLOAT32 : PluginFieldType::kINT32));
    }
    const auto refused = [&](const std::vector<Field>& fields, const char* why) {
        logged.clear();
        const bool refused = create(creator, fields, TensorRTPhase::kBUILD) == nullptr;
        ++test::checks;
        if (!refused) test::fail("created with %s", why);
        EXPECT(logged.size() == 1 && logged[0].find(node.op) == 0);
    };
    for (size_t i = 0; i < node.fields.size(); ++i) {
        std::vector<Field> fields = node.fields;
        fields.erase(fields.begin() + static_cast<int64_t>(i));
        if (!node.fields[i].optional) refused(fields, "a field missing");
        fields = node.fields;
        fields[i].real = !fields[i].real;
        refused(fields, "a field of the wrong type");
        fields = node.fields;
        fields[i].integer = -1;
        fields[i].number = -1;
        refused(fields, "a negative field");
        fields[i].number = NAN;
        refused(fields, "a field that is no number");
    }
    if (!node.fields.empty()) {
        logged.clear();
        EXPECT(creator.createPlugin("conformance", nullptr, TensorRTPhase::kBUILD) == nullptr);
        EXPECT(logged.size() == 1);
    }
}

// What TensorRT writes into an engine: names, types and bytes.
std::string serialised(nvinfer1::IPluginV3& plugin) {
    const nvinfer1::PluginFieldCollection* fields = runtime_of(plugin)->getFieldsToSerialize();
    std::string bytes;
    EXPECT(fields != nullptr);
    for (int32_t i = 0; fields && i < fields->nbFields; ++i) {
        const nvinfer1::PluginField& field = fields->fields[i];
        EXPECT(field.length == 1 && field.data);
        bytes += std::string(field.name) + ":" + std::to_string(static_cast<int>(field.type)) + ":";
        bytes.append(static_cast<const char*>(field.data), 4);
    }
    return bytes;
}

void check_copies(nvinfer1::IPluginCreatorV3One& creator, const Node& node) {
    Plugin plugin = create(creator, node.fields, TensorRTPhase::kBUILD);
    EXPECT(plugin != nullptr);
    if (!plugin) return;
    auto* core = capability<nvinfer1::IPluginV3OneCore>(*plugin, nvinfer1::PluginCapabilityType::kCORE);
    EXPECT(core && core->getPluginName() == node.op && std::string(core->getPluginNamespace()) == "h2o" &&
           std::string(core->getPluginVersion()) == "1");
    EXPECT(build_of(*plugin) && runtime_of(*plugin));
    const std::string original = serialised(*plugin);
    for (const Field& field : node.fields) {
        EXPECT(original.find(field.name + ":") != std::string::npos);
        const char* value = reinterpret_cast<const char*>(&field.integer);
        if (field.real) value = reinterpret_cast<const char*>(&field.number);
        EXPECT(original.find(std::string(value, 4)) != std::string::npos);
    }
    Plugin copy(plugin->clone());
    EXPECT(copy && serialised(*copy) == original);
    Plugin attached(runtime_of(*plugin)->attachToContext(nullptr));
    EXPECT(attached && serialised(*attached) == original);
    // Recreated from its own fields, as an engine does, after the first one is gone.
    const nvinfer1::PluginFieldCollection* fields = runtime_of(*plugin)->getFieldsToSerialize();
    Plugin again(creator.createPlugin("again", fields, TensorRTPhase::kRUNTIME));
    plugin.reset();
    EXPECT(again && serialised(*again) == original);
}

void check_shapes(nvinfer1::IPluginV3& plugin, const Node& node) {
    nvinfer1::IPluginV3OneBuild* build = build_of(plugin);
    EXPECT(build->getNbOutputs() == static_cast<int32_t>(node.outputs.size()));
    Builder builder;
    std::vector<std::unique_ptr<Size>> sizes;
    std::vector<nvinfer1::DimsExprs> in(node.inputs.size()), out(node.outputs.size());
    for (size_t i = 0; i < in.size(); ++i) {
        in[i].nbDims = static_cast<int32_t>(node.inputs[i].size());
        for (size_t axis = 0; axis < node.inputs[i].size(); ++axis) {
            sizes.push_back(std::make_unique<Size>(node.inputs[i][axis]));
            in[i].d[axis] = sizes.back().get();
        }
    }
    const int32_t inputs = static_cast<int32_t>(in.size()), outputs = static_cast<int32_t>(out.size());
    EXPECT(build->getOutputShapes(in.data(), inputs, nullptr, 0, out.data(), outputs, builder) == 0);
    for (size_t i = 0; i < out.size(); ++i) {
        EXPECT(out[i].nbDims == static_cast<int32_t>(node.outputs[i].size()));
        for (int32_t axis = 0; axis < out[i].nbDims; ++axis)
            EXPECT(static_cast<const Size*>(out[i].d[axis])->value() == node.outputs[i][axis]);
    }
    EXPECT(build->getOutputShapes(in.data(), inputs - 1, nullptr, 0, out.data(), outputs, builder) != 0);
    in[0].nbDims = 1 + in[0].nbDims % 3;
    logged.clear();
    EXPECT(build->getOutputShapes(in.data(), inputs, nullptr, 0, out.data(), outputs, builder) != 0);
    EXPECT(logged.size() == 1);

    std::vector<DataType> types(node.outputs.size());
    EXPECT(build->getOutputDataTypes(types.data(), outputs, node.input_types.data(), inputs) == 0);
    EXPECT(types == node.output_types);
}

// The two model types differ in several tensors at once. Changing any single tensor, including the first,
// must be refused, because the others then disagree with it.
void check_formats(nvinfer1::IPluginV3& plugin, const Node& node) {
    nvinfer1::IPluginV3OneBuild* build = build_of(plugin);
    const std::vector<nvinfer1::DynamicPluginTensorDesc> right = dynamic_descs(node);
    const int32_t inputs = static_cast<int32_t>(node.inputs.size()),
                  outputs = static_cast<int32_t>(node.outputs.size());
    const auto accepted = [&](const std::vector<nvinfer1::DynamicPluginTensorDesc>& descs) {
        for (int32_t i = 0; i < inputs + outputs; ++i)
            if (!build->supportsFormatCombination(i, descs.data(), inputs, outputs)) return false;
        return true;
    };
    EXPECT(accepted(right));
    int model_tensors = 0;
    for (const auto* types : {&node.input_types, &node.output_types})
        for (const DataType type : *types) model_tensors += type == DataType::kHALF;
    for (size_t i = 0; i < right.size(); ++i) {
        for (const DataType type :
             {DataType::kFLOAT, DataType::kHALF, DataType::kINT8, DataType::kINT32, DataType::kBOOL,
              DataType::kUINT8, DataType::kFP8, DataType::kBF16, DataType::kINT64}) {
            auto descs = right;
            descs[i].desc.type = type;
            // Where one tensor alone is of the model's type, either float type is right for it.
            const bool free =
                model_tensors == 1 && right[i].desc.type == DataType::kHALF && type == DataType::kFLOAT;
            EXPECT(accepted(descs) == (type == right[i].desc.type || free));
        }
        for (int format = 1; format <= 12; ++format) {
            auto descs = right;
            descs[i].desc.format = static_cast<nvinfer1::TensorFormat>(format);
            EXPECT(!accepted(descs));
        }
    }
    EXPECT(!build->supportsFormatCombination(0, right.data(), inputs + 1, outputs));
    EXPECT(!build->supportsFormatCombination(inputs + outputs, right.data(), inputs, outputs));
    EXPECT(build->configurePlugin(right.data(), inputs, right.data() + inputs, outputs) == 0);
    EXPECT(build->configurePlugin(right.data(), inputs, right.data() + inputs, outputs + 1) != 0);

    const bool needs = node.op == "MemoryAttention" || node.op == "MemoryFusedAttention" ||
                       node.op == "CandidateScore" || node.op == "CachedAttention" ||
                       node.op == "QuerySelect";
    EXPECT((build->getWorkspaceSize(right.data(), inputs, right.data() + inputs, outputs) > 0) == needs);
}

void check_shape_change(nvinfer1::IPluginV3& plugin, const Node& node) {
    std::vector<nvinfer1::PluginTensorDesc> in, out;
    for (size_t i = 0; i < node.inputs.size(); ++i)
        in.push_back(desc_of(node.inputs[i], node.input_types[i]));
    for (size_t i = 0; i < node.outputs.size(); ++i)
        out.push_back(desc_of(node.outputs[i], node.output_types[i]));
    const int32_t inputs = static_cast<int32_t>(in.size()), outputs = static_cast<int32_t>(out.size());
    EXPECT(runtime_of(plugin)->onShapeChange(in.data(), inputs, out.data(), outputs) == 0);
    // Heads that do not divide, or sets that belong to nobody.
    for (auto& desc : in)
        if (desc.dims.nbDims > 1) {
            desc.dims.d[desc.dims.nbDims == 2 ? 0 : 1] = 7;
            break;
        }
    logged.clear();
    const int32_t wrong = runtime_of(plugin)->onShapeChange(in.data(), inputs, out.data(), outputs);
    const bool any_heads_do = node.op == "OnlineSoftmaxFusion" || node.op == "MemorySelect";
    if (!any_heads_do && node.op != "MemoryGather") EXPECT(wrong != 0 && logged.size() == 1);
}

}  // namespace

void check_lifetime(const Creators& creators) {
    for (const DataType model : {DataType::kFLOAT, DataType::kHALF})
        for (const Node& node : nodes(model)) {
            test::context = node.op + (model == DataType::kHALF ? " float16" : " float32");
            const auto found = creators.find(node.op);
            EXPECT(found != creators.end());
            if (found == creators.end()) continue;
            check_fields(*found->second, node);
            check_copies(*found->second, node);
            const Plugin plugin = create(*found->second, node.fields, TensorRTPhase::kBUILD);
            check_shapes(*plugin, node);
            if (model == DataType::kHALF) check_formats(*plugin, node);
            check_shape_change(*plugin, node);
        }
}

}  // namespace conformance
