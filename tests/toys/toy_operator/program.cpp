// Runs the toy operator's kernel of the kind that it is built with: program N D POWER < floats, and prints
// floats. The registry finds it by its name; the resolver works out its sizes.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "h2o/operator.h"

#ifdef H2O_EMULATED
#include <cuda_runtime_api.h>

#include "h2o/cuda.h"
static const auto find_kernel = h2o_cuda_kernel;
static void* memory(size_t bytes) {
    void* made = nullptr;
    return cudaMalloc(&made, bytes) == cudaSuccess ? made : nullptr;
}
static void wait() {
    cudaDeviceSynchronize();
}
#else
#include "h2o/cpu.h"
static const auto find_kernel = h2o_cpu_kernel;
static void* memory(size_t bytes) {
    return std::malloc(bytes);
}
static void wait() {}
#endif

int main(int, char** argv) {
    const int64_t n = std::atoi(argv[1]), d = std::atoi(argv[2]);
    const h2o::OperatorSpec* const op = h2o::find_operator("ToyRowPowers");
    const h2o_kernel* const kernel = find_kernel("ToyRowPowers");
    if (op == nullptr || kernel == nullptr) return 1;
    auto* const x = static_cast<float*>(memory(n * d * 4));
    auto* const y = static_cast<float*>(memory(n * 4));
    for (int64_t i = 0; i < n * d; ++i)
        if (std::scanf("%f", &x[i]) != 1) return 2;
    h2o::Arguments arguments;
    arguments.tensors[0] = {x, nullptr, H2O_F32, 2, {n, d}};
    arguments.tensors[1] = {y, nullptr, H2O_F32, 1, {n}};
    arguments.attributes[0].integer = std::atoi(argv[3]);
    arguments.given[0] = true;
    const std::string wrong = h2o::resolve(*op, arguments);
    if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
        return 3;
    }
    h2o_call call{};
    call.tensors = arguments.tensors.data();
    call.attributes = arguments.attributes.data();
    call.sizes = arguments.sizes.data();
    if (kernel->workspace(&call) != 0 || kernel->run(&call) != H2O_OK) return 4;
    wait();
    for (int64_t i = 0; i < n; ++i) std::printf("%.9g\n", static_cast<double>(y[i]));
}
