// What TensorRT looks up when it loads the library (IPluginRegistry::loadLibrary, trtexec --dynamicPlugins,
// polygraphy run --plugins): a way to hand over its logger, and the creators.

#include <atomic>
#include <cstdio>
#include <memory>
#include <vector>

#include "plugin.h"

namespace h2o::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

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
    using h2o::trt::OperatorCreator;
    static std::vector<std::unique_ptr<OperatorCreator>> owned;
    static const std::vector<nvinfer1::IPluginCreatorInterface*> all = [] {
        std::vector<nvinfer1::IPluginCreatorInterface*> creators;
        for (const h2o::trt::Operator& op : h2o::trt::operators()) {
            owned.push_back(std::make_unique<OperatorCreator>(op));
            creators.push_back(owned.back().get());
        }
        return creators;
    }();
    count = static_cast<int32_t>(all.size());
    return all.data();
}
