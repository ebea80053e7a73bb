#include "trial.h"

#include <algorithm>
#include <numeric>

namespace conformance {
namespace {

using nvinfer1::DataType;
using test::Buffer;

size_t count(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), size_t{1},
                           [](size_t a, int64_t b) { return a * size_t(b); });
}
h2o_dtype dtype_of(DataType type) {
    return type == DataType::kHALF ? H2O_F16 : H2O_F32;
}
size_t bytes_of(DataType type) {
    return type == DataType::kHALF ? 2 : type == DataType::kINT64 ? 8 : 4;
}

// Whether the operator's node has values of another size than keys.
bool has_values_of_their_own(const std::string& op) {
    return op == "ChunkedIntraAttention" || op == "MemoryAttention" || op == "MemoryFusedAttention" ||
           op == "CachedAttention";
}

test::Case case_of(const Node& node, h2o_dtype dtype) {
    const bool capped = std::any_of(node.fields.begin(), node.fields.end(),
                                    [](const Field& field) { return field.name == "softcap"; });
    const int32_t values = has_values_of_their_own(node.op) ? kDV : kD;
    return {{kHeads, kKvHeads, kKvHeads, kD, kScale, dtype, values, 0, capped ? kSoftcap : 0.0f}, 1};
}

}  // namespace

Trial::Trial(const Node& n, h2o_dtype model, const Creators& creators, std::mt19937& generator)
    : node(n), c(case_of(n, model)), random(generator), creators_(creators) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
        const DataType type = node.input_types[i];
        const bool integer = type == DataType::kINT32 || type == DataType::kINT64;
        floats.push_back(integer ? nullptr
                                 : std::make_unique<test::Numbers>(count(node.inputs[i]), dtype_of(type)));
        integers.push_back(integer ? std::make_unique<Buffer>(count(node.inputs[i]) * bytes_of(type), false)
                                   : nullptr);
        if (!integer) fill_normal(*floats[i], dtype_of(type), 1, random);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
        outputs.push_back(
            std::make_unique<Buffer>(count(node.outputs[i]) * bytes_of(node.output_types[i]), true));
    memory = test::random_memory(kKvHeads, kSlots, 60, random);
}

std::vector<double> Trial::out(size_t i) const {
    return test::download(*outputs[i], dtype_of(node.output_types[i]));
}

void Trial::run() {
    const Plugin plugin = create(*creators_.at(node.op), node.fields, nvinfer1::TensorRTPhase::kRUNTIME);
    const auto dynamic = dynamic_descs(node);
    const int32_t inputs = static_cast<int32_t>(node.inputs.size()),
                  count = static_cast<int32_t>(node.outputs.size());
    const size_t bytes =
        build_of(*plugin)->getWorkspaceSize(dynamic.data(), inputs, dynamic.data() + inputs, count);
    Buffer workspace(bytes, true);
    std::vector<nvinfer1::PluginTensorDesc> descs;
    for (const auto& desc : dynamic) descs.push_back(desc.desc);
    const Plugin attached(runtime_of(*plugin)->attachToContext(nullptr));  // what an execution context runs
    nvinfer1::IPluginV3OneRuntime* runtime = runtime_of(*attached);
    EXPECT(runtime->onShapeChange(descs.data(), inputs, descs.data() + inputs, count) == 0);
    std::vector<const void*> from;
    std::vector<void*> to;
    for (size_t i = 0; i < node.inputs.size(); ++i)
        from.push_back(floats[i] ? floats[i]->buffer.device() : integers[i]->device());
    for (auto& output : outputs) {
        output->reset();
        to.push_back(output->device());
    }
    EXPECT(runtime->enqueue(descs.data(), descs.data() + inputs, from.data(), to.data(), workspace.device(),
                            nullptr) == 0);
    test::must(cudaDeviceSynchronize());
}

void Trial::compare(const char* what, size_t output, const std::vector<double>& exact,
                    const std::vector<double>& low) const {
    compare_to(c, what, out(output), exact, low);
}

}  // namespace conformance
