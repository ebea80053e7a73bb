// Memory of the emulated device, pinned memory, copies, and what the device says about itself.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulator.h"
#include "guarded_buffer.h"
#include "races.h"

namespace emulator {
namespace {

struct Unmap {
    size_t bytes;
    void operator()(DeviceCell* cells) const { munmap(cells, bytes); }
};
using Cells = std::unique_ptr<DeviceCell, Unmap>;

// Of all that is allocated, few pages are touched.
Cells cells_of(size_t bytes) {
    const size_t size = (bytes / 4 + 1) * sizeof(DeviceCell);
    void* const mapped =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    return Cells(static_cast<DeviceCell*>(mapped), Unmap{size});
}

struct Allocation {
    std::unique_ptr<GuardedBuffer> buffer;
    size_t bytes;
    Cells cells;
};

// Device memory, or pinned memory.
class Heap {
  public:
    cudaError_t allocate(void** pointer, size_t bytes, size_t limit) {
        const std::lock_guard<std::mutex> lock(mutex_);
        *pointer = nullptr;
        if (used_ + bytes > limit) return cudaErrorMemoryAllocation;
        if (bytes == 0) return cudaSuccess;
        try {
            auto buffer = std::make_unique<GuardedBuffer>(bytes);
            unsigned char* const data = buffer->data();
            all_.emplace(data, Allocation{std::move(buffer), bytes, cells_of(bytes)});
            used_ += bytes;
            *pointer = data;
            return cudaSuccess;
        } catch (const std::bad_alloc&) {
            return cudaErrorMemoryAllocation;
        }
    }
    cudaError_t release(void* pointer) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!pointer) return cudaSuccess;
        const auto found = all_.find(static_cast<const unsigned char*>(pointer));
        if (found == all_.end()) return cudaErrorInvalidValue;
        used_ -= found->second.bytes;
        all_.erase(found);
        return cudaSuccess;
    }
    bool holds(const void* pointer) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto* at = static_cast<const unsigned char*>(pointer);
        auto after = all_.upper_bound(at);
        return after != all_.begin() && at < std::prev(after)->first + std::prev(after)->second.bytes;
    }
    std::vector<DeviceRange> ranges() {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<DeviceRange> found;
        for (const auto& [begin, one] : all_) found.push_back({begin, begin + one.bytes, one.cells.get()});
        return found;
    }
    size_t used() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return used_;
    }

  private:
    std::mutex mutex_;
    std::map<const unsigned char*, Allocation> all_;
    size_t used_ = 0;
};

Heap device_heap, pinned_heap;

// Every time: a test changes its mind. What is allocated is mostly written to, so all of the machine's is too
// much.
size_t memory_of_the_device() {
    const char* const megabytes = std::getenv("H2O_EMULATION_MEMORY_MB");
    return (megabytes ? std::strtoul(megabytes, nullptr, 10) : 4096) << 20;
}

}  // namespace

std::vector<DeviceRange> device_ranges() {
    return device_heap.ranges();
}

size_t shared_bytes_of_a_multiprocessor() {
    const char* const kilobytes = std::getenv("H2O_EMULATION_SHARED_KB");
    return (kilobytes ? std::strtoul(kilobytes, nullptr, 10) : 164) * 1024;
}

}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    if (const cudaError_t error = refuse_during_capture()) return error;
    return device_heap.allocate(pointer, bytes, memory_of_the_device());
}

cudaError_t cudaFree(void* pointer) {
    if (const cudaError_t error = cudaDeviceSynchronize()) return error;
    return device_heap.release(pointer);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    if (const cudaError_t error = refuse_during_capture()) return error;
    return pinned_heap.allocate(pointer, bytes, memory_of_the_device());
}

cudaError_t cudaFreeHost(void* pointer) {
    if (const cudaError_t error = cudaDeviceSynchronize()) return error;
    return pinned_heap.release(pointer);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = memory_of_the_device();
    *free = *total - std::min(*total, device_heap.used());
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
    return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (kind == cudaMemcpyHostToDevice && !pinned_heap.holds(from)) {
        // The call itself reads pageable memory. What a capture would make of that is not emulated.
        if (const cudaError_t error = refuse_during_capture()) return error;
        const auto* bytes_now = static_cast<const unsigned char*>(from);
        return enqueue(stream, [to, staged = std::vector<unsigned char>(bytes_now, bytes_now + bytes)] {
            std::memcpy(to, staged.data(), staged.size());
        });
    }
    const cudaError_t error = enqueue(stream, [=] { std::memmove(to, from, bytes); });
    const bool waits = kind == cudaMemcpyDeviceToHost && !pinned_heap.holds(to);
    return waits && error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

// Inside the device only: the pages that a host would have to keep are not emulated.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (kind != cudaMemcpyDeviceToDevice || width > to_pitch || width > from_pitch)
        return cudaErrorInvalidValue;
    auto* const target = static_cast<unsigned char*>(to);
    const auto* const source = static_cast<const unsigned char*>(from);
    return enqueue(stream, [=] {
        for (size_t row = 0; row < height; ++row) {
            std::memmove(target + row * to_pitch, source + row * from_pitch, width);
        }
    });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return enqueue(stream, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    std::snprintf(properties->name, sizeof properties->name, "CUDA emulation on a CPU");
    const char* const integrated = std::getenv("H2O_EMULATION_INTEGRATED");
    properties->integrated = integrated ? std::atoi(integrated) : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    const char* const multiprocessors = std::getenv("H2O_EMULATION_MULTIPROCESSORS");
    // Few, so that splits get several tiles each at test sizes.
    *value = multiprocessors ? std::atoi(multiprocessors) : 8;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    return cudaSuccess;  // every call here returns its own
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorNoKernelImageForDevice:
            return "no kernel image is available for execution on the device";
        case cudaErrorInvalidResourceHandle:
            return "invalid resource handle";
        case cudaErrorIllegalState:
            return "the operation cannot be performed in the present state";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorStreamCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
    }
    return "unknown error";
}
}
