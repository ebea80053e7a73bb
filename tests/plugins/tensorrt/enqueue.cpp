// Runs plugins on the device and compares with the float64 reference: it finds pointers, sizes and attributes
// that the adapter passes wrongly; the kernels' own tests go deeper.

#include <map>

#include "checks.h"

namespace conformance {
namespace {

using nvinfer1::DataType;

using Check = void (*)(Trial&);

Check check_of(const std::string& op) {
    static const std::map<std::string, Check> checks = {
        {"ChunkedIntraAttention", check_chunked_intra_attention},
        {"MemoryGather", check_memory_gather},
        {"MemoryAttention", check_memory_attention},
        {"OnlineSoftmaxFusion", check_online_softmax_fusion},
        {"MemoryFusedAttention", check_memory_fused_attention},
        {"CandidateScore", check_candidate_score},
        {"MemorySelect", check_memory_select},
        {"QuerySelect", check_query_select},
        {"CachedAttention", check_cached_attention},
    };
    const auto found = checks.find(op);
    if (found != checks.end()) return found->second;
    return [](Trial&) { test::fail("no reference for this operator"); };
}

// TensorRT may time a plugin on memory that nobody filled: whatever integers it holds, every address must lie
// within the tensors. Under the emulation, and under compute-sanitizer, one that does not is found.
void check_arbitrary_integers(const Node& node, h2o_dtype dtype, const Creators& creators,
                              std::mt19937& random) {
    Trial t(node, dtype, creators, random);
    for (int fill : {0x00, 0x7f, 0x80, 0xff, -1}) {
        bool any = false;
        for (auto& integers : t.integers) {
            if (!integers) continue;
            for (unsigned char& byte : integers->host())
                byte = static_cast<unsigned char>(fill < 0 ? random() : static_cast<unsigned>(fill));
            integers->reset();
            any = true;
        }
        if (any) t.run();
    }
}

// A head size without a kernel is a status and a sentence, not a crash.
void check_refusal(const Node& node, const Creators& creators) {
    Node odd = node;
    for (auto* sizes : {&odd.inputs, &odd.outputs})
        for (auto& size : *sizes)
            if (size.size() == 3) size[2] = 600;
    const Plugin plugin = create(*creators.at(node.op), node.fields, nvinfer1::TensorRTPhase::kRUNTIME);
    std::vector<nvinfer1::PluginTensorDesc> descs;
    for (const auto& desc : dynamic_descs(odd)) descs.push_back(desc.desc);
    std::vector<void*> nothing(16, nullptr);
    logged.clear();
    EXPECT(runtime_of(*plugin)->enqueue(descs.data(), descs.data() + odd.inputs.size(), nothing.data(),
                                        nothing.data(), nullptr, nullptr) != 0);
    EXPECT(logged.size() == 1);
}

}  // namespace

void check_enqueue(const Creators& creators) {
    std::mt19937 random(7);
    for (const DataType model : {DataType::kFLOAT, DataType::kHALF})
        for (const Node& node : nodes(model)) {
            const h2o_dtype dtype = model == DataType::kHALF ? H2O_F16 : H2O_F32;
            test::context = node.op + (dtype == H2O_F16 ? " enqueue float16" : " enqueue float32");
            Trial trial(node, dtype, creators, random);
            check_of(node.op)(trial);
            check_arbitrary_integers(node, dtype, creators, random);
            if (node.op != "MemorySelect") check_refusal(node, creators);
        }
}

}  // namespace conformance
