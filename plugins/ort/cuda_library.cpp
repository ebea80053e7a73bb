// The entry point that ONNX Runtime looks for in the library of operators for its CUDA provider.
#include "operators.h"
#include "register.h"

using namespace h2o::ort;

extern "C" __attribute__((visibility("default"))) Status* RegisterCustomOps(SessionOptions* options,
                                                                            const Base* base) {
    return register_operators("h2o", options, base, [](const Interface& ort, Domain* domain) {
        Status* status = ort.add_operator(domain, integer_product());
        for (const Operator* op : dense_operators())
            if (status == nullptr) status = ort.add_operator(domain, op);
        return status;
    });
}
