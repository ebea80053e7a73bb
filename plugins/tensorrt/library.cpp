// The functions that TensorRT looks up when it loads the library (IPluginRegistry::loadLibrary, trtexec
// --dynamicPlugins): one to set its logger, and one for the creators. Also the registration for programs that
// load the library themselves.

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "plugin.h"

namespace h2o::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

const std::vector<nvinfer1::IPluginCreatorInterface*>& creators() {
    static std::vector<std::unique_ptr<OperatorCreator>> owned;
    static const std::vector<nvinfer1::IPluginCreatorInterface*> all = [] {
        std::vector<nvinfer1::IPluginCreatorInterface*> creators;
        for (const Operator& op : operators()) {
            owned.push_back(std::make_unique<OperatorCreator>(op));
            creators.push_back(owned.back().get());
        }
        return creators;
    }();
    return all;
}

// Polygraphy and trtexec --staticPlugins only dlopen the library, and expect it to register its creators by
// then. Not always: loadLibrary fails if creators are registered before it has looked them up.
__attribute__((constructor)) void register_if_asked() noexcept {
    const char* asked = std::getenv("H2O_TRT_REGISTER");
    if (!asked || std::strcmp(asked, "1") != 0) return;
    // Polygraphy does this before it imports TensorRT. dlopen returns the library of the process or loads it,
    // and never another major version, whose registry has another layout.
    const std::string name = "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
    void* tensorrt = dlopen(name.c_str(), RTLD_LAZY);
    void* found = tensorrt ? dlsym(tensorrt, "getPluginRegistry") : nullptr;
    if (!found) {
        log_error(std::string("not registered: ") + dlerror());
        return;
    }
    nvinfer1::IPluginRegistry* registry = reinterpret_cast<nvinfer1::IPluginRegistry* (*)()>(found)();
    for (size_t i = 0; i < creators().size(); ++i)
        if (!registry->registerCreator(*creators()[i], kNamespace))
            log_error(std::string(operators()[i].spec.name) + ": TensorRT did not register it");
    // The registry now points into this library, which must stay loaded when the program closes it.
    Dl_info self;
    if (dladdr(&logger_finder, &self)) dlopen(self.dli_fname, RTLD_LAZY | RTLD_NODELETE);
}

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept {
    logger_finder = finder;
}

void log_error(const std::string& sentence) noexcept {
    nvinfer1::ILoggerFinder* finder = logger_finder;
    nvinfer1::ILogger* logger = finder ? finder->findLogger() : nullptr;
    if (logger)
        logger->log(nvinfer1::ILogger::Severity::kERROR, sentence.c_str());
    else
        std::fprintf(stderr, "h2o plugins: %s\n", sentence.c_str());
}

}  // namespace h2o::trt

#define H2O_EXPORT extern "C" __attribute__((visibility("default")))

H2O_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    h2o::trt::set_logger_finder(finder);
}

H2O_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    const std::vector<nvinfer1::IPluginCreatorInterface*>& creators = h2o::trt::creators();
    count = static_cast<int32_t>(creators.size());
    return creators.data();
}
