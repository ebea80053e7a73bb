// Prints the plugins' table as JSON, for test_operator_table.py.
#include <cstdio>

#include "signatures.h"

using namespace h2o::trt;

namespace {

void print(const char* key, const std::vector<TensorSpec>& tensors) {
    constexpr const char* types[] = {"T", "float32", "int32", "int64"};
    std::printf("\"%s\": [", key);
    for (size_t i = 0; i < tensors.size(); ++i) {
        std::printf("%s[\"%s\", \"%s\"", i ? ", " : "", tensors[i].name,
                    types[static_cast<int>(tensors[i].type)]);
        for (const Size size : tensors[i].shape) std::printf(", \"%s\"", kSizeNames[size]);
        std::printf("]");
    }
    std::printf("], ");
}

}  // namespace

int main() {
    const char* separator = "[";
    for (const Signature& signature : signatures()) {
        std::printf("%s{\"name\": \"%s\", ", separator, signature.name);
        print("inputs", signature.inputs);
        print("outputs", signature.outputs);
        std::printf("\"attributes\": [");
        for (size_t i = 0; i < signature.attributes.size(); ++i) {
            const AttributeSpec& spec = signature.attributes[i];
            std::printf("%s[\"%s\", ", i ? ", " : "", spec.name);
            if (spec.kind == AttributeSpec::kInt)
                std::printf("%d", static_cast<int>(spec.least));
            else
                std::printf("null");
            std::printf(", \"%s\"]", kSizeNames[spec.gives]);
        }
        std::printf("]}\n");
        separator = ",";
    }
    std::printf("]\n");
}
