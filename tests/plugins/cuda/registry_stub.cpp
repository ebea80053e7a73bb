// A library that stands in for libnvinfer.so: a plugin registry with the layout of the headers it is compiled
// with.

#include <NvInferRuntime.h>

#include <cstdlib>
#include <string>

namespace {

using nvinfer1::IPluginCreatorInterface;

std::string registered;

class Registry final : public nvinfer1::IPluginRegistry {
  public:
    bool registerCreator(IPluginCreatorInterface& creator, const char* name_space) noexcept override {
        auto& named = static_cast<nvinfer1::IPluginCreatorV3One&>(creator);
        registered +=
            std::string(name_space) + "." + named.getPluginName() + "." + named.getPluginVersion() + "\n";
        return true;
    }

    // Nothing else is called.
#if NV_TENSORRT_MAJOR < 11
    bool registerCreator(nvinfer1::IPluginCreator&, const char*) noexcept override { std::abort(); }
    nvinfer1::IPluginCreator* const* getPluginCreatorList(int32_t*) const noexcept override { std::abort(); }
    nvinfer1::IPluginCreator* getPluginCreator(const char*, const char*, const char*) noexcept override {
        std::abort();
    }
    bool deregisterCreator(const nvinfer1::IPluginCreator&) noexcept override { std::abort(); }
#endif
#if NV_TENSORRT_VERSION >= 101300
    IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t*) noexcept override { std::abort(); }
#endif
    void setErrorRecorder(nvinfer1::IErrorRecorder*) noexcept override { std::abort(); }
    nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { std::abort(); }
    bool isParentSearchEnabled() const override { std::abort(); }
    void setParentSearchEnabled(bool) override { std::abort(); }
    void* loadLibrary(const char*) noexcept override { std::abort(); }
    void deregisterLibrary(void*) noexcept override { std::abort(); }
    IPluginCreatorInterface* const* getAllCreators(int32_t*) const noexcept override { std::abort(); }
    IPluginCreatorInterface* getCreator(const char*, const char*, const char*) noexcept override {
        std::abort();
    }
    bool deregisterCreator(const IPluginCreatorInterface&) noexcept override { std::abort(); }
    nvinfer1::IPluginResource* acquirePluginResource(const char*,
                                                     nvinfer1::IPluginResource*) noexcept override {
        std::abort();
    }
    int32_t releasePluginResource(const char*) noexcept override { std::abort(); }
};

}  // namespace

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept {
    static auto* registry = new Registry;
    return registry;
}

// Other plugin libraries have one too, and the process may have theirs in its global scope.
extern "C" IPluginCreatorInterface* const* getCreators(int32_t&) {
    std::abort();
}

extern "C" const char* registered_creators() {
    return registered.c_str();
}
