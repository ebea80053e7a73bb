// What a device of compute capability 8.7 refuses to launch.

#include <algorithm>
#include <map>
#include <mutex>

#include "emulator.h"

namespace emulator {
namespace {

constexpr size_t kEveryKernels = 48 * 1024;  // bytes of shared memory without an opt-in
constexpr size_t kReserved = 1024;           // of a block's shared memory, by the system
constexpr unsigned kMostThreads = 1024, kMostBlocksX = 0x7fffffff, kMostBlocksYZ = 65535;

std::mutex mutex;
std::map<const void*, size_t> opted_in;

}  // namespace

cudaError_t opt_in(const void* kernel, size_t shared_bytes) {
    if (shared_bytes + kReserved > shared_bytes_of_a_multiprocessor()) return cudaErrorInvalidValue;
    const std::lock_guard<std::mutex> lock(mutex);
    opted_in[kernel] = shared_bytes;
    return cudaSuccess;
}

cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
    const auto within = [](unsigned size, unsigned most) { return size > 0 && size <= most; };
    if (!within(grid.x, kMostBlocksX) || !within(grid.y, kMostBlocksYZ) || !within(grid.z, kMostBlocksYZ))
        return cudaErrorInvalidConfiguration;
    if (!within(block.x, kMostThreads)) return cudaErrorInvalidConfiguration;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = opted_in.find(kernel);
    const size_t most = found == opted_in.end() ? kEveryKernels : std::max(found->second, kEveryKernels);
    return shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace emulator
