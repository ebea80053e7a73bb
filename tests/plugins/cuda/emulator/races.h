// Races of plain loads and stores. The kernels are compiled with the compiler's instrumentation for its own
// thread sanitizer, whose runtime is not linked: its calls arrive here, one for each access.
//
// In shared memory two threads of a block race where one of them writes and no __syncthreads lies between;
// or, in one warp, no __syncwarp. In device memory two blocks of a launch race where one of them writes, but
// for what they put and take between blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

// Who touched four bytes of device memory last: serial numbers of blocks.
struct DeviceCell {
    uint32_t writer, reader;
};
struct DeviceRange {
    const unsigned char *begin, *end;
    DeviceCell* cells;
};

// The device memory that there is, in order of address. memory.cpp has it.
std::vector<DeviceRange> device_ranges();

void watch_launch();
void watch_block(const unsigned char* shared, size_t shared_bytes);
void watch_stack(const void* begin, size_t bytes);  // of the thread that runs from now on
void watch_barrier();                               // the block met
void watch_warp(unsigned warp);                     // the warp met, in a __syncwarp
void watch_end();

// What the compiler does not see.
void watch_read(const void* at, size_t bytes);
void watch_write(const void* at, size_t bytes);
void watch_put(const void* at, size_t bytes);
void watch_take(const void* at, size_t bytes);

[[noreturn]] void fail(const char* what);

}  // namespace emulator
