// What all operators of this library have in common.
#pragma once

#include "interface.h"

namespace h2o::ort {

// Its kernels are made by `create` and computed by Kernel::compute. Inputs and outputs are still to be told.
template <class Kernel>
constexpr Operator operator_of(const char* (*name)(const Operator*),
                               Status* (*create)(const Operator*, const Table*, const KernelInfo*, void**)) {
    Operator op{};
    op.version = kVersion;
    op.name = name;
    op.provider = [](const Operator*) -> const char* { return nullptr; };
    op.input_memory = [](const Operator*, size_t) { return 0; };
    op.first_version = [](const Operator*) { return 1; };
    op.last_version = [](const Operator*) { return 1; };
    op.create = create;
    op.compute = [](void* kernel, KernelContext* context) {
        return static_cast<Kernel*>(kernel)->compute(context);
    };
    op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    return op;
}

}  // namespace h2o::ort
