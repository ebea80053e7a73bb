// h2o_trt_conformance LIBRARY: loads a plugin library and checks every plugin in it. Exit code 0 when all is
// well. enqueue runs where there is a device (or its emulation); the rest needs none.

#include <dlfcn.h>

#include <set>

#include "conformance.h"

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

std::vector<Node> nodes(DataType t) {
    const DataType f = DataType::kFLOAT, i32 = DataType::kINT32, i64 = DataType::kINT64;
    const Field scale{"scale", true, 0, 0.125f};
    const std::vector<int64_t> q = {20, 4, 64}, k = {20, 2, 64}, cache = {90, 2, 64}, gathered = {2, 12, 64};
    // Values of another size than keys, of operators that take them.
    const std::vector<int64_t> v = {20, 2, 32}, values = {90, 2, 32}, v_gathered = {2, 12, 32},
                               o = {20, 4, 32};
    const std::vector<int64_t> state = {20, 4}, memory = {2, 12}, one = {1, 4, 64}, means = {12, 2, 64};
    return {
        {"ChunkedIntraAttention",
         {{"chunk_size", false, 8, 0}, scale, {"score_heads", false, 2, 0}},
         {q, k, v},
         {o, state, state, {20, 2}},
         {t, t, t},
         {t, f, f, f}},
        {"MemoryGather", {}, {cache, values, memory}, {gathered, v_gathered}, {t, t, i32}, {t, t}},
        {"MemoryAttention",
         {scale},
         {q, gathered, v_gathered},
         {o, state, state, memory},
         {t, t, t},
         {t, f, f, f}},
        {"OnlineSoftmaxFusion",
         {},
         {o, state, state, o, state, state},
         {o, state, state},
         {t, f, f, t, f, f},
         {t, f, f}},
        {"CandidateScore", {scale}, {{5, 4, 64}, k, gathered}, {memory, {20, 2}}, {t, t, t}, {f, f}},
        {"MemorySelect",
         {{"local", false, 4, 0}, {"heavy", false, 8, 0}, {"sink", false, 1, 0}},
         {{90, 2}, memory, {2}},
         {memory},
         {f, i32, i64},
         {i32}},
        {"QuerySelect",
         {scale,
          {"tile", false, 8, 0},
          {"stride", false, 4, 0},
          {"share", false, 3, 0},
          {"reach", false, 1, 0},
          {"local", false, 4, 0},
          {"heavy", false, 6, 0},
          {"sink", false, 1, 0}},
         {q, cache, {1, 2, 12}, {3}},
         {{3, 2, 10}},
         {t, t, i32, i64},
         {i32}},
        {"CachedAttention", {scale}, {one, cache, values, {}}, {{1, 4, 32}}, {t, t, t, i64}, {t}},
        {"LandmarkUpdate",
         {{"block_size", false, 8, 0}},
         {cache, cache, means, means, {}, {}},
         {means, means},
         {t, t, f, f, i64, i64},
         {f, f}},
        {"SubquadraticAttention",
         {{"window", false, 6, 0},
          {"block_size", false, 8, 0},
          {"strides", false, 1, 0},
          {"count_bias", false, 0, 0},
          scale},
         {one, cache, cache, means, means, {2}, {}},
         {one},
         {t, t, t, f, f, i32, i64},
         {t}},
        {"VerticalSlashSelect",
         {scale,
          {"vertical", false, 6, 0},
          {"slash", false, 7, 0},
          {"sink", false, 2, 0},
          {"near", false, 3, 0}},
         {q, cache, {}},
         {{4, 6}, {4, 7}},
         {t, t, i64},
         {i32, i32}},
        {"VerticalSlashAttention",
         {scale},
         {one, cache, cache, {4, 3}, {4, 2}, {}},
         {one},
         {t, t, t, i32, i32, i64},
         {t}},
        {"BlockProduct", {}, {{20, 64}, {2, 24, 4}, {2, 24}}, {{20, 24}}, {t, i32, t}, {t}},
        {"MemoryFusedAttention",
         {scale},
         {q, cache, values, memory, o, state, state},
         {o, memory},
         {t, t, t, i32, t, f, f},
         {t, f}},
    };
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
