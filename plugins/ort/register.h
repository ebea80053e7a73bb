// What the entry points of both libraries do.
#pragma once

#include "interface.h"

namespace h2o::ort {

// Gives a session the domain `name`, with the operators that add(interface, domain) puts into it. Sessions
// refer to the domain as long as they live, so there is one per process, never freed.
template <class Add>
Status* register_operators(const char* name, SessionOptions* options, const Base* base, Add add) {
    const Table* const table = base->get_table(kVersion);
    if (table == nullptr) {  // the version is too old, and without its table it cannot be told
        const Table* const first = base->get_table(1);
        return Interface(first).error("h2o-edge's operators need ONNX Runtime 1.17 or later");
    }
    const Interface ort(table);
    struct Made {
        Domain* domain = nullptr;
        Status* status = nullptr;
    };
    static const Made made = [&] {
        Made fresh;
        fresh.status = ort.create_domain(name, &fresh.domain);
        if (fresh.status == nullptr) fresh.status = add(ort, fresh.domain);
        return fresh;
    }();
    if (made.status != nullptr) return ort.error("h2o-edge's operators cannot be registered");
    return ort.add_domain(options, made.domain);
}

}  // namespace h2o::ort
