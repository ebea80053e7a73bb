// The entry point that ONNX Runtime looks for in the library of operators for its CPU.
#include <initializer_list>

#include "operators.h"
#include "register.h"

using namespace h2o::ort;

extern "C" __attribute__((visibility("default"))) Status* RegisterCustomOps(SessionOptions* options,
                                                                            const Base* base) {
    return register_operators("h2o.cpu", options, base, [](const Interface& ort, Domain* domain) {
        Status* status = nullptr;
        for (const Operator* op : {packed_product(), packed_mlp(), packed_experts(), step_attention()})
            if (status == nullptr) status = ort.add_operator(domain, op);
        return status;
    });
}
