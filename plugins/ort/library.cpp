// The entry point that ONNX Runtime looks for in a library of operators.
#include "packed_experts.h"
#include "packed_mlp.h"
#include "packed_product.h"
#include "step_attention.h"

using h2o::ort::Base;
using h2o::ort::Domain;
using h2o::ort::Interface;
using h2o::ort::SessionOptions;
using h2o::ort::Status;
using h2o::ort::Table;

namespace {

// Sessions refer to it as long as they live, so there is one per process, never freed.
Status* make_domain(const Interface& ort, Domain** domain) {
    Status* status = ort.create_domain("h2o.cpu", domain);
    if (status == nullptr) status = ort.add_operator(*domain, h2o::ort::packed_product());
    if (status == nullptr) status = ort.add_operator(*domain, h2o::ort::packed_mlp());
    if (status == nullptr) status = ort.add_operator(*domain, h2o::ort::packed_experts());
    return status == nullptr ? ort.add_operator(*domain, h2o::ort::step_attention()) : status;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) Status* RegisterCustomOps(SessionOptions* options,
                                                                            const Base* base) {
    const Table* const table = base->get_table(h2o::ort::kVersion);
    if (table == nullptr) {  // the version is too old, and without its table it cannot be told
        const Table* const first = base->get_table(1);
        return Interface(first).error("h2o-edge's operators need ONNX Runtime 1.17 or later");
    }
    const Interface ort(table);
    struct Made {
        Domain* domain = nullptr;
        Status* status = nullptr;
    };
    static const Made made = [&ort] {
        Made fresh;
        fresh.status = make_domain(ort, &fresh.domain);
        return fresh;
    }();
    if (made.status != nullptr) return ort.error("h2o-edge's operators cannot be registered");
    return ort.add_domain(options, made.domain);
}
