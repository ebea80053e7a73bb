// Kernels from nvcc's PTX in place of those that the C++ compiler made: H2O_EMULATION_PTX names the folder.
#pragma once

#include <cstddef>
#include <vector>

#include "../cuda_runtime_api.h"

namespace emulator::ptx {

// Whether kernels are to run from PTX.
bool is_wanted();

struct Argument {
    const void* value;
    size_t bytes;
};

// `kernel` is the host's function of the same name. What is missing or does not fit ends the program, in
// words.
void run_grid(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::vector<Argument>& arguments);

}  // namespace emulator::ptx
