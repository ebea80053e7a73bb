// The common part of all operators of this library.
#pragma once

#include <memory>
#include <new>

#include "interface.h"

namespace h2o::ort {

template <class Kernel>
Status* create_kernel(const Operator*, const Table* table, const KernelInfo* info, void** out) {
    std::unique_ptr<Kernel> kernel(new (std::nothrow) Kernel(table));
    if (kernel == nullptr) return Interface(table).error("no memory");
    if (Status* const status = kernel->read(info); status != nullptr) return status;
    *out = kernel.release();
    return nullptr;
}

// Kernel::read takes the attributes of a node, Kernel::compute runs it. The types of inputs and outputs are
// declared by the operator; each must be there, unless it says otherwise.
template <class Kernel, size_t kIn = 0, size_t kOut = 0>
constexpr Operator operator_of(const char* (*name)(const Operator*),
                               decltype(Operator::create) create = create_kernel<Kernel>) {
    Operator op{};
    op.version = kVersion;
    op.name = name;
    op.provider = [](const Operator*) -> const char* { return nullptr; };
    op.inputs = [](const Operator*) { return kIn; };
    op.outputs = [](const Operator*) { return kOut; };
    op.input_characteristic = [](const Operator*, size_t) { return kRequired; };
    op.output_characteristic = op.input_characteristic;
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
