// h2o_trt_conformance LIBRARY: loads a plugin library and checks every plugin in it. Exit code 0 when all is
// well. enqueue runs where there is a device (or its emulation); the rest needs none.

#include <dlfcn.h>

#include <map>
#include <string>

#include "conformance.h"
#include "h2o/operator.h"

namespace test {
int failures = 0;
int checks = 0;
std::string context;
}  // namespace test

namespace conformance {

std::vector<std::string> logged;

namespace {

using nvinfer1::DataType;

class Logger final : public nvinfer1::ILogger {
  public:
    void log(Severity severity, const char* message) noexcept override {
        EXPECT(severity == Severity::kERROR);
        logged.emplace_back(message);
    }
};

class Finder final : public nvinfer1::ILoggerFinder {
  public:
    nvinfer1::ILogger* findLogger() override { return &logger_; }

  private:
    Logger logger_;
};

bool has_device() {
#ifdef H2O_EMULATED
    return true;
#else
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
#endif
}

int run(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    using GetCreators = nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&);
    using SetLoggerFinder = void (*)(nvinfer1::ILoggerFinder*);
    const auto get = reinterpret_cast<GetCreators>(dlsym(library, "getCreators"));
    const auto set = reinterpret_cast<SetLoggerFinder>(dlsym(library, "setLoggerFinder"));
    if (!get || !set) {
        std::fprintf(stderr, "%s exports no getCreators or no setLoggerFinder\n", path);
        return 1;
    }
    static Finder finder;
    set(&finder);
    int32_t count = 0;
    nvinfer1::IPluginCreatorInterface* const* all = get(count);
    Creators creators;
    for (int32_t i = 0; i < count; ++i) {
        const nvinfer1::InterfaceInfo info = all[i]->getInterfaceInfo();
        EXPECT(std::string(info.kind) == "PLUGIN CREATOR_V3ONE");
        auto* creator = static_cast<nvinfer1::IPluginCreatorV3One*>(all[i]);
        EXPECT(std::string(creator->getPluginNamespace()) == "h2o");
        EXPECT(std::string(creator->getPluginVersion()) == "1");
        creators[creator->getPluginName()] = creator;
    }
    const std::vector<Node> wanted = nodes(DataType::kFLOAT);
    EXPECT(creators.size() == wanted.size() && count == static_cast<int32_t>(wanted.size()));

    check_lifetime(creators);
    std::printf("lifetime %5d checks, %d failed\n", test::checks, test::failures);
    if (has_device()) {
        const int before = test::checks, failed = test::failures;
        check_enqueue(creators);
        std::printf("enqueue  %5d checks, %d failed\n", test::checks - before, test::failures - failed);
    } else {
        std::printf("enqueue  not run: there is no device\n");
    }
    return test::failures == 0 ? 0 : 1;
}

}  // namespace

nvinfer1::Dims dims_of(const std::vector<int64_t>& sizes) {
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<int32_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) dims.d[i] = sizes[i];
    return dims;
}

nvinfer1::PluginTensorDesc desc_of(const std::vector<int64_t>& sizes, DataType type) {
    nvinfer1::PluginTensorDesc desc{};
    desc.dims = dims_of(sizes);
    desc.type = type;
    desc.format = nvinfer1::TensorFormat::kLINEAR;
    return desc;
}

std::vector<nvinfer1::DynamicPluginTensorDesc> dynamic_descs(const Node& node) {
    std::vector<nvinfer1::DynamicPluginTensorDesc> descs;
    const auto add = [&](const std::vector<int64_t>& sizes, DataType type) {
        nvinfer1::DynamicPluginTensorDesc desc{};
        desc.desc = desc_of(sizes, type);
        desc.min = desc.max = desc.opt = desc.desc.dims;
        if (desc.min.nbDims == 3)
            desc.min.d[0] = 1;  // a profile from one row up: only its end says what is needed
        descs.push_back(desc);
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) add(node.inputs[i], node.input_types[i]);
    for (size_t i = 0; i < node.outputs.size(); ++i) add(node.outputs[i], node.output_types[i]);
    return descs;
}

namespace {

using Numbers = std::map<std::string, int64_t>;

// Sizes and integers by name, as the table has them; and those that are others for an operator.
const Numbers kNumbers = {{"n", 20},    {"w", 5},    {"Hq", 4},         {"Hkv", 2},         {"Hs", 2},
                          {"d", 64},    {"dv", 64},  {"cap", 90},       {"M", 12},          {"Mp", 12},
                          {"t", 3},     {"Hl", 2},   {"chunk_size", 8}, {"score_heads", 2}, {"local", 4},
                          {"heavy", 8}, {"tile", 8}, {"stride", 4},     {"reach", 1}};
const std::map<std::string, Numbers> kOthers = {
    {"ChunkedIntraAttention", {{"dv", 32}}},    {"MemoryGather", {{"dv", 32}}},
    {"MemoryAttention", {{"dv", 32}}},          {"OnlineSoftmaxFusion", {{"dv", 32}}},
    {"MemoryFusedAttention", {{"dv", 32}}},     {"QuerySelect", {{"M", 10}, {"heavy", 6}}},
    {"CachedAttention", {{"n", 1}, {"dv", 32}}}};

int64_t number(const std::string& op, const std::string& name) {
    const auto others = kOthers.find(op);
    if (others != kOthers.end() && others->second.count(name)) return others->second.at(name);
    return kNumbers.at(name);
}

DataType type_of(h2o::Type type, DataType model) {
    switch (type) {
        case h2o::Type::kModel:
            return model;
        case h2o::Type::kFloat:
            return DataType::kFLOAT;
        case h2o::Type::kInt32:
            return DataType::kINT32;
        case h2o::Type::kInt64:
            return DataType::kINT64;
    }
    return model;
}

Node node_of(const h2o::OperatorSpec& op, DataType model) {
    Node node;
    node.op = op.name;
    for (int i = 0; i < op.attributes; ++i) {
        const h2o::AttributeSpec& each = op.attribute[i];
        if (each.integer) {
            const int64_t value =
                each.of_model == h2o::OfModel::kWindow ? each.absent : number(op.name, each.name);
            node.fields.push_back({each.name, false, static_cast<int32_t>(value), 0, each.optional});
        } else {
            const float value = each.of_model == h2o::OfModel::kSoftcap ? kSoftcap : kScale;
            node.fields.push_back({each.name, true, 0, value, each.optional});
        }
    }
    for (int i = 0; i < op.tensors; ++i) {
        std::vector<int64_t> sizes;
        for (int axis = 0; axis < op.tensor[i].rank; ++axis) {
            const int size = op.tensor[i].sizes[axis];
            sizes.push_back(size < 0 ? -size : number(op.name, h2o::kSizeNames[size]));
        }
        (i < op.inputs ? node.inputs : node.outputs).push_back(sizes);
        (i < op.inputs ? node.input_types : node.output_types).push_back(type_of(op.tensor[i].type, model));
    }
    return node;
}

}  // namespace

std::vector<Node> nodes(DataType model) {
    std::vector<Node> all;
    for (const h2o::OperatorSpec& op : h2o::kOperators) {
#define H2O_NODE(Name) \
    if (std::string(op.name) == #Name) all.push_back(node_of(op, model));
        H2O_PLUGIN_OPERATORS(H2O_NODE)
#undef H2O_NODE
    }
    return all;
}

Plugin create(nvinfer1::IPluginCreatorV3One& creator, const std::vector<Field>& fields,
              nvinfer1::TensorRTPhase phase) {
    std::vector<nvinfer1::PluginField> all;
    for (const Field& field : fields)
        all.emplace_back(
            field.name.c_str(), field.real ? static_cast<const void*>(&field.number) : &field.integer,
            field.real ? nvinfer1::PluginFieldType::kFLOAT32 : nvinfer1::PluginFieldType::kINT32, 1);
    const nvinfer1::PluginFieldCollection collection{static_cast<int32_t>(all.size()), all.data()};
    return Plugin(creator.createPlugin("conformance", &collection, phase));
}

}  // namespace conformance

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s libh2o_trt_plugins.so\n", argv[0]);
        return 2;
    }
    return conformance::run(argv[1]);
}
