// Every kernel by its operator's name. The generated header has the list.
#include <cstring>

#include "context.h"

namespace {

template <class Arguments>
h2o_status run(const h2o_call* call) {
    return h2o::cpu::run(Arguments(*call));
}

size_t no_workspace(const h2o_call*) {
    return 0;
}

constexpr h2o_kernel kKernels[] = {
#define H2O_KERNEL(Name) {#Name, run<h2o::calls::Name>, no_workspace},
    H2O_CPU_OPERATORS(H2O_KERNEL)
#undef H2O_KERNEL
};

}  // namespace

const h2o_kernel* h2o_cpu_kernel(const char* name) {
    for (const h2o_kernel& kernel : kKernels)
        if (std::strcmp(kernel.name, name) == 0) return &kernel;
    return nullptr;
}
